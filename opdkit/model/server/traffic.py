"""Traffic with a server: how many requests run at once, how long each may take, and when it is retried.

- A request that waits for its next attempt holds no slot. An attempt that takes far longer than others took is given
  up early, and the next attempt has more time.
- A pause that the server asks for (Retry-After) applies to all requests.
- While no request is answered, no new request begins, so a dead server costs only the attempts of a few requests.
- While a limit of the server holds up as many requests as may run at once, no new request begins. Otherwise more and
  more requests would wait, and a server that allows 20 per minute would refuse each of them for an hour.

The client library's own retries do none of this: each request waits on its own account and holds its slot.
"""

import asyncio
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from opdkit.console import counted, say
from opdkit.errors import OpdkitError

SendOnce = Callable[[Any], Awaitable[Any]]  # request, which has a `seed`, -> its answer

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds; doubled from attempt to attempt
LONGEST_LIMIT = 1800.0  # seconds for which "too many requests" may delay a request while the server answers no other

# An attempt is given up early when it takes this many times as long as the slowest of the last answers, and at least
# SHORTEST seconds. The next attempt has twice the time, and so on up to --timeout, so at most two thirds of the work on
# a slow answer are wasted.
FAR_LONGER, SHORTEST = 3.0, 5.0
_KNOWN, _REMEMBERED = 16, 128  # answers before anything is given up early; answers whose time is remembered

# Limit on the attempts of a request that fails while others are answered, as a multiple of what --retries allows.
_UNLUCKY = 3


@dataclass(eq=False)
class FailedAttemptError(Exception):
    """Failure of an attempt; the next attempt may succeed."""

    reason: str
    _: KW_ONLY
    pause: float = 0.0  # seconds for which the server asked all requests to wait
    limited: bool = False  # too many requests: does not count against --retries
    early: bool = False  # before --timeout, or before the model's name was known: does not count, no pause
    fallback: Any = None  # the answer to use if the last attempt fails in the same way


@dataclass(eq=False)
class _History:
    """Attempts of one request."""

    answers_before: int  # of the server to all requests, before this one
    failures_before: int
    first_failed: float | None = None
    failures: int = 0  # all failed attempts
    early: int = 0  # attempts given up before --timeout
    counted: int = 0  # attempts that count against --retries
    began: float = 0.0  # start of the last attempt, in event-loop time


class Traffic:
    """Requests to one server, and how it has answered so far. `where` names it in messages.

    `has_flags`: the command has the options --retries and --timeout, which messages name.
    """

    def __init__(self, where: str, concurrency: int, retries: int, timeout: float, *, has_flags: bool = True) -> None:
        self.retries_flag, self.timeout_flag = (f" (--retries {retries})", " (--timeout)") if has_flags else ("", "")
        self.where, self.concurrency, self.retries, self.timeout = where, concurrency, retries, timeout
        self.failed_attempts: Counter[str] = Counter()  # by the kind of the failure
        self.answers = self.failures = self.failures_in_a_row = 0
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)  # that the last answers took
        self._under_way: dict[_History, asyncio.Timeout] = {}
        self._limited = set[_History]()  # requests that wait because there were too many
        self._last_answer = 0.0  # event-loop time
        self._closed_until = 0.0  # event-loop time until which the server asked for no requests
        self._failure_said = False

    async def answer_all(
        self,
        requests: Sequence[Any],
        attempt: SendOnce,
        on_answer: Callable[[int], None],
        trial: Callable[[], Awaitable[None]] | None = None,
    ) -> list[Any]:
        """Return the server's answer to each request, in order; call `on_answer(1)` when each arrives.

        `attempt` sends a request once, or raises FailedAttemptError. A request that is given up while others are
        answered, or while the server answers `trial`, has its last FailedAttemptError as its answer. Raises OpdkitError
        when the server is given up: it answers no request, or fails more often than it answers.
        """
        self._trial = trial
        self._slots, self._answering = asyncio.Semaphore(self.concurrency), asyncio.Event()
        self._answering.set()
        self._limited.clear()
        tasks = []
        try:
            async with asyncio.TaskGroup() as group:
                for request in requests:
                    await self._take_slot(first_attempt=True)
                    tasks.append(group.create_task(self._answer(request, attempt, on_answer)))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _take_slot(self, *, first_attempt: bool) -> None:
        """Wait until a request may be sent. A first attempt also waits while the server answers no request."""
        while True:
            while (closed := self._closed_until - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(closed)
            if first_attempt:
                await self._answering.wait()
            await self._slots.acquire()
            closed = self._closed_until - asyncio.get_running_loop().time()
            if closed <= 0 and (self._answering.is_set() or not first_attempt):
                return
            self._slots.release()

    async def _answer(self, request: Any, attempt: SendOnce, on_answer: Callable[[int], None]) -> Any:
        """Return the answer to one request, after as many attempts as it needs. The first slot is already taken."""
        clock = asyncio.get_running_loop().time
        history = _History(self.answers, self.failures)
        while True:
            history.began = clock()
            try:
                async with asyncio.timeout(self._limit_seconds(history)) as self._under_way[history]:
                    answer = await attempt(request)
                    self._count_answer(clock(), history)
                break
            except TimeoutError:
                failure = FailedAttemptError(f"no answer within {self.timeout:g} seconds{self.timeout_flag}")
                if self._limit_seconds(history) < self.timeout:
                    failure = FailedAttemptError("no answer for far longer than others took", early=True)
            except FailedAttemptError as error:
                failure = error
            finally:
                del self._under_way[history]
                self._slots.release()
            try:
                last_word = self._record_failure(history, failure, clock())
            except OpdkitError:
                if self.answers > history.answers_before or not await self._is_well():
                    raise
                last_word = failure
            if last_word:
                answer = last_word
                break
            if not failure.early:
                if not self._failure_said:  # retries take half a minute if the server is down: say so
                    self._failure_said = True
                    say(f"{self.where}: {failure.reason}; trying again, with growing pauses{self.retries_flag}")
                longest = min(FIRST_PAUSE * 2 ** min(history.failures - 1, 32), LONGEST_PAUSE)
                # Up to half of a growing pause is random, seeded by the request.
                random_share = random.Random(f"{request.seed}:{history.failures}").uniform(0.5, 1.0)
                await asyncio.sleep(failure.pause or longest * random_share)
            await self._take_slot(first_attempt=False)
        self.failures_in_a_row = 0
        self._limited.discard(history)
        self._set_answering()
        on_answer(1)
        return answer

    def _set_answering(self) -> None:
        """Let new requests begin, unless the server answers none, or a limit holds up as many as may run at once."""
        if max(self.failures_in_a_row, len(self._limited)) < self.concurrency:
            self._answering.set()
        else:
            self._answering.clear()

    async def _is_well(self) -> bool:
        """Return True if the server answers the trial request."""
        if self._trial is None:
            return False
        try:
            async with asyncio.timeout(self.timeout):
                await self._trial()
        except (FailedAttemptError, TimeoutError):
            return False
        return True

    def _limit_seconds(self, history: _History) -> float:
        """Return the seconds that the attempt under way may take."""
        if len(self._seconds) < _KNOWN:
            return self.timeout
        return min(self.timeout, max(SHORTEST, FAR_LONGER * max(self._seconds)) * 2**history.early)

    def _count_answer(self, now: float, answered: _History) -> None:
        """Count an answer of the server, and adapt the time limits of the other attempts under way to its duration."""
        self.answers += 1
        self._last_answer = now
        self._seconds.append(now - answered.began)
        for history, timeout in self._under_way.items():
            if not timeout.expired():
                timeout.reschedule(history.began + self._limit_seconds(history))

    def _record_failure(self, history: _History, failure: FailedAttemptError, now: float) -> Any:
        """Count a failed attempt. Return the final answer of a request that is given up; None if it may be sent again.

        Raises OpdkitError if the server is given up.
        """
        history.failures += 1
        history.early += failure.early
        history.counted += not (failure.early or failure.limited)
        history.first_failed = now if history.first_failed is None else history.first_failed
        self.failures += 1
        self.failures_in_a_row += 1
        self.failed_attempts[failure.reason.partition(":")[0]] += 1
        self._closed_until = max(self._closed_until, now + failure.pause)
        if failure.limited:
            self._limited.add(history)
        self._set_answering()
        waited = now - max(history.first_failed, self._last_answer)
        used_up = waited > LONGEST_LIMIT if failure.limited else history.counted > self.retries
        if failure.early or not used_up:
            return None
        if failure.fallback is not None:
            return failure.fallback
        answers = self.answers - history.answers_before
        failures = self.failures - history.failures_before - history.failures
        if answers and not failure.limited and history.counted < _UNLUCKY * (self.retries + 1):
            return None
        if answers and answers >= failures:
            return failure
        besides = f"answered {answers:,} and failed {counted(failures, 'time')} besides, and " if answers else ""
        raise OpdkitError(
            f"{self.where} {besides}gave no answer in {counted(history.failures, 'attempt')} (the last: "
            f"{failure.reason}). Check that it runs, and takes {self.concurrency} requests at once at that address, "
            "then start the same command again: finished parts are kept, and nothing was written for the others."
        )
