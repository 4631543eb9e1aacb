"""Tests of opdkit/judge/claims.py: which hints contradict each other, and which ask for similar things."""

import pytest

from opdkit.judge.claims import choose_wording, contradicts, find_claims, group_alike

OPPOSITE = [
    ("Use Python, not Java.", "Use Java, not Python."),
    ("Use Python, not Java.", "Use Java."),
    ("Do not use bullet points.", "Use bullet points in lists."),
    ("Be brief.", "Write a detailed reply."),
    ("Use Celsius.", "Give the temperature in Fahrenheit."),
    ("使用Python", "不使用Python"),
]
AGREEING = [
    ("Do not call the tool twice.", "Call the tool."),
    ("Give a short summary.", "Write long paragraphs."),
    ("Use Celsius.", "Use Python."),
    ("Be brief.", "Not so long."),
]


@pytest.mark.parametrize(("a", "b", "is_one"), [*((*p, True) for p in OPPOSITE), *((*p, False) for p in AGREEING)])
def test_contradictions(a: str, b: str, is_one: bool) -> None:
    assert contradicts(find_claims(a), find_claims(b)) is contradicts(find_claims(b), find_claims(a)) is is_one


def test_hints_that_ask_for_like_things_are_one_group() -> None:
    """The most frequent comes first; opposites, and hints that share one word of two, are in groups of their own."""
    clock = [("Use the 24-hour clock for times.", 60), ("Write the time on the 24-hour clock.", 11)]
    celsius = [("Report the temperature in degrees Celsius.", 35), ("Give the temperature in Celsius.", 16)]
    tools = [("Call track_order with the argument order_id.", 48), ("Pass the order as order_id to track_order.", 34)]
    apart = [
        [("Use warm words.", 9)],
        [("Write three words.", 8)],
        [("Use tabs, not spaces.", 7)],
        [("Use spaces, not tabs.", 6)],
    ]
    groups = [tools, clock, celsius, *apart]
    texts = [one for group in groups for one in group]
    for order in (texts, texts[::-1]):
        assert group_alike(order) == groups
        assert choose_wording(order) == {text: members[0][0] for members in groups for text, _ in members}
    assert group_alike([]) == []
