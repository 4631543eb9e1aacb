"""Tests of people's decisions in the log: ratings, edits, replaced replies and comments, and conflicts of these."""

import re
from pathlib import Path
from typing import Any

import pytest
from runs import talk, write_extract

from opdkit.chat.conversation import NO_DECISION
from opdkit.commands.check import stage as check
from opdkit.commands.report.collect import collect
from opdkit.commands.show.command import choose_views
from opdkit.commands.show.command import run as show
from opdkit.commands.turns.view import read_turn_view
from opdkit.config.check import CheckConfig
from opdkit.config.fields import PythonFunction
from opdkit.config.judge import JudgeConfig
from opdkit.config.show import ShowConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.wording import DEFAULTS
from opdkit.judge import stage as judge
from opdkit.judge.hints import CHOSEN
from opdkit.store.counters import Summary
from opdkit.store.reading import read_all
from opdkit.teacher import stage as teacher

EDIT, KEPT = "Take the bus.", "It is 7 km."
EDIT_HINT, KEPT_HINT = (DEFAULTS["judge"][name].replace("{reply}", text)
                        for name, text in (("edited", EDIT), ("kept", KEPT)))  # fmt: skip
TALK = talk("How far is Lyon?", "Far.", "Use kilometres instead.")
SILENT = TALK[:2]
# session -> messages, decision on its reply
LOG: dict[str, tuple[list, dict[str, Any]]] = {
    "none": (TALK, {}),
    "up": (talk("2 + 2?", "4", "And 3 + 3?"), {"rating": 1}),
    "down": (talk("2 + 2?", "5", "And 3 + 3?"), {"rating": -1, "tags": ["wrong"]}),
    "neutral": (talk("2 + 2?", "four", "And 3 + 3?"), {"rating": 0}),
    "down, silent": (SILENT, {"rating": -1}),
    "comment": (SILENT, {"comment": "Use kilometres instead."}),
    "down, comment": (SILENT, {"rating": -1, "comment": "Use kilometres instead."}),
    "edited": (SILENT, {"edited": EDIT}),
    "edited, said": (TALK, {"edited": EDIT}),
    "given up": (SILENT, {"kept": KEPT}),
    "given up, said": (TALK, {"kept": KEPT}),
    "tags": (SILENT, {"tags": ["odd"]}),
    "up, said": (TALK, {"rating": 1}),
    "up, edited": (SILENT, {"rating": 1, "edited": EDIT}),
    "up, given up": (SILENT, {"rating": 1, "kept": KEPT}),
}
HINT = "Use kilometres."


def decided_run(run: Path) -> Path:
    """Write the run as extract does: a decision that says something about the reply makes its turn trainable."""
    turns = {f"{name}:1": {"decision": NO_DECISION | decision} for name, (_, decision) in LOG.items() if decision}
    for fields in turns.values():
        if fields["decision"] | {"tags": []} != NO_DECISION:
            fields |= {"trainable": True, "skip_reason": None}
    return write_extract(run, {name: messages for name, (messages, _) in LOG.items()}, per_part=4, turns=turns)


def judged(run: Path, **options: Any) -> tuple[dict[str, tuple], Summary]:
    """Return session -> (reward, its status, hint, its status), by the rules, and the summary."""
    summary = judge.run(JudgeConfig(run=run, judge="rules", shard="0/1", overwrite=True, **options))
    rows = {row["turn_id"].partition(":")[0]: row for row in read_all(run, "verdicts")}
    columns = ("reward", "reward_status", "hint", "hint_status")
    return {name: tuple(row[column] for column in columns) for name, row in rows.items()}, summary


def test_decisions_are_rewards_and_hints_without_a_vote(tmp_path: Path) -> None:
    run = decided_run(tmp_path / "run")
    found, summary = judged(run)
    assert found == {
        "none": (-1, "ok", HINT, "ok"),
        "up": (1, "outcome", None, "none"),
        "down": (-1, "outcome", None, "none"),
        "neutral": (0, "outcome", None, "none"),
        "down, silent": (-1, "outcome", None, "none"),
        "comment": (-1, "ok", HINT, "ok"),
        "down, comment": (-1, "outcome", HINT, "ok"),
        "edited": (-1, "outcome", EDIT_HINT, "edited"),
        "edited, said": (-1, "outcome", EDIT_HINT, "edited"),
        "given up": (-1, "outcome", KEPT_HINT, "kept"),
        "given up, said": (-1, "outcome", f"{HINT}\n\n{KEPT_HINT}", "kept"),
        "up, said": (1, "conflict", None, "conflict"),
        "up, edited": (1, "conflict", None, "conflict"),
        "up, given up": (1, "conflict", None, "conflict"),
    }
    assert summary.counters.labels("conflicts") == {"rated +1, hinted": 1, "rated +1, edited": 1, "rated +1, kept": 1}
    assert summary.counters.dropped == {"no next state": 1}, "tags alone say nothing of the reply"
    votes = {row["turn_id"].partition(":")[0]: (len(row["hint_votes"]), len(row["reward_votes"]))
             for row in read_all(run, "verdicts")}  # fmt: skip
    assert {name for name, (_, rewards) in votes.items() if rewards} == {"none", "comment"}
    assert {name for name, (hints, _) in votes.items() if hints} == {
        "none", "up", "down", "neutral", "comment", "down, comment", "given up, said", "up, said",
    }  # fmt: skip
    assert check.run(CheckConfig(run=run)), "nothing wrong"


@pytest.mark.parametrize(("rule", "expected"), [
    ("hint", [(-1, "conflict", *hint) for hint in ((HINT, "ok"), (EDIT_HINT, "edited"), (KEPT_HINT, "kept"))]),
    ("neither", [(None, "conflict", None, "conflict")] * 3),
])  # fmt: skip
def test_an_option_says_what_holds_in_a_conflict(tmp_path: Path, rule: str, expected: list[tuple]) -> None:
    run = decided_run(tmp_path / "run")
    before, _ = judged(run)
    found, summary = judged(run, conflicts=rule)
    assert [found.pop(name) for name in ("up, said", "up, edited", "up, given up")] == expected
    assert found.items() <= before.items(), "all others stay"
    assert summary.counters.total("conflicts") == 3
    disagreeing, _ = choose_views(ShowConfig(run=run, status="conflict", max_turns=9), whole=False)
    assert [line.turn_id for line in disagreeing.lines] == ["up, said:1", "up, edited:1", "up, given up:1"]
    assert {line.certainty for line in disagreeing.lines} == {0.0}, "a review begins with them"
    assert dict(collect(run, 9).summary["votes"]["statuses"])["conflict"] == 3
    assert check.run(CheckConfig(run=run)), "nothing wrong"


def test_a_rating_that_a_condition_outranks_is_no_conflict(tmp_path: Path) -> None:
    run = decided_run(tmp_path / "run")
    found, summary = judged(run, bad=("format=openai",))
    assert found["up, said"] == (-1, "outcome", HINT, "ok")
    assert found["up, edited"] == (-1, "outcome", EDIT_HINT, "edited")
    assert summary.counters.total("conflicts") == 0


def test_the_teacher_reads_the_edit(tmp_path: Path, plain_model_dir: Path) -> None:
    run = decided_run(tmp_path / "run")
    judged(run, conflicts="neither")
    summary = teacher.run(TeacherConfig(run=run, model=str(plain_model_dir), device="cpu", teacher_samples=0))
    hints = {row["turn_id"].partition(":")[0]: row["hint"] for row in read_all(run, "targets")}
    assert (hints["edited"], hints["given up, said"]) == (EDIT_HINT, f"{HINT}\n\n{KEPT_HINT}")
    assert summary.counters.dropped == {"no signal": 3}
    assert all(row["teacher_logprobs"] is not None for row in read_all(run, "targets") if row["hint"])


def advise(prompt: list, reply: dict, next_state: list) -> tuple[int, str]:
    """Return -1 and a hint: a next message of over 40 characters quoted, else a wish for kilometres."""
    said = next_state[0]["content"]
    return -1, said if len(said) > 40 else HINT


@pytest.mark.parametrize(("decision", "status", "words"), [
    ({"comment": "Give all distances in kilometres and not in miles, please."}, "leak", ["quotes what came next"]),
    ({"rating": 1}, "conflict", ["accepted, but a person rated the reply +1"]),
    ({"rating": 1, "kept": KEPT}, "conflict", ["accepted, but a person rated the reply +1"] * 2),
    ({"kept": KEPT}, "kept", [CHOSEN, "chosen, and stands before the reply that a person kept"]),
])  # fmt: skip
def test_what_became_of_a_hint_beside_a_decision(
    tmp_path: Path, decision: dict[str, Any], status: str, words: list[str]
) -> None:
    turns = {"s:1": {"decision": NO_DECISION | decision}}
    run = write_extract(tmp_path / "run", {"s": TALK}, turns=turns)
    judge.run(JudgeConfig(run=run, judge=PythonFunction(advise), shard="0/1"))
    found = read_turn_view(run, "s:1")["verdict"]
    assert (found["hint_status"], [one["status"] for one in found["candidates"]]) == (status, words)


def test_show_names_the_decision(tmp_path: Path, capsys) -> None:
    run = decided_run(tmp_path / "run")
    judged(run)
    told = {}
    for name in ("none", "down", "down, comment", "edited", "given up"):
        show(ShowConfig(run=run, turn_id=f"{name}:1"))
        told[name] = re.findall(r"decided in the log: (.+)\n +(.+)", capsys.readouterr().out)
    assert told == {
        "none": [], "down": [("rated", "-1"), ("tags", "wrong")], "edited": [("edited to", EDIT)],
        "down, comment": [("rated", "-1"), ("comment", "Use kilometres instead.")],
        "given up": [("kept instead", KEPT)],
    }  # fmt: skip


def test_a_dry_run_asks_about_no_decided_turn(tmp_path: Path, plain_model_dir: Path, capsys) -> None:
    """Of 14 turns, 8 have a reaction to ask about a hint, and only 2 have no reward from a decision."""
    run = decided_run(tmp_path / "run")
    judge.run(JudgeConfig(run=run, judge="local", judge_model=str(plain_model_dir), shard="0/1", dry_run=True))
    told = {line.rsplit("  ", 1)[0].strip(): line.rsplit("  ", 1)[1].strip()
            for line in capsys.readouterr().out.splitlines() if "  " in line.strip()}  # fmt: skip
    assert (told["turns to judge"], told["questions on the hint"], told["questions on the reward"]) == ("14", "8", "2")
