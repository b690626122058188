"""The state of an iterator: what a snapshot holds of it, and what the user sees of it."""

from __future__ import annotations

from typing import Any

from chainer.serializers import DictionarySerializer, NpzDeserializer


def saved(iterator: Any) -> dict[str, Any]:
    """Return what a snapshot holds of an iterator."""
    serializer = DictionarySerializer()
    iterator.serialize(serializer)
    return serializer.target


def load(iterator: Any, snapshot: dict[str, Any], *, strict: bool = True) -> None:
    iterator.serialize(NpzDeserializer(snapshot, strict=strict))


def progress_of(iterator: Any) -> tuple[Any, ...]:
    names = ("current_position", "epoch", "is_new_epoch", "epoch_detail", "previous_epoch_detail")
    return tuple(getattr(iterator, name) for name in names)
