"""Master/worker training over MPI: a server holds the weights, workers compute gradients.

::

    run          what the user calls: settings, model and files → a run on one or many processes
    job          what server and workers are made of       plan        what all ranks know
    ranks        one rank of an MPI job                    site        rank 0: server and ranks
    server       what the server does with a message       hosting     its process: threads, files
    worker       the training loop of a worker             reading     its input, in a thread
    leases       which examples are whose                  epochs      what is known of an epoch
    validation   beside training, by idle workers          submaster   makes one message of many
    post         messages between ranks                    messages    their flat form
    silence      which worker, or server, is given up      meeting     of ranks at start and end
    ending       how the ranks of a job end                monitor     curves of cores, memory, GPU
    outputs      the directory of the run                  checkpoint  its files
    interrupts   wait until a checkpoint can be made
    algorithms, optimizers, rules                          the equations, pure
"""
