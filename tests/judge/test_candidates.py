"""Tests of what became of each hint that was voted for; the reasons are those of the judge's own filter."""

import pytest
from runs import in_context, talk

from opdkit.judge import hints
from opdkit.judge.hints import CHOSEN, explain_candidates

NEXT = "No, please list the three steps in order and number each one of them."
LONG = "Number the steps of the recipe, each one of them on a line of its own."
SHORT = "Number the steps."
SAME = "number the ... STEPS!!"
LEAK = "Please list the three steps in order and number each one of them."
CONFIG = {"judge": "local", "hint_select": "longest", "min_hint_chars": 2, "max_hint_chars": 600}


SAID = talk("How?", "So.", NEXT)
TURN = {"message_index": 1, "next_count": 1, "decision": None}


def verdict(texts, *, against: int = 0, failed: int = 0, config=CONFIG) -> dict:
    decisions = [1] * len(texts) + [-1] * against + [None] * failed
    said = [*texts, *[None] * (against + failed)]
    unquotable = hints.find_unquotable_text(config["judge"], in_context(SAID))
    pairs = list(zip(decisions, said, strict=True))
    limits = {"min_chars": config["min_hint_chars"], "max_chars": config["max_hint_chars"]}
    choice = hints.choose_hint(pairs, unquotable, select=config["hint_select"], **limits)
    votes = [{"decision": d, "hint": t, "raw": "", "error": None} for d, t in pairs]
    return {"hint_votes": votes, "hints": choice.hints, "hint": choice.hint, "hint_status": choice.status}


def test_each_candidate_once_the_chosen_one_first_with_why_the_others_lost():
    found = explain_candidates(SAID, TURN, verdict([LONG, SHORT, SHORT, SAME, LEAK, "Be better."]), CONFIG)
    assert [c["hint"] for c in found[:2]] == [LONG, SHORT]
    assert {c["hint"]: c["status"] for c in found} == {
        LONG: CHOSEN,
        SHORT: "accepted, but shorter than the chosen one",
        SAME: "has the same words as another one",
        LEAK: "quotes what came next",
        "Be better.": "says nothing to act on",
    }


@pytest.mark.parametrize(
    ("votes", "words"), [({"against": 3}, "nothing to learn"), ({"failed": 3}, "half of the votes")]
)
def test_what_the_votes_did_not_carry_is_not_chosen(votes, words):
    """A single vote for a hint is not enough against a majority or without a quorum, and its status says so."""
    (found,) = explain_candidates(SAID, TURN, verdict([LONG], **votes), CONFIG)
    assert words in found["status"]


@pytest.mark.parametrize("select", ["consensus", "longest", "shortest", "score"])
def test_exactly_the_verdict_s_hint_is_chosen(select):
    config = CONFIG | {"hint_select": select}
    row = verdict([LONG, SHORT, "Write numbers before the steps of it."], config=config)
    assert [c["hint"] for c in explain_candidates(SAID, TURN, row, config) if c["status"] == CHOSEN] == [row["hint"]]


def test_the_rules_may_quote_what_came_next():
    config = CONFIG | {"judge": "rules"}
    (found,) = explain_candidates(SAID, TURN, verdict([LEAK], config=config), config)
    assert found["status"] == CHOSEN


def test_a_run_of_fresh_replies_carries_its_hints_over():
    row = {"hint_votes": [], "hints": [SHORT, LONG], "hint": LONG, "hint_status": "ok"}
    found = explain_candidates(SAID, TURN, row, {"samples": 2})
    assert found[0]["status"] == CHOSEN
    assert "carried over" in found[1]["status"]
