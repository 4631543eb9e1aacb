"""Benchmark of the judge: it runs, and counts the tokens read."""

import json

import pytest
from benchmarks import judge, pairs


def test_it_runs_in_a_tiny_size(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(judge, "LOGS", tmp_path / "absent")  # so it takes the sample logs
    monkeypatch.setattr(judge, "save", lambda name, found: pairs.save(name, found, tmp_path))
    judge.main(["--turns", "2", "--pairs", "1", "--size", "1m"])
    assert "5 votes per question, against one vote per question" in capsys.readouterr().out
    votes, usual = json.loads((tmp_path / "judge.json").read_text())["comparisons"]
    facts = votes["facts"]
    assert facts["turns"] == 2
    assert facts["tokens of an answer"] == pytest.approx(facts["tokens of a prompt (mean)"] / 10, abs=1)
    assert facts["prompt tokens read"] < facts["prompt tokens"]
    assert min(usual["seconds_usual"]) > 0
