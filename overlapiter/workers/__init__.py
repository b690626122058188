"""The worker processes: how they start, what each of them does, how they end.

::

    trainer ──(forkserver)──► supervisor ──(fork)──► prefetchers, file readers

The trainer asks Python's forkserver for one process, the supervisor. It unpickles the dataset
once, forks the workers, which share it copy-on-write, hands out their work, and replaces those
that die. Messages travel over Unix sockets that keep message boundaries, one for each worker.
"""
