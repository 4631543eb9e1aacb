"""Learning benchmark: its page shows the stored results, the results show what the page says, and it runs."""

import random
import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median

import pytest
import torch
from benchmarks.learning import ablation_sections as sections
from benchmarks.learning import ablations, cells, document, exact_kl, experiments, noise, runs
from benchmarks.learning.lookup import NOISE, Results, after_short, curve, score, seeds_of
from benchmarks.learning.results import read_results, write_results
from benchmarks.learning.sessions import MOST
from benchmarks.points import read_points

from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.judge.votes import choose_reward
from opdkit.store.reading import read_all
from opdkit.train.objective.terms import PRESETS

ROOT = Path(__file__).parents[2]
FOUND = Results(read_results(ROOT / "tests/benchmarks/learning/results.json"))


def test_the_page_shows_the_results() -> None:
    written = (ROOT / "docs/sample-world.md").read_text(encoding="utf-8")
    assert written == document.page(FOUND.numbers), "run: python -m tests.benchmarks.learning --draw"


def test_results_are_read_as_they_were_written(tmp_path) -> None:
    write_results(tmp_path / "results.json", FOUND.numbers)
    assert read_results(tmp_path / "results.json") == FOUND.numbers


@pytest.mark.parametrize("name", ["epochs", "forgetting", "noise"])
def test_the_plots_are_those_of_the_results(name, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.learning import plots

    plots.draw(FOUND.numbers, tmp_path)
    drawn, kept = (read_points(folder / f"learning-{name}.svg") for folder in (tmp_path, ROOT / "docs"))
    assert drawn == pytest.approx(kept, abs=1), "run: python -m tests.benchmarks.learning --draw"


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
    """The means are over all objectives: one objective's seeds differ by more than both means do."""
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
        seeds = seeds_of(FOUND, "rounds", name)
        first, second = (experiments.mean(experiments.mean_corrected(s[key]) for s in seeds)
                         for key in ("first", "second"))  # fmt: skip
        assert second > first, name


def test_more_votes_take_back_most_of_what_noise_costs() -> None:
    clean = FOUND.noise(*NOISE, "passed")
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


# -- the ablations --------------------------------------------------------------------------------------------------


def test_every_ablation_is_measured() -> None:
    """All cells of the ablations have results, and no reported seed was used to choose a rate or the recipe."""
    rates, tuned = FOUND.numbers["rates"], FOUND.numbers["tuned"]
    assert {cell.name for cell in ablations.rate_cells()} <= rates.keys()
    assert {cell.name for cell in ablations.cells(rates, tuned, range(3))} <= FOUND.cells.keys()
    assert not set(experiments.TUNING_SEEDS) & set(range(3))


def test_rates_and_the_recipe_come_from_the_tuning_seeds() -> None:
    rates = FOUND.numbers["rates"]
    assert ablations.tuned(rates).items() <= FOUND.numbers["tuned"].items()
    best = {v.name: max(experiments.ends(rates, v.name, rate) for rate in v.rates) for v in ablations.OPD}
    assert ablations.recipe(rates).name == max(best, key=best.__getitem__)


@pytest.mark.parametrize("question", ablations.ABLATIONS)
def test_an_ablation_differs_from_the_default(question) -> None:
    """Each variant changes one option to a value that is not the default, or the ablation would compare nothing."""
    for variant in ablations.ABLATIONS[question]:
        scored = runs.SCORED_OTHERWISE.get(variant.source, {})
        fields = [(TeacherConfig, name, value) for name, value in scored.items()]
        fields += [(TrainConfig, name, value) for name, value in variant.options.items()]
        assert len(fields) == 1
        for config, name, value in fields:
            assert getattr(config, name) != value
        (weights,) = PRESETS[variant.objective]
        if question == "weight":
            assert weights["reward"] < variant.options["reward_weight"] == 1


def _sides(question: str, objective: str, domain: str) -> tuple[list[float], list[float]]:
    """Return the shares with the default and with the original value, seed by seed."""
    (variant,) = (v for v in ablations.ABLATIONS[question] if v.objective == objective)
    default, original = sections.shares_of_default(FOUND, objective), sections.shares_of(FOUND, variant)
    return default[domain], original[domain]


# Cases that docs/sample-world.md calls clear, for the default and for the original value. It leaves the others open.
FOR_THE_DEFAULT = {("hint", "topk", "corrected"), ("weight", "blend", "corrected"), ("blame", "binary", "corrected"),
                   ("blame", "binary", "uncorrected")}  # fmt: skip
FOR_THE_ORIGINAL = {("schedule", "blend", "uncorrected")}


@pytest.mark.parametrize("domain", ["corrected", "uncorrected"])
@pytest.mark.parametrize(
    ("question", "objective"), [(q, v.objective) for q, variants in ablations.ABLATIONS.items() for v in variants]
)
def test_what_the_page_says_of_a_default(question, objective, domain) -> None:
    default, original = _sides(question, objective, domain)
    assert len(default) == len(original) == 3
    case = (question, objective, domain)
    assert sections.is_clearly_above(default, original) == (case in FOR_THE_DEFAULT)
    assert sections.is_clearly_above(original, default) == (case in FOR_THE_ORIGINAL)


def test_the_second_look_is_what_the_page_says() -> None:
    look = {(q, v.objective): sections.second_look(FOUND, v) for q, vs in ablations.ABLATIONS.items() for v in vs}
    against_the_original = {case for case, difference in look.items() if difference < -0.03}
    assert against_the_original == {("support", "topk"), ("weight", "blend"), ("weight", "hybrid"), ("blame", "binary")}
    assert max(look.values()) < 0.01


def test_longest_hints_are_wrong_more_often() -> None:
    assert FOUND.cells["hints-base-longest"]["right"] < FOUND.cells["hints-base"]["right"] - 0.05
    default, original = (sections.by_domain(seeds_of(FOUND, f"{kind}-0.3-5"))["corrected"]
                         for kind in ("noise", "longest"))  # fmt: skip
    assert sections.is_clearly_above(default, original)
    for wrong in experiments.WRONG:
        right = {kind: experiments.mean(s["hints_right"] for s in seeds_of(FOUND, f"{kind}-{wrong:g}-5"))
                 for kind in ("noise", "longest")}  # fmt: skip
        assert right["longest"] < right["noise"]


def test_of_the_estimators_only_k1_lets_the_model_learn() -> None:
    shares = {v.change.removeprefix("KL "): sections.shares_of(FOUND, v)["corrected"] for v in ablations.KL}
    assert not sections.is_clearly_above(shares["off"], shares["k1"])
    for biased in ("k2", "k3"):
        for name in ("off", "k1", "exact"):
            assert sections.is_clearly_above(shares[name], shares[biased])
    without = seeds_of(FOUND, "ablation", ablations.KL[0].name)
    for seed in without:
        off = {name: abs(seed["kl"][name] - seed["kl"]["exact"]) for name in exact_kl.ESTIMATORS}
        assert off["k1"] < off["k2"] < off["k3"]
    drift = {v.change: experiments.mean(s["kl"]["exact"] for s in seeds_of(FOUND, "ablation", v.name))
             for v in ablations.KL}  # fmt: skip
    assert drift["KL exact"] < 0.8 * drift["KL off"]
    assert drift["KL k1"] == pytest.approx(drift["KL off"], rel=0.1)


def test_the_recipe_of_opd_is_better_than_its_defaults() -> None:
    """The recipe is still clearly behind the objectives that the page names."""
    recipe = sections.shares_of(FOUND, ablations.recipe(FOUND.numbers["rates"]))
    default = sections.shares_of_default(FOUND, "opd")
    assert experiments.mean(recipe["corrected"]) > experiments.mean(default["corrected"]) + 0.1
    assert experiments.mean(recipe["uncorrected"]) >= experiments.mean(default["uncorrected"])
    for name in ("distill", experiments.DEFAULT):
        other = sections.shares_of_default(FOUND, name)["corrected"]
        assert sections.is_clearly_above(other, recipe["corrected"])


def test_the_training_without_a_kl_term_is_the_stored_one() -> None:
    """The same training, measured again later for the ablations, gives the same shares as the default's."""
    again, stored = sections.shares_of(FOUND, ablations.KL[0]), sections.shares_of_default(FOUND, experiments.DEFAULT)
    for domain, shares in stored.items():
        assert again[domain] == pytest.approx(shares)


@pytest.mark.parametrize("page", ["learning", "sample-world", "performance", "scale"])
def test_rates_in_the_pages_are_per_something(page) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    units = "nats|seconds|tokens|parts|bytes|calls|votes|kB|GB|MB|sample|prompts"
    assert not re.findall(rf"(?:{units}) an? (?:token|turn|second|part|run|prompt|question|batch|number|core)\b", text)


def test_the_exact_kl_is_that_of_torch() -> None:
    torch.manual_seed(0)
    now_NV, reference_NV = torch.randn(2, 5, 30).log_softmax(-1)
    theirs_NV = torch.nn.functional.kl_div(reference_NV, now_NV, reduction="none", log_target=True)
    assert torch.allclose(exact_kl.exact_kl(now_NV, reference_NV), theirs_NV.sum(-1))


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
    """A wrong vote has no hint that is due, or the hint of another style. If none is due, it always has a hint."""
    hints = {style.name: set(style.hints) for style in topic.styles if style.hints}
    for wanted in (None, *hints):
        votes = [noise.vote("hint", {"wanted": wanted}, topic, 1.0, random.Random(k)) for k in range(40)]
        given = {vote.removesuffix("[HINT_END]").partition("[HINT_START]")[2] for vote in votes} - {""}
        assert given <= set().union(*(texts for name, texts in hints.items() if name != wanted))
        assert bool(given) == bool(hints.keys() - {wanted})
        assert ("\\boxed{-1}" in votes) == (wanted is not None)


def test_the_outcomes_of_votes_are_all_there() -> None:
    for votes in (1, 2, 5):
        outcomes = noise._outcomes(votes)
        assert len(set(outcomes)) == (votes + 1) * (votes + 2) // 2
        assert sum(noise._ways(o) for o in outcomes) == 3**votes
    assert choose_reward(noise._outcomes(1)[0]).status == "ok"


# -- it runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Return a work folder with a run of four sessions."""
    work = tmp_path_factory.mktemp("learning")
    runs.judged(work, sessions=4)
    return work


@pytest.mark.slow
def test_a_small_training_goes_through_all_of_it(small, monkeypatch) -> None:
    """Four sessions, one epoch: the stages run as the benchmark calls them, and the model is measured."""
    monkeypatch.setattr(noise, "passed", partial(runs.passed, samples=1))
    run = runs.branch(small / "base-4", small / "run")
    cost = runs.trained(
        run, runs.MODEL, {"learning_rate": 1e-3, "batch_turns": 4, "keep_epochs": True}, seed=0, epochs=1
    )
    assert cost["steps"] >= 1
    shares = runs.passed(runs.epoch_model(run, 1), seed=0, samples=1)
    assert shares.keys() == {"weather", "cooking", "trains", "orders", "music", "capitals"}
    noisy = noise.noisy(small, 0.3, 1, {"learning_rate": 1e-3}, seed=0, epochs=1, sessions=4)
    assert 0 <= noisy["rewards_right"] < 1


def test_the_exact_kl_holds_a_training_back(small) -> None:
    """The term is 0 for the untrained student and then positive, and it keeps the student nearer to its start."""
    drift = {}
    for coefficient in (0.0, 100.0):
        run = runs.branch(small / "base-4", small / f"exact-{coefficient:g}")
        options = {"learning_rate": 1e-3, "batch_turns": 4, "kl_coef": coefficient}
        with exact_kl.exact_kl_term() if coefficient else nullcontext():
            runs.trained(run, runs.MODEL, options, seed=0, epochs=2)
        drift[coefficient] = exact_kl.kl_on_the_log(run, runs.MODEL, runs.final_model(run))["exact"]
    first, second = [row["kl_loss"] for row in read_all(run, "metrics")][:2]
    assert abs(first) < 1e-4 < second
    assert 0 < drift[100.0] < drift[0.0]


def test_measured_cells_are_not_measured_again(tmp_path) -> None:
    cell = cells.Cell("known", experiments.base, {"seed": "no such seed"})
    assert cells.measured([cell], tmp_path, 1, {"known": {"passed": {}}}) == {"known": {"passed": {}}}
