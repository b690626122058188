"""Tells by its latest answers whether the slow store is as near as another node.

If it is, other nodes are not asked for what they hold: that would be no faster, and where all nodes
are one cache, little is staged ahead.
"""

from __future__ import annotations

from overlapiter.board import Counter, Latencies, StatsBoard

#: Another node takes about so long to answer, on cores that are busy: the median of many files.
_NODE_SECONDS = 0.002
#: A store that was near is so up to this multiple of it.
_STILL = 2.0
#: Answers by which the store is judged first.
_FEWEST = 64


class Nearness:
    """Looks at the answers of the slow store that prefetchers have counted.

    A store may be near as long as it is asked little. So each change of mind takes twice as many
    answers as the one before.
    """

    def __init__(self, board: StatsBoard) -> None:
        self._board = board
        self._n_answers, self._before = board.total(Counter.ANSWERS), self._latencies()
        self._n_wanted = _FEWEST
        #: Whether the store answers as soon as a node does; False until it is known.
        self.is_near = False

    def look(self) -> bool:
        """Judge the store by its latest answers, if enough; return whether that has changed."""
        n_answers = self._board.total(Counter.ANSWERS)
        if n_answers < self._n_answers + self._n_wanted:
            return False
        latencies = self._latencies()
        median_seconds = latencies.since(self._before).percentile(50)
        self._n_answers, self._before = n_answers, latencies
        is_near = median_seconds < _NODE_SECONDS * (_STILL if self.is_near else 1.0)
        if is_near == self.is_near:
            return False
        self.is_near = is_near
        self._n_wanted *= 2
        return True

    def _latencies(self) -> Latencies:
        return Latencies(self._board.latencies(of_prefetchers=True))
