"""How a process comes into being: the forkserver, the pickled dataset, no MPI, dying together."""
