"""Tests of human feedback in records that no reader knows: Who&When is read by a function, ILF by a mapping."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small_logs import run as extract
from small_logs import tables

import opdkit
from opdkit.config.fields import PythonFunction
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.wording import DEFAULTS
from opdkit.evaluate.checks import FunctionCheck, read_prompts
from opdkit.judge import stage as judge
from opdkit.store.reading import read_all
from opdkit.teacher import stage as teacher

FEEDBACK = Path(__file__).parents[4] / "shared" / "feedback"
WHO, ILF = FEEDBACK / "who_and_when", FEEDBACK / "ilf" / "surge_annotations.jsonl"
ILF_MAP = """
prompt = "prompt"
reply = "original_model_completion"
comment = "Feedback"
edited = "completion"
metadata = ["task_id", "test"]
"""


def agent_of(message: dict[str, str]) -> str:
    """Return the name of the agent that wrote a message; "Orchestrator (-> WebSurfer)" gives "Orchestrator"."""
    return message.get("name") or re.sub(r" \(.*\)$", "", message["role"])


def read_who_and_when(record: dict[str, Any]) -> dict[str, Any]:
    """Return a failed run of several agents as the guilty agent saw it: this agent's messages are the replies."""
    guilty, step = agent_of(record["history"][int(record["mistake_step"])]), int(record["mistake_step"])
    is_first = agent_of(record["history"][0]) == guilty  # then the history lacks the question
    messages: list[dict[str, Any]] = [{"role": "user", "content": record["question"]}] if is_first else []
    for number, item in enumerate(record["history"]):
        agent = agent_of(item)
        messages.append({"role": "assistant" if agent == guilty else "user", "content": item["content"], "name": agent})
        if number == step:
            messages[-1]["decision"] = {"rating": -1, "comment": record["mistake_reason"]}
    return {"messages": messages, "level": record.get("level")}


@pytest.mark.skipif(not WHO.is_dir(), reason="the data are not there")
def test_the_guilty_step_is_a_turn_and_the_reason_reaches_the_teacher(tmp_path: Path, plain_model_dir: Path) -> None:
    run = opdkit.Run(tmp_path / "run")
    run.extract(str(WHO), format=read_who_and_when)
    records = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(WHO.glob("*.json"))}
    found = tables(run.path)
    assert len(found["sessions"]) == len(records) == 98
    assert found["rejected"] == []
    decided = {Path(t["session_id"].rpartition(":")[0]).name: t for t in found["turns"] if t["decision"]}
    messages = {s["session_id"]: s["messages"] for s in found["sessions"]}
    for name, record in records.items():
        turn, step = decided[name], int(record["mistake_step"])
        said = messages[turn["session_id"]]
        assert turn["message_index"] == step + len(said) - len(record["history"])
        assert said[turn["message_index"]]["content"] == record["history"][step]["content"]
        assert turn["decision"]["comment"] == record["mistake_reason"]
        assert turn["trainable"]
    judge.run(JudgeConfig(run=run.path, judge="reaction"))
    verdicts = {row["turn_id"]: row for row in read_all(run.path, "verdicts")}
    for turn in decided.values():
        verdict = verdicts[turn["turn_id"]]
        assert (verdict["reward"], verdict["reward_status"]) == (-1, "outcome")
        assert verdict["hint"].startswith(turn["decision"]["comment"].strip())
    teacher.run(TeacherConfig(run=run.path, model=str(plain_model_dir), device="cpu", limit=5, teacher_samples=0,
                              too_long="cut"))  # fmt: skip
    hints = {row["turn_id"]: row["hint"] for row in read_all(run.path, "targets")}
    scored = [turn for turn in decided.values() if turn["turn_id"] in hints]
    assert scored
    assert all(turn["decision"]["comment"].strip() in hints[turn["turn_id"]] for turn in scored)


@pytest.fixture
def ilf_run(tmp_path: Path) -> Path:
    if not ILF.exists():
        pytest.skip("the data are not there")
    mapping = tmp_path / "ilf.toml"
    mapping.write_text(ILF_MAP, encoding="utf-8")
    extract(tmp_path / "run", ILF, map=str(mapping))
    return tmp_path / "run"


def test_feedback_is_a_reaction_and_the_repair_an_edit(ilf_run: Path) -> None:
    records = list(map(json.loads, ILF.read_text(encoding="utf-8").splitlines()))
    found = tables(ilf_run)
    assert len(found["turns"]) + len(found["rejected"]) == len(records) == 195
    for turn in found["turns"]:
        record = records[int(turn["session_id"].rpartition(":")[2]) - 1]
        assert turn["decision"]["comment"] == record["Feedback"]
        assert turn["decision"]["edited"] == record["completion"]
    judge.run(JudgeConfig(run=ilf_run, judge="rules"))
    for verdict in read_all(ilf_run, "verdicts"):
        record = records[int(verdict["turn_id"].split(":")[-2]) - 1]
        assert (verdict["reward"], verdict["hint_status"]) == (-1, "edited")
        assert verdict["hint"] == DEFAULTS["judge"]["edited"].replace("{reply}", record["completion"])


def passes_tests(reply: str, row: dict[str, Any]) -> bool:
    """Return whether a reply's code passes the unit tests of its task, which run in a separate process."""
    name = re.findall(r"^def (\w+)\(", row["prompt"], re.MULTILINE)[-1]
    approx = (
        "class approx:\n    def __init__(self, x): self.x = x\n    def __eq__(self, y): return abs(self.x - y) < 1e-6\n"
    )
    test = row["test"].replace("from pytest import approx", approx if "approx(" in row["test"] else "")
    code = f"{row['prompt']}{reply}\n{test}\ncheck({name})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.skipif(not ILF.exists(), reason="the data are not there")
def test_the_unit_tests_are_a_check() -> None:
    """At least 7 of 8 repaired programs pass their unit tests, and at most 2 of the 8 wrong programs do.

    The records are held-out prompts, and a function runs the unit tests of a prompt's record.
    """
    rows = list(map(json.loads, ILF.read_text(encoding="utf-8").splitlines()))[:8]
    prompts = read_prompts(ILF, 8, PythonFunction(passes_tests))
    checks = [prompt.check for prompt in prompts if isinstance(prompt.check, FunctionCheck)]
    originals = [row["original_model_completion"].removeprefix(row["prompt"]) for row in rows]
    repaired = [check.passes(row["completion"]) for check, row in zip(checks, rows, strict=True)]
    wrong = [check.passes(original) for check, original in zip(checks, originals, strict=True)]
    assert sum(repaired) >= 7
    assert sum(wrong) <= 2
