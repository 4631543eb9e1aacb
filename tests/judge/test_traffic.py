"""When requests are sent, given up and sent again: a server that is simulated on a clock of its own."""

import heapq
import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.errors import OpdkitError
from opdkit.judge.exchange import Answer
from opdkit.judge.traffic import FIRST_PAUSE, LONGEST_LIMIT, LONGEST_PAUSE, Failure, Server, Traffic

HANG = float("inf")
Script = Callable[[int, int, float], tuple[float, Failure | None]]  # request, its attempt, now -> seconds, failure


class Simulation:
    """All requests of a Traffic against a script; `sent` holds (when, which) of every attempt."""

    def __init__(self, script: Script, count: int, server: Server | None = None, **options) -> None:
        defaults = {"concurrency": 16, "retries": 6, "timeout": 120.0}
        self.server = server or Server()
        self.traffic = Traffic(range(count), self.server, where="the judge", **(defaults | options))
        self.script, self.count = script, count
        self.now = 0.0
        self.sent: list[tuple[float, int]] = []
        self.answers: dict[int, Answer | None] = {}
        self.most_at_once = 0

    def run(self) -> float:
        """Seconds until every request has an answer."""
        arriving: list[tuple[float, int, int]] = []  # when, which request, its attempt
        outcome: dict[tuple[int, int], Failure | None] = {}
        tries = [0] * self.count
        under_way: dict[int, int] = {}
        while len(self.answers) < self.count:
            while (i := self.traffic.take(self.now)) is not None:
                tries[i] += 1
                under_way[i] = tries[i]
                self.sent.append((self.now, i))
                seconds, outcome[i, tries[i]] = self.script(i, tries[i], self.now)
                heapq.heappush(arriving, (self.now + seconds, i, tries[i]))
            self.most_at_once = max(self.most_at_once, len(under_way))
            until = self.now + max(1e-6, self.traffic.wait(self.now))  # it must go on, rounding or not
            self.now = min(until, arriving[0][0]) if arriving else until
            while arriving and arriving[0][0] <= self.now:
                _, i, attempt = heapq.heappop(arriving)
                if under_way.get(i) != attempt:
                    continue  # it had been given up
                del under_way[i]
                failure = outcome[i, attempt]
                if failure is None:
                    self.traffic.answered(i, self.now)
                    self.answers[i] = None
                else:
                    self.settle(i, self.traffic.failed(i, failure, self.now))
            for i in self.traffic.overdue(self.now):
                del under_way[i]
                self.settle(i, self.traffic.given_up(i, self.now))
        return self.now

    def settle(self, i: int, last_word: Answer | None) -> None:
        if last_word is not None:
            self.answers[i] = last_word


def calm(_i: int, _attempt: int, _now: float) -> tuple[float, Failure | None]:
    return 1.0, None


def test_a_calm_server_is_kept_busy() -> None:
    simulation = Simulation(calm, 160)
    assert simulation.run() == 10
    assert simulation.most_at_once == 16


# -- hanging --------------------------------------------------------------------------------------------------------


def test_hanging_requests_do_not_hold_up_the_others() -> None:
    """One in twenty never answers: with --timeout alone each of them would hold a slot for 120 seconds."""

    def script(i: int, attempt: int, _now: float) -> tuple[float, Failure | None]:
        return (HANG, None) if i % 20 == 5 and attempt == 1 else (1.0, None)

    simulation = Simulation(script, 1600)
    assert simulation.run() < 1.3 * 100
    assert set(simulation.answers.values()) == {None}


def test_who_is_slow_gets_the_time_it_needs() -> None:
    """Given up after 3 seconds, then after 6, ..: at most twice the work of the answer is in vain."""

    def script(i: int, _attempt: int, _now: float) -> tuple[float, Failure | None]:
        return (100.0, None) if i == 50 else (1.0, None)

    simulation = Simulation(script, 400, retries=0)
    assert simulation.run() < 3 * 100
    assert simulation.answers[50] is None
    starts = [when for when, i in simulation.sent if i == 50]
    assert [b - a for a, b in itertools.pairwise(starts)] == [3, 6, 12, 24, 48, 96]


def test_nothing_is_given_up_early_before_answers_are_known() -> None:
    simulation = Simulation(lambda *_: (100.0, None), 16)
    assert simulation.run() == 100
    assert len(simulation.sent) == 16


# -- too many requests ----------------------------------------------------------------------------------------------


def test_all_requests_obey_what_one_was_told() -> None:
    def script(i: int, attempt: int, _now: float) -> tuple[float, Failure | None]:
        return (0.5, Failure("HTTP 429", 30.0, True)) if i == 3 and attempt == 1 else (1.0, None)

    simulation = Simulation(script, 100)
    simulation.run()
    assert not [when for when, _ in simulation.sent if 0.5 <= when < 30.5]
    assert [when for when, i in simulation.sent if i == 3] == [0, 30.5]


@pytest.mark.parametrize("told", [0.0, 20.0])
def test_a_server_that_limits_for_minutes_is_sat_out(told: float) -> None:
    """More refusals than --retries has attempts."""

    def script(_i: int, _attempt: int, now: float) -> tuple[float, Failure | None]:
        return (0.1, Failure("HTTP 429", told, True)) if now < 900 else (1.0, None)

    simulation = Simulation(script, 100, retries=1)
    assert 900 < simulation.run() < 900 + 100
    assert set(simulation.answers.values()) == {None}
    if told:
        assert len(simulation.sent) < 45 * 16 + 200


def test_a_server_that_only_limits_is_given_up() -> None:
    simulation = Simulation(lambda *_: (0.1, Failure("HTTP 429: slow down", 0.0, True)), 1000)
    with pytest.raises(OpdkitError, match=r"gave no answer .*HTTP 429: slow down"):
        simulation.run()
    assert LONGEST_LIMIT < simulation.now < LONGEST_LIMIT + 2 * LONGEST_PAUSE
    assert len({i for _, i in simulation.sent}) == 16  # no new ones while nobody is answered


# -- dead servers and bad requests ----------------------------------------------------------------------------------


def test_a_dead_server_costs_the_attempts_of_a_few_requests() -> None:
    simulation = Simulation(lambda *_: (0.01, Failure("HTTP 500: no")), 100_000)
    with pytest.raises(OpdkitError, match=r"gave no answer in 7 attempts \(the last: HTTP 500: no\)"):
        simulation.run()
    assert simulation.now < sum(FIRST_PAUSE * 2**n for n in range(6)) + 1
    assert len(simulation.sent) <= 7 * 16


def test_a_server_that_dies_half_way_is_given_up_too() -> None:
    def script(i: int, _attempt: int, now: float) -> tuple[float, Failure | None]:
        return (1.0, None) if now < 50 else (HANG, None)

    simulation = Simulation(script, 100_000, timeout=60.0, retries=2)
    with pytest.raises(OpdkitError, match=r"no answer within 60 seconds"):
        simulation.run()
    assert simulation.now < 50 + 2 * 60 + 3 * 60 + 10
    assert len({i for _, i in simulation.sent}) <= 50 * 16 + 16


def test_one_request_that_the_server_never_answers_is_named_and_the_others_go_on() -> None:
    """Not an outage: the others are answered meanwhile. The vote has no text and an error."""

    def script(i: int, _attempt: int, _now: float) -> tuple[float, Failure | None]:
        return (1.0, Failure("HTTP 500: it crashed")) if i == 7 else (1.0, None)

    simulation = Simulation(script, 30_000)
    simulation.run()
    assert simulation.answers.pop(7) == Answer("", error="the judge answers others, not this: HTTP 500: it crashed")
    assert set(simulation.answers.values()) == {None}
    assert sum(i == 7 for _, i in simulation.sent) == 3 * 7


def test_a_server_that_mostly_fails_ends_the_stage() -> None:
    """pitfall 14: what fails more often than not is an outage, and no outage becomes votes."""

    def script(i: int, attempt: int, _now: float) -> tuple[float, Failure | None]:
        return 1.0, Failure("HTTP 502") if random.Random(f"{i}:{attempt}").random() < 0.9 else None

    simulation = Simulation(script, 30_000)
    with pytest.raises(OpdkitError, match=r"answered [\d,]+ and failed [\d,]+ times besides"):
        simulation.run()
    assert not [answer for answer in simulation.answers.values() if answer is not None]


def test_what_the_server_insists_on_is_its_answer() -> None:
    said = Answer("", "stop")
    simulation = Simulation(lambda *_: (1.0, Failure("nothing", insisted=said)), 1, retries=2)
    simulation.run()
    assert simulation.answers == {0: said}
    assert len(simulation.sent) == 3


# -- pauses ---------------------------------------------------------------------------------------------------------


def test_the_pauses_grow_and_are_the_same_again() -> None:
    def attempts() -> list[float]:
        simulation = Simulation(lambda *_: (0.0, Failure("HTTP 500")), 1, retries=9)
        with pytest.raises(OpdkitError, match="in 10 attempts"):
            simulation.run()
        return [when for when, _ in simulation.sent]

    times = attempts()
    assert times == attempts()
    for attempt, pause in enumerate(b - a for a, b in itertools.pairwise(times)):
        longest = min(FIRST_PAUSE * 2**attempt, LONGEST_PAUSE)
        assert longest / 2 - 1e-9 <= pause <= longest + 1e-9


@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.1, 0.3, 0.5]))
def test_every_request_is_answered_whatever_fails(seed: int, share: float) -> None:
    """Property: all answers are the server's, one a request, and never more under way than allowed."""

    def script(i: int, attempt: int, _now: float) -> tuple[float, Failure | None]:
        draw = random.Random(f"{seed}:{i}:{attempt}")
        seconds = draw.uniform(0.5, 1.5)
        if draw.random() >= share:
            return seconds, None
        return draw.choice([(HANG, None), (seconds, Failure("HTTP 500")), (0.1, Failure("HTTP 429", 2.0, True))])

    simulation = Simulation(script, 120, concurrency=8)
    simulation.run()
    assert simulation.answers == dict.fromkeys(range(120))
    assert simulation.most_at_once == 8
