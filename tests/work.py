"""Work that a function does with a text, in plain passes over that text: the same on a slow or busy machine."""

import re
import signal
import time
from collections.abc import Callable

_HANGS = 60.0  # seconds of CPU time, not of the clock


def passes(work: Callable[[str], object], text: str) -> float:
    """Return the CPU time of `work(text)` divided by that of one pass of a simple pattern over `text`.

    Raises AssertionError when `work` uses a minute of CPU time.
    """

    def hang(_signal: int, _frame: object) -> None:
        raise AssertionError(f"a minute of CPU time for {text[:20]!r}... of {len(text):,} characters")

    before = signal.signal(signal.SIGVTALRM, hang)
    signal.setitimer(signal.ITIMER_VIRTUAL, _HANGS)
    try:
        return _cpu_time(lambda: work(text)) / _cpu_time(lambda: re.findall(r"\w|\W", text))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _cpu_time(function: Callable[[], object]) -> float:
    """Return the least CPU seconds of this thread in three calls."""
    taken = []
    for _ in range(3):
        start = time.thread_time()
        function()
        taken.append(time.thread_time() - start)
    return min(taken)
