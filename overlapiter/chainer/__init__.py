"""Chainer's face of overlapiter: the iterator, the converter, what Chainer's datasets read."""
