"""Tests that the figures of the report equal those of the tables, at any stage, and that its lists are bounded."""

import json
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checked_runs import recommit, whole_run
from hypothesis import given
from hypothesis import strategies as st
from sample_world import DATA, MODEL

from opdkit.commands.demo import OWN_LOGS
from opdkit.commands.report.collect import collect, find_dominant
from opdkit.commands.report.curves import describe_drift
from opdkit.commands.report.tallies import Advantages, Largest, RewardsByLength
from opdkit.commands.report.turn_list import choose_whole, make_columns, order_typical
from opdkit.commands.turns.line import TurnLine
from opdkit.commands.turns.of_run import ScoredReply, read_turns
from opdkit.commands.turns.token_text import load_texts
from opdkit.commands.turns.view import read_turn_views
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.errors import OpdkitError
from opdkit.evaluate.conclusion import read_conclusion
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.store import reviews
from opdkit.store.reading import read_all
from opdkit.store.reviews import TRAINED_BEFORE, Review


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole_run(tmp_path_factory.mktemp("collect") / "run")


def level(summary: dict, name: str) -> dict:
    return next(one for one in summary["funnel"] if one["name"] == name)


def test_the_funnel_counts_what_the_tables_hold(run: Path) -> None:
    summary = collect(run, 1_000).summary
    turns, verdicts, targets = (list(read_all(run, table)) for table in ("turns", "verdicts", "targets"))
    assert level(summary, "sessions")["count"] == 24
    assert level(summary, "turns")["count"] == len(turns)
    trainable = level(summary, "turns that may be trained on")
    assert trainable["count"] == sum(turn["trainable"] for turn in turns)
    skipped = Counter(turn["skip_reason"] for turn in turns if not turn["trainable"])
    assert dict(trainable["dropped"]) == skipped
    assert level(summary, "judged")["count"] == len(verdicts)
    assert level(summary, "with a hint")["count"] == sum(v["hint"] is not None for v in verdicts)
    silent = len(verdicts) - len(targets)
    assert level(summary, "targets")["dropped"] == ([("no signal", silent)] if silent else [])
    assert level(summary, "tokens of the targets")["count"] == sum(sum(t["response_mask"]) for t in targets)
    # If the unit is the same, a level plus its drops equals the level before it.
    for before, after in zip(summary["funnel"], summary["funnel"][1:], strict=False):
        if before["unit"] == after["unit"] == "turns" and not after["part_of"] and after["dropped"]:
            assert after["count"] + sum(n for _, n in after["dropped"]) == before["count"]


def test_votes_hints_and_shares_are_those_of_the_tables(run: Path) -> None:
    """Shares are also given by source and session, so that the share of a poisoned one can be seen."""
    summary = collect(run, 1_000).summary
    verdicts, targets = list(read_all(run, "verdicts")), list(read_all(run, "targets"))
    rewards = Counter({1: "+1", 0: "0", -1: "-1", None: "none"}[v["reward"]] for v in verdicts)
    assert summary["votes"]["rewards"] == rewards
    assert sum(summary["votes"]["scores"].values()) == sum(
        vote["score"] is not None for v in verdicts for vote in v["reward_votes"]
    )
    groups, hints = summary["hints"]["groups"], Counter(v["hint"] for v in verdicts if v["hint"])
    assert dict(map(tuple, (one for group in groups for one in group["wordings"]))) == hints
    assert [group["turns"] for group in groups] == sorted((group["turns"] for group in groups), reverse=True)
    assert sum(group["turns"] for group in groups) == hints.total() > len(hints) > len(groups)
    assert sum(n for _, n in summary["hints"]["lengths"]) == summary["hints"]["count"]
    by_session = Counter[str]()
    for target in targets:
        by_session[target["turn_id"].rpartition(":")[0]] += sum(target["response_mask"])
    found = {s["session"]: s["tokens"] for s in summary["shares"]["sessions"]}
    assert found == dict(sorted(by_session.items(), key=lambda item: -item[1])[: len(found)])
    (source,) = summary["shares"]["sources"]
    assert source["tokens"] == summary["shares"]["total"]["tokens"] == sum(by_session.values())
    assert source["sessions"] == summary["shares"]["session_count"] == 24


def test_replies_that_the_teacher_wrote_are_counted_beside_the_logged_ones(run: Path, tmp_path: Path) -> None:
    """Replies by the teacher are counted in the funnel, per session and in total, as `opdkit train` prints them."""
    other, logged = shutil.copytree(run, tmp_path / "run"), list(read_all(run, "targets"))
    recommit(other, "targets", 0, lambda rows: rows.extend(rows[0] | {"written": n} for n in range(2)))
    recommit(other, "metrics", 0, counters=lambda counters: counters.count("written by the teacher", 2))
    summary = collect(other, 10).summary
    session = logged[0]["turn_id"].rpartition(":")[0]
    (found,) = [one for one in summary["shares"]["sessions"] if one["session"] == session]
    assert (found["logged"], found["written"]) == (sum(row["turn_id"].startswith(session + ":") for row in logged), 2)
    assert (summary["shares"]["total"]["logged"], summary["shares"]["total"]["written"]) == (len(logged), 2)
    written = level(summary, "written by the teacher")
    assert (written["count"], written["part_of"]) == (2, "trained replies")


@pytest.mark.parametrize("last", ["extract", "judge", "teacher", "train"])
def test_a_run_that_is_not_finished_says_what_it_has(run: Path, tmp_path: Path, last: str) -> None:
    """Figures that a stage has not written are null, never 0."""
    order = ["extract", "judge", "teacher", "train", "eval"]
    there = order[: order.index(last) + 1]
    for stage in there:
        shutil.copytree(run / stage, tmp_path / stage)
    summary = collect(tmp_path, 100).summary
    known = {"judge": "votes", "teacher": "advantages", "train": "training", "eval": "evaluation"}
    assert {key: summary[key] is not None for stage, key in known.items()} == {
        key: stage in there for stage, key in known.items()
    }
    assert [s["stage"] for s in summary["stages"] if s["parts"]] == there
    assert {one["stage"] for one in summary["funnel"]} == set(there)
    begins = f"Next: `opdkit {order[len(there)]} {tmp_path} "
    assert [step[: len(begins)] for step in summary["next"]] == [begins]
    assert f"train {tmp_path} --model {MODEL} --holdout 0.3`" in summary["next"][0] or last != "teacher"


@pytest.mark.parametrize("tables", [["scores", "replies"], ["replies"]])
def test_an_evaluation_that_has_begun_says_nothing_yet(run: Path, tmp_path: Path, tables: list[str]) -> None:
    """Scores are committed before replies. If a kill leaves scores without replies, no evaluation is shown."""
    other = Path(shutil.copytree(run, tmp_path / "run"))
    for table in tables:
        shutil.rmtree(other / "eval" / table)
    summary = collect(other, 100).summary
    assert (summary["evaluation"], summary["conclusion"]) == (None, None)
    assert any(notice.startswith("eval has finished 0 of 1 part") for notice in summary["notices"])


@pytest.mark.parametrize("gone", ["judge", "teacher"])
def test_a_stage_that_is_gone_leaves_out_what_the_next_one_has_not_seen(run: Path, tmp_path: Path, gone: str) -> None:
    other = Path(shutil.copytree(run, tmp_path / "run"))
    shutil.rmtree(other / gone)
    summary = collect(other, 100).summary
    assert gone not in {one["stage"] for one in summary["funnel"]}
    assert level(summary, "trained replies")["count"] == level(collect(run, 1).summary, "trained replies")["count"]


def test_the_next_step_is_that_of_the_conclusion_and_leads_from_the_sample_to_own_logs(
    run: Path, tmp_path: Path
) -> None:
    shutil.copytree(run, tmp_path / "run")
    assert collect(run, 10).summary["next"] == [read_conclusion(run).next]  # type: ignore[union-attr]
    path = tmp_path / "run/extract/manifest.json"
    path.write_text(path.read_text().replace(str(DATA / "logs" / "openai.jsonl"), str(DATA / "logs")))
    (first, second) = collect(tmp_path / "run", 10).summary["next"]
    assert first == read_conclusion(tmp_path / "run").next  # type: ignore[union-attr]
    assert second.endswith(f"`{OWN_LOGS}`")


def test_validations_name_the_step_that_was_handed_out(run: Path, tmp_path: Path) -> None:
    assert collect(run, 10).summary["training"]["validations"] == {
        "step": [0, 2, 4], "hint_kl": [0.75, 0.25, 0.125], "kept_kl": [0.0, 0.125, 0.5], "kept": 2
    }  # fmt: skip
    other = Path(shutil.copytree(run, tmp_path / "run"))
    recommit(other, "validations", 0, lambda rows: rows[2].update(score=0.3))
    assert collect(other, 10).summary["training"]["validations"]["kept"] == 4
    recommit(other, "validations", 0, list.clear)
    assert collect(other, 10).summary["training"]["validations"]["step"] == []


def test_an_evaluation_of_what_is_no_longer_there_is_left_out(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    judge.run(JudgeConfig(run=tmp_path / "run", judge="rules", max_hint_chars=50, overwrite=True, shard="0/1"))
    summary = collect(tmp_path / "run", 100).summary
    assert summary["evaluation"] is None
    said = [notice.partition(":")[0] for notice in summary["notices"]]
    assert "eval was computed from an older judge stage than the one there now, and is left out" in said
    assert "teacher was computed from an older judge stage than the one there now, whose figures these are" in said
    (step,) = summary["next"]
    assert step.startswith(f"Next: run `opdkit teacher {tmp_path}/run ...` again as before, with --overwrite")
    shutil.rmtree(tmp_path / "run" / "train")
    notices = collect(tmp_path / "run", 9).summary["notices"]
    assert any("eval was computed from an older" in notice for notice in notices)


def test_a_part_that_is_missing_is_said_and_left_out(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run/judge/verdicts/part-00001.parquet").unlink()
    summary = collect(tmp_path / "run", 100).summary
    assert "judge has finished 2 of 3 parts; the rest is not in this report" in summary["notices"]
    judged, turns = summary["votes"]["judged"], list(read_all(run, "turns"))
    assert judged < len(list(read_all(run, "verdicts")))
    last = level(summary, "judged")
    assert (last["count"], last["dropped"][0][0]) == (judged, "in parts that are not done")
    assert judged + last["dropped"][0][1] == sum(row["trainable"] for row in turns)
    shutil.rmtree(tmp_path / "run/eval")
    (following,) = collect(tmp_path / "run", 100).summary["next"]
    assert following.startswith("Next: run `opdkit judge ")
    assert following.endswith("again as before: it does what is left.")


def test_what_a_limit_left_out_is_named(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "extract", tmp_path / "run/extract")
    judge.run(JudgeConfig(run=tmp_path / "run", judge="rules", limit=10, shard="0/1"))
    last = level(collect(tmp_path / "run", 100).summary, "judged")
    sessions = {row["session_id"] for row in list(read_all(run, "sessions"))[:10]}
    beyond = sum(turn["trainable"] and turn["session_id"] not in sessions for turn in read_all(run, "turns"))
    assert last["dropped"] == [("beyond --limit", beyond)]


def test_turns_that_an_outcome_makes_trainable_are_not_dropped(tmp_path: Path) -> None:
    """Without a reaction, a turn is judged by --good and --bad alone. The levels and their drops add up."""
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]
    log, run = tmp_path / "log.jsonl", tmp_path / "run"
    log.write_text("".join(json.dumps({"id": n, "messages": said, "stars": n}) + "\n" for n in range(1, 6)))
    extract.run(ExtractConfig(run=run, logs=(str(log),), shard="0/1"))
    good, bad = ("metadata.stars>=4",), ("metadata.stars<=1",)
    judge.run(JudgeConfig(run=run, judge="rules", good=good, bad=bad, shard="0/1"))
    summary, lines, *_ = collect(run, 100)
    trainable, judged = level(summary, "turns that may be trained on"), level(summary, "judged")
    assert (trainable["count"], trainable["dropped"]) == (3, [("no next state", 2)])
    assert (judged["count"], judged["dropped"]) == (3, [])
    skipped = {f"log:{n}:1": "no next state" if n in (2, 3) else None for n in range(1, 6)}
    assert {line.turn_id: line.skip_reason for line in lines} == skipped
    views = read_turn_views(run, list(skipped))
    assert [(view["trainable"], view["skip_reason"]) for view in views] == [(not x, x) for x in skipped.values()]


def test_no_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match=re.escape(str(tmp_path))):
        collect(tmp_path, 100)


def test_a_decision_counts_in_the_place_of_the_votes(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    before = collect(tmp_path / "run", 1_000).summary
    turn_id = next(v["turn_id"] for v in read_all(run, "verdicts") if v["hint"] is None)
    reviews.append(tmp_path / "run", [Review(turn_id, hint_decided=True, hint="Name the source of the figure.")])
    after = collect(tmp_path / "run", 1_000)
    assert (after.summary["reviewed"], after.summary["hints"]["count"]) == (1, before["hints"]["count"] + 1)
    reviewing = collect(tmp_path / "run", 1_000, reviewing=True).summary["hints"]
    assert [reviewing[name] for name in ("count", "lengths")] == [
        after.summary["hints"][name] for name in ("count", "lengths")
    ]
    listed = make_columns(after.lines, 50, {}, {}, reviewing=False)
    assert listed["reviews"][turn_id]["hint"] == "Name the source of the figure."


def test_targets_and_a_training_older_than_a_decision_are_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(run, tmp_path / "run")
    for stage in ("train", "eval"):
        shutil.rmtree(tmp_path / "run" / stage)
    turn_id = next(row["turn_id"] for row in read_all(run, "targets"))
    reviews.append(tmp_path / "run", [Review(turn_id, hint_decided=True, hint="Name the source of the figure.")])
    summary = collect(tmp_path / "run", 10).summary
    assert any(notice.startswith("parts of targets older") for notice in summary["notices"])
    assert [step.partition(" ...`")[0] for step in summary["next"]] == [f"Next: run `opdkit teacher {tmp_path}/run"]
    shutil.copytree(run / "train", tmp_path / "run/train")
    monkeypatch.setattr("opdkit.store.reviews.find_outdated_targets", lambda *_: [])  # as after `teacher`
    notices = collect(tmp_path / "run", 10).summary["notices"]
    assert any(notice.startswith(f"train: {TRAINED_BEFORE}") for notice in notices)


def test_the_last_bar_holds_all_longer_hints(run: Path, tmp_path: Path) -> None:
    """A reply that a person edited becomes a hint, which may have any length."""
    shutil.copytree(run, tmp_path / "run")
    names = [v["turn_id"] for v in read_all(run, "verdicts") if v["hint"]][:3]
    reviews.append(tmp_path / "run", [Review(name, hint_decided=True, hint="x" * n)
                                      for name, n in zip(names, (640, 700, 5_400), strict=True)])  # fmt: skip
    lengths = collect(tmp_path / "run", 1_000).summary["hints"]["lengths"]
    assert [start for start, _ in lengths] == [20 * n for n in range(32)]
    assert lengths[-1] == [620, 3]


def test_a_source_or_session_that_decides_alone_is_named() -> None:
    """The feedback of one user or of a stranger must not decide the training unnoticed."""
    shares = {
        "total": {"tokens": 100, "turns": 20},
        "sources": [{"source": "stranger.jsonl", "tokens": 60}, {"source": "ours.jsonl", "tokens": 40}],
        "sessions": [{"source": "stranger.jsonl", "session": "stranger:1", "tokens": 30}],
        "session_count": 50,
    }
    first, second = find_dominant(shares)
    assert first == "one source has 60% of the tokens to train on: stranger.jsonl"
    assert second.startswith("one session has 30% of the tokens to train on: stranger:1 (")
    shares["sources"][0]["tokens"], shares["sessions"][0]["tokens"] = 50, 10
    assert find_dominant(shares) == []


def test_the_configuration_holds_no_key(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The options show the name of the key's environment variable, and only `judge` differs from its default."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    summary = collect(run, 1).summary
    assert "sk-secret" not in str(summary)
    (judge,) = (c for c in summary["configuration"] if c["stage"] == "judge")
    assert ["api_key_env", "OPENAI_API_KEY", False] in judge["options"]
    assert {key for key, _, changed in judge["options"] if changed} == {"judge"}


def test_what_one_process_makes_of_the_default_shard_is_not_marked(run: Path) -> None:
    for stage in collect(run, 1).summary["configuration"]:
        assert ["shard", "0/1", False] in stage["options"]


# -- which turns -------------------------------------------------------------------------------------------------------


def test_the_list_is_bounded_and_has_the_strongest(run: Path) -> None:
    every, some = collect(run, 1_000).lines, collect(run, 20).lines
    assert len(some) == 20
    assert len({row.turn_id for row in some}) == 20
    strengths = sorted((row.strength or 0.0 for row in every), reverse=True)
    assert sorted((row.strength or 0.0 for row in some), reverse=True)[:10] == strengths[:10]
    in_order = [turn["turn_id"] for turn in read_all(run, "turns")]
    assert make_columns(every, 300, {}, {}, reviewing=False)["id"] == in_order, "the order of the log"
    assert collect(run, 20).lines == some, "the same draw in every report"


def test_shown_whole_are_typical_ones_the_strongest_and_one_of_every_kind(run: Path) -> None:
    rows, groups = (collected := collect(run, 1_000)).lines, collected.groups

    def kind(line: TurnLine) -> tuple:
        return line.state, line.source, line.reward, line.hint_status, line.skip_reason, line.review is not None

    kinds = {kind(row) for row in rows}
    chosen = choose_whole(rows, 3 * len(kinds), groups)
    assert len(chosen) == len(set(chosen)) == 3 * len(kinds)
    assert {kind(row) for row in rows if row.turn_id in chosen} == kinds
    strongest = max((row for row in rows if row.strength is not None), key=lambda row: row.strength or 0.0)
    assert strongest.turn_id in chosen[:3] or strongest.strength == 0
    assert chosen[0] == order_typical(rows, groups)[0].turn_id
    assert choose_whole(rows, 0, groups) == []


def test_a_typical_reply_of_each_hint_comes_first() -> None:
    """Typical: near the median of the summed |advantages| of the group's replies with reward -1, here 2 of 1, 2, 9."""
    hinted = [("a", -1, 9.0), ("a", 1, 2.0), ("b", -1, 4.0), ("a", -1, 1.0), (None, -1, 3.0), ("a", -1, 2.0)]
    rows = [SimpleNamespace(number=n, hint=hint, reward=reward, tokens=2, strength=total / 2)
            for n, (hint, reward, total) in enumerate(hinted)]  # fmt: skip
    rows.append(SimpleNamespace(number=9, hint="a", reward=-1, tokens=None, strength=None))
    found = order_typical(rows, {"a": 0, "b": 1})  # type: ignore[arg-type]
    assert [row.number for row in found] == [5, 2, 4, 3, 0, 1]


def test_every_turn_is_joined_with_its_own(run: Path) -> None:
    turns = {turn.turn_id: turn for turn in read_turns(run)}
    assert list(turns) == [turn["turn_id"] for turn in read_all(run, "turns")]
    for verdict in read_all(run, "verdicts"):
        mine = turns[verdict["turn_id"]].verdict
        assert mine is not None
        assert [v["score"] for v in mine["reward_votes"]] == [v["score"] for v in verdict["reward_votes"]]
        assert [v["error"] for v in mine["hint_votes"]] == [v["error"] for v in verdict["hint_votes"]]
    for row in read_all(run, "targets"):
        (target,) = turns[row["turn_id"]].targets
        if row["teacher_logprobs"] is not None:
            expected = np.subtract(row["teacher_logprobs"], row["old_logprobs"], dtype=np.float32)
            assert target.advantages is not None
            np.testing.assert_array_equal(target.advantages, expected)
        assert turns[row["turn_id"]].state == "trained"


# -- tallies -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 8)), st.integers(0, 6))
def test_the_largest_are_those_of_a_sort(values: list[int], most: int) -> None:
    kept: Largest[tuple[int, int]] = Largest(most)
    for place, value in enumerate(values):
        kept.add((value, place), value)
    every = [(value, place) for place, value in enumerate(values)]
    assert kept.items() == sorted(every, key=lambda item: (-item[0], item[1]))[:most]


def test_the_tokens_that_moved_most_are_those_of_the_targets(run: Path, tmp_path: Path) -> None:
    """Each is paired with the teacher's likeliest stored token. A position where both are the same does not count."""
    moved = shutil.copytree(run, tmp_path / "run")

    def shift(rows: list[dict[str, Any]]) -> None:
        for row in (row for row in rows if row["support_teacher"] is not None):
            row["teacher_logprobs"] = [old - n % 3 for n, old in enumerate(row["old_logprobs"])]
            row["support_teacher"] = [logprobs[::-1] for logprobs in row["support_old"]]
            row["response_ids"] = [i if n % 2 else 7 for n, i in enumerate(row["response_ids"])]
            row["support_ids"] = [[7, *ids[1:-1], 7 if n == 4 else 9] for n, ids in enumerate(row["support_ids"])]

    for part in range(3):
        recommit(moved, "targets", part, shift)
    pairs = Counter[tuple[int, int]]()
    for row in (row for row in read_all(moved, "targets") if row["support_teacher"] is not None):
        for n, token in enumerate(row["response_ids"]):
            best = max(range(len(row["support_ids"][n])), key=lambda k: row["support_teacher"][n][k])
            instead = row["support_ids"][n][best]
            if row["response_mask"][n] and n % 3 and instead != token:
                pairs[token, instead] += 1
    texts = load_texts(moved)
    found = [(one["token"], one["instead"], one["count"]) for one in collect(moved, 10).summary["moved"]]
    assert [number for *_, number in found] == sorted(pairs.values(), reverse=True)[:12]
    assert set(found) <= {(texts([a])[0], texts([b])[0], number) for (a, b), number in pairs.items()}
    for stage in ("teacher", "train", "eval"):
        shutil.rmtree(moved / stage)
    assert collect(moved, 10).summary["moved"] == []


class Scored:
    """Turn with only the fields that the tally of advantages reads."""

    def __init__(self, advantages: np.ndarray) -> None:
        self.targets = [ScoredReply(None, len(advantages), advantages, 0.5, 1)]


def test_the_distribution_is_that_of_numpy() -> None:
    """The outermost bars also hold all values beyond them."""
    values = np.random.default_rng(0).normal(-0.3, 2.5, 5_000).astype(np.float32)
    tally = Advantages()
    for chunk in np.split(values, 10):
        tally.add(Scored(chunk))  # type: ignore[arg-type]
    result = tally.summarize()
    assert result["tokens"] == 5_000
    assert result["mean"] == pytest.approx(values.mean(), abs=1e-5)
    edges = np.array([start for start, _ in result["bars"]] + [5.0])
    expected, _ = np.histogram(np.clip(values, -5, np.nextafter(np.float32(5), np.float32(0))), edges)
    assert [count for _, count in result["bars"]] == expected.tolist()
    assert result["reward_tokens"] == {"+1": 5_000}


def rewarded(tokens: int, reward: int | None, written: int | None = None) -> Any:
    """Return a turn with one target."""
    return SimpleNamespace(targets=[ScoredReply(written, tokens, None, None, reward)])


def test_rewards_by_length_worked_by_hand() -> None:
    tally = RewardsByLength()
    assert tally.summarize() is None
    for tokens, reward in ((1, 1), (2, 1), (3, 0), (7, -1), (8, -1), (8, 1), (0, 1), (9, None)):
        tally.add(rewarded(tokens, reward))
    tally.add(rewarded(5, 1, written=0))  # a reply of the teacher: nobody has reacted to it
    result = tally.summarize()
    assert result is not None
    assert [(low, high, [counts[r] for r in ("+1", "0", "-1")]) for low, high, counts in result["bins"]] == [
        (1, 1, [1, 0, 0]), (2, 3, [1, 1, 0]), (4, 7, [0, 0, 1]), (8, 15, [1, 0, 1])
    ]  # fmt: skip
    assert result["means"] == {"+1": pytest.approx(11 / 3), "0": 3.0, "-1": 7.5}


@given(st.lists(st.tuples(st.integers(1, 5000), st.sampled_from([-1, 0, 1])), min_size=1, max_size=40))
def test_every_rewarded_reply_is_in_the_row_of_its_length(replies: list[tuple[int, int]]) -> None:
    tally = RewardsByLength()
    for tokens, reward in replies:
        tally.add(rewarded(tokens, reward))
    result = tally.summarize()
    assert result is not None
    assert sum(sum(counts.values()) for _, _, counts in result["bins"]) == len(replies)
    for low, high, counts in result["bins"]:
        assert sum(counts.values()) == sum(low <= tokens <= high for tokens, _ in replies)


def test_rewards_by_length_of_a_run_are_those_of_its_targets(run: Path) -> None:
    result = collect(run, 10).summary["rewards_by_length"]
    expected = defaultdict(Counter)
    for row in read_all(run, "targets"):
        if row["reward"] is not None and any(row["response_mask"]):
            expected[sum(row["response_mask"]).bit_length() - 1][f"{row['reward']:+d}".replace("+0", "0")] += 1
    assert [+Counter(counts) for _, _, counts in result["bins"]] == [expected[n] for n in range(len(result["bins"]))]


def test_the_drift_is_shown_reply_by_reply_with_its_largest() -> None:
    values = np.random.default_rng(0).exponential(0.03, 300)
    rows = [{"prompt_id": f"p{n}", "sample": n % 5, "model": "before", "kl": float(kl), "reply": "x" * n}
            for n, kl in enumerate(values)]  # fmt: skip
    found = describe_drift(rows + [row | {"model": "after", "kl": None, "reply": "y" + row["reply"]} for row in rows])
    assert found is not None
    assert found["count"] == 300
    assert dict(found["quantiles"])[1.0] == values.max() == found["largest"][0]["kl"]
    assert found["largest"][0]["prompt_id"] == f"p{values.argmax()}"
    assert [one["kl"] for one in found["largest"]] == sorted(values)[:-4:-1]
    assert [one["after"] for one in found["largest"]] == ["y" + one["before"] for one in found["largest"]]
    assert sum(n for _, n in found["bars"]) == 300
    assert len(found["bars"]) <= 20
    for start, number in found["bars"]:
        assert number == ((values >= start) & (values < start + found["width"])).sum()
    still = describe_drift([rows[0] | {"kl": kl} for kl in (0.0, -1e-9)])
    assert still is not None
    assert still["bars"] == [[0.0, 2]]
    assert describe_drift([]) is None


def test_an_evaluation_has_its_drift(run: Path) -> None:
    found = collect(run, 10).summary["evaluation"]["drift"]
    assert (found["count"], found["quantiles"][0]) == (2, [0.5, 0.5])
    assert "mean" not in found, "the page has one mean: that of the conclusion, over tokens"
