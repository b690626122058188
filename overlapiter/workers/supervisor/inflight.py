"""How many reads of the slow store to keep in flight: found by trying. Pure: no clock, no thread.

By Little's law the reads in flight are the files per second times the seconds per read. While the
store's latency is the limit, more reads bring more files; beyond its bandwidth, or what it serves
at once, more reads bring nothing but a longer queue. Where the one ends and the other begins is
found by hill climbing: take a step, look what the throughput becomes, keep the step or go back.

Source: the ideas, not the code, of these. Netflix's concurrency-limits and TCP Vegas (Brakmo,
O'Malley and Peterson, SIGCOMM '94): concurrency that lengthens the queue alone is taken back. BBR
(Cardwell et al., ACM Queue 14(5), 2016): what was measured while the sender had too little to send
says nothing about the path, and a path is probed from below now and then, since it may have become
shorter. tf.data's autotuning (Murray et al., VLDB '21): hill climbing on measured throughput.
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: A step is kept if the throughput follows it with at least this power: twice the reads have to
#: bring 7 % more, and half of them may cost 3 %. One read too many costs next to nothing, one too
#: few costs speed; that down is a little easier than up makes noise drift to fewer, not to more.
_UP_POWER, _DOWN_POWER = 0.1, 0.045
#: Steps: coarse until neither direction is better, fine from then on, unless a step shows by a
#: throughput that follows it with at least this power that there is far to go.
_STEEP_POWER = 0.5
_COARSE, _FINE = 2.0, math.sqrt(2.0)
#: A window is at least this long, coarse and fine, and has at least two reads of each thread. To
#: give up reads takes twice as long, unless it is clearly wrong.
_WINDOW_SECONDS = {_COARSE: 0.15, _FINE: 0.4}
_WINDOW_ROUNDS = 2
_WINDOW_FILES = 16
#: A window that is not full by then (so many seconds, so many rounds) is given up.
_STALE_SECONDS, _STALE_ROUNDS = 5.0, 20
#: The first pause after neither direction was better, and the longest; each is twice the last.
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 16.0
#: The throughput has changed, without any change of ours, if by this factor in two windows.
_CHANGE = 1.3
#: Shares of a window: less waiting is none, less lack of work is none.
_NO_WAIT, _NO_LACK = 0.05, 0.2
#: Of the reads that are allowed; if fewer are under way, it is not this limit that limits.
_LEAST_BUSY = 0.5


class Reading(NamedTuple):
    """What has been counted up to a moment. All but the last only grows."""

    at_seconds: float  # the moment, on any clock
    n_files: int  # files read
    n_bytes: int  # their bytes
    read_seconds: float  # how long reading took, summed over the files
    lack_seconds: float  # for how long there was too little to read to keep all reads busy
    waited_seconds: float  # for how long the trainer waited


class _Window(NamedTuple):
    """What happened between two readings, per second; ``seconds`` is its length."""

    seconds: float
    rate: float
    latency_seconds: float
    n_busy: float
    lack: float
    waited: float


class InFlight:
    """The number of reads in flight, as it follows from one reading after the other.

    It grows only while the trainer waits and there is more to read; it shrinks whenever that
    costs no throughput, and to twice of what is in use when the trainer does not wait. The number
    to begin with is brought within the bounds, of which the lower one is at least 1.

    Attributes:
        n_reads: The number of reads to keep in flight.
        is_more_in_vain: Whether more reads than these were tried, and brought nothing.
    """

    def __init__(self, start: int, minimum: int, maximum: int) -> None:
        self._minimum = minimum
        self._maximum = maximum
        self.is_more_in_vain = False
        self._home = self.n_reads = max(minimum, min(start, maximum))
        self._rate = 0.0  # at home; 0 before it is known
        self._latency_seconds = 0.0
        self._first: Reading | None = None  # of the window; None while reads of before come in
        self._changed: Reading | None = None
        self._forget()

    def _forget(self) -> None:
        """Begin the search anew, from where it is."""
        self._rate = 0.0
        self._factor = _COARSE
        self._worse: set[int] = set()  # the directions that were tried: 1 is up, -1 is down
        self._pause_seconds = _PAUSE_SECONDS
        self._paused_until = -math.inf
        self._was_waiting = False
        self._is_odd = False

    def update(self, reading: Reading) -> int:
        """Take note of a reading, some ten each second, and return the number of reads."""
        window = self._window(reading)
        if window is None or self._is_to_look_longer(window):
            return self.n_reads
        self._latency_seconds = window.latency_seconds
        self._first = reading
        if self.n_reads == self._home:
            self._look(window, reading)
        else:
            self._judge(window, reading)
        return self.n_reads

    # --- windows ------------------------------------------------------------------------------

    def _window(self, reading: Reading) -> _Window | None:
        """Return the window that ends here, or None if it is too short yet."""
        if self._first is None:
            if self._has_caught_up(reading):
                self._first = reading
            return None
        seconds, n_files, n_bytes, read_seconds, lack_seconds, waited_seconds = (
            now - before for before, now in zip(self._first, reading, strict=True)
        )
        latency_seconds = read_seconds / n_files if n_files else self._latency_seconds
        if n_files < _WINDOW_FILES:
            if seconds > max(_STALE_SECONDS, _STALE_ROUNDS * latency_seconds):
                self._move(self._home, reading)  # there is hardly anything to read, or it stalls
            return None
        if seconds < max(_WINDOW_SECONDS[self._factor], _WINDOW_ROUNDS * latency_seconds):
            return None
        # Files count where latency is the limit, bytes where bandwidth is: their geometric mean
        # varies half as much as either does by the sizes of the files that happen to come.
        return _Window(
            seconds,
            math.sqrt(n_files * max(1, n_bytes)) / seconds,
            latency_seconds,
            read_seconds / seconds,
            lack_seconds / seconds,
            waited_seconds / seconds,
        )

    def _is_to_look_longer(self, window: _Window) -> bool:
        step = self.n_reads / self._home
        is_promising = step < 1 and window.rate >= self._rate * step**_STEEP_POWER
        return is_promising and window.seconds < 2 * _WINDOW_SECONDS[self._factor]

    def _has_caught_up(self, reading: Reading) -> bool:
        """Return whether the reads that were begun under another number are done."""
        if self._changed is None:
            self._changed = reading
        if not self._latency_seconds:  # the very first ones
            return reading.n_files - self._changed.n_files >= self.n_reads
        return reading.at_seconds - self._changed.at_seconds >= self._latency_seconds

    def _move(self, n_reads: int, reading: Reading) -> None:
        self.n_reads = n_reads
        self._first, self._changed = None, reading

    # --- the search ---------------------------------------------------------------------------

    def _look(self, window: _Window, reading: Reading) -> None:
        """Learn what this number of reads brings, and try another if it is time to."""
        is_waiting = window.waited > _NO_WAIT
        if window.lack > _NO_LACK or window.n_busy < _LEAST_BUSY * self._home:
            if not is_waiting:
                self._shrink(window, reading)
            return
        if self._rate and not 1 / _CHANGE < window.rate / self._rate < _CHANGE:
            self._is_odd = not self._is_odd
            if self._is_odd:
                return
            is_slower = window.rate < self._rate
            self._forget()
            if is_slower:  # it may be the load of these very reads: fewer are tried first
                self._rate = window.rate
                if self._step(-1, reading):
                    return
        self._is_odd = False
        self._rate += (window.rate - self._rate) * (0.5 if self._rate else 1.0)
        is_news = is_waiting and not self._was_waiting  # since the pause began
        if reading.at_seconds < self._paused_until and not is_news:
            return
        for direction in (1, -1) if is_waiting else (-1,):
            if direction not in self._worse and self._step(direction, reading):
                return
        self._worse.clear()
        self._was_waiting = is_waiting
        self._factor = _FINE
        self._paused_until = reading.at_seconds + self._pause_seconds
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _shrink(self, window: _Window, reading: Reading) -> None:
        enough = max(self._minimum, math.ceil(2 * window.n_busy), math.ceil(self._home / _FINE))
        if enough < self._home:
            self._home = enough
            self._forget()
            self._move(enough, reading)

    def _step(self, direction: int, reading: Reading) -> bool:
        """Try another number; False if the bound is reached."""
        wanted = round(self._home * self._factor**direction)
        n_reads = max(self._minimum, min(wanted, self._maximum))
        if n_reads == self._home:
            return False
        self._move(n_reads, reading)
        return True

    def _judge(self, window: _Window, reading: Reading) -> None:
        """Keep the number that was tried, or return to the one before."""
        step = self.n_reads / self._home
        direction = 1 if step > 1 else -1
        if window.rate >= self._rate * step ** (_UP_POWER if step > 1 else _DOWN_POWER):
            self._home = self.n_reads
            if window.rate >= self._rate * step**_STEEP_POWER > self._rate:
                self._factor, self._pause_seconds = _COARSE, _PAUSE_SECONDS
            self._rate = window.rate
            self._worse = {-direction}
            self.is_more_in_vain = direction < 0 and self.is_more_in_vain
            self._paused_until = -math.inf
        else:
            self._worse.add(direction)
            self.is_more_in_vain |= direction > 0
            self._move(self._home, reading)
