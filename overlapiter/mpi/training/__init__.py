"""Master/worker training over MPI: a server holds the weights, workers compute gradients.

::

    run        settings, model and data → server and workers, in one process or over MPI
    server     what the server does with a message        worker      the training loop of a worker
    post       messages between ranks                      messages    their flat form
    leases     which examples are whose                    reading     files → mini-batches, in a thread
    validation validation beside training                  submaster   a server between server and workers
    checkpoint, history, settings, data, model             what their names say
"""
