"""Tests of groups of hints: their effect, their sources, hints that contradict them, and the result on their topic."""

from pathlib import Path

import judged_runs
import numpy as np
import pytest
from checked_runs import recommit, whole_run
from report_runs import large_run, message, turn_row

from opdkit.commands.report.collect import collect
from opdkit.commands.turns import hint_groups
from opdkit.commands.turns.hint_groups import HintGroups, Topics, read_hints_of_group
from opdkit.commands.turns.line import measure_certainty
from opdkit.commands.turns.of_run import RunTurn, ScoredReply
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import OpdkitError
from opdkit.store.dropped_hints import NO_BETTER, WORSE
from opdkit.store.part_writer import Stage
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review
from opdkit.store.tables import HINT_CHECKS, TARGETS

CELSIUS, FAHRENHEIT = "Use degrees Celsius.", "Use Fahrenheit, not Celsius."


def verdict(hint: str, reward: int = -1, decisions: tuple[int, ...] = (1, 1), status: str = "ok") -> dict:
    votes = [{"decision": one, "error": None, "confidence": None} for one in decisions]
    return {"hint": hint, "reward": reward, "hint_votes": votes, "hint_status": status}


def turn(source: str, advantages: list[float] | None, reply: str = "", review: Review | None = None) -> RunTurn:
    session = {"source": source, "messages": [message("user", "?"), message("assistant", reply)]}
    scored = None if advantages is None else np.array(advantages, np.float32)
    target = ScoredReply(None, len(advantages or ()), scored, None, -1)
    return RunTurn(session, turn_row("s", 1), None, review, [target], "trained")


def test_the_facts_of_a_group_are_those_of_its_turns() -> None:
    groups = HintGroups(None)
    groups.add(turn("a.jsonl", [0.5, -1.5, 0.0]), verdict(CELSIUS))
    groups.add(turn("b.jsonl", [0.09, -0.05]), verdict("Use degrees Celsius, please."))  # moved no token
    groups.add(turn("a.jsonl", None), verdict(CELSIUS, reward=1, decisions=(1, -1, 1)))  # not scored
    groups.add(turn("a.jsonl", [-1.0], review=Review("s:1")), verdict(CELSIUS, status="reviewed"))
    groups.add(turn("a.jsonl", [-1.0]), verdict(FAHRENHEIT))
    celsius, fahrenheit = groups.summarize(9)
    assert (celsius["turns"], celsius["texts"], celsius["scored"], celsius["still"]) == (4, 2, 3, 1)
    assert celsius["effect"] == pytest.approx((2 / 3 + 0.07 + 1.0) / 3)
    assert sorted(celsius["sources"]) == [["a person", 1], ["a.jsonl", 2], ["b.jsonl", 1]]
    assert (celsius["rewarded"], celsius["split"], celsius["reviewed"]) == (1, 1, 1)
    assert (celsius["opposed"], fahrenheit["opposed"]) == ([FAHRENHEIT], [CELSIUS])
    assert celsius["topic"] is None
    assert groups.number_of == {CELSIUS: 0, "Use degrees Celsius, please.": 0, FAHRENHEIT: 1}


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose evaluation has replies of two domains."""
    run = whole_run(tmp_path_factory.mktemp("topics") / "run")
    said = {"weather": "It is {} C and sunny in Rome.", "trains": "The train to Rome leaves at {}:05 from platform 3."}

    def replies(rows: list[dict]) -> None:
        first = rows[0]
        rows[:] = [first | {"prompt_id": f"{domain}-{n}", "domain": domain, "model": model, "sample": 0,
                            "reply": text.format(n) if model == "before" else "sunny train"}
                   for domain, text in said.items() for n in range(5) for model in ("before", "after")]  # fmt: skip

    def scores(rows: list[dict]) -> None:
        first = dict(next(row for row in rows if row["metric"] == "passed_greedy"))
        first |= {"before": 0.25, "count": 5}
        shares = {"passed_greedy": 0.5, "passed_sampled": 0.75}
        rows += [first | {"domain": domain, "metric": metric, "after": shares[metric]}
                 for domain in said for metric in shares]  # fmt: skip

    recommit(run, "replies", 0, replies)
    recommit(run, "scores", 0, scores)
    return run


def test_a_topic_is_known_by_the_words_of_its_replies(evaluated: Path) -> None:
    topics = Topics(evaluated)
    known = set(topics.counts)
    assert topics.find("It is 71 F and cloudy in Oslo.") == "weather"
    assert topics.find("The train leaves at 7 pm.") == "trains"
    assert topics.find("The train is sunny.") is None, "one is as near as the other"
    assert topics.find("Paris") is topics.find("") is None
    assert topics.find("Rome") is None, "both have that"
    assert set(topics.counts) == known, "the words of a whole log would fill the memory"
    groups = HintGroups(topics)
    for reply in ("It is 71 F and cloudy.", "It is 9 F.", "The train leaves at 7 pm."):
        groups.add(turn("a", [1.0], reply), verdict(CELSIUS))
    (group,) = groups.summarize(9)
    assert (group["topic"]["domain"], group["topic"]["metric"], group["topic"]["after"]) == (
        "weather", "passed_sampled", 0.75
    )  # fmt: skip
    groups.add(turn("a", [1.0], "Paris"), verdict(CELSIUS))
    assert groups.summarize(9)[0]["topic"] is None, "no more than half of its turns"


@pytest.mark.parametrize("texts", [300, 3])
def test_a_group_has_the_turns_that_the_report_counts(
    texts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are equal even if there are more different hints than are grouped, some of them equally frequent."""
    monkeypatch.setattr(hint_groups, "TEXTS", texts)
    run = large_run(tmp_path / "run", 40, tokens=4)
    collected = collect(run, 100, reviewing=True)
    hints = {v["turn_id"]: v["hint"] for v in read_all(run, "verdicts") if v["hint"]}
    assert sum(group["texts"] for group in collected.summary["hints"]["groups"]) == min(texts, len({*hints.values()}))
    for group in collected.summary["hints"]["groups"]:
        wordings = {text for text, _ in group["wordings"]}
        assert read_hints_of_group(run, group["wordings"][0][0]) == {k: v for k, v in hints.items() if v in wordings}
    with pytest.raises(OpdkitError, match="'x'"):
        read_hints_of_group(run, "x")


def test_a_group_is_without_the_hints_that_a_test_dropped(tmp_path: Path) -> None:
    """Dropped hints are left out as on the page of `opdkit review`, so another wording may become the most frequent."""
    wordings = dict(zip(("a:1", "b:1", "c:1"), ("Use Celsius.", "Use Celsius.", "Use only Celsius."), strict=True))
    sessions = [judged_runs.session(name[0], message("user", "?"), message("assistant", "5")) for name in wordings]
    verdicts = [judged_runs.verdict(name, hint, -1) for name, hint in wordings.items()]
    run = judged_runs.write_run(tmp_path / "run", [(sessions, [*map(judged_runs.turn, wordings)], verdicts)])
    options = TeacherConfig(run=run, model="m", check_hints=2, judge_model="m")
    stage = Stage.open(options, "teacher", [TARGETS, HINT_CHECKS], parts=1, upstream=["extract", "judge"])
    shares = {"samples": 2, "judged": 2, "with_hint": 0.0, "without_hint": 0.0, "reply": None}
    statuses = {"a:1": NO_BETTER, "b:1": WORSE, "c:1": "helps"}
    rows = [{"turn_id": name, "hint": wordings[name], "status": status} | shares for name, status in statuses.items()]
    with stage.writing(0) as out:
        out.add_rows("hint_checks", rows)
    (group,) = collect(run, 9, reviewing=True).summary["hints"]["groups"]
    assert (group["turns"], group["wordings"]) == (1, [["Use only Celsius.", 1]])
    assert read_hints_of_group(run, "Use only Celsius.") == {"c:1": "Use only Celsius."}


@pytest.mark.parametrize(("scores", "decisions", "expected"), [
    ([(1, None)] * 5, [(1, None)] * 5, 1.0), ([(1, None)] * 4 + [(0, None)], [(1, None)], 0.8),
    ([(1, 0.9), (1, 0.7)], [], 0.8), ([(1, None), (None, None)], [], 0.5), ([(None, None)], [], 0.0), ([], [], None),
    ([(1, 0.5), (-1, 0.9)], [], 0.45), ([(1, None)], [(1, None), (-1, 0.5)], 0.5),
])  # fmt: skip
def test_votes_that_differ_fail_or_are_unsure_are_less_certain(
    scores: list, decisions: list, expected: float | None
) -> None:
    votes = {f"{name}_votes": [{key: value, "confidence": sure} for value, sure in given]
             for name, key, given in (("reward", "score", scores), ("hint", "decision", decisions))}  # fmt: skip
    assert measure_certainty(votes | {"reward_status": "ok"}) == (None if expected is None else pytest.approx(expected))
