"""Tests of opdkit/evaluate/conclusion.py: word and sentence follow from the intervals, unusual values are named."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checked_runs import whole_run

from opdkit.chat.messages import message
from opdkit.commands.status import run as status
from opdkit.config.status import StatusConfig
from opdkit.console import stdout
from opdkit.evaluate import conclusion as concluding
from opdkit.evaluate.checks import HeldOutPrompt, Patterns
from opdkit.evaluate.conclusion import (
    BETTER,
    MIXED,
    SAME,
    UNKNOWN,
    WORSE,
    Conclusion,
    conclude,
    print_conclusion,
    read_conclusion,
)
from opdkit.evaluate.replies import Reply
from opdkit.evaluate.scores import Scores, make_reply_scores
from opdkit.model.scoring import PromptResponse

RUN = Path("runs/mine")
UP, DOWN, FLAT = (0.1, 0.3), (-0.3, -0.1), (-0.1, 0.1)


@pytest.fixture(autouse=True)
def model(monkeypatch) -> None:
    plan = {"plan": {"config": {}, "inputs": {"after": {"name": "runs/old place/train/model"}}}}
    monkeypatch.setattr(concluding, "manifest", lambda *_: plan)


def row(
    metric: str, domain: str = "all", span: tuple[float, float] | None = FLAT, count: int = 30, **more: Any
) -> dict:
    low, high = span or (None, None)
    middle = (low + high) / 2 if span else 0.2
    chance = None if not span else 0.5 if low <= 0 <= high else 0.01
    return {"metric": metric, "domain": domain, "before": 0.5, "after": 0.5 + middle, "difference": middle,
            "low": low, "high": high, "chance": chance, "count": count, "units": count} | more  # fmt: skip


def passed(corrected: tuple[float, float] | None, uncorrected: tuple[float, float] | None) -> list[dict]:
    return [row("passed_sampled", "all"), row("passed_sampled", "corrected", corrected),
            row("passed_sampled", "uncorrected", uncorrected)]  # fmt: skip


@pytest.mark.parametrize(("corrected", "uncorrected", "word"), [
    (UP, FLAT, BETTER), (UP, UP, BETTER), (FLAT, UP, BETTER), (UP, DOWN, MIXED), (DOWN, UP, MIXED),
    (FLAT, DOWN, WORSE), (DOWN, FLAT, WORSE), (DOWN, DOWN, WORSE), (FLAT, FLAT, SAME), ((0.0, 0.2), FLAT, SAME),
    (None, None, UNKNOWN), (UP, None, BETTER), (None, DOWN, WORSE), (None, FLAT, UNKNOWN), (FLAT, None, UNKNOWN),
])  # fmt: skip
def test_the_word(corrected, uncorrected, word: str) -> None:
    found = conclude(passed(corrected, uncorrected), RUN)
    assert found.word == word
    assert found.sentence.lower().startswith(f"{word}:")
    assert "where users corrected the model" in found.sentence
    assert [number["domain"] for number in found.numbers] == ["corrected", "uncorrected"]
    assert found.next


def test_a_fall_that_may_be_chance_is_named_beside_the_better_model() -> None:
    """The fall's interval is below 0, but the significance test, which is stricter, does not count it."""
    for span, chance, named in ((DOWN, 0.04, True), (DOWN, 0.02, False), (FLAT, 0.04, False), (UP, 0.04, False)):
        fall = row("passed_sampled", "uncorrected", span, chance=chance)
        found = conclude([row("passed_sampled"), row("passed_sampled", "corrected", UP), fall], RUN)
        assert any("nobody complained, fewer replies are right" in line for line in found.watch) is named
    assert conclude([row("passed_sampled", span=DOWN, chance=0.06)], RUN).watch


@pytest.mark.parametrize("count", [5, 6])
def test_a_share_of_too_few_prompts_is_not_the_same(count: int) -> None:
    """All replies to so few prompts became right, but each of two shares needs seven prompts to keep to 5% for both."""
    prompts = [prompt(f"{n}", n < count, (0, n < count)) for n in range(count + 20)]
    found = conclude(make_reply_scores([reply for both in prompts for reply in both], 0), RUN)
    assert found.sentence == (
        "Not known: too few prompts to tell what changed where users corrected the model; where users corrected the "
        "model, 100% of its replies are right (0% before); where nobody complained, 0% (0% before)."
    )


@pytest.mark.parametrize(("rose", "fell", "word"), [
    (3, 0, SAME), (5, 0, SAME), (6, 0, BETTER), (6, 1, SAME), (0, 6, WORSE), (12, 0, BETTER),
])  # fmt: skip
def test_at_least_six_prompts_change_where_one_share_rose_or_fell(rose: int, fell: int, word: str) -> None:
    """The interval of the bootstrap alone would exclude 0 for three of twelve prompts."""
    prompts = [prompt(f"{n}", None, (fell > n - rose >= 0, n < rose)) for n in range(12)]
    found = conclude(make_reply_scores([reply for both in prompts for reply in both], 0), RUN)
    assert found.word == word
    assert (found.numbers[0]["low"] is None) is (rose == 12), "all changes are equal"


def prompt(name: str, corrected: bool | None, passed: tuple[bool, bool], session: str | None = None) -> list[Reply]:
    """Return a reply of each model to one held-out prompt."""
    asked = HeldOutPrompt(name, "d", [message("user", "Hi")], None, Patterns((), ()), corrected, session=session)
    return [Reply(asked, model, 1, "x", "x", PromptResponse([1], [2]), "stop", bool(right))
            for model, right in zip(("before", "after"), passed, strict=True)]  # fmt: skip


def test_too_few_sessions_are_not_the_same_however_many_prompts_they_have() -> None:
    """Twelve prompts of six sessions all became right, but six sessions are too few if two shares are compared."""
    rose = [prompt(f"{n}", True, (False, True), f"log:{n // 2}") for n in range(12)]
    kept = [prompt(f"k{n}", False, (True, True)) for n in range(30)]
    found = conclude(make_reply_scores([reply for both in rose + kept for reply in both], 0), RUN)
    assert found.word == UNKNOWN
    assert "too few prompts to tell what changed where users corrected the model" in found.sentence


def test_the_prompts_of_a_session_rise_together() -> None:
    for width, word in ((1, BETTER), (2, BETTER), (3, SAME), (8, UNKNOWN)):
        prompts = [prompt(f"{n}", None, (n >= 12, True), f"log:{n // width}") for n in range(40)]
        found = conclude(make_reply_scores([reply for both in prompts for reply in both], 0), RUN)
        assert (found.word, found.numbers[0]["count"]) == (word, 40)


def test_the_sentence_has_the_shares() -> None:
    scores = [row("passed_sampled", "all"), row("passed_sampled", "corrected", (0.88, 0.95), before=0.06, after=0.98),
              row("passed_sampled", "uncorrected", FLAT, before=0.97, after=0.98)]  # fmt: skip
    assert conclude(scores, RUN).sentence == (
        "Better: where users corrected the model, 98% of its replies are right (6% before); where nobody "
        "complained, 98% (97% before)."
    )
    found = conclude(scores, RUN).next
    assert found.startswith("The better model is in runs/mine/train/model: if `opdkit gate runs/mine` says so, ")


@pytest.mark.parametrize(("run", "trained", "path"), [
    ("runs/copy", None, "runs/copy/train/model"), ("runs/copy/b.training", None, "runs/copy/b.training/train/model"),
    ("runs/copy", "models/other", "models/other"),
])  # fmt: skip
def test_the_better_model_is_where_the_run_is_now(monkeypatch, run: str, trained: str | None, path: str) -> None:
    """Eval recorded the path at which it read the model, and the run was copied since."""
    plan = {"config": {"trained": trained}, "inputs": {"after": {"name": trained or "runs/mine/train/model"}}}
    monkeypatch.setattr(concluding, "manifest", lambda *_: {"plan": plan})
    assert conclude([row("passed_sampled", span=UP)], Path(run)).next.startswith(f"The better model is in {path}: ")


@pytest.mark.parametrize("trained", [None, "models/other"])
def test_after_a_loss_the_turns_that_taught_it_are_named_if_this_run_trained_the_model(monkeypatch, trained) -> None:
    monkeypatch.setattr(concluding, "manifest", lambda *_: {"plan": {"config": {"trained": trained}}})
    assert ("`opdkit blame runs/mine`" in conclude(passed(FLAT, DOWN), RUN).next) == (trained is None)
    assert "blame" not in conclude(passed(FLAT, FLAT), RUN).next


def test_without_the_field_corrected_all_prompts_conclude() -> None:
    found = conclude([row("passed_sampled", span=UP)], RUN)
    assert found.word == BETTER
    assert "on all prompts, 70% of its replies are right (50% before)" in found.sentence
    few = conclude([row("passed_sampled", span=None, count=3)], RUN)
    assert few.sentence.startswith("Not known: too few prompts to tell; on all prompts, 70% of its replies are right")


def test_greedy_replies_conclude_where_none_was_sampled() -> None:
    assert conclude([row("passed_greedy", span=DOWN)], RUN).word == WORSE
    assert conclude([row("passed_greedy", span=DOWN), row("passed_sampled", span=UP)], RUN).word == BETTER


def test_without_a_verdict_nothing_is_known_and_the_judge_is_named() -> None:
    """Every row of a file of prompts has a check, but a judge may give no verdict."""
    found = conclude([row("kl_replies", after=0.02), row("passed_sampled", count=0, span=None)], RUN)
    assert (found.word, len(found.numbers), found.watch) == (UNKNOWN, 1, [])
    assert "judge's checks" in found.sentence
    assert "--judge-model" in found.next


@pytest.mark.parametrize(("scored", "said"), [
    (row("kl_replies", after=0.05), None),
    (row("kl_replies", after=0.15), "more than usual"),
    (row("kl_replies", after=0.35), "much"),
    (row("reply_tokens", before=20.0, after=28.0), None),
    (row("reply_tokens", before=20.0, after=40.0), "2.0 times as long"),
    (row("reply_tokens", before=20.0, after=10.0), "0.5 times as long"),
    (row("cut_off", span=FLAT, before=0.1, after=0.1), None),
    (row("cut_off", span=UP, after=0.2, before=0.0), "20% of the replies are cut off"),
    (row("cut_off", span=FLAT, after=0.9, before=0.9), "cut off by --max-new-tokens, 90% before"),
    (row("reply_tokens", count=33), None),
    (row("reply_tokens", count=40), "10 of 40 prompts have no verdict of the judge"),
    (row("hint_echo", after=0.5, before=0.5, difference=0.0), None),
    (row("hint_echo", before=0.0, after=0.0125, difference=0.0125), "1.2% of the replies mention a hint"),
])  # fmt: skip
def test_what_is_unusual_is_named(scored: dict, said: str | None) -> None:
    found = conclude([*passed(UP, FLAT), scored], RUN).watch
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_limit_that_cuts_off_most_replies_is_raised_first() -> None:
    """A model that thinks ends no reply within the default limit: nothing is right, before and after."""
    cut = row("cut_off", span=FLAT, before=1.0, after=1.0)
    for spans, word in (((FLAT, FLAT), SAME), ((None, None), UNKNOWN), ((FLAT, DOWN), WORSE)):
        found = conclude([*passed(*spans), cut], RUN)
        assert (found.word, "a higher --max-new-tokens" in found.next) == (word, True)
    assert "--max-new-tokens" not in conclude([*passed(FLAT, DOWN), cut | {"before": 0.0}], RUN).next


def test_what_the_shares_leave_out_is_named() -> None:
    """Prompts without the field may have become worse. Those after a correction lack it on purpose."""

    def watch(*scores: dict) -> list[str]:
        return conclude([row("passed_sampled", "all", count=90), *scores], RUN).watch

    rose, kept = row("passed_sampled", "corrected", UP), row("passed_sampled", "uncorrected")
    assert watch(rose, kept) == ["30 prompts without the field corrected are in no share above"]
    assert watch(rose, kept, row("passed_sampled", "directly after a correction")) == []
    (forgot,) = watch(rose | {"count": 90})
    assert "forgot is not measured" in forgot
    assert watch(rose | {"count": 90}, row("cut_off", "uncorrected")) == []  # its prompts have no verdict
    assert watch() == watch(kept | {"count": 90}) == []


@pytest.mark.parametrize(
    ("share", "said"), [(0.0, "No reply passes"), (1.0, "Each reply passes"), (0.5, "Train on more")]
)
def test_checks_that_tell_no_replies_apart_are_corrected_first(share: float, said: str) -> None:
    scores = [score | {"before": share, "after": share} for score in passed(FLAT, FLAT)]
    assert conclude(scores, RUN).next.startswith(said)


def test_a_number_is_a_line() -> None:
    measured = row("passed_sampled", "corrected", (0.88, 0.95), before=0.06, after=0.98, difference=0.92)
    with stdout.capture() as printed:
        alike = measured | {"low": None}
        print_conclusion(Conclusion(BETTER, "Better: a.", [measured, alike | {"chance": None}, alike], ["b"], "c"))
        print_conclusion(Conclusion(SAME, "The same: a.", [row("kl_replies", after=0.3)], [], "c"))
    assert printed.get().splitlines() == [
        "Better: a.", "  right replies, corrected: 0.06 -> 0.98, +0.92 (95% interval +0.88 to +0.95), 30 prompts",
        "  right replies, corrected: 0.06 -> 0.98, +0.92 (too few for an interval), 30 prompts",
        "  right replies, corrected: 0.06 -> 0.98, +0.92 (no interval: all changes are equal), 30 prompts",
        "  look: b", "c",
        "The same: a.", "  drift from the model before training, on its replies (KL, nats per token): 0.30", "c",
    ]  # fmt: skip


def test_eval_status_and_python_say_the_same(tmp_path) -> None:
    """Each of them begins with the conclusion."""
    run = whole_run(tmp_path / "run")
    expected = read_conclusion(run)
    assert expected is not None
    with stdout.capture() as printed:
        status(StatusConfig(run=run))
    assert " ".join(printed.get().split()).startswith(expected.sentence)
    assert Scores(run).conclusion == expected
    assert " ".join(repr(Scores(run)).split()).startswith(expected.sentence)


def test_an_evaluation_of_an_older_training_has_no_conclusion(tmp_path, monkeypatch) -> None:
    run = whole_run(tmp_path / "run")
    monkeypatch.setattr(concluding, "find_upstream_change", lambda *_: "train")
    assert read_conclusion(run) is None
    assert read_conclusion(tmp_path) is None


@pytest.mark.parametrize("module", ["evaluate.conclusion", "commands.compare", "commands.report.command"])
def test_what_reads_scores_needs_no_torch(module: str) -> None:
    """Torch takes seconds to import."""
    code = f"import sys; import opdkit.{module}; print({{'torch', 'transformers'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
