"""Decisions of people: durable, ordered, safe with several reviewers, and the last word in every later stage."""

import multiprocessing
import os
import signal
import threading

import pandas as pd
import pytest
from runs import talk, write_extract

from opdkit.config.judge import JudgeConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge import stage as judge
from opdkit.store import reviews
from opdkit.store.joined_turns import joined_turns
from opdkit.store.part_writer import Stage
from opdkit.store.reading import part_count, read_all, read_part
from opdkit.store.reviews import Ledger, Review, apply_review, reviews_in_force
from opdkit.store.tables import REVIEWS, VERDICTS


@pytest.fixture
def run(tmp_path):
    """Two parts of two sessions, judged by the rules."""
    said = {f"s{n}": talk("How warm is it?", "75 F.", "No, in Celsius please.", "24 C.", "Thanks!") for n in range(4)}
    run = write_extract(tmp_path / "run", said)
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    return run


def decided(run, part: int) -> list[dict]:
    """The verdicts of a part with the decisions in force applied, as every stage after the judge reads them."""
    return [turn.decided for turn in joined_turns(run, part) if turn.decided is not None]


def set_reward(turn_id: str, reward: int | None) -> Review:
    return Review(turn_id, reward_decided=True, reward=reward)


def set_hint(turn_id: str, hint: str | None) -> Review:
    return Review(turn_id, hint_decided=True, hint=hint)


def strike(turn_id: str) -> Review:
    return Review(turn_id, action="strike")


# -- what counts ----------------------------------------------------------------------------------------------------


def test_the_last_decision_on_a_turn_counts_and_a_strike_withdraws_it(run):
    reviews.append(run, [set_reward("s0:1", 1), set_reward("s1:1", 0)])
    reviews.append(run, [set_hint("s0:1", "Use Celsius.")])
    assert reviews_in_force(run)["s0:1"].decided == {"hint": "Use Celsius."}, (
        "a decision replaces the one before, whole"
    )
    reviews.append(run, [strike("s0:1"), strike("s3:3")])
    assert {name: r.decided for name, r in reviews_in_force(run).items()} == {"s1:1": {"reward": 0}}
    reviews.append(run, [set_reward("s0:1", None)])
    assert reviews_in_force(run)["s0:1"].decided == {"reward": None}


def test_nobody_has_decided_anything(run):
    assert reviews_in_force(run) == {}
    assert list(map(dict, read_all(run, "verdicts"))) == [v for k in (0, 1) for v in decided(run, k)]


def test_a_verdict_as_a_decision_leaves_it(run):
    (before,) = [v for v in read_part(run, "verdicts", 0) if v["turn_id"] == "s0:1"]
    assert apply_review(before, None) is before
    assert apply_review(before, Review("s0:1", note="looked at it")) == before, "who accepts as it is changes nothing"
    after = apply_review(before, Review("s0:1", True, 1, True, "Use Celsius."))
    assert (after["reward"], after["reward_status"], after["reward_agreement"]) == (1, "reviewed", 0.0)
    assert (after["hint"], after["hint_status"], after["hints"][0]) == ("Use Celsius.", "reviewed", "Use Celsius.")
    assert after["hint_votes"] == before["hint_votes"]
    struck = apply_review(before, set_hint("s0:1", None))
    assert (struck["hint"], struck["hint_status"], struck["reward"]) == (None, "reviewed", before["reward"])
    null = apply_review(before, set_reward("s0:1", None))
    assert (null["reward"], null["reward_agreement"], null["hint"]) == (None, None, before["hint"])


@pytest.mark.parametrize(
    ("review", "words"),
    [
        (set_reward("s0:1", 2), "reward is 2"),
        (set_reward("s0:1", True), "reward is True"),
        (set_hint("s0:1", "  "), "hint must be text"),
        (set_hint("s0:1", "x" * 5000), "hint must be text"),
        (set_hint("s0:1", "\ud800"), "not Unicode"),
        (Review("s0:1", reward=1), "not decided"),
        (Review("s0:1", True, 1, action="strike"), "strike decides nothing"),
        (Review("s0:1", action="undo"), "must be set or strike"),
    ],
)
def test_what_is_no_decision_is_refused_and_nothing_of_its_sheet_is_written(run, review, words):
    with pytest.raises(OpdkitError, match=words):
        reviews.append(run, [set_reward("s1:1", 1), review])
    assert reviews.files(run) == []


# -- how they are kept ----------------------------------------------------------------------------------------------


def test_the_folder_opens_with_the_usual_readers(run):
    reviews.append(run, [set_reward("s0:1", 1), set_reward("s1:1", None)], reviewer="Ada")
    reviews.append(run, [set_hint("s0:1", "Use Celsius.")], reviewer="Bob")
    frame = pd.read_parquet(run / "judge" / "reviews")
    assert list(frame.columns) == REVIEWS.schema.names
    assert sorted(zip(frame["ordinal"], frame["reviewer"], strict=True)) == [(0, "Ada"), (1, "Ada"), (2, "Bob")]


def test_the_verdicts_do_not_change_and_overwriting_them_leaves_the_decisions(run):
    before = (run / "judge" / "verdicts" / "part-00000.parquet").read_bytes()
    reviews.append(run, [set_reward("s0:1", 1)])
    assert (run / "judge" / "verdicts" / "part-00000.parquet").read_bytes() == before
    with pytest.raises(ConfigError):
        judge.run(JudgeConfig(run=run, judge="rules", limit=3, shard="0/1"))
    judge.run(JudgeConfig(run=run, judge="rules", limit=3, overwrite=True, shard="0/1"))
    assert reviews_in_force(run)["s0:1"].decided == {"reward": 1}
    assert next(v for v in decided(run, 0) if v["turn_id"] == "s0:1")["reward_status"] == "reviewed"
    assert not list(run.glob(".judge-*")), "what was discarded is gone"


def test_killed_while_overwriting_no_part_outlives_the_manifest_and_no_decision_is_lost(run, monkeypatch):
    reviews.append(run, [set_reward("s0:1", 1)])
    for moves in range(3):
        with monkeypatch.context() as patch:
            _die_after(patch, moves)
            with pytest.raises(KeyboardInterrupt):
                judge.run(JudgeConfig(run=run, judge="rules", votes=moves + 1, overwrite=True, shard="0/1"))
        assert reviews_in_force(run)["s0:1"].decided == {"reward": 1}
        assert (run / "judge" / "manifest.json").exists() or not list((run / "judge").glob("verdicts/*"))
    judge.run(JudgeConfig(run=run, judge="rules", votes=9, overwrite=True, shard="0/1"))
    assert part_count(run, "judge") == 2
    assert reviews_in_force(run)["s0:1"].decided == {"reward": 1}


def _die_after(patch, moves: int) -> None:
    from opdkit.store.atomic import Path as Place

    replace, done = Place.replace, []

    def dying(self, target):
        if self.parent.name == "judge":
            done.append(self)
            if len(done) > moves:
                raise KeyboardInterrupt
        return replace(self, target)

    patch.setattr(Place, "replace", dying)


def _decide(run, name: str, count: int) -> None:
    for n in range(count):
        reviews.append(run, [Review("s0:1", note=f"{name}{n}"), set_reward(f"s{n % 4}:3", 1)], reviewer=name)


def test_reviewers_at_the_same_time_lose_nothing(run):
    """Two processes and a thread, each with an eye on one turn; each one's own decisions keep their order."""
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=_decide, args=(run, name, 12)) for name in "ab"]
    others.append(threading.Thread(target=_decide, args=(run, "c", 12)))
    ledger = Ledger(run)
    for other in others:
        other.start()
    while any(other.is_alive() for other in others):
        ledger.in_force()
    every = [review for path in reviews.files(run) for review in reviews.read_file(path)]
    for name in "abc":
        own = [review for review in every if review.reviewer == name and review.note]
        assert [review.note for review in sorted(own, key=lambda r: r.ordinal)] == [f"{name}{n}" for n in range(12)]
    assert ledger.in_force() == reviews_in_force(run)
    assert reviews_in_force(run)["s0:1"].note in ("a11", "b11", "c11")


def test_killed_between_a_decision_is_there_whole_or_not_at_all(run):
    """The reviewer is told "done" only afterwards, and the next one removes what the kill left."""
    reviews.append(run, [set_reward("s0:1", 1)])

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def child():
        reviews.Path.replace = die
        reviews.append(run, [set_reward("s0:1", -1)])

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    left = list((run / "judge" / "reviews").glob(".*"))
    assert len(left) == 1
    assert reviews_in_force(run)["s0:1"].decided == {"reward": 1}
    assert len(pd.read_parquet(run / "judge" / "reviews")) == 1
    reviews.append(run, [set_reward("s1:1", 1)])
    assert not left[0].exists()


def test_a_damaged_file_is_named(run):
    reviews.append(run, [set_reward("s0:1", 1)])
    (path,) = reviews.files(run)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(OpdkitError, match=path.name):
        reviews_in_force(run)


def test_a_ledger_reads_each_file_once(run, monkeypatch):
    reviews.append(run, [set_reward("s0:1", 1)])
    ledger, read = Ledger(run), []
    whole = reviews.read_file
    monkeypatch.setattr(reviews, "read_file", lambda path: (read.append(path), whole(path))[1])
    ledger.in_force()
    reviews.append(run, [set_reward("s0:1", 0)])
    assert ledger.in_force()["s0:1"].reward == 0
    assert read == reviews.files(run)


def test_decisions_can_be_made_while_there_are_verdicts_only(tmp_path):
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello.", "Bye")})
    Stage.open(JudgeConfig(run=run, judge="rules"), "judge", [VERDICTS], parts=1, upstream=["extract"])
    reviews.append(run, [set_reward("s:1", 1)])
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    assert decided(run, 0)[0]["reward"] == 1
