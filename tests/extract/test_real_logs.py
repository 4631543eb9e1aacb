"""Tests of what extract makes of real logs: whole, compressed, and in shards."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest
from small_logs import run, tables

from opdkit.errors import OpdkitError
from opdkit.store.reading import count_parts, read_all

DATA = Path(__file__).parents[3] / "shared" / "data"
real_logs = pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not here")


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    if not DATA.is_dir():
        pytest.skip("../shared/data is not here")
    folder = tmp_path_factory.mktemp("real")
    run(folder, DATA, part_mb=1.0)
    return folder


@pytest.mark.parametrize(("name", "sessions", "turns", "with_next_state"), [
    ("taubench_gpt4o_airline", 200, 2_454, 2_454),
    ("before-compaction", 1, 465, 465),
    ("glaive_toolcall_en", 300, 957, 657),
    ("glaive_toolcall_zh", 300, 940, 640),
    ("qwen3_4b_lora_record", 1, 1, 1),
    ("sweagent_demos", 22, 230, 213),
    ("0ccf1a04-1b4c-43b6-8aa5-79e41db43a68", 1, 11, 10),
    ("4b2030ed-5563-49ea-b703-6a002f2d3cc8", 1, 2, 1),
    ("cctrace_main", 1, 100, 99),
    ("images-in-user-messages", 1, 3, 2),
])  # fmt: skip
def test_real_logs_give_the_known_counts(real, name, sessions, turns, with_next_state):
    found = [t for t in read_all(real, "turns") if t["turn_id"].startswith(f"{name}:")]
    assert len({t["session_id"] for t in found}) == sessions
    assert len(found) == turns
    assert sum(t["next_count"] > 0 for t in found) == with_next_state


def test_real_sessions_end_as_they_do(real):
    ends = Counter(
        s["messages"][-1]["role"] for s in read_all(real, "sessions") if s["session_id"].startswith("taubench")
    )
    assert ends == Counter(user=149, tool=51)


def test_every_message_of_a_real_log_is_there(real):
    """Content null stays null, arguments stay verbatim, the reward is in the metadata."""
    told = {s["line"]: s for s in read_all(real, "sessions") if s["session_id"].startswith("taubench")}
    path = DATA / "taubench" / "taubench_gpt4o_airline.jsonl"
    for number, line in enumerate(path.open(encoding="utf-8"), 1):
        record, session = json.loads(line), told[number]
        assert [(m["role"], m["content"]) for m in session["messages"]] == [
            (m["role"], m["content"]) for m in record["traj"]
        ]  # fmt: skip
        calls = [c["function"]["arguments"] for m in record["traj"] for c in m.get("tool_calls") or []]
        assert [c["arguments"] for m in session["messages"] for c in m["tool_calls"]] == calls
        assert json.loads(session["metadata"])["reward"] == record["reward"]


def test_what_is_set_aside_of_the_real_logs(real):
    rows = list(read_all(real, "rejected"))
    found = Counter((r["reason"], r["line"]) for r in rows)
    assert found == Counter({("judge votes, not a conversation", 0): 1, ("comment line", 1): 1, ("comment line", 2): 1})


@real_logs
def test_the_judge_s_votes_alone_are_nothing_to_train_on(tmp_path):
    with pytest.raises(OpdkitError, match=r"nothing can be trained on.*judge votes"):
        run(tmp_path, DATA / "openclaw_rl" / "qwen3_4b_lora_record_prm.jsonl")


@real_logs
@pytest.mark.parametrize("packed", [False, True])
def test_three_shards_give_the_tables_of_one(tmp_path, real, packed):
    logs = DATA
    if packed:
        logs = tmp_path / "logs"
        for path in sorted(DATA.rglob("*.jsonl")):
            (logs / path.parent.name).mkdir(parents=True, exist_ok=True)
            (logs / path.parent.name / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), 1))
    for shard in (2, 0, 1):
        summary = run(tmp_path / "run", logs, part_mb=1.0, shard=f"{shard}/3")
    assert summary.parts_done == summary.parts == count_parts(real, "extract") > 6
    for name, rows in tables(tmp_path / "run").items():
        expected = list(read_all(real, name))
        for row in rows + expected:
            row.pop("source", None)
        assert rows == expected
