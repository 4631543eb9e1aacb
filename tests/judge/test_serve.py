"""Tests of the endpoint judge with `transformers serve`, which serves the model of sample_data."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from runs import talk, write_extract
from sample_world import MODEL, NAMES, labels
from transformers_server import transformers_serve

from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.errors import OpdkitError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.store.reading import read_all

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with transformers_serve(MODEL, tmp_path_factory.mktemp("serve") / "log") as url:
        yield url


def config(run: Path, url: str, model: Path = MODEL, **fields) -> JudgeConfig:
    small = {
        "votes": 3,
        "all_votes": True,
        "max_new_tokens": 48,
        "timeout": 60.0,
        "retries": 1,
        "concurrency": 2,
        "shard": "0/1",
    }
    return JudgeConfig(run=run, judge="endpoint", judge_url=url, judge_model=str(model), **(small | fields))


def test_a_real_server_judges_the_sample_logs(server: str, tmp_path: Path, monkeypatch, capsys) -> None:
    """At least 90% of rewards and hints are right. The server ignores `n`, so each vote is a request of its own."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    logs = str(MODEL.parent / "logs" / "openai.jsonl")
    extract.run(ExtractConfig(run=tmp_path, logs=(logs,), limit=5, shard="0/1"))
    judge.run(config(tmp_path, server, dry_run=True))
    shown = re.search("tokens to read +([0-9,]+)\n", capsys.readouterr().out)
    summary = judge.run(config(tmp_path, server))
    counted = summary.counters.total("prompt tokens")  # as the server counts them
    assert int(shown[1].replace(",", "")) == pytest.approx(counted, rel=0.1)
    rows = {row["turn_id"]: row for row in read_all(tmp_path, "verdicts")}
    assert summary.counters.total("votes") == 6 * len(rows)
    pairs = [(label, rows[label["turn_id"]]) for label in labels() if label["turn_id"] in rows]
    right = [label["reward"] == row["reward"] for label, row in pairs]
    named = [bool(re.search(NAMES[label["wanted"]], row["hint"] or "")) for label, row in pairs if label["wanted"]]
    print(f"{sum(right)} of {len(right)} rewards and {sum(named)} of {len(named)} hints right over a real server")
    assert sum(right) >= 0.9 * len(right)
    assert sum(named) >= 0.9 * len(named)


def test_a_model_that_is_not_served_is_named(server: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello", "thanks")})
    with pytest.raises(OpdkitError, match="HTTP 400"):
        judge.run(config(run, server, tmp_path / "other"))
    assert not (run / "judge" / "verdicts").exists()


def test_a_real_server_that_refuses_log_probs_gives_equal_votes(
    server: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    logs = str(MODEL.parent / "logs" / "openai.jsonl")
    extract.run(ExtractConfig(run=tmp_path, logs=(logs,), limit=1, shard="0/1"))
    summary = judge.run(config(tmp_path, server, weigh_votes=True))
    rows = list(read_all(tmp_path, "verdicts"))
    assert summary.counters.total("questions not weighed") == 2 * len(rows) > 0
    assert all(row["reward"] is not None for row in rows)
    assert {vote["confidence"] for row in rows for vote in row["reward_votes"]} == {None}
    assert capsys.readouterr().err.count("gives no log-probs") == 1
