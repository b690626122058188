"""How fast a node answers, beside the slow store: which of the two is asked. Pure."""

from __future__ import annotations

#: The latest wait counts for this share of the mean.
_SHARE = 1 / 16
#: A node is the slower way if a file takes longer from it than from the store by this factor, and
#: by more than busy cores explain. Each read of the store holds up those of others, and files are
#: fetched ahead, many at once: so a node that is somewhat slower is still the better way.
_FACTOR, _SLACK_SECONDS = 2.0, 0.25
#: How often one file is asked of a node that is the slower way, to see whether it still is.
_TRY_AFTER_SECONDS = 1.0


class Pace:
    """The mean time that something takes, of late; 0 before the first one."""

    def __init__(self) -> None:
        self.mean_seconds = 0.0

    def note(self, seconds: float) -> None:
        """Learn from one time."""
        share = _SHARE if self.mean_seconds else 1.0
        self.mean_seconds += (seconds - self.mean_seconds) * share


class Way:
    """The way to one node, compared with the way to the store.

    Args:
        store: The pace of the store, which others note.
    """

    def __init__(self, store: Pace) -> None:
        self._store = store
        self._node = Pace()
        self._try_seconds = 0.0

    def note(self, waited_seconds: float) -> None:
        """Learn how long a file has been waited for, behind others too."""
        if self._is_slower() and waited_seconds < self._node.mean_seconds:
            self._node.mean_seconds = waited_seconds  # the few that are tried tell at once
        self._node.note(waited_seconds)

    def is_good(self, now_seconds: float) -> bool:
        """Return whether to ask the node; now and then also if it is the slower way."""
        if not self._is_slower():
            return True
        if now_seconds < self._try_seconds:
            return False
        self._try_seconds = now_seconds + _TRY_AFTER_SECONDS
        return True

    def _is_slower(self) -> bool:
        store_seconds = self._store.mean_seconds
        limit_seconds = _FACTOR * store_seconds + _SLACK_SECONDS
        return bool(store_seconds) and self._node.mean_seconds > limit_seconds
