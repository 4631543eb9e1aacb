"""Tests of voting that stops once a question is decided: the rewards and hints of all votes, from fewer answers."""

import itertools
import re
from pathlib import Path

import pytest
from chaos_server import text_of
from http_server import Reply, completion, serving
from hypothesis import given
from hypothesis import strategies as st
from runs import talk, write_extract
from sample_world import DATA, MODEL

from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.wording import DEFAULTS
from opdkit.errors import OpdkitError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.judge.hints import choose_hint
from opdkit.judge.rounds import count_missing_votes
from opdkit.judge.votes import Answer, Question, choose_reward, count_missing, list_confidences
from opdkit.store.reading import read_all
from opdkit.store.stable_hash import stable_hash

Vote = tuple[int | None, float | None]
DECISIONS = {"hint": (1, -1, None), "reward": (1, 0, -1, None)}
SAME = ("turn_id", "reward", "reward_status", "hint")
SESSIONS = {f"s{n}": talk(f"What is {n}?", "It is far away.", "In Celsius, please", "Done", "ok") for n in range(12)}


@pytest.fixture(autouse=True)
def loopback(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def outcome(question: str, votes: list[Vote], weigh: bool) -> object:
    """Return what training sees of all votes on a question: reward and status, or hint and whether a quorum failed."""
    weights = list_confidences(votes) if weigh else None
    decisions = [decision for decision, _ in votes]  # a later hint (below) is longer, and wins
    if question == "reward":
        found = choose_reward(decisions, weights)
        return found.reward, found.status
    texts = [(d, f"Name {'large ' * n}rivers." if d == 1 else None) for n, d in enumerate(decisions)]
    choice = choose_hint(texts, "", select="longest", min_chars=2, max_chars=99, weights=weights)
    return choice.hint, choice.status == "no_quorum"


def is_decided(question: str, votes: list[Vote], most: int, weigh: bool, confidences=(None,)) -> bool:
    """Return whether the outcome is the same for every way in which the other votes can go."""
    kinds = [(d, c) for d in DECISIONS[question] for c in confidences]
    ways = itertools.product(kinds, repeat=most - len(votes))
    return len({outcome(question, [*votes, *way], weigh) for way in ways}) == 1


@pytest.mark.parametrize(("question", "most", "decisions", "missing"), [
    ("reward", 5, [1, 1, 1], 0), ("reward", 5, [1, 1, -1], 1), ("reward", 5, [1, -1, 0], 2),
    ("reward", 5, [1, 1, None], 1), ("reward", 5, [None, None, None, 1], 0), ("reward", 5, [None] * 4, 1),
    ("reward", 4, [0, 0], 1), ("reward", 1, [], 1), ("reward", 2, [], 2),
    ("hint", 5, [-1, -1, -1], 0), ("hint", 5, [1, 1, 1], 2), ("hint", 5, [1, -1, -1], 1), ("hint", 5, [None] * 3, 0),
    ("hint", 4, [-1, -1], 0),
])  # fmt: skip
def test_worked_by_hand(question: str, most: int, decisions: list[int | None], missing: int) -> None:
    """Three equal votes of five decide a reward; a wanted hint needs all votes, as any may have the best text."""
    assert count_missing([(decision, None) for decision in decisions], question, most, False) == missing


@pytest.mark.parametrize("question", DECISIONS)
@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_against_every_way_in_which_the_votes_can_go(question: str, most: int) -> None:
    """`count_missing` is the smallest number of further votes that can decide the question, by brute force."""
    for count in range(most + 1):
        for decisions in itertools.combinations_with_replacement(DECISIONS[question], count):
            votes: list[Vote] = [(decision, None) for decision in decisions]
            missing = count_missing(votes, question, most, False)
            rounds = (
                n for n in range(most - count + 1)
                if any(is_decided(question, [*votes, *((d, None) for d in more)], most, False)
                       for more in itertools.combinations_with_replacement(DECISIONS[question], n))
            )  # fmt: skip
            assert missing == next(rounds), votes


CONFIDENCES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 1.0, None])


@given(
    question=st.sampled_from(["hint", "reward"]),
    votes=st.lists(st.tuples(st.sampled_from([1, -1, None]), CONFIDENCES), min_size=1, max_size=5),
    others=st.lists(st.tuples(st.sampled_from([1, 0, -1, None]), CONFIDENCES), max_size=4),
)
def test_weighed_votes_are_decided_whatever_the_others_weigh(question, votes, others) -> None:
    others = [(d or None, c) for d, c in others] if question == "hint" else others
    if count_missing(votes, question, len(votes) + len(others), True) == 0 and others:
        most = len(votes) + len(others)
        failed: list[Vote] = [(None, None)] * len(others)
        assert outcome(question, [*votes, *others], True) == outcome(question, [*votes, *failed], True), most


# -- through the stage ------------------------------------------------------------------------------------------------


def config(run: Path, url: str, **options) -> JudgeConfig:
    small = {"judge": "endpoint", "judge_url": url, "judge_model": "judge-model", "shard": "0/1"}
    return JudgeConfig(run=run, **(small | options))


def rows(run: Path, *columns: str) -> list[list[object]]:
    return [[row[name] for name in columns or SAME] for row in read_all(run, "verdicts")]


def are_beginnings(short: Path, long: Path) -> bool:
    pairs = zip(read_all(short, "verdicts"), read_all(long, "verdicts"), strict=True)
    return all(one[c] == all_[c][: len(one[c])] for one, all_ in pairs for c in ("reward_votes", "hint_votes"))


def likely(body: dict, _number: int) -> Reply:
    """Answer by the seed of the vote alone; 8% of the votes fail."""
    text = text_of(body)
    return completion("I cannot say." if body["seed"] % 12 == 0 else text)


@pytest.mark.parametrize("options", [{}, {"votes": 4}, {"votes": 9, "hint_select": "longest"}, {"votes": 1}], ids=str)
def test_a_server_is_asked_less_for_the_same_rewards_and_hints(options: dict, tmp_path: Path) -> None:
    runs = [write_extract(tmp_path / name, SESSIONS, per_part=5) for name in ("stopped", "all")]
    counts = []
    with serving(likely) as server:
        for run in runs:
            before = len(server.requests)
            judge.run(config(run, server.url, all_votes=run is runs[1], **options))
            counts.append(len(server.requests) - before)
    assert rows(runs[0]) == rows(runs[1])
    assert are_beginnings(*runs)
    assert counts[1] == 24 * 2 * options.get("votes", 5)
    assert counts[0] == counts[1] if options.get("votes") == 1 else counts[0] < counts[1]
    assert counts[0] == sum(len(hints) + len(rewards) for hints, rewards in rows(runs[0], "hint_votes", "reward_votes"))


def test_an_unsure_majority_does_not_stop_the_votes(tmp_path: Path) -> None:
    """Three votes are unsure. Weighed, two sure ones could still outvote them."""
    votes = [Answer(r"\boxed{1}", "stop", confidence=0.3)] * 3
    question = Question("s:1", "reward", [])
    missing = [count_missing_votes(question, votes, config(tmp_path, "http://x", weigh_votes=weigh), DEFAULTS["judge"])
               for weigh in (False, True)]  # fmt: skip
    assert missing == [0, 1]
    assert count_missing([(1, 0.3)] * 3, "reward", 5, True) == 1


def test_a_run_that_was_interrupted_asks_for_no_vote_twice(tmp_path: Path) -> None:
    """The server fails during the second round; the resumed run asks only for the votes that are missing."""
    whole, broken = (write_extract(tmp_path / name, SESSIONS, per_part=12) for name in ("whole", "broken"))
    with serving(likely) as server:
        judge.run(config(whole, server.url))
        needed = len(server.requests)
    with serving(lambda body, n: likely(body, n) if n < 24 * 6 + 10 else Reply(409, "no")) as server:
        with pytest.raises(OpdkitError, match="409"):
            judge.run(config(broken, server.url, concurrency=1))
        given = len(server.requests) - 1
    with serving(likely) as server:
        judge.run(config(broken, server.url))
        assert len(server.requests) == needed - given > 0
    assert rows(broken, *SAME, "reward_votes", "hint_votes") == rows(whole, *SAME, "reward_votes", "hint_votes")


def test_a_dry_run_says_at_most_and_once_measured_how_many(tmp_path: Path, capsys) -> None:
    def shown() -> dict[str, float]:
        facts = re.findall(r"^ *([^\d\n]+?)  +([\d,]+)$", capsys.readouterr().out, re.M)
        return {name: float(value.replace(",", "")) for name, value in facts}

    run = write_extract(tmp_path / "run", SESSIONS)
    with serving(likely) as server:
        judge.run(config(run, server.url, dry_run=True))
        bounds = shown()
        judge.run(config(run, server.url, dry_run=True, measure=12))
        asked, measured = len(server.requests), shown()
        judge.run(config(run, server.url))
        sent = len(server.requests) - asked
    assert bounds["at least"] == 24 * 2 * 3 <= sent < bounds["requests, at most"] == 24 * 2 * 5
    assert measured["requests, about"] == pytest.approx(sent, rel=0.1)


def test_the_sample_judge_answers_a_third_less(tmp_path: Path) -> None:
    """A local judge gives all votes; a server with the same answers is asked for at most 70% of them."""
    runs = [tmp_path / name for name in ("stopped", "all")]
    for run in runs:
        extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs/openai.jsonl"),), limit=12, shard="0/1"))
    local = config(runs[1], "", judge="local", judge_url=None, judge_model=str(MODEL), device="cpu", max_new_tokens=48)
    judge.run(local)
    votes = {stable_hash(local.seed, row["turn_id"], name, k, bits=31): vote["raw"]
             for row in read_all(runs[1], "verdicts") for name in ("hint", "reward")
             for k, vote in enumerate(row[f"{name}_votes"])}  # fmt: skip
    with serving(lambda body, _: completion(votes[body["seed"]])) as server:
        judge.run(config(runs[0], server.url))
    assert rows(runs[0]) == rows(runs[1])
    given, all_ = (sum(map(len, itertools.chain(*rows(run, "hint_votes", "reward_votes")))) for run in runs)
    print(f"{given} of {all_} votes")
    assert given <= 0.7 * all_
