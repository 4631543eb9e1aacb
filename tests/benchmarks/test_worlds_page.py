"""The page of the benchmark of worlds: its figures follow from the results, also if these are incomplete."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="the worlds are made with torch 2.9 or newer")

from benchmarks.learning.cells import Cell  # noqa: E402
from benchmarks.worlds import findings  # noqa: E402
from benchmarks.worlds.benchmark import DEFAULT, ERRORS, RATES, SEARCH, SEEDS, TAUGHT, hint_cell, world_cell  # noqa: E402
from benchmarks.worlds.findings import OURS, Change, Checkpoint, Results, Shares, Way  # noqa: E402
from benchmarks.worlds.forecasts import forecast_cell  # noqa: E402
from benchmarks.worlds.page import page  # noqa: E402
from benchmarks.worlds.trainings import again, before_cell, path_cell, training_cell  # noqa: E402
from benchmarks.worlds.ways import REACTION, RULES, WAYS, way_cell  # noqa: E402

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "tests/benchmarks/worlds/results.json"
BEFORE = (0.2, 0.95)


def shares(corrected: float, uncorrected: float = 0.95, tokens: int = 1000) -> dict:
    """Return the numbers of a training that writes a model."""
    return {
        "model": True, "corrected": corrected, "uncorrected": uncorrected, "prompt_tokens": 50.0, "reply_tokens": 9.0,
        "peak_rate": 0.002, "steps": 10, "tokens": {"scored": 500, "trained": tokens, "validated": tokens // 10},
        "alarms": [],
    }  # fmt: skip


def path(*marks: tuple[float, float, float], error: str | None = None) -> dict:
    """Return the numbers of a path whose marks have these (score, corrected, uncorrected)."""
    rows = [{"step": 5 * k, "score": score, "alarm": score > marks[0][0], "corrected": corrected,
             "uncorrected": uncorrected}
            for k, (score, corrected, uncorrected) in enumerate(marks)]  # fmt: skip
    return {"marks": rows, "error": error, "trained": None if error else 80 * 5 * (len(marks) - 1)}


FIRST = (0.4, *BEFORE)
PATHS = {
    ("blend", 1e-3): path(FIRST, (0.2, 0.6, 0.95), (0.1, 0.9, 0.95)),
    ("opd", 1e-2): path(
        FIRST, (0.3, 0.2, 0.85), (0.9, 0.1, 0.2), (3.0, 0.0, 0.0)
    ),  # 0.1 of 0.95 was lost before the alarm
    ("topk", 1e-2): path(FIRST, (0.3, 0.2, 0.3), (0.9, 0.1, 0.2), (3.0, 0.0, 0.0)),  # 0.65 of 0.95 lost before it
    ("binary", 1e-2): path(FIRST, (0.3, 0.2, 0.3), (0.2, 0.0, 0.0)),  # no alarm
    ("binary", 1e-3): path(FIRST, (0.5, 0.3, 0.95), (0.1, 0.9, 0.95)),  # a false alarm
    ("blend", 1e-2): path(FIRST, (0.3, 0.3, 0.95), error="the loss is no number"),
}


def filled() -> dict[str, dict]:
    """Return cells with known answers for the worlds habit and privacy; privacy is kept aside."""
    cells: dict[str, dict] = {}
    before = {"corrected": BEFORE[0], "uncorrected": BEFORE[1], "prompt_tokens": 50.0}

    def put(cell: Cell, numbers: dict) -> None:
        cells[cell.name] = json.loads(json.dumps(cell.settings | numbers))

    for world in ("habit", "privacy"):
        put(
            world_cell(world), {"turns": 300, "hints": 90, "rewards_right": 0.97, "hints_right": 0.99, "with_hint": 0.9}
        )
        for seed in (SEARCH, *SEEDS):
            put(before_cell(world, seed), before)
        for seed, (corrected, uncorrected) in zip(SEEDS, ((0.9, 0.95), (0.95, 0.94), (1.0, 0.93)), strict=True):
            put(training_cell(world, seed, DEFAULT, None), shares(corrected, uncorrected))
    for rate in RATES:
        put(training_cell("habit", SEARCH, DEFAULT, rate), shares(0.97 if rate == 1e-3 else 0.5))
    for rate in WAYS[REACTION]:
        for way in ("everything", "kto", REACTION):
            put(way_cell("habit", way, rate, SEARCH), shares(0.3, 0.9))
        put(way_cell("habit-0.3", REACTION, rate, SEARCH), shares(0.3))
    put(training_cell("habit", SEARCH, DEFAULT, 1e-2), {"model": False})
    put(training_cell("habit", SEARCH, "opd", 1e-2), shares(0.9, 0.92))  # loses 0.03
    by_chance = training_cell("habit", SEARCH, "opd", 1e-3)
    put(by_chance, shares(0.9, 0.92))  # seems to lose 0.03
    put(again(by_chance), shares(0.9, 0.95))
    put(again(before_cell("habit", SEARCH)), before)
    put(training_cell("habit", SEARCH, "opd", 3.2e-3), shares(0.9, 0.93))  # loses no more than 0.02
    put(training_cell("habit", SEARCH, "topk", 1e-2), {"model": False})
    put(training_cell("habit", SEARCH, "combine", 1e-3), shares(0.9) | {"alarms": [5]})
    for value in RULES:
        put(
            way_cell("habit", "rules", value, SEARCH),
            shares(0.4 if value == 3 else 0.3) | {"tokens": {}, "prompt_tokens": 150.0},
        )
    for seed in SEEDS:
        put(training_cell("habit", seed, DEFAULT, 1e-3), shares(0.95 + 0.01 * seed))
        put(training_cell("habit-0.3", seed, DEFAULT, None), shares(0.94))
    put(way_cell("habit", "everything", 3.2e-4, SEARCH), shares(0.97, 0.7, 4000))
    put(way_cell("habit", "kto", 3.2e-3, SEARCH), shares(0.5, 0.96))
    put(way_cell("habit", REACTION, 1e-3, SEARCH), shares(0.85))
    put(way_cell("habit-0.3", REACTION, 3.2e-4, SEARCH), shares(0.6))
    for (objective, rate), numbers in PATHS.items():
        put(path_cell("habit", SEARCH, objective, rate), numbers)
    for sessions, gain, low, high, after in ((12, 0.4, 0.2, 0.5, 0.8), (40, -0.1, -0.3, 0.1, 0.25),
                                             (200, 0.7, 0.6, 0.8, 0.9)):  # fmt: skip
        expected = {"gain": gain, "low": low, "high": high, "go": low > 0}
        put(forecast_cell("habit", sessions, ERRORS, 0), expected | shares(after) | {"before": before})
    expected = {"gain": 0.1, "low": 0.0, "high": 0.3, "go": False, "before": {"corrected": 0.7, "uncorrected": 0.95}}
    put(forecast_cell("habit", 40, ERRORS, 0, TAUGHT), expected | shares(0.9))
    for seed, found in ((0, 18), (1, 20)):
        put(hint_cell(0.1, seed), {"hints": 100, "planted": 20, "dropped": 25, "found": found})
    return cells


FULL = Results(filled())


# -- figures --------------------------------------------------------------------------------------------------------


def test_the_default_is_compared_with_the_best_rate_of_the_search() -> None:
    habit, privacy = findings.own_rates(FULL)
    assert (habit.best_rate, privacy.best_rate) == (1e-3, None)  # privacy has no search
    assert habit.ratio == pytest.approx(0.95 / 0.96)
    assert habit.forgotten == pytest.approx(0.01)
    assert habit.forgotten_more == pytest.approx(0.01)
    assert (privacy.ratio, privacy.forgotten_more) == (None, None)
    assert list(habit.rates) == [0.002] * 3


def test_a_model_is_worse_that_loses_more_than_the_limit_in_either_share() -> None:
    rows = findings.trainings(FULL)
    assert [(r.world, r.objective, r.rate) for r in rows if r.is_worse] == [("habit", "opd", 1e-2)]
    assert {(r.objective, r.rate) for r in rows if r.refused} == {("blend", 1e-2), ("topk", 1e-2)}
    assert all(r.change.before == r.change.after for r in rows if r.refused)
    assert {r.world for r in rows} == {"habit", "privacy", "habit-0.3"}


def test_the_rate_that_was_given_is_not_taken_from_the_one_that_was_found() -> None:
    assert {r.rate for r in findings.trainings(FULL)} == {None, *RATES}


def test_an_alarm_is_in_time_before_half_of_the_loss() -> None:
    rows = {(p.objective, p.rate): p for p in findings.paths(FULL)}
    assert rows.keys() == PATHS.keys()
    broken = {objective for (objective, _), p in rows.items() if p.breaks}
    assert broken == {"opd", "topk", "binary"}
    in_time, late, never = (rows[name, 1e-2] for name in ("opd", "topk", "binary"))
    assert in_time.in_time
    assert in_time.lost_before_alarm == pytest.approx(0.1 / 0.95)
    assert not late.in_time
    assert late.lost_before_alarm == pytest.approx(0.65 / 0.95)
    assert not never.in_time
    assert never.alarm is never.lost_before_alarm is None


def test_a_false_alarm_is_one_of_a_training_that_never_breaks_and_ends_better() -> None:
    rows = findings.paths(FULL)
    assert {p.objective: p.alarm for p in rows if p.is_honest} == {"blend": None, "binary": 1}
    assert next(p for p in rows if p.error).alarm == 2  # the error is the alarm, after the last mark
    assert [r.objective for r in findings.trainings(FULL) if r.alarm] == ["combine"]


def test_the_rank_correlation_is_that_of_equal_ranks_too() -> None:
    def of(*pairs: tuple[float, float]) -> float | None:
        return findings.spearman([Checkpoint("habit", *pair) for pair in pairs])

    assert of((1, 0.1), (2, 0.2), (100, 0.3)) == pytest.approx(1)
    assert of((1, 0.3), (2, 0.2), (100, 0.1)) == pytest.approx(-1)
    assert of((1, 1), (2, 2), (2, 3), (3, 4)) == pytest.approx(0.9486833)  # scipy.stats.spearmanr
    assert of((1, 1), (1, 2)) is None


def test_the_model_before_training_is_one_checkpoint() -> None:
    rows = findings.checkpoints(FULL)
    assert len(rows) == sum(len(p["marks"]) - 1 for p in PATHS.values()) + 1
    late = [
        step for p in PATHS.values() for mark in p["marks"][1:] if (step := mark["step"]) >= p["marks"][-1]["step"] / 2
    ]
    assert len(findings.checkpoints(FULL, 0.5)) == len(late) + 1
    assert [row.error for row in rows if row.score == 0.4] == [pytest.approx(1 - sum(BEFORE) / 2)]


def test_noise_costs_what_is_lost_against_the_clean_log() -> None:
    clean, noisy = findings.noises(FULL)
    assert (clean.share, noisy.share) == (0, 0.3)
    assert noisy.judged_loss == pytest.approx(0.95 - 0.94)
    assert noisy.raw_loss == pytest.approx(0.85 - 0.6)
    raw = way_cell("habit-0.3", REACTION, 1e-3, SEARCH).name
    forgetful = Results(FULL.cells | {raw: FULL.cells[raw] | {"corrected": 0.85, "uncorrected": 0.7}})
    assert findings.noises(forgetful)[1].raw_loss == pytest.approx(0.95 - 0.7), "of the uncorrected share"


def test_hint_checks_of_all_seeds_are_counted_together() -> None:
    (row,) = findings.hint_checks(FULL)
    assert (row.errors, row.planted, row.recall, row.precision) == (0.1, 40, 38 / 40, 38 / 50)


def test_forecasts_are_compared_with_measured_gains() -> None:
    *rows, taught = findings.forecasts(FULL)
    assert (taught.taught, taught.measured) == (True, pytest.approx(0.2)), "against its own student"
    rows = {row.sessions: row for row in rows}
    assert {n: row.measured for n, row in rows.items()} == pytest.approx({12: 0.6, 40: 0.05, 200: 0.7})
    assert {n: row.is_sign_right for n, row in rows.items()} == {12: True, 40: False, 200: True}
    assert {n: row.is_covered for n, row in rows.items()} == {12: False, 40: True, 200: True}
    few = {name: cell | ({"low": None, "high": None} if name.startswith("forecast-") else {})
           for name, cell in FULL.cells.items()}  # fmt: skip
    assert {row.is_covered for row in findings.forecasts(Results(few))} == {None}
    assert "too few sessions" in page(document(few))


def test_ways_take_their_best_value_and_those_ahead_of_the_default_are_named() -> None:
    ways = findings.ways(FULL)
    assert list(ways["habit"]) == [OURS, "everything", "kto", REACTION, "rules"]
    assert list(ways["privacy"]) == [OURS]
    assert {name: way.value for name, way in ways["habit"].items()} == {
        OURS: None, "everything": 3.2e-4, "kto": 3.2e-3, REACTION: 1e-3, "rules": 3}  # fmt: skip
    (first,) = findings.ahead(ways["habit"])
    assert (first.name, first.gain, first.forgotten) == ("everything", pytest.approx(0.77), pytest.approx(0.25))
    assert first.tokens == 500 + 4000 + 400
    assert [w.name for w in findings.forgets_less(ways["habit"], ("everything", "kto"))] == ["kto"]
    gains = ways["habit"] | {OURS: replace(ways["habit"][OURS], changes=[Change(Shares(0.2, 0.9), Shares(0.9, 0.95))])}
    assert not findings.forgets_less(gains, ("everything", "kto")), "the default forgets nothing"
    assert (ways["habit"]["rules"].tokens, ways["habit"]["rules"].request) == (0, 150)
    name = before_cell("habit", SEARCH).name
    lucky = findings.ways(Results(FULL.cells | {name: FULL.cells[name] | {"corrected": BEFORE[0] + 0.1}}))["habit"]
    changed = [lucky[way].gain - ways["habit"][way].gain for way in (OURS, "everything", "rules")]
    assert changed == pytest.approx([-0.025] * 3), "one model before all ways: the chance of one seed favours none"


def test_the_way_that_gains_most_is_named_first() -> None:
    def way(name: str, after: float) -> Way:
        return Way("habit", name, None, [Change(Shares(*BEFORE), Shares(after, 0.95))], 0, 50)

    ways = {name: way(name, after) for name, after in ((OURS, 0.5), ("kto", 0.6), ("dpo", 0.9), ("rules", 0.5))}
    assert [w.name for w in findings.ahead(ways)] == ["dpo", "kto"]


def test_costs_are_those_of_steps_with_and_without() -> None:
    habit, privacy = findings.costs(FULL)
    assert habit.validation == pytest.approx(0.1)
    assert habit.trust_region == pytest.approx(100 / 80 - 1)
    assert habit.together == pytest.approx(110 / 80 - 1)
    assert (privacy.validation, privacy.together) == (pytest.approx(0.1), None)


# -- page and plots -------------------------------------------------------------------------------------------------


def document(cells: dict) -> dict:
    return {"machine": {"cpu": "a processor", "cores": "2"}, "cells": cells}


def test_the_page_names_what_went_wrong() -> None:
    text = page(document(FULL.cells))
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    assert (
        "| habit | opd | 0.01 | 100 | 0.20 / 0.95 | 0.90 / 0.92 |"
        in sections["Is a trained model ever worse than before?"]
    )
    alarms = sections["Does the alarm come in time?"]
    assert "| habit | topk | 0.01 | after 0.68 of the loss |" in alarms
    assert "| habit | binary | 0.01 | none |" in alarms
    assert "| habit | binary | 0.001 | false |" in alarms
    instead = sections["What would a user do instead?"]
    assert "In habit the default gains 0.75; more: SFT on all replies (0.77, within the default's seeds, " in instead
    assert "privacy†" in text


@pytest.mark.parametrize("kind", ["before", "train", "path", "way", "forecast", "hints", "world", ""])
def test_a_page_of_results_that_are_not_complete(kind: str) -> None:
    """The page has all its sections, and no nan, without the cells of one kind and with these cells alone."""
    without = {name: n for name, n in FULL.cells.items() if not name.startswith(kind)}
    alone = {name: n for name, n in FULL.cells.items() if name.startswith(kind)}
    for cells in (without, alone, dict(list(alone.items())[::3])):
        text = page(document(cells))
        assert text.count("\n## ") == 16
        assert "nan" not in text


@pytest.mark.parametrize("cells", [FULL.cells, {}], ids=["full", "empty"])
def test_plots_are_the_same_again(cells: dict, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.worlds import plots

    drawn = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        plots.draw(document(cells), tmp_path / name)
        drawn.append({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()})
    assert drawn[0] == drawn[1]
    shown = re.findall(r"\((worlds-\w+\.svg)\)", page(document(cells)))
    assert drawn[0].keys() >= set(shown)
    assert len(shown) == (7 if cells else 0)


@pytest.mark.skipif(not RESULTS.exists(), reason="nothing is measured yet")
def test_the_page_shows_the_results() -> None:
    written = (ROOT / "docs/learning.md").read_text(encoding="utf-8")
    made = page(json.loads(RESULTS.read_text(encoding="utf-8")))
    assert written == made, "run: python -m tests.benchmarks.worlds --draw"
