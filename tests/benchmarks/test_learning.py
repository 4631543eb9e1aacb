"""Learning benchmark: its page shows its results, its results show what the README says, and it runs."""

import random
from functools import partial
from pathlib import Path
from statistics import median

import pytest
from benchmarks.learning import document, experiments, noise, runs
from benchmarks.learning.document import Results, after_short, curve, score
from benchmarks.learning.results import read_results, write_results
from benchmarks.learning.sessions import MOST

from opdkit.config.train import TrainConfig
from opdkit.judge.votes import reward_of

ROOT = Path(__file__).parents[2]
FOUND = Results(read_results(ROOT / "tests/benchmarks/learning/results.json"))


def test_the_page_shows_the_results() -> None:
    written = (ROOT / "docs/learning.md").read_text(encoding="utf-8")
    assert written == document.page(FOUND.numbers), "run: python -m tests.benchmarks.learning --draw"


def test_results_are_read_as_they_were_written(tmp_path) -> None:
    write_results(tmp_path / "results.json", FOUND.numbers)
    assert read_results(tmp_path / "results.json") == FOUND.numbers


@pytest.mark.parametrize("name", ["epochs", "forgetting", "noise"])
def test_the_plots_are_those_of_the_results(name, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.learning import plots

    plots.draw(FOUND.numbers, tmp_path)
    drawn, kept = (folder / f"learning-{name}.svg" for folder in (tmp_path, ROOT / "docs"))
    assert _marks(drawn) == _marks(kept), "run: python -m tests.benchmarks.learning --draw"


def _marks(path: Path) -> int:
    """How many paths and marks a plot has: its numbers, whatever the version of matplotlib."""
    return path.read_text(encoding="utf-8").count("<use ")


# -- what is claimed ------------------------------------------------------------------------------------------------


def test_the_default_learns_most_of_those_that_forget_nothing() -> None:
    def uncorrected(name: str, column: str) -> float:
        return after_short(FOUND, name, "passed_sampled", "uncorrected", column)

    kept = [n for n in experiments.PRESETS if uncorrected(n, "after") >= uncorrected(n, "before") - 0.01]
    best = max(kept, key=lambda name: after_short(FOUND, name, "passed_sampled", "corrected"))
    assert best == experiments.DEFAULT == TrainConfig.objective


def test_two_epochs_are_enough_for_the_best() -> None:
    written = {n: after_short(FOUND, n, "passed_sampled", "corrected", kind="written") for n in experiments.WRITTEN}
    assert max(written.values()) >= 0.97


def test_whole_sessions_teach_no_less_than_single_turns() -> None:
    """Over all objectives: the seeds of one differ by more than the means do."""
    session = experiments.mean(after_short(FOUND, n, "passed_sampled", "corrected") for n in experiments.PRESETS)
    assert session >= experiments.mean(document.by_turn(FOUND, n) for n in experiments.PRESETS) - 0.01


def test_the_order_of_the_objectives() -> None:
    last = {name: curve(FOUND, name)[-1] for name in experiments.PRESETS}
    assert last["opd"] >= 0.70
    assert min(last["topk"], last["hybrid"]) > last["opd"]
    assert last["combine"] > last["binary"]


def test_no_preset_falls_by_more_than_a_twentieth_from_its_best() -> None:
    for name in experiments.PRESETS:
        values = curve(FOUND, name)
        assert max(values) - values[-1] <= 0.05, name


def test_a_second_round_adds_to_the_first() -> None:
    for name in experiments.ROUNDS:
        seeds = document.seeds_of(FOUND, "rounds", name)
        first, second = (experiments.mean(experiments.mean_corrected(s[key]) for s in seeds)
                         for key in ("first", "second"))  # fmt: skip
        assert second > first, name


def test_more_votes_take_back_most_of_what_noise_costs() -> None:
    clean = FOUND.noise(*document.NOISE, "passed")
    lost = {m: clean - FOUND.noise(0.3, m, "passed") for m in experiments.VOTES}
    assert lost[5] <= lost[1] / 2


def test_the_default_forgets_nothing_and_echoes_no_hint() -> None:
    echo = FOUND.cells["echo"]
    assert echo["replies"] >= 1000
    assert score(echo["scores"], "hint_echo", "all") == 0
    before, after = (after_short(FOUND, experiments.DEFAULT, "passed_sampled", "uncorrected", c)
                     for c in ("before", "after"))  # fmt: skip
    assert after >= before - 0.01


def test_a_preference_holds_after_few_sessions() -> None:
    numbers = [FOUND.cells[f"sessions-{t}-{o}"]["sessions"] for t in experiments.PREFERENCES
               for o in range(experiments.ORDERS)]  # fmt: skip
    assert median(MOST + 1 if n is None else n for n in numbers) <= 8


# -- the noisy judge ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("votes", "exact"), [(1, 0.7), (3, 0.816), (5, 0.874), (7, 0.927), (9, 0.957), (11, 0.973)])
def test_the_exact_curve_is_that_of_the_worked_numbers(votes, exact) -> None:
    assert noise.exact_reward_accuracy(0.3, votes) == pytest.approx(exact, abs=6e-4)


def test_votes_are_wrong_at_the_rate_asked_for() -> None:
    truth, topic, rng = {"reward": -1, "wanted": "celsius"}, noise.world().WEATHER, random.Random(0)
    votes = [noise.vote("reward", truth, topic, 0.3, rng) for _ in range(4000)]
    assert votes.count("\\boxed{-1}") / 4000 == pytest.approx(0.7, abs=0.03)
    assert votes.count("\\boxed{0}") / 4000 == pytest.approx(0.15, abs=0.03)
    hints = [noise.vote("hint", truth, topic, 0.3, rng) for _ in range(4000)]
    assert sum("Celsius" in hint for hint in hints) / 4000 == pytest.approx(0.7, abs=0.03)
    assert hints.count("\\boxed{-1}") / 4000 == pytest.approx(0.15, abs=0.03)
    assert all("Celsius" in noise.vote("hint", truth, topic, 0.0, rng) for _ in range(50))


@pytest.mark.parametrize("topic", noise.world().TOPICS, ids=lambda topic: topic.name)
def test_every_topic_can_be_judged_wrongly(topic) -> None:
    """Also where no other style has a hint that a wrong vote could give."""
    for wanted in (None, *(style.name for style in topic.styles if style.hints)):
        votes = {noise.vote("hint", {"wanted": wanted}, topic, 1.0, random.Random(k)) for k in range(40)}
        right = {None} if wanted is None else set(topic.style(wanted).hints)
        assert not any(hint in vote for vote in votes for hint in right if hint)


def test_the_outcomes_of_votes_are_all_there() -> None:
    for votes in (1, 2, 5):
        outcomes = noise._outcomes(votes)
        assert len(set(outcomes)) == (votes + 1) * (votes + 2) // 2
        assert sum(noise._ways(o) for o in outcomes) == 3**votes
    assert reward_of(noise._outcomes(1)[0]).status == "ok"


# -- it runs --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_small_training_goes_through_all_of_it(tmp_path, monkeypatch) -> None:
    """Four sessions, one epoch: the stages run as the benchmark calls them, and the model is measured."""
    monkeypatch.setattr(noise, "passed", partial(runs.passed, samples=1))
    base = runs.judged(tmp_path, sessions=4)
    run = runs.branch(base, tmp_path / "run")
    cost = runs.trained(
        run, runs.MODEL, {"learning_rate": 1e-3, "batch_turns": 4, "keep_epochs": True}, seed=0, epochs=1
    )
    assert cost["steps"] >= 1
    shares = runs.passed(runs.epoch_model(run, 1), seed=0, samples=1)
    assert shares.keys() == {"weather", "cooking", "trains", "orders", "music", "capitals"}
    noisy = noise.noisy(tmp_path, 0.3, 1, {"learning_rate": 1e-3}, seed=0, epochs=1, sessions=4)
    assert 0 <= noisy["rewards_right"] < 1
