"""Tests of `opdkit calibrate` as a whole: a simulated judge with a known accuracy curve, real and faulty files."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from judged_runs import judged_run
from labelled_runs import labelled_run
from runs import talk, write_extract
from sample_world import DATA
from sklearn.metrics import cohen_kappa_score

from opdkit.commands.calibrate import labels
from opdkit.commands.calibrate.agreement import HintScore
from opdkit.commands.calibrate.command import Calibration, measure, run
from opdkit.commands.calibrate.voting import find_independent_rewards
from opdkit.config.calibrate import CalibrateConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.judge.votes import choose_reward
from opdkit.store.reviews import Review, append, order_of_draw

Votes = Sequence[int | None]


def labelled(folder: Path, labels: Mapping[str, object], key: str = "turn_id") -> Path:
    path = folder / "labels.jsonl"
    path.write_text("".join(json.dumps({key: name, "reward": value}) + "\n" for name, value in labels.items()))
    return path


def calibrated(folder: Path, votes: Mapping[str, Votes], labels: Mapping[str, object], **options) -> Calibration:
    judged = judged_run(folder / "run", votes)
    key = options.pop("key", "turn_id")
    return measure(CalibrateConfig(run=judged, labels=labelled(folder, labels, key), **options))


def simulated(rng: np.random.Generator, turns: int, votes: int, right: Sequence[float]) -> tuple[dict, dict, float]:
    """Simulate uniform labels and votes; a vote is right with its turn's probability, errors are uniform, 5% fail.

    Return the votes, the labels, and the exact curve: the expected accuracy for each number of votes.
    """
    given, labels, exact = {}, {}, np.zeros((votes, 2))
    for n in range(turns):
        label, p, failing = int(rng.integers(-1, 2)), float(rng.choice(right)), 0.05
        chances = {s: (1 - failing) * (p if s == label else (1 - p) / 2) for s in (-1, 0, 1)} | {None: failing}
        drawn = rng.choice(4, size=votes, p=list(chances.values()))
        given[f"s{n // 2}:{2 * (n % 2) + 1}"] = [list(chances)[i] for i in drawn]
        labels[f"s{n // 2}:{2 * (n % 2) + 1}"] = label
        for k in range(1, votes + 1):
            found = find_independent_rewards(chances, k)
            exact[k - 1] += found.get(label, 0.0), 1 - found.get(None, 0.0)
    return given, labels, exact[:, 0] / exact[:, 1]


@pytest.mark.parametrize("right", [(0.7,), (0.45, 0.95)], ids=["equally hard", "easy and hard"])
def test_the_measured_curve_covers_the_exact_one(right: Sequence[float], tmp_path: Path) -> None:
    votes, labels, exact = simulated(np.random.default_rng(7), 900, 9, right)
    found = calibrated(tmp_path, votes, labels)
    measured = [p for p in found.curve if p.accuracy is not None]
    assert [p.votes for p in measured] == list(range(1, 10))
    for point, truth in zip(measured, exact, strict=True):
        assert point.interval is not None
        assert point.interval[0] <= truth <= point.interval[1]
        assert point.interval[1] - point.interval[0] < 0.08, "narrow enough to mean something"
    independent = [p.independent for p in measured]
    if len(right) == 1:
        assert independent == pytest.approx(list(exact), abs=0.02)
    else:  # votes on a hard turn err together, so more votes help less than independent ones would
        assert independent[-1] is not None
        assert independent[-1] > exact[-1] + 0.05
    assert [p.votes for p in found.curve[9:]] == [11, 13, 15, 17, 21]


def test_with_all_votes_the_curve_ends_at_the_stored_verdicts(tmp_path: Path) -> None:
    votes, labels, _ = simulated(np.random.default_rng(1), 120, 5, (0.6,))
    found = calibrated(tmp_path, votes, labels)
    stored = {turn_id: choose_reward(scores).reward for turn_id, scores in votes.items()}
    answered = [t for t, r in stored.items() if r is not None]
    last = next(p for p in found.curve if p.votes == 5)
    assert last.accuracy == found.accuracy == pytest.approx(np.mean([stored[t] == labels[t] for t in answered]))
    assert last.coverage == pytest.approx(len(answered) / len(votes)) == found.answered / found.labels
    assert found.kappa == pytest.approx(cohen_kappa_score([labels[t] for t in answered], [stored[t] for t in answered]))
    assert sum(map(sum, found.confusion)) == found.answered


@pytest.mark.parametrize("weights", ["none", "linear", "quadratic"])
def test_kappa_equals_scikit_learn(weights: str, tmp_path: Path) -> None:
    votes, labels, _ = simulated(np.random.default_rng(2), 80, 3, (0.6,))
    found = calibrated(tmp_path, votes, labels, kappa_weights=weights)
    stored = {t: r for t, scores in votes.items() if (r := choose_reward(scores).reward) is not None}
    theirs = cohen_kappa_score([labels[t] for t in stored], list(stored.values()), labels=[-1, 0, 1],
                               weights=None if weights == "none" else weights)  # fmt: skip
    assert found.kappa == pytest.approx(theirs)
    assert found.kappa_interval is not None
    assert found.kappa_interval[0] < theirs < found.kappa_interval[1]


def test_worked_by_hand(tmp_path: Path) -> None:
    """A failed vote does not count as neutral, and a turn without a quorum is unanswered, neither right nor wrong."""
    votes = {"a:1": [1, 1, -1], "a:3": [1, None, None], "b:1": [-1, -1, -1], "c:1": [1, 0, -1], "d:1": [1, 1, 1]}
    found = calibrated(tmp_path, votes, {"a:1": 1, "a:3": 1, "b:1": "bad", "c:1": "good", "x:9": 1})
    assert (found.rows, found.labels, found.answered) == (5, 4, 3)
    assert found.statuses == {"ok": 2, "no_quorum": 1, "tie": 1}
    assert found.set_aside == {"unknown id": 1}
    assert found.confusion == [[1, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert found.accuracy == pytest.approx(2 / 3)
    assert [(lv.agreement, lv.turns, lv.right) for lv in found.levels] == [
        (pytest.approx(1 / 3), 1, 0.0), (pytest.approx(2 / 3), 1, 1.0), (1.0, 1, 1.0)
    ]  # fmt: skip
    assert found.calibration_error == pytest.approx((1 / 3 + 1 / 3 + 0) / 3)
    one = found.curve[0]  # share of right single votes: a:1 2/3, a:3 1/3 (the others failed), b:1 1, c:1 1/3
    assert one.accuracy == pytest.approx((2 / 3 + 1 / 3 + 1 + 1 / 3) / (3 + 1 / 3))
    assert one.coverage == pytest.approx((3 + 1 / 3) / 4)


@pytest.mark.parametrize(("how", "right"), [("last", 2), ("mean", 1), ("min", 0)])
def test_labels_of_sessions(how: str, right: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes = {"a:1": [-1, -1, 1], "a:3": [1, 1, 1], "b:1": [1, 1, 1], "b:3": [-1, -1, -1], "b:5": [1, 1, 1]}
    found = calibrated(tmp_path, votes, {"a": 1, "b": 1}, key="session_id", session_reward=how)
    assert found.answered == 2
    assert found.accuracy == pytest.approx(right / 2)
    assert found.curve[-1].accuracy == found.accuracy
    assert all(p.independent is None for p in found.curve), "the turns of a session have no labels"
    run(CalibrateConfig(run=tmp_path / "run", labels=tmp_path / "labels.jsonl", session_reward=how))
    assert "5 turns: ok 5" in " ".join(capsys.readouterr().out.split())
    if how == "last":
        assert found.curve[0].accuracy == 1.0
    if how == "min":
        assert found.curve[0].accuracy == pytest.approx((1 / 3) / 2), "a:1 has one good vote of three"


def test_an_unknown_id_is_met_with_a_similar_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calibrated(tmp_path, {"chat-1:1": [1], "chat-2:1": [1]}, {"chat-1:1": 1, "chta-2:1": 1})
    assert (
        f"{tmp_path}/labels.jsonl:2: no turn 'chta-2:1' in this run; did you mean chat-2:1" in capsys.readouterr().err
    )
    calibrated(tmp_path / "sessions", {"chat-1:1": [1], "chat-2:1": [1]}, {"chat-1": 1, "chat-3": 1}, key="session_id")
    assert "no session 'chat-3' in this run; did you mean chat-2, chat-1?" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_every_warning_counts_lines_as_an_editor_does(
    suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = {
        "jsonl": ['{"turn_id": "chat-1:1", "reward": 1}', "", '{"turn_id": "chat-9:1", "reward": 1}', "{broken"],
        "csv": ["turn_id,reward", "chat-1:1,1", "chat-9:1,1", "chat-1:1,many"],
    }[suffix]
    file = tmp_path / f"labels.{suffix}"
    file.write_text("\n".join(lines))
    measure(CalibrateConfig(run=judged_run(tmp_path / "run", {"chat-1:1": [1]}), labels=file))
    warnings = capsys.readouterr().err
    assert f"{file}:4: " in warnings
    assert f"{file}:3: no turn 'chat-9:1'" in warnings


def test_no_number_of_votes_has_the_best_accuracy_and_the_best_coverage(tmp_path: Path, capsys) -> None:
    votes = {f"s{n}:1": [1, -1, None] for n in range(100)}  # two votes answer more often than one, but err more
    file = labelled(tmp_path, dict.fromkeys(votes, 1))
    run(CalibrateConfig(run=judged_run(tmp_path / "run", votes), labels=file))
    shown = capsys.readouterr().out
    assert "--tolerance" in shown
    assert "none gives a reward" not in shown


def test_one_stored_vote_has_no_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes, labels, _ = simulated(np.random.default_rng(5), 60, 1, (0.7,))
    config = CalibrateConfig(run=judged_run(tmp_path / "run", votes), labels=labelled(tmp_path, labels))
    run(config)
    shown = capsys.readouterr().out
    assert "--votes 3" in shown
    assert "independent" not in shown
    assert "worth paying" not in shown


@pytest.mark.parametrize(("votes", "labels", "why"), [
    ({"a:1": [1, 1], "b:1": [1, 1]}, {"a:1": 1, "b:1": 1}, "kappa - (labels and judge all say the same one thing"),
    ({"a:1": [1, 1], "b:1": [-1, -1]}, {"a:1": 1, "b:1": -1}, "kappa 1.000 (no interval: few labels"),
    ({"a:1": [None, None]}, {"a:1": 1}, "kappa - (no label's turn has a reward)"),
])  # fmt: skip
def test_a_kappa_without_interval_says_why(
    votes: dict, labels: dict, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(CalibrateConfig(run=judged_run(tmp_path / "run", votes), labels=labelled(tmp_path, labels)))
    assert why in " ".join(capsys.readouterr().out.split())


def test_what_people_decided_in_review_are_labels(tmp_path: Path) -> None:
    """Decided rewards are labels for the rewards of the votes, which they overrule, not for the resulting verdicts."""
    judged = judged_run(tmp_path / "run", {"a:1": [1, 1, -1], "b:1": [1, 1, 1], "c:1": [-1]})
    with pytest.raises(OpdkitError, match="opdkit review"):
        measure(CalibrateConfig(run=judged))
    append(judged, [Review("a:1", reward_decided=True, reward=-1), Review("b:1", reward_decided=True, reward=1),
                    Review("c:1", hint_decided=True, hint="Say it in French.")])  # fmt: skip
    found = measure(CalibrateConfig(run=judged))
    assert (found.labels, found.accuracy) == (2, 0.5)
    assert found.confusion[0] == [0, 0, 1]


def test_only_a_random_sample_of_the_reviews_measures_the_judge(tmp_path: Path) -> None:
    """The judge errs on the fifth of the turns on which it is least certain. A reviewer sees these turns first."""
    names = [f"s{n}:1" for n in range(200)]
    judged = judged_run(tmp_path / "run", {name: [1, 1, -1] if n < 40 else [1, 1, 1] for n, name in enumerate(names)})
    wrong, order = set(names[:40]), order_of_draw(names)

    def review(name: str, chosen: str | None) -> Review:
        """Return a review that leaves a right reward and corrects a wrong one to -1."""
        return Review(name, name in wrong, -1 if name in wrong else None, chosen=chosen, voted_reward=1)

    append(judged, [review(name, "uncertain") for name in wrong])
    assert measure(CalibrateConfig(run=judged)).accuracy == 0.0, "of those that it is least certain of"
    skipped, *drawn = [name for name in order[:60] if name not in wrong]
    append(judged, [review(name, "random") for name in drawn])
    picked, grouped = [name for name in order[100:] if name not in wrong][:2]
    append(judged, [review(picked, None), Review(grouped, chosen="group", voted_reward=1)])
    sample = set(order[: order.index(drawn[-1]) + 1]) - {skipped}
    found = measure(CalibrateConfig(run=judged))
    assert (found.labels, found.accuracy) == (len(sample), pytest.approx(1 - len(sample & wrong) / len(sample)))
    assert found.accuracy == pytest.approx(0.8, abs=0.1)
    assert found.set_aside == {"not drawn at random": len(wrong - sample) + 1, "drawn, but not decided": 1}


def test_a_run_is_no_judge_beside_itself(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--other-run"):
        CalibrateConfig(run=tmp_path, other_run=(str(tmp_path),))
    with pytest.raises(ConfigError, match="the same run"):
        CalibrateConfig(run=tmp_path, other_run=(str(tmp_path / "." / ".." / tmp_path.name),))


def test_labels_of_another_run(tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match="unknown id"):
        calibrated(tmp_path, {"a:1": [1]}, {"b:1": 1})


def test_what_a_limit_or_a_filter_left_out_is_not_unknown(tmp_path: Path) -> None:
    """A label beyond a --limit of extract or judge is counted as such, and no similar id is suggested for it."""

    def set_aside(name: str, first: int | None = None, judged: int | None = None, keep: tuple[str, ...] = ()) -> dict:
        here = tmp_path / name
        extract.run(ExtractConfig(run=here, logs=(str(DATA / "logs"),), limit=first, filter=keep))
        judge.run(JudgeConfig(run=here, judge="rules", limit=judged))
        file = tmp_path / "labels.jsonl"
        file.write_text("".join(json.dumps({"turn_id": name, "reward": 1}) + "\n"
                                for name in ("openai:1:1", "openai:30:1", "openai:1:99", "other:30:1")))  # fmt: skip
        read = labels.read_labels(file)
        cases, reasons, guesses = labels.match_verdicts(here, read.labels, file)
        assert len(guesses) == reasons["unknown id"]
        assert len(cases) + reasons.total() == 4
        return dict(reasons)

    assert set_aside("extract", first=20) == {"not extracted (--limit)": 1, "unknown id": 2}
    assert set_aside("judge", judged=20) == {"not judged (--limit)": 1, "unknown id": 2}
    assert set_aside("neither", first=500) == {"unknown id": 2}, "a limit that left nothing out"
    kept = set_aside("filter", keep=("format=sharegpt",))
    assert kept == {"not extracted (--filter)": 3, "unknown id": 1}, "of a session that is not there any turn may be"


def test_rewards_from_the_log_are_no_votes(tmp_path: Path) -> None:
    """Their turns are judged: the label is set aside for another reason."""
    sessions = {f"s{n}": talk("hi", "ho", "thanks") for n in range(3)}
    judged = write_extract(tmp_path, sessions, metadata={"s1": {"stars": 5}})
    judge.run(JudgeConfig(run=judged, judge="rules", good=("metadata.stars>=4",)))
    given = [labels.Label("turn_id", f"s{n}:1", 1, n) for n in range(2)] + [labels.Label("session_id", "s1", 1, 3)]
    cases, reasons, _ = labels.match_verdicts(judged, given, None)
    assert ([case.key[1] for case in cases], reasons) == (["s0:1"], {"reward from the log": 2})


def test_perfect_and_few_is_not_certain(tmp_path: Path) -> None:
    found = calibrated(tmp_path, {f"s{n}:1": [1, 1] for n in range(10)}, {f"s{n}:1": 1 for n in range(10)})
    assert found.accuracy == 1.0
    assert found.accuracy_interval == pytest.approx((0.7225, 1.0), abs=1e-4), "Wilson's, 10 of 10"
    assert (found.kappa, found.kappa_interval) == (None, None), "nothing to disagree about"
    assert found.curve[0].interval == found.accuracy_interval
    votes = {f"s{n}:1": [1, 1] if n < 10 else [None, None] for n in range(30)}
    (tmp_path / "more").mkdir()
    unanswered = calibrated(tmp_path / "more", votes, {f"s{n}:1": 1 for n in range(30)})
    assert unanswered.accuracy_interval == found.accuracy_interval, "sessions without a reward say nothing"
    assert [point.interval for point in unanswered.curve[:2]] == [found.accuracy_interval] * 2


def test_the_branches_of_a_conversation_are_resampled_as_one(tmp_path: Path) -> None:
    votes, spans = {f"s{n}:1": [1 - n % 2] for n in range(5)}, []
    for name in ("s5", "s4#branch-2"):
        (tmp_path / name).mkdir()
        given = votes | {f"{name}:3": [0]}
        spans.append(calibrated(tmp_path / name, given, dict.fromkeys(given, 1)).accuracy_interval)
    assert spans[0] is not None
    assert spans[1] is None, "fewer than six"


def test_the_labels_of_sample_data(tmp_path: Path) -> None:
    """The verdicts follow the labels: accuracy and kappa are 1, and hints are where something was wanted."""
    found = measure(CalibrateConfig(run=labelled_run(tmp_path / "run"), labels=DATA / "labels.jsonl"))
    assert (found.rows, found.labels, found.set_aside) == (566, 563, {"not judged": 3})
    assert (found.accuracy, found.kappa) == (1.0, 1.0)
    assert found.hints == HintScore(563, 202, 202, 1.0, 1.0)


def test_the_same_labels_give_the_same_intervals(tmp_path: Path) -> None:
    votes, labels, _ = simulated(np.random.default_rng(3), 60, 3, (0.7,))
    first, again = (
        calibrated(tmp_path / str(i), votes, labels) for i in range(2) if (tmp_path / str(i)).mkdir() is None
    )
    assert first == again
    config = CalibrateConfig(run=tmp_path / "0" / "run", labels=tmp_path / "0" / "labels.jsonl", seed=1)
    assert measure(config).kappa_interval != first.kappa_interval


def test_the_weighed_majority_stands_beside_the_plain_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weighing votes by confidence helps a judge that is surer when right. Accuracy and kappa are recomputed here."""
    rng = np.random.default_rng(11)
    votes, labels, _ = simulated(rng, 200, 3, (0.6,))
    confidences = {
        name: [None if s is None else round(rng.uniform(0.6, 1.0) if s == labels[name] else rng.uniform(0.3, 0.8), 3)
               for s in scores]
        for name, scores in votes.items()
    }  # fmt: skip
    confidences[next(iter(votes))] = [None] * 3  # a turn without confidences: its votes count as one each
    judged, file = judged_run(tmp_path / "run", votes, confidences), labelled(tmp_path, labels)
    found = measure(CalibrateConfig(run=judged, labels=file))

    def counted(scores: Votes, weights: Sequence[float | None]) -> int | None:
        valid = [s for s in scores if s is not None]
        if 2 * len(valid) < len(scores) or not valid:
            return None
        if any(w is None for s, w in zip(scores, weights, strict=True) if s is not None):
            weights = [1.0] * len(scores)
        sums = {v: sum(w or 0.0 for s, w in zip(scores, weights, strict=True) if s == v) for v in (-1, 0, 1)}
        best = [v for v in sums if abs(sums[v] - max(sums.values())) < 1e-9]
        return best[0] if len(best) == 1 else 0

    assert [score.majority for score in found.majorities] == ["plain", "weighed"]
    for score, weighing in zip(found.majorities, (False, True), strict=True):
        rewards = {n: counted(v, confidences[n] if weighing else [1.0] * 3) for n, v in votes.items()}
        pairs = [(labels[name], reward) for name, reward in rewards.items() if reward is not None]
        assert score.answered == len(pairs)
        assert score.accuracy == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
        assert score.kappa == pytest.approx(cohen_kappa_score(*zip(*pairs, strict=True)))
    plain, weighed = found.majorities
    assert plain.accuracy == found.accuracy
    assert weighed.gain[0] > 0
    assert weighed.gain[0] < weighed.accuracy - plain.accuracy < weighed.gain[1]
    run(CalibrateConfig(run=judged, labels=file))
    shown = capsys.readouterr().out
    assert f"{weighed.accuracy - plain.accuracy:+.3f}" in shown
    assert "--weigh-votes" in shown


def test_votes_without_confidences_are_not_weighed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes, labels, _ = simulated(np.random.default_rng(11), 20, 3, (0.6,))
    found = calibrated(tmp_path, votes, labels)
    assert found.majorities == []
    run(CalibrateConfig(run=tmp_path / "run", labels=tmp_path / "labels.jsonl"))
    assert "--weigh-votes" not in capsys.readouterr().out


def test_tables_for_people_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    votes, labels, _ = simulated(np.random.default_rng(4), 60, 3, (0.9,))
    judged, file = judged_run(tmp_path / "run", votes), labelled(tmp_path, labels)
    run(CalibrateConfig(run=judged, labels=file))
    shown = capsys.readouterr().out
    assert re.match(r"The judge gives the same reward as people on \d\d% of 60 labelled turns "
                    r"\(accuracy 0\.\d{3}, 95% interval 0\.\d\d to [01]\.\d\d\)\.", shown)  # fmt: skip
    for words in ("Cohen's kappa 0.", "judged -1", "votes that agree", "60 labels", "too few labels"):
        assert words in shown
    run(CalibrateConfig(run=judged, labels=file, tolerance=0.02))
    assert "worth paying for: --votes " in capsys.readouterr().out
    run(CalibrateConfig(run=judged, labels=file, json=True))
    document = json.loads(capsys.readouterr().out)
    assert document["labels"] == 60
    assert document["curve"][2]["votes"] == 3
