"""Tests of opdkit/evaluate/comparison.py: the sentence follows from the pairs, intervals are paired, words marked."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdkit.evaluate.bootstrap import interval
from opdkit.evaluate.checks import HeldOutPrompt, Patterns
from opdkit.evaluate.comparison import (
    Comparison,
    Side,
    conclude_pairs,
    find_replies,
    make_training_rows,
    mark_changes,
    score_pair,
)
from opdkit.evaluate.replies import Reply

CHECK = Patterns((), ())


def side(name: str, passed: dict[str, list[bool | None]], corrected: dict[str, bool] | None = None) -> Side:
    """Return a training's replies. `passed`: prompt id -> whether each passed, greedy first; also the reply's text."""
    replies = []
    for prompt_id, values in passed.items():
        domain = prompt_id[0]
        prompt = HeldOutPrompt(prompt_id, domain, [{"role": "user", "content": f"say {prompt_id}"}], None, CHECK,
                               (corrected or {}).get(prompt_id))  # fmt: skip
        replies += [Reply(prompt, "after", n, f"{value}", f"{value}", None, "stop", value)
                    for n, value in enumerate(values)]  # fmt: skip
    return Side(name, Path(name), replies)


def sentence(shares: dict[str, tuple[float, float]], count: int = 40, others: int = 40) -> str:
    """Return the sentence on trainings with these shares of right replies to `count` corrected prompts and `others`."""
    prompts = [(f"c{n}", True, n) for n in range(count)] + [(f"u{n}", False, n) for n in range(others)]
    corrected = {prompt: is_corrected for prompt, is_corrected, _ in prompts}
    sides = [side(name, {prompt: [None, n < (count * right if is_corrected else others * kept)]
                         for prompt, is_corrected, n in prompts}, corrected)
             for name, (right, kept) in shares.items()]  # fmt: skip
    return conclude_pairs(list(shares), {(a.name, b.name): score_pair(a, b, 0) for a, b in combinations(sides, 2)})


@pytest.mark.parametrize(("shares", "begin"), [
    ({"a": (0.2, 0.9), "b": (0.8, 0.9)}, "b is better than a:"),
    ({"a": (0.8, 0.9), "b": (0.2, 0.9)}, "a is better than b:"),
    ({"a": (0.8, 0.9), "b": (0.8, 0.2)}, "a is better than b:"),
    ({"a": (0.5, 0.9), "b": (0.525, 0.9)}, "No measurable difference between b and a:"),
    ({"a": (0.9, 0.2), "b": (0.1, 0.9)}, "a is better in one respect and worse in another than b:"),
    ({"a": (0.2, 0.9), "b": (0.8, 0.9), "c": (0.2, 0.9)}, "b is better than a and c:"),
    ({"a": (0.2, 0.9), "b": (0.8, 0.9), "c": (0.825, 0.9)},
     "c is better than a, measurably no different from b:"),
])  # fmt: skip
def test_the_sentence_names_the_better_one_first(shares: dict, begin: str) -> None:
    found = sentence(shares)
    assert found.startswith(begin)
    leader = begin.removeprefix("No measurable difference between ")[0]
    for share, unit in zip(shares[leader], (" of its replies", ""), strict=True):
        assert f"{leader} {'is right ' if unit else ''}in {share:.0%}{unit}," in found


def test_what_may_be_chance_does_not_outweigh_what_is_not() -> None:
    """The shares of b have a smaller sum, but its loss may be chance and its gain is not."""
    assert sentence({"a": (0.2, 5 / 6), "b": (0.5, 3 / 6)}, others=6).startswith("b is better than a:")


def test_the_more_trainings_the_less_of_a_difference_may_be_chance() -> None:
    """Seven of forty prompts became right: not chance between two trainings, but three make three comparisons."""
    two = {"a": (0.5, 0.9), "b": (27 / 40, 0.9)}
    assert sentence(two).startswith("b is better than a:")
    assert sentence(two | {"c": (0.5, 0.9)}).startswith("No measurable difference between")
    assert sentence(two | {"b": (0.8, 0.9), "c": (0.5, 0.9)}).startswith("b is better than a and c:")


@pytest.mark.parametrize(("names", "others"), [("abc", "ac"), ("cab", "ca")])
def test_a_pair_may_lack_a_share(names: str, others: str) -> None:
    """The judge gave no verdict on c's replies where nobody complained."""
    sides = [side(name, {f"{kind}{n}": [None, None if (name, kind) == ("c", "u") else n < right]
                         for kind in "cu" for n in range(20)}, {f"{kind}{n}": kind == "c" for kind in "cu"
                         for n in range(20)}) for name in names for right in [18 if name == "b" else 2]]  # fmt: skip
    pairs = {(a.name, b.name): score_pair(a, b, 0) for a, b in combinations(sides, 2)}
    assert conclude_pairs(list(names), pairs) == (
        f"b is better than {' and '.join(others)}: where users corrected the model, b is right in 90% of its replies, "
        f"{', '.join(f'{name} in 10%' for name in others)}; where nobody complained, b in 90%, a in 10%."
    )


def test_too_few_prompts_and_no_check_are_said() -> None:
    assert sentence({"a": (0.2, 0.8), "b": (0.8, 0.8)}, count=5, others=5).startswith("Not known")
    unknown = [side(name, {f"p{n}": [None] for n in range(9)}) for name in "ab"]
    told = conclude_pairs(["a", "b"], {("a", "b"): score_pair(*unknown, 0)})
    assert told.startswith("Not known: the judge")


@given(st.lists(st.tuples(*[st.lists(st.booleans(), min_size=2, max_size=2)] * 2), min_size=6, max_size=12))
def test_the_interval_is_that_of_the_differences_prompt_by_prompt(replies: list) -> None:
    sides = [side(name, {f"p{n}": [None, *pair[k]] for n, pair in enumerate(replies)}) for k, name in enumerate("ab")]
    found = {(row["metric"], row["domain"]): row for row in score_pair(*sides, seed=3)}["passed_sampled", "all"]
    differences = [(sum(b) - sum(a)) / 2 for a, b in replies]
    assert found["difference"] == pytest.approx(sum(differences) / len(differences))
    assert (found["low"], found["high"]) == pytest.approx(interval(differences, seed=3) or (None, None))


def test_a_length_that_is_not_stored_is_not_invented_and_what_never_happens_is_left_out() -> None:
    one, cut = (side(name, {f"p{n}": [True, False] for n in range(6)}) for name in "ab")
    assert {row["metric"] for row in score_pair(one, one, 0)} == {"passed_sampled", "passed_greedy"}
    cut.replies[1] = replace(cut.replies[1], finish_reason="length")
    found = {(row["metric"], row["domain"]): row for row in score_pair(one, cut, 0)}["cut_off", "all"]
    assert (found["before"], found["after"]) == (0, 1 / 6)


def test_replies_that_only_one_passes_come_first_and_domains_take_turns() -> None:
    a = side("a", {"x1": [True], "x2": [True], "x3": [True], "y1": [True], "z1": [False], "same": [True]})
    b = side("b", {"x1": [False], "x2": [False], "x3": [None], "y1": [False], "z1": [None], "same": [True]})
    found = find_replies([a, b])
    assert [row["prompt_id"] for row in found] == ["x1", "y1", "z1", "x2", "x3"]
    assert found[0]["prompt"] == "say x1"
    assert found[0]["replies"] == {"a": {"reply": "True", "passed": True}, "b": {"reply": "False", "passed": False}}


@pytest.mark.parametrize(("old", "new", "marked"), [
    ("It is 5 C.", "It is 41 F.", "It is [-5-]{+41+} [-C.-]{+F.+}"),
    ("same words", "same words", "same words"),
    ("one two three", "one three", "one [-two -]three"),
    ("one", "one two", "one{+ two+}"),
    ("", "new", "{+new+}"),
    ("[bold]", "[/red]", "[-[bold]-]{+[/red]+}"),
])  # fmt: skip
def test_words_that_changed_are_marked(old: str, new: str, marked: str) -> None:
    assert mark_changes(old, new).plain == marked


def test_replies_of_models_that_loop_are_marked_at_once() -> None:
    """A search for the fewest changes would take hours."""
    old, new = "It is so. " * 2000, "It is not. " * 2000
    marked = mark_changes(old, new).plain
    assert marked.startswith("It is [-so.")
    assert marked.count("so.") == marked.count("not.") == 2000
    words = [f"{n}" for n in range(900)]
    other = [*words[:450], "new", *words[451:]]
    assert mark_changes(" ".join(words), " ".join(other)).plain.count("[-") == 1, "long replies of many words"


@given(*[st.text(alphabet="ab \n", max_size=30)] * 2)
def test_both_texts_can_be_read_from_the_marked_one(old: str, new: str) -> None:
    marked = mark_changes(old, new)
    parts = [(marked.plain[span.start : span.end], str(span.style)) for span in marked.spans]
    text = marked.plain
    for part, style in parts:
        text = text.replace(part, part[2:-2] if style == "green" else "", 1)
    assert text == new


def test_tables_are_texts() -> None:
    none = {"difference": None, "low": None, "high": None, "count": 6}
    scores = [
        {"metric": "passed_sampled", "domain": domain, "before": 0.0, "after": 0.5} | none
        for domain in ("all", "own", "other")
    ]
    facts = [{"training": "[red]a", "options": {"objective": "opd"}, "steps": 1234}, {"training": "b", "options": {
        "objective": None}}]  # fmt: skip
    assert make_training_rows(facts) == [
        ["", "[red]a", "b"],
        ["--objective", "opd", "None"],
        ["optimizer steps", "1,234", "-"],
    ]
    shown = repr(Comparison("a is better than b: \x1b[31mred.", {"b": scores}, facts, [], ["[red]b: much"]))
    assert shown.splitlines()[1] == "  look: [red]b: much"
    assert shown.count("[red]a") == 3, "a name is no markup"
    assert [row.split() for row in shown.splitlines() if " own " in row] == [
        ["own", "0.000", "0.500", "-", "-", "6"]
    ]  # fmt: skip
    assert "\x1b" not in shown
