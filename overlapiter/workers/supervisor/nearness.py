"""Tells by its latest answers whether the slow store is as near as another node.

If it is, other nodes are not asked for what they hold: that takes time of the cores here and there,
and is no faster.
"""

from __future__ import annotations

from overlapiter.board import Counter, Latencies, StatsBoard

#: Another node takes about so long to answer, on cores that are busy: the median of many files.
_NODE_SECONDS = 0.002
#: A store that was near is so up to this multiple of it.
_STILL = 2.0
#: Answers by which the store is judged.
_FEWEST = 64


class Nearness:
    """Looks at the answers of the slow store that prefetchers have counted.

    Attributes:
        is_near: Whether the store answers as soon as a node does; False until it is known.
    """

    def __init__(self, board: StatsBoard) -> None:
        self._board = board
        self._rows = [board.prefetcher_row(number) for number in range(board.n_prefetchers)]
        self._n_answers = 0
        self._before = self._latencies()
        self.is_near = False

    def look(self) -> None:
        """Judge the store by what it has answered since it was judged last, if that is enough."""
        n_answers = sum([row.get(Counter.ANSWERS) for row in self._rows])
        if n_answers < self._n_answers + _FEWEST:
            return
        latencies = self._latencies()
        median_seconds = latencies.since(self._before).percentile(50)
        self._n_answers, self._before = n_answers, latencies
        self.is_near = median_seconds < _NODE_SECONDS * (_STILL if self.is_near else 1.0)

    def _latencies(self) -> Latencies:
        return Latencies(self._board.latencies(of_prefetchers=True))
