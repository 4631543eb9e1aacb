"""When each request to a judge's server is sent, given up and sent again. Arithmetic on a clock that is passed in.

A request that waits for its next attempt holds no slot, and neither does one that hangs: it is given up early, once
it takes far longer than others did, and has more time at its next attempt. What the server asks for (Retry-After)
holds for all requests. While nobody is answered no new request is begun, so that a dead server costs no more than a
few requests' attempts.
"""

import heapq
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from opdkit.console import counted
from opdkit.errors import OpdkitError
from opdkit.judge.exchange import NO_ANSWER, Answer

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds; doubled from attempt to attempt
LONGEST_LIMIT = 1800.0  # seconds that a request is kept waiting by "too many requests", with no number or with one

# A request is given up early when it takes this many times as long as the slowest of the last answers, and a second at
# least. It then has twice the time, and so on up to --timeout, so at most two thirds of the work on a slow answer are
# done in vain.
_FAR_LONGER, _SHORTEST = 3.0, 1.0
_KNOWN, _REMEMBERED = 16, 128  # answers before anything is given up early; answers that are looked at

# Attempts, as a multiple of those that --retries allows, of a request that fails while others are answered.
_UNLUCKY = 3


@dataclass(frozen=True)
class Failure:
    """An attempt that came to nothing, in a way that may pass."""

    reason: str
    pause: float = 0.0  # seconds that the server asked for, of everybody
    limited: bool = False  # too many requests: no fault of this one, so it costs no attempt
    insisted: Answer | None = None  # what is taken for the answer if the server says the same to the last

    @property
    def kind(self) -> str:
        """A few words, the same for all failures of a kind."""
        return self.reason.partition(":")[0]


@dataclass
class Server:
    """What is known of a server for as long as it is asked."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))  # of the last answers
    closed_until: float = 0.0  # it asked to be left alone until then
    answers: int = 0
    failures: int = 0
    in_a_row: int = 0  # failures since the last answer


@dataclass
class _Request:
    answers_before: int
    failures_before: int
    attempts: int = 0  # that count against --retries
    failures: int = 0  # all of them
    early: int = 0  # times that it was given up before --timeout
    first_failed: float | None = None


class Traffic:
    """The requests of one call. Times are seconds on any clock that only goes forward."""

    def __init__(
        self, seeds: Sequence[int], server: Server, *, where: str, concurrency: int, retries: int, timeout: float
    ) -> None:
        self.seeds, self.server, self.where = seeds, server, where
        self.concurrency, self.retries, self.timeout = concurrency, retries, timeout
        self.tried_again: Counter[str] = Counter()
        self._begun: list[_Request] = []  # in the order of the requests
        self._again: list[tuple[float, int]] = []  # a heap: when each may be sent again
        self._under_way: dict[int, float] = {}  # since when

    # -- what to do now -------------------------------------------------------------------------------------------

    def take(self, now: float) -> int | None:
        """A request to be sent now, or None. Those that failed come before those that have not been sent."""
        if len(self._under_way) >= self.concurrency or now < self.server.closed_until:
            return None
        if self._again and self._again[0][0] <= now:
            i = heapq.heappop(self._again)[1]
        elif self._may_begin():
            i = len(self._begun)
            self._begun.append(_Request(self.server.answers, self.server.failures))
        else:
            return None
        self._under_way[i] = now
        return i

    def _may_begin(self) -> bool:
        return len(self._begun) < len(self.seeds) and self.server.in_a_row < self.concurrency

    def wait(self, now: float) -> float:
        """Seconds until there is something to do, if no answer comes."""
        times = [since + self._allowed(i) for i, since in self._under_way.items()]
        if len(self._under_way) < self.concurrency:
            if self._again:
                times.append(max(self._again[0][0], self.server.closed_until))
            if self._may_begin():
                times.append(self.server.closed_until)
        return max(0.0, min(times, default=0.0) - now)

    def overdue(self, now: float) -> list[int]:
        """The requests under way that take too long."""
        return [i for i, since in self._under_way.items() if now - since >= self._allowed(i)]

    def _allowed(self, i: int) -> float:
        """Seconds for an attempt."""
        if len(self.server.seconds) < _KNOWN:
            return self.timeout
        usual = max(_SHORTEST, _FAR_LONGER * max(self.server.seconds))
        return min(self.timeout, usual * 2 ** self._begun[i].early)

    # -- what has happened ------------------------------------------------------------------------------------------

    def answered(self, i: int, now: float) -> None:
        """An answer to request i has come."""
        self.server.seconds.append(now - self._under_way.pop(i))
        self.server.answers += 1
        self.server.in_a_row = 0

    def given_up(self, i: int, now: float) -> Answer | None:
        """Request i took too long. As `failed`; before --timeout it costs no attempt and no pause."""
        request, seconds = self._begun[i], now - self._under_way[i]
        if seconds >= self.timeout:
            return self.failed(i, Failure(f"no answer within {self.timeout:g} seconds"), now)
        request.early += 1
        self._note(i, Failure("no answer for far longer than others took"), now)
        heapq.heappush(self._again, (now, i))
        return None

    def failed(self, i: int, failure: Failure, now: float) -> Answer | None:
        """An attempt of request i has failed; it will be made again, unless an answer is returned: then that is it.

        Raises OpdkitError when the server is given up: it answers nobody, or fails more often than not.
        """
        request = self._note(i, failure, now)
        assert request.first_failed is not None
        if failure.limited:
            used_up = now - request.first_failed > LONGEST_LIMIT
        else:
            request.attempts += 1
            used_up = request.attempts > self.retries
        if used_up and (answer := self._last_word(request, failure)):
            return answer
        pause = failure.pause or self._pause(i, request.failures)
        heapq.heappush(self._again, (now + pause, i))
        return None

    def _note(self, i: int, failure: Failure, now: float) -> _Request:
        del self._under_way[i]
        request = self._begun[i]
        request.failures += 1
        request.first_failed = now if request.first_failed is None else request.first_failed
        self.server.failures += 1
        self.server.in_a_row += 1
        self.server.closed_until = max(self.server.closed_until, now + failure.pause)
        self.tried_again[failure.kind] += 1
        return request

    def _pause(self, i: int, failures: int) -> float:
        """Half of it by chance, which is the same again for the same request."""
        growing = min(FIRST_PAUSE * 2 ** min(failures - 1, 32), LONGEST_PAUSE)
        return growing * random.Random(f"{self.seeds[i]}:{failures}").uniform(0.5, 1.0)

    def _last_word(self, request: _Request, failure: Failure) -> Answer | None:
        """What becomes of a request that has used up its attempts; None: it was bad luck, and it may go on."""
        if failure.insisted is not None:
            return failure.insisted
        answers = self.server.answers - request.answers_before
        failures = self.server.failures - request.failures_before - request.failures
        if answers and not failure.limited and request.attempts < _UNLUCKY * (self.retries + 1):
            return None
        if answers and answers >= failures:
            return Answer("", error=f"{NO_ANSWER}: {failure.reason}")
        what = f"answered {answers:,} and failed {counted(failures, 'time')} besides, and " if answers else ""
        raise OpdkitError(
            f"{self.where} {what}gave no answer in {counted(request.failures, 'attempt')} (the last: "
            f"{failure.reason}). "
            "Check that it runs and takes requests at that address, then start the same command again: "
            "finished parts are kept, and nothing was written for the others."
        )
