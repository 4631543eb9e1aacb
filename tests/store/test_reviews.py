"""Tests of review decisions: durable, ordered, safe with several reviewers, and final for every later stage."""

import fcntl
import multiprocessing
import os
import shutil
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
from opdkit.store.reading import count_parts, read_all, read_part
from opdkit.store.reviews import ConflictError, Review, ReviewLog, apply_review, read_reviews_in_force
from opdkit.store.tables import REVIEWS, VERDICTS


@pytest.fixture
def run(tmp_path):
    """Return a run with two parts of two sessions each, judged by the rules."""
    said = {f"s{n}": talk("How warm is it?", "75 F.", "No, in Celsius please.", "24 C.", "Thanks!") for n in range(4)}
    run = write_extract(tmp_path / "run", said)
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    return run


def decided(run, part: int) -> list[dict]:
    """Return the verdicts of a part with the decisions in force applied, as every stage after the judge reads them."""
    return [turn.final_verdict for turn in joined_turns(run, part) if turn.final_verdict is not None]


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
    assert read_reviews_in_force(run)["s0:1"].decided == {"hint": "Use Celsius."}, (
        "a decision replaces the one before, whole"
    )
    reviews.append(run, [strike("s0:1"), strike("s3:3")])
    assert {name: r.decided for name, r in read_reviews_in_force(run).items()} == {"s1:1": {"reward": 0}}
    reviews.append(run, [set_reward("s0:1", None)])
    assert read_reviews_in_force(run)["s0:1"].decided == {"reward": None}


def test_nobody_has_decided_anything(run):
    assert read_reviews_in_force(run) == {}
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
        (set_hint("s0:1", "\ud800"), "not Unicode"),
        (Review("s0:1", reward=1), "not decided"),
        (Review("s0:1", True, 1, action="strike"), "strike decides nothing"),
        (Review("s0:1", action="undo"), "must be set or strike"),
    ],
)
def test_what_is_no_decision_is_refused_and_nothing_of_its_sheet_is_written(run, review, words):
    with pytest.raises(OpdkitError, match=words):
        reviews.append(run, [set_reward("s1:1", 1), review])
    assert not reviews.reviews_dir(run).exists()


# -- how they are kept ----------------------------------------------------------------------------------------------


def test_the_file_opens_with_the_usual_readers(run):
    reviews.append(run, [set_reward("s0:1", 1), set_reward("s1:1", None)], reviewer="Ada")
    reviews.append(run, [set_hint("s0:1", "Use Celsius.\r\nAlways.")], reviewer="Bob")
    frame = pd.read_json(reviews.reviews_dir(run) / reviews.FILE, lines=True)
    assert set(frame.columns) == {*REVIEWS.schema.names, "checksum"}
    assert sorted(zip(frame["ordinal"], frame["reviewer"], strict=True)) == [(0, "Ada"), (1, "Ada"), (2, "Bob")]
    assert frame["hint"][2] == "Use Celsius.\r\nAlways."


def test_the_verdicts_do_not_change_and_overwriting_them_leaves_the_decisions(run):
    before = (run / "judge" / "verdicts" / "part-00000.parquet").read_bytes()
    reviews.append(run, [set_reward("s0:1", 1)])
    assert (run / "judge" / "verdicts" / "part-00000.parquet").read_bytes() == before
    with pytest.raises(ConfigError):
        judge.run(JudgeConfig(run=run, judge="rules", limit=3, shard="0/1"))
    judge.run(JudgeConfig(run=run, judge="rules", limit=3, overwrite=True, shard="0/1"))
    assert read_reviews_in_force(run)["s0:1"].decided == {"reward": 1}
    assert next(v for v in decided(run, 0) if v["turn_id"] == "s0:1")["reward_status"] == "reviewed"
    assert not list(run.glob(".judge-*")), "what was discarded is gone"


def test_killed_while_overwriting_no_part_outlives_the_manifest_and_no_decision_is_lost(run, monkeypatch):
    reviews.append(run, [set_reward("s0:1", 1)])
    for moves in range(3):
        with monkeypatch.context() as patch:
            _die_after(patch, moves)
            with pytest.raises(KeyboardInterrupt):
                judge.run(JudgeConfig(run=run, judge="rules", votes=moves + 1, overwrite=True, shard="0/1"))
        assert read_reviews_in_force(run)["s0:1"].decided == {"reward": 1}
        assert (run / "judge" / "manifest.json").exists() or not list((run / "judge").glob("verdicts/*"))
    judge.run(JudgeConfig(run=run, judge="rules", votes=9, overwrite=True, shard="0/1"))
    assert count_parts(run, "judge") == 2
    assert read_reviews_in_force(run)["s0:1"].decided == {"reward": 1}


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
    """Two processes and a thread decide on the same turns; the decisions of each reviewer keep their order."""
    fork = multiprocessing.get_context("fork")
    others = [fork.Process(target=_decide, args=(run, name, 12)) for name in "ab"]
    others.append(threading.Thread(target=_decide, args=(run, "c", 12)))
    log = ReviewLog(run)
    for other in others:
        other.start()
    while any(other.is_alive() for other in others):
        log.in_force()
    every = ReviewLog(run).all_reviews()
    assert [review.ordinal for review in every] == list(range(3 * 12 * 2))
    for name in "abc":
        own = [review for review in every if review.reviewer == name and review.note]
        assert [review.note for review in own] == [f"{name}{n}" for n in range(12)]
    assert log.in_force() == read_reviews_in_force(run)
    assert read_reviews_in_force(run)["s0:1"].note in ("a11", "b11", "c11")


def test_who_comes_while_another_writes_waits_and_is_numbered_after_it(run, monkeypatch):
    writing, go_on, to_line = threading.Event(), threading.Event(), reviews._to_line

    def slow(review):
        if review.turn_id == "s0:1":
            writing.set()
            go_on.wait()
        return to_line(review)

    monkeypatch.setattr(reviews, "_to_line", slow)
    first, second = (
        threading.Thread(target=reviews.append, args=(run, [set_reward(name, 1)])) for name in ("s0:1", "s1:1")
    )
    first.start()
    writing.wait()
    second.start()
    second.join(0.3)
    waits = second.is_alive()
    go_on.set()
    for thread in (first, second):
        thread.join()
    assert waits
    assert [(review.ordinal, review.turn_id) for review in ReviewLog(run).all_reviews()] == [(0, "s0:1"), (1, "s1:1")]


def test_a_decision_for_a_file_that_was_replaced_is_refused(run, monkeypatch):
    """`opdkit forget` may replace the file while a reviewer waits for its lock; the locked file then has no path."""
    path = reviews.reviews_dir(run) / reviews.FILE
    reviews.append(run, [set_reward("s0:1", 1)])
    log, lock = ReviewLog(run), reviews._lock

    def replaced(file, kind):
        lock(file, kind)
        if kind == fcntl.LOCK_EX:
            shutil.copy(path, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)

    monkeypatch.setattr(reviews, "_lock", replaced)
    before = path.read_bytes()
    with pytest.raises(OpdkitError, match="replaced by another process"):
        log.append([set_reward("s1:1", 1)])
    assert path.read_bytes() == before


def test_a_file_that_was_replaced_since_it_was_read_is_refused(run):
    """`opdkit forget` replaces the file, and a line of the new file may begin where the old file ended."""
    names = ["s0:1", "s1:1", "s2:1"]
    reviews.append(run, [set_reward(name, 1) for name in names[:2]])
    log = ReviewLog(run)
    reviews.drop_reviews(run, {"s0"})
    reviews.append(run, [set_reward(name, 0) for name in names])
    for look in (log.in_force, lambda: log.append([set_reward("s1:1", 1)])):
        with pytest.raises(OpdkitError, match="was replaced"):
            look()
    assert {name: review.reward for name, review in read_reviews_in_force(run).items()} == dict.fromkeys(names, 0)


@pytest.mark.parametrize("lost", [1, 150, 290])
def test_killed_while_writing_a_decision_is_there_whole_or_not_at_all(run, capsys, lost):
    """The reviewer was not yet told "done". Of two turns that are decided together, both decisions count or neither."""
    reviews.append(run, [set_reward("s0:1", 1)])
    path = reviews.reviews_dir(run) / reviews.FILE
    whole = path.read_bytes()
    reviews.append(run, [set_reward("s0:1", -1), set_reward("s1:1", -1)])
    torn = path.read_bytes()[len(whole) : -lost]
    path.write_bytes(whole + torn)
    assert {name: review.reward for name, review in read_reviews_in_force(run).items()} == {"s0:1": 1}
    assert path.read_bytes() == whole + torn, "whoever reads changes nothing"
    reviews.append(run, [set_reward("s3:3", 0)])
    assert {name: review.reward for name, review in read_reviews_in_force(run).items()} == {"s0:1": 1, "s3:3": 0}
    assert path.with_name(reviews.TORN).read_bytes() == torn + b"\n"
    assert reviews.TORN in capsys.readouterr().err


def test_a_full_disk_leaves_the_file_as_it_was(run, monkeypatch):
    """The reviewer gets an error, and no part of the decision is stored."""
    reviews.append(run, [set_reward("s0:1", 1)])
    path = reviews.reviews_dir(run) / reviews.FILE
    before = path.read_bytes()

    def full(_handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OpdkitError, match="no space left"):
            reviews.append(run, [set_reward("s0:1", -1), set_reward("s1:1", -1)])
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "damage", [(b'"reward":1', b'"reward":0'), (b"{", b"["), (b'"set"', b'"set'), (b"s1:1", b"s2:1")]
)
def test_a_damaged_line_is_named(run, damage):
    reviews.append(run, [set_reward("s0:1", 1), set_reward("s1:1", 1)])
    path = reviews.reviews_dir(run) / reviews.FILE
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.replace(*damage, 1))
    with pytest.raises(OpdkitError, match=r"decisions\.jsonl.* 0 "):
        read_reviews_in_force(run)


def test_a_log_reads_each_line_once(run, monkeypatch):
    reviews.append(run, [set_reward("s0:1", 1)])
    log, read = ReviewLog(run), []
    parse = reviews._parse_line
    monkeypatch.setattr(reviews, "_parse_line", lambda line: (read.append(line), parse(line))[1])
    log.in_force()
    log.append([set_reward("s0:1", 0)])
    assert log.in_force()["s0:1"].reward == 0
    assert len(read) == 1


def test_a_decision_of_somebody_else_is_not_overwritten_unseen(run):
    mine, other = ReviewLog(run), ReviewLog(run)
    mine.append([set_reward("s0:1", 1), set_reward("s1:1", 1)], reviewer="Ada", seen=-1)
    with pytest.raises(ConflictError) as caught:
        other.append([set_reward("s1:1", 0), set_reward("s2:1", 0)], reviewer="Bob", seen=-1)
    assert [(r.turn_id, r.reward, r.reviewer) for r in caught.value.newer] == [("s1:1", 1, "Ada")]
    assert "s2:1" not in other.in_force(), "all of it or nothing"
    other.append([set_reward("s1:1", 1)], reviewer="Bob", seen=-1)  # the same in effect
    with pytest.raises(ConflictError):
        mine.append([strike("s1:1")], seen=1)
    mine.append([strike("s1:1")], seen=2)
    with pytest.raises(ConflictError):  # the decision was withdrawn in the meantime
        other.append([set_reward("s1:1", 0)], seen=2)
    other.append([set_reward("s1:1", 0)], seen=3)
    assert mine.in_force()["s1:1"].reward == 0


def test_decisions_of_version_0_1_0_count(run):
    """Version 0.1.0 wrote one Parquet file per decision; these are read before the lines of the newer file."""
    reviews.append(run, [set_reward("s0:1", 1)])
    path = reviews.reviews_dir(run) / reviews.FILE
    (row,) = (
        pd.read_json(path, lines=True)
        .drop(columns=["checksum", "chosen", "voted_reward", "following", "hint", "note"])
        .to_dict("records")
    )
    for ordinal, reward in enumerate((0, -1)):
        old = row | {"ordinal": ordinal, "reward": reward, "hint": None, "note": "old"}
        pd.DataFrame([old]).to_parquet(path.with_name(f"review-{ordinal:08d}-0123abcd.parquet"))
    path.unlink()
    assert (read_reviews_in_force(run)["s0:1"].reward, read_reviews_in_force(run)["s0:1"].note) == (-1, "old")
    reviews.append(run, [set_reward("s1:1", 1)])
    assert [review.ordinal for review in ReviewLog(run).all_reviews()] == [0, 1, 2]
    path.with_name("review-00000001-0123abcd.parquet").write_bytes(b"PAR1")
    with pytest.raises(OpdkitError, match=r"review-00000001-0123abcd\.parquet"):
        read_reviews_in_force(run)


def test_a_draw_depends_on_the_ids_alone():
    names = [f"s{n}:1" for n in range(1000)]
    drawn = reviews.order_of_draw(names)
    assert drawn == reviews.order_of_draw(reversed(names))
    assert [name for name in drawn if name in set(names[::2])] == reviews.order_of_draw(names[::2])
    assert sum(names.index(name) for name in drawn[:100]) / 100 == pytest.approx(500, abs=100)


def test_decisions_can_be_made_while_there_are_verdicts_only(tmp_path):
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello.", "Bye")})
    Stage.open(JudgeConfig(run=run, judge="rules"), "judge", [VERDICTS], parts=1, upstream=["extract"])
    reviews.append(run, [set_reward("s:1", 1)])
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    assert decided(run, 0)[0]["reward"] == 1
