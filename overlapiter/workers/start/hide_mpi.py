"""The first module that the forkserver imports: what is imported after it finds no MPI library.

Import this module in child processes only.
"""

from overlapiter.workers.start.no_mpi import install

install()
