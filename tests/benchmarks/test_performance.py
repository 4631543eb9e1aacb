"""Page of the timed benchmarks, also if results are missing; and both ways do the same work."""

from pathlib import Path

import pytest
import torch
from benchmarks import ceiling, memory, performance, turns, usual
from benchmarks.models import build
from benchmarks.pairs import Comparison, load, save, save_rows, turn_about
from benchmarks.points import read_points
from benchmarks.scoring import compare, flat, once, tokens_read
from benchmarks.sessions import evenly_spaced

from opdkit.model.scoring import Mixture, PromptResponse
from opdkit.teacher.scores import ReplyReadings, ScoreOptions, score_session

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests" / "benchmarks" / "results"


# -- the page -------------------------------------------------------------------------------------------------------


def test_the_page_shows_the_results():
    written = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert written == performance.page(RESULTS), "run: python -m tests.benchmarks.performance"


@pytest.mark.skipif(not (RESULTS / "turns.json").exists(), reason="not measured yet")
def test_the_plot_is_that_of_the_results(tmp_path):
    pytest.importorskip("matplotlib")
    performance.draw(RESULTS, tmp_path)
    drawn, kept = (read_points(folder / "performance-turns.svg") for folder in (tmp_path, ROOT / "docs"))
    assert drawn == pytest.approx(kept, abs=1), "run: python -m tests.benchmarks.performance"


def test_what_is_not_measured_is_said(tmp_path):
    page = performance.page(tmp_path)
    names = ["scoring", "turns", "memory", "scoring --exact", "training", "families", "judge", "extract",
             "ceiling", "busy", "report", "chaos", "gpu"]  # fmt: skip
    assert all(page.count(f"Not measured yet: `python -m tests.benchmarks.{name}`.") == 1 for name in names)


def compared(turns: int, usual: float, ours: float) -> Comparison:
    return Comparison(f"{turns} turns", "by hand", [usual, usual * 2], [ours, ours], {"turns": turns})


def test_a_page_of_all_results_by_hand(tmp_path):
    pytest.importorskip("matplotlib")
    save("scoring", [compared(9, 8.0, 1.0)], tmp_path)
    save("turns", [compared(8, 1.0, 1.0), compared(16, 4.0, 2.2)], tmp_path)
    save_rows("memory", [{"way": way, "tokens": n, "vocabulary": 100, "peak_bytes": size}
                         for way, size in (("usual", 10**10), ("ours", 2 * 10**8)) for n in (1024, 2048)],
              tmp_path)  # fmt: skip
    save_rows("exact", [{"template": "t", "turns": 2, "readings": 3, "tokens": 40, "largest": 5e-6,
                         "dropped": {"no tools": 7}}], tmp_path)  # fmt: skip
    save_rows("report", [{"turns": 10_000, "mb": 1.966, "write_seconds": 5.44, "open_ms": 742.3, "search_ms": 64.6,
                          "filter_ms": 26.2, "sort_ms": 31}], tmp_path)  # fmt: skip
    save_rows("ceiling", [{"work": "scoring", "needed": 3e12, "ceiling": 8e10, "reached": 6e10, "turns": 9,
                           "shares": [0.7, 0.75, 0.8], "tokens": 8000, "weights": "100 million", "dtype": "float32"}],
              tmp_path)  # fmt: skip
    save_rows("busy", [{"alone": 50.0, "beside": 75.0}], tmp_path)
    page = performance.page(tmp_path)
    for line in (
        "| scoring | 3,000 | 80 | 60 | 0.75 | 0.70 | 0.80 |",
        "1.50 times as long (1.50 to 1.50 in 1 pairs)",
        "| 10,000 | 1.97 | 5.4 | 742 | 65 | 26 | 31 |",
        "| 9 turns | 12 | 1 | 12.00 | 8.00 | 16.00 | 2 |",
        "Twice as many turns cost at most 2.20 times as much (2.20); by the usual way 4.00.",
        "| usual | 10.00 GB | 10.00 GB |",
        "at 2,048 tokens: ours 2.0%.",
        "| t | 2 | 3 | 40 | 5.0e-06 | no tools 7 |",
        "The usual way: by hand.",
    ):
        assert line in page
    performance.draw(tmp_path, tmp_path)
    assert (tmp_path / "performance-turns.svg").read_text("utf-8").startswith("<?xml")


def test_what_is_saved_is_loaded(tmp_path):
    made = [compared(8, 1.0, 0.5)]
    save("x", made, tmp_path)
    assert load("x", tmp_path) == made
    assert made[0].ratios == [2.0, 4.0]


# -- what is compared -----------------------------------------------------------------------------------------------


def test_neighbours_in_time_alternate():
    order, ticks = [], iter(range(100))
    seconds = turn_about(lambda: order.append("u"), lambda: order.append("o"), 3, clock=lambda: next(ticks))
    assert "".join(order) == "uoouuo"
    assert seconds == ([1, 1, 1], [1, 1, 1])


def test_the_usual_way_gives_the_numbers_of_ours():
    model, targets = build("1m", turns.VOCABULARY), turns.session(5)
    expected = usual.logprobs(model, usual.samples(targets))
    found = flat(score_session(model, Mixture((model,)), targets, ScoreOptions(), batch_tokens=10_000))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=0)


def test_both_ways_read_what_the_formula_says():
    """The formula is that of docs/performance.md: s = 0, h = 1, t = 32 tokens per turn, b = 32 from the hint on."""
    for n in (1, 3, 8):
        each, read_once = tokens_read([turns.session(n)])
        assert each == 2 * (32 * n * (n + 1) // 2) + 16 * n  # plus the hints
        assert read_once == 32 * n + 32 * n


def test_sessions_of_a_log_are_scored_together_in_their_order():
    model, sessions = build("1m", turns.VOCABULARY), [turns.session(2, seed) for seed in range(3)]
    found = flat(once(model, sessions))
    for a, b in zip(found, [x for s in sessions for x in flat(once(model, [s]))], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


def test_a_comparison_says_what_it_is_of(capsys):
    model = build("1m", turns.VOCABULARY)
    found = compare(
        "two sessions", model, [turns.session(2), [ReplyReadings(PromptResponse([1, 2], [3]))]], 1, {"share": "1%"}
    )
    assert (found.facts["turns"], found.facts["turns with a hint"], found.facts["share"]) == (3, 2, "1%")
    assert float(found.facts["largest difference in nats"]) < 1e-4
    assert "two sessions, against" in capsys.readouterr().out


def test_evenly_spaced_is_from_the_first_to_the_last():
    assert evenly_spaced(range(10), 4) == [0, 3, 6, 9]
    assert evenly_spaced(range(3), 9) == [0, 1, 2]
    assert evenly_spaced(range(3), 1) == [0]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_memory_is_that_of_the_logits_by_the_usual_way_alone():
    """The usual way holds the 655 MB of a sequence's logits once to six times; opdkit never holds all of them."""
    usual, ours = (memory.apart(way, 8192, 20_000) for way in memory.WAYS[:2])
    assert ours < 0.9 * 4 * 8192 * 20_000 < usual < 6 * 4 * 8192 * 20_000


def test_the_session_of_the_memory_benchmark_has_its_tokens():
    ids = list(range(1, 2049))
    targets = memory.session(ids)
    assert len(targets) == memory.TURNS
    assert targets[-1].student.prompt_ids + targets[-1].student.response_ids == ids
    assert sum(len(t.student.response_ids) for t in targets) == 2048 - memory.PROMPT


def test_the_work_of_a_tree_is_that_of_its_tokens_by_hand():
    """Two sequences of 3 tokens that share 2 are 4 nodes at positions 0, 1, 2, 2: 1 + 2 + 3 + 3 tokens attended to."""
    model = build("1m", 100)  # 4 layers, width 128, 4 heads, 2 key heads, MLP 512
    layer = 128 * 128 * 2 + 128 * 64 * 2 + 3 * 128 * 512
    by_hand = 2 * (4 * layer * 4 + 100 * 128 * 2) + 4 * 128 * 4 * (1 + 2 + 3 + 3)
    assert ceiling.products(model, [[1, 2, 3], [1, 2, 4]], 2) == by_hand
