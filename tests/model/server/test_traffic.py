"""Tests of when requests are sent, given up and sent again, with a server that is simulated on its own clock."""

import asyncio
import itertools
import random
import selectors
from collections import Counter
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.errors import OpdkitError
from opdkit.judge.votes import Answer, Question, VoteRequest
from opdkit.model.server.client import Server
from opdkit.model.server.traffic import FIRST_PAUSE, LONGEST_LIMIT, LONGEST_PAUSE, FailedAttemptError, Traffic

HANG = 1e9
DONE = Answer("done")
Script = Callable[[int, int, float], tuple[float, FailedAttemptError | None]]  # request, its attempt, now -> seconds


class JumpingClock(asyncio.SelectorEventLoop):
    """Event loop that never waits: its clock jumps to the next timer."""

    def __init__(self) -> None:
        self.now = 0.0
        outer = self

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list:
                assert timeout is not None, "nothing is under way, and nobody waits for a time"
                outer.now += max(0.0, timeout)
                return super().select(0)

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


class Simulation:
    """Requests of a Traffic, answered by a script; `sent` holds (when, which request) of every attempt."""

    def __init__(self, script: Script, count: int, **options) -> None:
        self.traffic = Traffic("the judge", **({"concurrency": 16, "retries": 6, "timeout": 120.0} | options))
        self.script, self.requests = script, [VoteRequest(Question("", "hint", []), seed) for seed in range(count)]
        self.loop = JumpingClock()
        self.sent: list[tuple[float, int]] = []
        self.answers: list[Answer] = []
        self.tries: Counter[int] = Counter()
        self.under_way = self.most_at_once = self.answered = 0

    @property
    def now(self) -> float:
        return self.loop.now

    def run(self) -> float:
        """Return the seconds until every request has an answer."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            self.answers = runner.run(self.traffic.answer_all(self.requests, self.attempt, self.count))
        return self.now

    async def attempt(self, request: VoteRequest) -> Answer:
        self.tries[request.seed] += 1
        self.sent.append((self.now, request.seed))
        seconds, failure = self.script(request.seed, self.tries[request.seed], self.now)
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.under_way -= 1
        if failure:
            raise failure
        return DONE

    def count(self, answers: int) -> None:
        self.answered += answers


def calm(_i: int, _attempt: int, _now: float) -> tuple[float, FailedAttemptError | None]:
    return 1.0, None


def test_a_calm_server_is_kept_busy() -> None:
    simulation = Simulation(calm, 160)
    assert simulation.run() == 10
    assert simulation.most_at_once == 16


# -- hanging --------------------------------------------------------------------------------------------------------


def test_a_server_that_hangs_on_its_list_of_models_lists_none() -> None:
    async def hang(**_: object) -> None:
        await asyncio.sleep(HANG)

    server = Server(
        "the judge", "http://localhost:1/v1", "--judge-url", "NO_KEY", concurrency=4, retries=2, timeout=60.0
    )
    client, loop = SimpleNamespace(models=SimpleNamespace(with_raw_response=SimpleNamespace(list=hang))), JumpingClock()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        attempt = partial(server.model_names, client)
        assert runner.run(server.traffic.answer_all([None], attempt, lambda _: None)) == [None]
    assert loop.now < 60


def test_hanging_requests_do_not_hold_up_the_others() -> None:
    """One request in twenty is never answered: with --timeout alone, each would hold a slot for 120 seconds."""

    def script(i: int, attempt: int, _now: float) -> tuple[float, FailedAttemptError | None]:
        return (HANG, None) if i % 20 == 5 and attempt == 1 else (1.0, None)

    simulation = Simulation(script, 1600)
    assert simulation.run() < 1.3 * 100
    assert set(simulation.answers) == {DONE}


def test_who_is_slow_gets_the_time_it_needs() -> None:
    """A slow request is given up after 5 seconds, then after 10, and so on: at most twice its work is in vain."""

    def script(i: int, _attempt: int, _now: float) -> tuple[float, FailedAttemptError | None]:
        return (100.0, None) if i == 50 else (1.0, None)

    simulation = Simulation(script, 400, retries=0)
    assert simulation.run() < 3 * 100
    assert simulation.answers[50] == DONE
    starts = [when for when, i in simulation.sent if i == 50]
    assert [b - a for a, b in itertools.pairwise(starts)] == [5, 10, 20, 40, 80]


def test_nothing_is_given_up_early_before_answers_are_known() -> None:
    simulation = Simulation(lambda *_: (100.0, None), 16)
    assert simulation.run() == 100
    assert len(simulation.sent) == 16


# -- too many requests ----------------------------------------------------------------------------------------------


def test_all_requests_obey_what_one_was_told() -> None:
    def script(i: int, attempt: int, _now: float) -> tuple[float, FailedAttemptError | None]:
        limited = i == 3 and attempt == 1
        return (0.5, FailedAttemptError("HTTP 429", pause=30.0, limited=True)) if limited else (1.0, None)

    simulation = Simulation(script, 100)
    simulation.run()
    assert not [when for when, _ in simulation.sent if 0.5 <= when < 30.5]
    assert [when for when, i in simulation.sent if i == 3] == [0, 30.5]


@pytest.mark.parametrize("told", [0.0, 20.0])
def test_a_server_that_limits_for_minutes_is_sat_out(told: float) -> None:
    """The server may refuse more often than --retries allows attempts."""

    def script(_i: int, _attempt: int, now: float) -> tuple[float, FailedAttemptError | None]:
        return (0.1, FailedAttemptError("HTTP 429", pause=told, limited=True)) if now < 900 else (1.0, None)

    simulation = Simulation(script, 100, retries=1)
    assert 900 < simulation.run() < 900 + 100
    assert set(simulation.answers) == {DONE}
    if told:
        assert len(simulation.sent) < 45 * 16 + 200


@pytest.mark.parametrize("told", [False, True])
def test_a_server_that_allows_few_requests_per_minute_gives_all_answers(told: bool) -> None:
    """Each request gets through long before LONGEST_LIMIT, however many there are, and most are refused a few times."""
    per_minute, used = 20, Counter[int]()

    def script(_i: int, _attempt: int, now: float) -> tuple[float, FailedAttemptError | None]:
        used[int(now // 60)] += 1
        if used[int(now // 60)] <= per_minute:
            return 1.0, None
        return 0.1, FailedAttemptError("HTTP 429", pause=60 - now % 60 if told else 0.0, limited=True)

    simulation = Simulation(script, 1000)
    assert simulation.run() < 1.1 * 60 * len(simulation.answers) / per_minute
    assert set(simulation.answers) == {DONE}
    assert len(simulation.sent) < 6 * len(simulation.answers)


def test_a_server_that_only_limits_is_given_up() -> None:
    simulation = Simulation(lambda *_: (0.1, FailedAttemptError("HTTP 429: slow down", limited=True)), 1000)
    with pytest.raises(OpdkitError, match="HTTP 429: slow down"):
        simulation.run()
    assert LONGEST_LIMIT < simulation.now < LONGEST_LIMIT + 2 * LONGEST_PAUSE
    assert len({i for _, i in simulation.sent}) == 16  # no new requests while none is answered


# -- dead servers and bad requests ----------------------------------------------------------------------------------


def test_a_dead_server_costs_the_attempts_of_a_few_requests() -> None:
    simulation = Simulation(lambda *_: (0.01, FailedAttemptError("HTTP 500: no")), 100_000)
    with pytest.raises(OpdkitError, match=r"7 attempts .*HTTP 500: no"):
        simulation.run()
    assert simulation.now < sum(FIRST_PAUSE * 2**n for n in range(6)) + 1
    assert len(simulation.sent) <= 7 * 16


def test_a_server_that_dies_half_way_is_given_up_too() -> None:
    def script(i: int, _attempt: int, now: float) -> tuple[float, FailedAttemptError | None]:
        return (1.0, None) if now < 50 else (HANG, None)

    simulation = Simulation(script, 100_000, timeout=60.0, retries=2)
    with pytest.raises(OpdkitError, match="60 seconds"):
        simulation.run()
    assert simulation.now < 50 + 2 * 60 + 3 * 60 + 10
    assert len({i for _, i in simulation.sent}) <= 50 * 16 + 16


def test_one_request_that_the_server_never_answers_is_named_and_the_others_go_on() -> None:
    """This is not an outage, as the others are answered meanwhile. The request's last failure is its answer."""

    def script(i: int, _attempt: int, _now: float) -> tuple[float, FailedAttemptError | None]:
        return (1.0, FailedAttemptError("HTTP 500: it crashed")) if i == 7 else (1.0, None)

    simulation = Simulation(script, 3_000, retries=2)
    simulation.run()
    given_up = simulation.answers.pop(7)
    assert isinstance(given_up, FailedAttemptError)
    assert given_up.reason == "HTTP 500: it crashed"
    assert simulation.answered == 3_000
    assert set(simulation.answers) == {DONE}
    assert sum(i == 7 for _, i in simulation.sent) == 3 * 3


def test_an_answer_that_takes_longer_than_the_timeout_names_it() -> None:
    simulation = Simulation(lambda i, _attempt, _now: (150.0 if i == 7 else 1.0, None), 3_000, retries=2)
    simulation.run()
    given_up = simulation.answers[7]
    assert isinstance(given_up, FailedAttemptError)
    assert "--timeout" in given_up.reason


def test_a_server_that_mostly_fails_ends_the_stage() -> None:
    """A server that fails more often than not has an outage, and an outage never becomes votes."""

    def script(i: int, attempt: int, _now: float) -> tuple[float, FailedAttemptError | None]:
        return 1.0, FailedAttemptError("HTTP 502") if random.Random(f"{i}:{attempt}").random() < 0.9 else None

    simulation = Simulation(script, 30_000)
    with pytest.raises(OpdkitError, match=r"[\d,]+ and failed [\d,]+ times"):
        simulation.run()
    assert not simulation.answers


def test_what_the_server_insists_on_is_its_answer() -> None:
    said = Answer("", "stop")
    simulation = Simulation(lambda *_: (1.0, FailedAttemptError("nothing", fallback=said)), 1, retries=2)
    simulation.run()
    assert simulation.answers == [said]
    assert len(simulation.sent) == 3


def test_a_server_that_insists_every_time_is_heard_to_the_end() -> None:
    """There are more failures in a row than requests at once, but each of them came with an answer."""
    said = Answer("", "stop")
    simulation = Simulation(lambda *_: (1.0, FailedAttemptError("nothing", fallback=said)), 40, retries=2)
    simulation.run()
    assert simulation.answers == [said] * 40


# -- pauses ---------------------------------------------------------------------------------------------------------


def test_the_pauses_grow_and_are_the_same_again() -> None:
    def attempts() -> list[float]:
        simulation = Simulation(lambda *_: (0.0, FailedAttemptError("HTTP 500")), 1, retries=9)
        with pytest.raises(OpdkitError, match="10 attempts"):
            simulation.run()
        return [when for when, _ in simulation.sent]

    times = attempts()
    assert times == attempts()
    for attempt, pause in enumerate(b - a for a, b in itertools.pairwise(times)):
        longest = min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE)
        assert longest / 2 - 1e-9 <= pause <= longest + 1e-9


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.1, 0.3, 0.5]))
def test_every_request_is_answered_whatever_fails(seed: int, share: float) -> None:
    """All answers are the server's, one per request, and never more requests than allowed are under way."""

    def script(i: int, attempt: int, _now: float) -> tuple[float, FailedAttemptError | None]:
        draw = random.Random(f"{seed}:{i}:{attempt}")
        seconds = draw.uniform(0.5, 1.5)
        if draw.random() >= share:
            return seconds, None
        failures = [(HANG, None), (seconds, FailedAttemptError("HTTP 500"))]
        return draw.choice([*failures, (0.1, FailedAttemptError("HTTP 429", pause=2.0, limited=True))])

    simulation = Simulation(script, 120, concurrency=8)
    simulation.run()
    assert simulation.answers == [DONE] * 120
    assert simulation.most_at_once == 8
