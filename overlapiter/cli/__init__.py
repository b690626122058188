"""The commands: ``overlapiter …`` or ``python -m overlapiter …``; the only layer that prints."""
