"""The first module that the forkserver imports: what is imported after it finds no MPI library.

Nor does the garbage collector run until the last one, which keeps it off what was imported: there
is hardly any garbage, and looking for it takes as long as a tenth of the imports. Import this
module in child processes only.
"""

import gc

from overlapiter.workers.start.no_mpi import install

gc.disable()
install()
