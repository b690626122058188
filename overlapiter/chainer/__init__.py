"""The adapter to Chainer: the iterator, the converter, the files of Chainer's datasets."""
