"""Master/worker training: one server, and workers that take files from its queue."""
