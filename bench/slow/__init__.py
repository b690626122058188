"""Slow stores: emulated inside ``open``, or a mount."""
