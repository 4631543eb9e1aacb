"""Tests of several labels per turn and several judges: against scikit-learn and statsmodels, by hand, and in print."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judged_runs import judged_run
from sklearn.metrics import cohen_kappa_score
from statsmodels.stats.inter_rater import fleiss_kappa

from opdkit.commands.calibrate.agreement import CLASSES, PeopleRow, PeopleScore, kappa
from opdkit.commands.calibrate.command import measure, run
from opdkit.commands.calibrate.people import count_meetings
from opdkit.config.calibrate import CalibrateConfig
from opdkit.errors import OpdkitError

EXACT = 1e-9


def label_file(path: Path, labels: Mapping[str, Sequence[int]], named: bool = True) -> Path:
    """Write a row per label; with `named`, the n-th label of a turn is by the rater `r{n}`."""
    rows = ({"turn_id": turn, "reward": value} | ({"rater": f"r{n}"} if named else {})
            for turn, values in labels.items() for n, value in enumerate(values))  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def people_of(folder: Path, rewards: Mapping[str, int], labels: Mapping[str, Sequence[int]], **options) -> PeopleScore:
    judged = judged_run(folder / "run", {turn: [reward] for turn, reward in rewards.items()})
    found = measure(CalibrateConfig(run=judged, labels=label_file(folder / "labels.jsonl", labels), **options)).people
    assert found is not None
    return found


def row_of(people: PeopleScore, against: str, who: str) -> PeopleRow:
    (found,) = (row for row in people.rows if (row.against, row.who) == (against, who))
    return found


def drawn(seed: int, turns: int, people: int, right: float = 0.5) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Draw the labels of `people` raters, and the rewards of a judge as good as a rater; sessions have two turns."""
    rng = np.random.default_rng(seed)
    labels, rewards = {}, {}
    for n in range(turns):
        truth = int(rng.choice(CLASSES, p=[0.3, 0.2, 0.5]))
        values = [truth if rng.random() < right else int(rng.choice(CLASSES)) for _ in range(people + 1)]
        *labels[f"s{n // 2}:{1 + n % 2 * 2}"], rewards[f"s{n // 2}:{1 + n % 2 * 2}"] = values
    return labels, rewards


# -- against others' code ----------------------------------------------------------------------------------------------


@given(st.integers(2, 9).flatmap(
    lambda people: st.lists(st.lists(st.sampled_from(CLASSES), min_size=people, max_size=people), min_size=1)
))  # fmt: skip
def test_fleiss_kappa_equals_statsmodels(labels: list[list[int]]) -> None:
    counts = np.array([[values.count(label) for label in CLASSES] for values in labels])
    with np.errstate(all="ignore"):
        theirs = fleiss_kappa(counts)
    assert kappa(count_meetings(counts).sum(0)) == pytest.approx(theirs, abs=EXACT, nan_ok=True)


@pytest.mark.parametrize("weights", ["none", "linear", "quadratic"])
@pytest.mark.parametrize(("seed", "people"), [(0, 2), (1, 3), (2, 7)])
def test_everything_equals_scikit_learn_and_statsmodels(seed: int, people: int, weights: str, tmp_path: Path) -> None:
    """If two of a turn's other labels are most frequent, scikit-learn gets a row for each, with half the weight."""
    labels, rewards = drawn(seed, 60, people)
    found = people_of(tmp_path, rewards, labels, kappa_weights=weights)

    def theirs(first: Sequence[int], second: Sequence[int], shares: Sequence[float] | None = None) -> float:
        chosen = None if weights == "none" else weights
        return float(cohen_kappa_score(first, second, labels=CLASSES, weights=chosen, sample_weight=shares))

    by_rater = list(zip(*labels.values(), strict=True))
    judge = list(rewards.values())
    if weights == "none":
        counts = [[values.count(label) for label in CLASSES] for values in labels.values()]
        assert row_of(found, "person", "another person").kappa == pytest.approx(fleiss_kappa(counts), abs=EXACT)
    pooled = theirs([value for values in by_rater for value in values], judge * people)
    assert row_of(found, "person", "the judge").kappa == pytest.approx(pooled, abs=EXACT)
    pairs = [theirs(one, other) for one, other in combinations(by_rater, 2)]
    assert found.pairs == len(pairs)
    assert row_of(found, "each", "another person").kappa == pytest.approx(np.mean(pairs), abs=EXACT)
    each = [theirs(one, judge) for one in by_rater]
    assert row_of(found, "each", "the judge").kappa == pytest.approx(np.mean(each), abs=EXACT)
    assert {score.rater: score.kappa_judges for score in found.raters} == {
        f"r{n}": [pytest.approx(value, abs=EXACT)] for n, value in enumerate(each)
    }
    if people == 2:
        assert found.raters[0].kappa_people == pytest.approx(pairs[0], abs=EXACT)
        assert not [row for row in found.rows if row.against == "majority"], "the others are one person"
        return
    rows = []  # (most frequent label of the others, label, reward, weight of the row)
    for values, reward in zip(labels.values(), judge, strict=True):
        for n, value in enumerate(values):
            others = Counter(values[:n] + values[n + 1 :])
            modes = [label for label in others if others[label] == max(others.values())]
            rows += [(mode, value, reward, 1 / len(modes)) for mode in modes]
    target, own, judged, shares = zip(*rows, strict=True)
    for who, said in (("another person", own), ("the judge", judged)):
        assert row_of(found, "majority", who).kappa == pytest.approx(theirs(target, said, shares), abs=EXACT)


# -- by hand -----------------------------------------------------------------------------------------------------------


def test_the_human_ceiling_by_hand(tmp_path: Path) -> None:
    """Of the pairs of people 1, 1/3, 1 and 1/3 agree: 2/3, by chance 1/2. The judge agrees with 3, 2, 3 and 1 of 3."""
    labels = {"a:1": [1, 1, 1], "b:1": [1, 1, -1], "c:1": [-1, -1, -1], "d:1": [1, -1, -1]}
    found = people_of(tmp_path, {"a:1": 1, "b:1": 1, "c:1": -1, "d:1": 1}, labels)
    assert (found.turns, found.labels, found.fewest, found.most) == (4, 12, 3, 3)
    people, judge = (row_of(found, "person", who) for who in ("another person", "the judge"))
    assert (people.same, people.kappa, people.share) == (pytest.approx(2 / 3), pytest.approx(1 / 3), 1.0)
    assert (judge.same, judge.kappa, judge.share) == tuple(map(pytest.approx, (3 / 4, 1 / 2, 3 / 2)))
    assert judge.kappa_interval is None, "of four sessions"
    most = row_of(found, "majority", "another person")  # on b and d, 2/3 of the labels meet a tie, 1/3 two opposites
    assert (most.same, most.kappa) == (pytest.approx((1 + 1 / 3 + 1 + 1 / 3) / 4), pytest.approx(1 / 3))
    raters = {score.rater: (score.labels, score.kappa_people, score.kappa_judges) for score in found.raters}
    assert (raters, found.pairs) == ({f"r{n}": (4, None, [None]) for n in range(3)}, 0), "four turns are too few"
    assert not [row for row in found.rows if row.against == "each"]


def test_a_turn_counts_once_however_many_labels_it_has(tmp_path: Path) -> None:
    """a's only pair agrees, and 3 of b's 6: (1 + 1/2) / 2. a's labels are all +1, b's 3/4: by chance 7/8 and 1/8."""
    found = people_of(tmp_path, {"a:1": 1, "b:1": 1, "c:1": 1}, {"a:1": [1, 1], "b:1": [1, 1, 1, -1], "c:1": [1]})
    assert (found.turns, found.labels, found.fewest, found.most) == (2, 6, 2, 4)
    by_chance = (7 / 8) ** 2 + (1 / 8) ** 2
    assert row_of(found, "person", "another person").same == pytest.approx(3 / 4)
    assert row_of(found, "person", "another person").kappa == pytest.approx((3 / 4 - by_chance) / (1 - by_chance))
    assert row_of(found, "person", "chance").same == pytest.approx(by_chance)


@pytest.mark.parametrize("constant", CLASSES)
def test_a_constant_predictor_has_kappa_0(constant: int, tmp_path: Path) -> None:
    labels, rewards = drawn(4, 40, 5)
    found = people_of(tmp_path, dict.fromkeys(rewards, constant), labels)
    for against in ("person", "majority"):
        judge, always, chance = (row_of(found, against, who) for who in ("the judge", "always +1", "chance"))
        assert judge.kappa == pytest.approx(0, abs=EXACT)
        assert always.kappa == pytest.approx(0, abs=EXACT)
        assert chance.kappa == pytest.approx(0, abs=EXACT)
        assert chance.same < always.same
        assert judge.same == pytest.approx(always.same) if constant == 1 else judge.same < always.same
    share = np.mean([value == 1 for values in labels.values() for value in values])
    assert row_of(found, "person", "always +1").same == pytest.approx(share)


def test_people_who_all_say_the_same_leave_nothing_to_share(tmp_path: Path) -> None:
    names = [f"s{n}:1" for n in range(12)]
    found = people_of(tmp_path, dict.fromkeys(names, 1), {name: [1, 1, 1] for name in names})
    assert {(row.kappa, row.share) for row in found.rows} == {(None, None)}
    assert row_of(found, "person", "the judge").same == 1.0


# -- labels ------------------------------------------------------------------------------------------------------------


def test_the_other_figures_are_of_the_most_frequent_label(tmp_path: Path) -> None:
    labels = {"a:1": [1, 1, -1], "b:1": [-1, 0, 0, 1], "c:1": [1, -1], "d:1": [1]}
    judged = judged_run(tmp_path / "run", {name: [1] for name in labels})
    found = measure(CalibrateConfig(run=judged, labels=label_file(tmp_path / "l", labels)))
    assert (found.rows, found.labels, found.tied) == (10, 3, 1)
    assert found.confusion == [[0, 0, 0], [0, 0, 1], [0, 0, 2]]
    with pytest.raises(OpdkitError, match="tied"):
        measure(CalibrateConfig(run=judged, labels=label_file(tmp_path / "l", {"a:1": [1, -1], "b:1": [0, 1]})))


def test_labels_of_unknown_turns_are_counted_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged = judged_run(tmp_path / "run", {"a:1": [1]})
    file = label_file(tmp_path / "l", {"a:1": [1, 1, -1], "x:1": [1, 1, 1, 1]})
    found = measure(CalibrateConfig(run=judged, labels=file))
    assert (found.rows, found.set_aside) == (7, {"unknown id": 4})
    assert capsys.readouterr().err.count("no turn 'x:1'") == 1


def test_one_judge_and_one_label_per_turn_have_no_table_of_people(tmp_path: Path) -> None:
    judged = judged_run(tmp_path / "run", {"a:1": [1]})
    assert measure(CalibrateConfig(run=judged, labels=label_file(tmp_path / "l", {"a:1": [1]}))).people is None


def test_labels_of_sessions_have_raters_too(tmp_path: Path) -> None:
    judged = judged_run(tmp_path / "run", {"a:1": [-1], "a:3": [1], "b:1": [-1]})
    file = tmp_path / "labels.csv"
    file.write_text("session_id,reward,rater\na,good,x\na,good,y\na,good,y\nb,bad,x\nb,good,y\n")
    found = measure(CalibrateConfig(run=judged, labels=file))
    assert found.set_aside == {"the same label again": 1}
    assert found.people is not None
    assert row_of(found.people, "person", "the judge").same == pytest.approx(3 / 4)


# -- several judges ----------------------------------------------------------------------------------------------------


def test_two_judges_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only turns that every judge rewarded count. The interval of the paired difference says who is better."""
    labels, good = drawn(5, 120, 5, right=0.7)
    rng = np.random.default_rng(6)
    bad = {name: int(rng.choice(CLASSES)) for name in good}
    runs = {"large": good, "small": bad | {"s0:1": None}, "again": good}
    paths = {name: judged_run(tmp_path / name, {t: [r] for t, r in rewards.items()}) for name, rewards in runs.items()}
    file = label_file(tmp_path / "labels.jsonl", labels)
    config = CalibrateConfig(run=paths["large"], labels=file, other_run=(str(paths["small"]), str(paths["again"])))
    found = measure(config).people
    assert found is not None
    assert (found.turns, found.judges) == (119, ["large", "small", "again"])
    large, small, difference = (row_of(found, "person", who) for who in ("large", "small", "small - large"))
    assert difference.kappa == pytest.approx(small.kappa - large.kappa)
    assert difference.same == pytest.approx(small.same - large.same)
    assert difference.kappa_interval[0] < difference.kappa < difference.kappa_interval[1] < 0
    same = row_of(found, "person", "again - large")
    assert (same.kappa, same.kappa_interval) == (0.0, None), "it is 0 in every resample"
    again = row_of(found, "person", "again")
    assert again.kappa_interval == large.kappa_interval, "the same sessions are drawn for both"
    alone = people_of(tmp_path / "alone", {t: r for t, r in good.items() if t != "s0:1"}, labels)
    assert row_of(alone, "person", "the judge").kappa == pytest.approx(large.kappa)
    assert row_of(alone, "person", "another person") == row_of(found, "person", "another person")
    run(config)
    shown = capsys.readouterr().out
    assert f"{difference.kappa:.2f} ({difference.kappa_interval[0]:.2f} to {difference.kappa_interval[1]:.2f})" in shown


def test_two_judges_on_one_label_per_turn(tmp_path: Path) -> None:
    labels, rewards = drawn(7, 60, 1)
    other = judged_run(tmp_path / "other", {name: [-value] for name, value in rewards.items()})
    found = people_of(tmp_path, rewards, labels, other_run=(str(other),))
    theirs = [cohen_kappa_score([values[0] for values in labels.values()], judge)
              for judge in (list(rewards.values()), [-value for value in rewards.values()])]  # fmt: skip
    assert [row.who for row in found.rows] == ["run", "other", "always +1", "chance", "other - run"]
    kappas = [row.kappa for row in found.rows]
    assert kappas == pytest.approx([*theirs, 0, 0, theirs[1] - theirs[0]], abs=EXACT)
    assert {row.share for row in found.rows} == {None}


def test_judges_without_a_turn_in_common(tmp_path: Path) -> None:
    first, second = (judged_run(tmp_path / name, {f"{name}:1": [1], f"{name}:3": [1]}) for name in ("one", "two"))
    file = label_file(tmp_path / "l", {"one:1": [1, 1], "two:1": [1, 1]})
    with pytest.raises(OpdkitError, match=str(second)):
        measure(CalibrateConfig(run=first, labels=file, other_run=(str(second),)))


# -- what is printed ---------------------------------------------------------------------------------------------------


def test_thirty_labels_per_turn_are_as_readable_as_three(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    tables = []
    for people in (3, 30):
        labels, rewards = drawn(8, 60, people)
        judged = judged_run(tmp_path / str(people), {name: [value] * 5 for name, value in rewards.items()})
        run(CalibrateConfig(run=judged, labels=label_file(tmp_path / "l", labels)))
        shown = capsys.readouterr().out
        assert max(map(len, shown.splitlines())) <= 80
        assert shown.startswith("The judge gives the same reward as people on "), "the answer comes first"
        tables.append(shown.partition("people and judges")[2].partition("judged +1")[0].splitlines())
    few, many = tables
    assert len(many) <= len(few) + 1 <= 25
    assert "1,800 labels: 30 per turn" in many[0]
    assert "435 pairs of 30 raters" in "\n".join(many)
    for words in ("another person", "the judge", "always +1", "chance", "share of people's"):
        assert words in "\n".join(many)


def test_labels_without_raters_and_unequal_numbers_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judged = judged_run(tmp_path / "run", {"a:1": [1], "b:1": [1], "c:1": [-1]})
    file = label_file(tmp_path / "l", {"a:1": [1, 1], "b:1": [1, -1, 1], "c:1": [1, -1]}, named=False)
    run(CalibrateConfig(run=judged, labels=file))
    shown = " ".join(capsys.readouterr().out.split())
    assert "3 turns with 7 labels: 2 to 3 per turn; each turn counts as one" in shown
    assert "labels without a rater count as those of different people" in shown
    assert "1 with a tie left out" in shown
    run(CalibrateConfig(run=judged, labels=label_file(tmp_path / "named", {"a:1": [1, 1], "b:1": [1, -1]})))
    shown = " ".join(capsys.readouterr().out.split())
    assert "0 pairs of 2 raters with 10 turns or more in common" in shown
    assert "without a rater" not in shown
    run(CalibrateConfig(run=judged, labels=file, json=True))
    document = json.loads(capsys.readouterr().out)
    assert document["tied"] == 1
    assert document["people"]["rows"][0]["who"] == "another person"
