"""Benchmark of parts and runs: the numbers from two sizes, the counted calls, and that the page is current."""

import json
import shutil

import pytest
from benchmarks.pairs import RESULTS
from benchmarks.scale import DOCS, asked, build, derived, page

CALLS = {"open": 20.0, "sync": 9.0}
ROW = {
    "small": {"parts": 100, "one": 3.0, "two": 2.5, "done": 1.1},
    "large": {"parts": 200, "one": 5.0, "two": 3.5, "done": 1.2},
    "calls_a_part": CALLS,
}


def test_what_two_sizes_say() -> None:
    """Twice the parts take 2 s longer: 0.02 s per part, and 1 s is left for the run."""
    expected = {"seconds per part": 0.02, "seconds per run": 1.0, "seconds per part that is done": 0.001,
                "parts per second, one process": 50.0, "parts per second, two processes": 100.0}  # fmt: skip
    assert derived(ROW) == pytest.approx(expected)


def test_the_plan_follows_from_what_was_measured(tmp_path) -> None:
    """10 TB are 1.25 million parts of 8 MB: 29 calls each, with 20,000 answers per second, take half an hour."""
    rows = [{"stage": stage} | ROW for stage in ("extract", "judge")]
    (tmp_path / "scale.json").write_text(json.dumps({"machine": {"cpu": "c", "cores": "2"}, "rows": rows}))
    facts = {"facts": {"MB/s, ours": 50.0}}
    (tmp_path / "extract.json").write_text(json.dumps({"comparisons": [facts]}))
    text = page(tmp_path)
    assert "| parts | 1,250,000 | 39,062 |" in text
    assert "| extract, metadata, minutes | 30.2 | 0.9 |" in text
    assert "| extract, the CPU of 3,200 cores, minutes | 1.0 | 1.0 |" in text
    assert "| to find all parts done, per shard, minutes | 20.8 | 0.7 |" in text
    assert "| together | 29 | 29 |" in text


def test_the_page_is_of_the_results_there_are() -> None:
    if not (RESULTS / "scale.json").exists():
        pytest.skip("not measured yet")
    assert (DOCS / "scale.md").read_text(encoding="utf-8") == page()


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_calls_are_counted_that_the_run_sees(tmp_path) -> None:
    counted = asked("extract", build(tmp_path / "log.jsonl", 2), tmp_path)
    assert counted
    assert counted["link"] == 2 + 1, "each part of the primary table, and the manifest"
    assert counted["rename"] == 2 * 2, "each part of the other tables"
