"""Tests of the judge stage, from parts to verdicts: counters, shards, resume, limits, warnings."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from runs import message, talk, write_extract

from opdkit.config.judge import JudgeConfig
from opdkit.config.wording import DEFAULTS
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge import stage as judge
from opdkit.judge.turns import read_turns
from opdkit.judge.votes import NO_ANSWER, HintVote, RewardVote, Votes
from opdkit.store.counters import Counters
from opdkit.store.reading import part_path, read_all, read_part

TEXTS = DEFAULTS["judge"]
SESSIONS = {
    "trip": talk("How do I get to Lyon?", "By train.", "Use the bus instead.", "Then by bus.", "thanks!"),
    "short": talk("hi", "hello"),
    "tool": [
        message("user", "Book it"),
        message("assistant", None, calls=[("book", "{}")]),
        message("tool", "Error: no seats left"),
        message("assistant", "There are no seats."),
        message("user", "ok"),
    ],
    "wrong": talk("2 + 2?", "5", "That's wrong."),
    "more": talk("2 + 3?", "5", "And 3 + 3?", "6"),
}


def config(run: Path, **fields) -> JudgeConfig:
    return JudgeConfig(run=run, **({"judge": "rules", "shard": "0/1"} | fields))


def verdicts(run: Path) -> dict[str, dict]:
    return {row["turn_id"]: row for row in read_all(run, "verdicts")}


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    return write_extract(tmp_path / "run", SESSIONS)


def test_rules_from_turns_to_verdicts(extracted: Path) -> None:
    summary = judge.run(config(extracted))
    rows = verdicts(extracted)
    assert {turn: (r["reward"], r["reward_status"], r["hint"], r["hint_status"]) for turn, r in rows.items()} == {
        "trip:1": (-1, "ok", "Use the bus.", "ok"),
        "trip:3": (1, "ok", None, "none"),
        "tool:1": (-1, "ok", None, "none"),
        "tool:3": (0, "ok", None, "none"),
        "wrong:1": (-1, "ok", None, "none"),
        "more:1": (0, "ok", None, "none"),
    }
    assert rows["trip:1"]["hints"] == ["Use the bus."]
    assert rows["trip:1"]["reward_agreement"] == 1.0
    assert len(rows["trip:1"]["hint_votes"]) == len(rows["trip:1"]["reward_votes"]) == 1
    counters = summary.counters
    assert (counters.rows_in, counters.rows_out, counters.dropped) == (8, 6, {"no next state": 2})
    assert counters.counts == {
        "votes": {"": 12}, "rewards": {"-1": 3, "+1": 1, "0": 2}, "hints": {"": 1}, "flags": {"tool_error": 1},
    }  # fmt: skip


def test_reactions_that_the_rules_cannot_read_are_counted_and_said(tmp_path: Path, capsys) -> None:
    """The rules read only English; the summary and a warning count reactions in another language."""
    said = {"de": "Das ist falsch, bitte auf Deutsch", "zh": "不对，我要的是Python", "en": "No, I said Tuesday"}
    run = write_extract(tmp_path / "run", {name: talk("hi", "hello", said[name], "oh", said[name]) for name in said})
    summary = judge.run(config(run))
    assert {row["turn_id"]: row["reward"] for row in verdicts(run).values() if row["reward"]} == {
        "en:1": -1,
        "en:3": -1,
    }
    assert summary.counters.total("turns not in English") == 4
    assert summary.counters.total("sessions not in English") == 2
    assert "4 reactions in 2 sessions are in another language" in capsys.readouterr().err
    english = write_extract(tmp_path / "english", {"en": talk("hi", "hello", said["en"])})
    assert "not in English" not in judge.run(config(english)).details()
    assert "another language" not in capsys.readouterr().err


def test_only_trainable_turns_are_judged(tmp_path: Path) -> None:
    turns = {"trip:1": {"trainable": False, "skip_reason": "side"}, "trip:3": {"trainable": False}}
    run = write_extract(tmp_path / "run", {"trip": SESSIONS["trip"]}, turns=turns)
    with pytest.raises(OpdkitError, match=r"none of 2 .*side \(1\)"):
        judge.run(config(run))
    assert verdicts(run) == {}


def test_nothing_to_judge_is_said(tmp_path: Path) -> None:
    """A run without a turn to judge ends with an error that gives the reason."""
    run = write_extract(tmp_path / "run", {"short": SESSIONS["short"]})
    with pytest.raises(OpdkitError, match=r"none of 1 .*no next state"):
        judge.run(config(run))


def test_a_run_without_sessions(tmp_path: Path) -> None:
    assert judge.run(config(write_extract(tmp_path / "run", {}))).counters.rows_in == 0


def test_the_extract_stage_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match="run `opdkit extract"):
        judge.run(config(tmp_path / "run"))
    run = write_extract(tmp_path / "run", SESSIONS)
    (run / "extract" / "turns" / "part-00001.parquet").unlink()
    with pytest.raises(OpdkitError, match="extract"):
        judge.run(config(run))
    assert len(list((run / "judge" / "verdicts").iterdir())) == 1


@pytest.mark.parametrize(("limit", "turns"), [(1, 2), (2, 2), (3, 4), (4, 5), (99, 6)])
def test_limit_takes_the_first_sessions(extracted: Path, limit: int, turns: int) -> None:
    summary = judge.run(config(extracted, limit=limit))
    assert len(verdicts(extracted)) == turns
    sessions = list(SESSIONS)[:limit]
    assert summary.counters.rows_in == sum(m["role"] == "assistant" for s in sessions for m in SESSIONS[s])


def test_shards_give_what_one_process_gives(extracted: Path, tmp_path: Path) -> None:
    """Three shards in any order write the same verdicts, and the last summary covers all parts."""
    other = tmp_path / "other"
    shutil.copytree(extracted, other)
    whole = judge.run(config(extracted))
    for shard in ("2/3", "0/3", "1/3"):
        last = judge.run(config(other, shard=shard))
    assert verdicts(other) == verdicts(extracted)
    assert last.parts_done == whole.parts_done == 3
    assert last.counters.counts == whole.counters.counts
    assert last.counters.rows_in == whole.counters.rows_in


def test_a_resume_does_what_is_missing_and_sums_up_everything(extracted: Path) -> None:
    """A resumed run judges only the missing part, and its summary counts all parts."""
    first = judge.run(config(extracted))
    before = verdicts(extracted)
    kept = extracted / "judge" / "verdicts" / "part-00000.parquet"
    written = kept.stat().st_mtime_ns
    (extracted / "judge" / "verdicts" / "part-00001.parquet").unlink()
    again = judge.run(config(extracted))
    assert verdicts(extracted) == before
    assert kept.stat().st_mtime_ns == written
    assert again.counters.counts == first.counters.counts


def test_another_plan_is_refused(extracted: Path) -> None:
    judge.run(config(extracted))
    with pytest.raises(ConfigError, match=r"config.max_hint_chars: 600 -> 50"):
        judge.run(config(extracted, max_hint_chars=50))
    judge.run(config(extracted, max_hint_chars=50, overwrite=True))


@pytest.mark.slow
def test_a_killed_process_leaves_whole_parts_only(tmp_path: Path) -> None:
    """A process is killed in the middle and started again; the verdicts are those of an uninterrupted run."""
    sessions = {f"s{n}": talk("a", "b", "Use Celsius instead", "c", f"thanks {n}") for n in range(12)}
    run = write_extract(tmp_path / "run", sessions, per_part=1)
    code = (
        "import itertools, sys, time, pathlib; from opdkit.judge import rules, stage;"
        "from opdkit.config.judge import JudgeConfig; vote, number = rules.vote, itertools.count();"
        "rules.vote = lambda *a: (next(number) == 8 and time.sleep(3600), vote(*a))[1];"  # until it is killed
        "stage.run(JudgeConfig(run=pathlib.Path(sys.argv[1]), judge='rules', shard='0/1'))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(run)])
    folder = run / "judge" / "verdicts"
    while not (folder.is_dir() and len(list(folder.iterdir())) == 4) and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = sorted(folder.iterdir())
    assert len(done) == 4
    assert all(pq.read_table(path).num_rows == 2 for path in done)
    judge.run(config(run))
    assert len(verdicts(run)) == 24
    reference = write_extract(tmp_path / "reference", sessions, per_part=1)
    judge.run(config(reference))
    assert list(verdicts(run).values()) == list(verdicts(reference).values())


# -- counters and warnings --------------------------------------------------------------------------------------------


def counters(**counts: int | dict[str, int]) -> Counters:
    """Return counters of 100 turns, 50 rewards of +1 and 50 of -1, and 10 hints in 200 votes, updated by `counts`."""
    fine: dict[str, int | dict[str, int]] = {"votes": 200, "hints": 10, "rewards": {"+1": 50, "-1": 50}}
    numbers = {name: n if isinstance(n, dict) else {"": n} for name, n in (fine | counts).items()}
    return Counters(rows_in=100, rows_out=100, counts={name: Counter(n) for name, n in numbers.items()})


@pytest.mark.parametrize(("counts", "names"), [
    ({"failed votes": {"no decision": 90, "empty answer": 11}}, ["101 of 200 votes", "no decision"]),
    ({"failed votes": {"cut off by the token limit": 200}}, ["all 200 votes", "--max-new-tokens"]),
    *[({"failed votes": {kind: 200}}, ["all 200 votes", "--max-new-tokens", "--template-arg enable_thinking=false"])
      for kind in ("empty answer", "the thinking never ends")],
    ({"failed votes": {"the prompt does not fit the judge": 200}}, ["all 200 votes", "--max-section-chars"]),
    ({"failed votes": {NO_ANSWER: 101}}, ["101 of 200 votes", "--status failed"]),
    ({"failed votes": {"no decision": 80}, "no reward": 51}, ["51 of 100 turns", "no reward", "no decision"]),
    ({"hints": 0}, ["no turn", "hint"]),
    ({"rewards": {"+1": 10}}, ["10 rewards", "+1"]),
    *[({"flags": {flag: 3}, "flags on turns rewarded +1": {flag: 2}}, ["2 of 3 turns", "+1", word]) for flag, word in
      (("tool_error", "failed"), ("truncation", "cut off"), ("duplicate_call", "repeat"), ("loop", "loop"))],
])  # fmt: skip
def test_what_looks_wrong_is_named(tmp_path: Path, counts: dict, names: list[str]) -> None:
    (warning,) = judge.find_warnings(config(tmp_path), counters(**counts))
    assert all(name in warning for name in names)


def test_what_looks_right_is_not(tmp_path: Path) -> None:
    assert judge.find_warnings(config(tmp_path), counters()) == []
    assert judge.find_warnings(config(tmp_path), counters(rewards={"+1": 9})) == []


def test_flags_do_not_change_what_the_votes_say(extracted: Path) -> None:
    """A turn with a failed call that was voted +1 stays +1 in the table, and the contradiction is counted."""
    turn = next(read_turns(config(extracted), 1, Counters()))
    counted = Counters()
    votes = [RewardVote(1, "yes")] * 3
    row = judge.make_verdict(config(extracted), turn, Votes([HintVote(-1, None, "no")] * 3, votes), TEXTS, counted)
    assert (turn.joined.turn_id, row["reward"]) == ("tool:1", 1)
    assert counted.labels("flags") == counted.labels("flags on turns rewarded +1") == {"tool_error": 1}


def test_failed_votes_are_counted_by_kind(extracted: Path) -> None:
    turn = next(read_turns(config(extracted), 0, Counters()))
    counted = Counters()
    hints = [
        HintVote(None, None, "", "decision not on offer: '2'"),
        HintVote(1, "Use the bus.", "x"),
        HintVote(1, "bad", "x"),
    ]
    row = judge.make_verdict(
        config(extracted), turn, Votes(hints, [RewardVote(None, "", "no decision")] * 3), TEXTS, counted
    )
    assert (row["reward"], row["reward_status"], row["hint"]) == (None, "failed", "Use the bus.")
    assert counted.counts == {
        "votes": {"": 6},
        "failed votes": {"decision not on offer": 1, "no decision": 3},
        "no reward": {"": 1},
        "hints": {"": 1},
        "rejected hints": {"empty_judgement": 1},
    }


def test_the_leak_filter_reads_the_whole_next_state(tmp_path: Path) -> None:
    """The filter compares a hint with all parallel tool results, not only with the last."""
    results = ["one two three four five six seven eight", "nine"]
    turn = [message("user", "go"), message("assistant", None), *(message("tool", r) for r in results)]
    run = write_extract(tmp_path / "run", {"s": turn})
    asking = config(run, judge="endpoint", judge_model="any", judge_url="http://localhost:1/v1")
    turn = next(read_turns(asking, 0, Counters()))
    hint = HintVote(1, f"Say {results[0]}.", "x")
    row = judge.make_verdict(asking, turn, Votes([hint], [RewardVote(0, "x")]), TEXTS, Counters())
    assert (row["hint"], row["hint_status"]) == (None, "leak")


def test_the_rules_judge_imports_no_torch(extracted: Path) -> None:
    code = (
        "import sys, pathlib; from opdkit.judge import stage; from opdkit.config.judge import JudgeConfig;"
        "stage.run(JudgeConfig(run=pathlib.Path(sys.argv[1]), judge='rules', shard='0/1'));"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(extracted)], check=False).returncode == 0
    assert len(read_part(extracted, "verdicts", 0)) == 2


def test_the_rules_may_quote_the_user(tmp_path: Path) -> None:
    """The rules' hint is the user's own instruction; the leak filter is for judges that write hints."""
    asked = "No, I wanted the report for the third quarter of last year with all the regions in one table."
    run = write_extract(tmp_path / "run", {"s": talk("report", "Here is the first quarter.", asked)})
    judge.run(config(run))
    [row] = read_all(run, "verdicts")
    assert row["hint_status"] == "ok"
    assert "third quarter" in row["hint"]


@pytest.mark.parametrize(("options", "words"), [
    ({"judge": "endpoint", "judge_url": "http://127.0.0.1:9/v1", "judge_model": "m", "retries": 0}, "127.0.0.1:9"),
    ({"judge": "local", "judge_model": "no-such-folder/no-such-model/x"}, "no-such-model"),
])  # fmt: skip
def test_a_judge_that_is_not_there_costs_no_votes(extracted: Path, options: dict, words: str) -> None:
    """--overwrite removes the old votes only if the new judge answers."""
    judge.run(config(extracted))
    before = verdicts(extracted)
    with pytest.raises(OpdkitError, match=words):
        judge.run(config(extracted, overwrite=True, **options))
    assert verdicts(extracted) == before


def test_lost_turns_cost_no_votes(extracted: Path) -> None:
    """Lost turns are detected before --overwrite removes any vote."""
    judge.run(config(extracted))
    before = verdicts(extracted)
    part_path(extracted, "turns", 0).unlink()
    with pytest.raises(OpdkitError, match=r"if it had, `opdkit check .* --recompute`"):
        judge.run(config(extracted, overwrite=True))
    assert verdicts(extracted) == before
