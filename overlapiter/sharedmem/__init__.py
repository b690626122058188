"""The memory of mini-batches: how a slot is laid out, where it lives, who may reuse it when."""
