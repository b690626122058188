"""The last module that the forkserver imports: from here on Ctrl-C may reach it.

The trainer starts it with SIGINT blocked, since a Ctrl-C while it imports would show a traceback of
its own. What came meanwhile is dropped; a moment later the forkserver ignores SIGINT for itself and
restores the usual handler in each process that it forks. Import this module nowhere else.

What has been imported stays, so the garbage collector is kept off it here: each supervisor would
look through all of it before it forks its workers, which is half of what a start costs.
"""

import gc
import signal

gc.freeze()
gc.enable()
_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
signal.signal(signal.SIGINT, _handler)
