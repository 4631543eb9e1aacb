"""`opdkit calibrate`: measure the judge against labels, and print the result."""

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from opdkit.commands.calibrate import agreement, voting
from opdkit.commands.calibrate.agreement import Calibration, CascadeScore, PeopleScore, Point
from opdkit.commands.calibrate.labels import Case, match_verdicts, read_labels, read_review_labels
from opdkit.commands.calibrate.people import score_people
from opdkit.commands.calibrate.table import show
from opdkit.config.calibrate import CalibrateConfig
from opdkit.console import counted, warn
from opdkit.errors import OpdkitError
from opdkit.evaluate.bootstrap import Array, resample_sums, share_interval
from opdkit.judge.cascade import DECIDED, GIVEN, SECOND
from opdkit.store.plans import check_upstream, manifest, name_runs
from opdkit.store.reading import summary_of

EXTRAPOLATED = 21  # largest number of votes on the curve of independent votes


def run(config: CalibrateConfig) -> None:
    """Print how often the judge is right. Raises what `measure` raises."""
    measured = measure(config)
    if config.json:
        print(json.dumps(asdict(measured), indent=2))
    else:
        show(measured, config)


def measure(config: CalibrateConfig) -> Calibration:
    """Measure the judge's votes against a file of labels, or against decisions of `opdkit review`.

    Raises OpdkitError if there is no label, the run is not judged, no label is of a judged turn, or all labels tie.
    """
    check_upstream(config.run, ["judge"])
    read = read_review_labels(config.run) if config.labels is None else read_labels(config.labels)
    cases, dropped, guesses = match_verdicts(config.run, read.labels, config.labels)
    warn(*read.examples, *guesses)
    if not cases:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in dropped.most_common())
        labels = f"no label of {config.labels}" if config.labels else "no label"
        raise OpdkitError(f"{labels} is of a judged turn of {config.run}: {reasons}")
    people, turns = measure_people(cases, config), len(cases)
    cases = [case for case in cases if case.label is not None]
    if not cases:
        raise OpdkitError(f"{config.labels}: the labels of every judged turn are tied")
    # Agreement of labels with the stored rewards, and with the rewards from both ways to count the votes.
    confusions = {way: count_by_session(cases, config.session_reward, way) for way in ("stored", "plain", "weighed")}
    stored, *majorities = (
        agreement.score_majority(way, confusions_S, config.kappa_weights, config.seed, confusions["plain"])
        for way, confusions_S in confusions.items()
    )
    matrix = confusions["stored"].sum(0).reshape(3, 3)
    # Calibration and hints, on labels of a single turn.
    single = [(case, case.turns[0]) for case in cases if len(case.turns) == 1]
    agreed = [(turn.agreement, turn.reward == case.label) for case, turn in single if turn.agreement is not None]
    levels, error = agreement.measure_calibration([share for share, _ in agreed], [right for _, right in agreed])
    hinted = [(case.wanted, turn.hinted) for case, turn in single if case.wanted is not None]
    cascade = measure_cascade(cases, config)  # no voting curve: with fewer votes, other turns would be left open
    stored_votes, points, used = (0, [], 0) if cascade else measure_curve(cases, config)
    measured = [(p.votes, p.accuracy, p.coverage) for p in points if p.accuracy is not None and p.coverage is not None]
    return Calibration(
        rows=read.rows,
        set_aside=dict((read.set_aside + dropped).most_common()),
        labels=len(cases),
        answered=stored.answered,
        statuses=dict(Counter(turn.status for case in cases for turn in case.turns).most_common()),
        accuracy=stored.accuracy,
        accuracy_interval=stored.accuracy_interval,
        kappa=stored.kappa,
        kappa_interval=stored.kappa_interval,
        confusion=matrix.astype(int).tolist(),
        classes=agreement.score_classes(matrix),
        majorities=majorities if any(any(turn.weights or ()) for case in cases for turn in case.turns) else [],
        levels=levels,
        calibration_error=error,
        stored_votes=stored_votes,
        curve=points,
        curve_labels=used,
        votes_worth_paying=voting.find_worth_paying(measured, config.tolerance, used),
        hints=agreement.score_hints([w for w, _ in hinted], [h for _, h in hinted]) if hinted else None,
        tied=turns - len(cases),
        people=people,
        cascade=cascade,
    )


def measure_people(cases: list[Case], config: CalibrateConfig) -> PeopleScore | None:
    """Compare people and the judges of all runs, on the labelled turns with a reward of each judge.

    If any turn has several labels, only such turns count. None for a single judge on turns with one label each. If no
    turn is left: None for a single judge, OpdkitError for several.
    """
    runs = [config.run, *map(Path, config.other_run)]
    fewest = 2 if any(len(case.labels) > 1 for case in cases) else 1
    if len(runs) == 1 and fewest == 1:
        return None
    labels = [label for case in cases for label in case.labels]
    rewards: list[dict[tuple[str, str], int]] = []  # of each judge
    for judged in (cases, *(match_verdicts(run, labels, config.labels)[0] for run in runs[1:])):
        stored = (voting.combine_rewards(config.session_reward, (t.reward for t in case.turns)) for case in judged)
        rewards.append({c.key: reward for c, reward in zip(judged, stored, strict=True) if reward is not None})
    cases = [case for case in cases if len(case.labels) >= fewest and all(case.key in given for given in rewards)]
    if not cases and len(runs) > 1:
        raise OpdkitError(
            f"no turn with {counted(fewest, 'label')} or more has a reward in {' and '.join(map(str, runs))}"
        )
    judges = list(name_runs(runs)) if len(runs) > 1 else ["the judge"]
    rewards_NJ = [[given[case.key] for given in rewards] for case in cases]
    return score_people(cases, rewards_NJ, judges, config.kappa_weights, config.seed) if cases else None


def measure_cascade(cases: list[Case], config: CalibrateConfig) -> CascadeScore | None:
    """Measure both judges of a cascade, each on the turns with its votes; None for a run with one judge."""
    if "escalated" not in manifest(config.run, "judge")["plan"]["schemas"]:
        return None
    counters = summary_of(config.run, "judge").counters
    decided, left = ([c for c in cases if any(t.is_escalated for t in c.turns) == is_left] for is_left in (False, True))
    scores = []
    for name, judged, way, other in (("both judges", cases, "stored", "first"),
                                     ("the first alone", cases, "first", "stored"),
                                     ("the first, where it decided", decided, "stored", "stored"),
                                     ("the first, where it did not", left, "first", "stored"),
                                     ("the second there", left, "stored", "first")):  # fmt: skip
        if judged:
            one_S, other_S = (count_by_session(judged, config.session_reward, key) for key in (way, other))
            score = agreement.score_majority(name, one_S, config.kappa_weights, config.seed, other_S)
            scores.append(replace(score, gain=None) if way == other else score)
    questions = counters.labels(DECIDED)
    return CascadeScore(questions.total(), questions[SECOND], dict(counters.labels(GIVEN)), scores)


def count_by_session(cases: list[Case], how: str, way: str) -> Array:
    """Return the confusion matrix of each session, flat [sessions, 9]; rows are labels; `how` is --session-reward.

    `way` is how the votes are counted: a key of `Judged.rewards`.
    """
    by_session = dict[str, Array]()
    for case in cases:
        reward = voting.combine_rewards(how, (turn.rewards[way] for turn in case.turns))
        matrix = by_session.setdefault(case.conversation, np.zeros((3, 3)))
        if reward is not None and case.label is not None:
            matrix[case.label + 1, reward + 1] += 1
    return np.stack([matrix.ravel() for matrix in by_session.values()])


def measure_curve(cases: list[Case], config: CalibrateConfig) -> tuple[int, list[Point], int]:
    """Return the largest number of stored votes on the curve, the voting curve, and the number of labels behind it.

    A server is asked for no more votes on a turn once they decide it. So the curve uses only the first n votes of each
    turn, a fair sample of the judge's; n is the fewest votes of any turn. Labels of turns without votes are left out.
    """
    most = min((len(turn.scores) for case in cases for turn in case.turns if turn.scores), default=0)
    full = [replace(case, turns=[replace(turn, scores=turn.scores[:most]) for turn in case.turns])
            for case in cases if all(turn.scores for turn in case.turns)]  # fmt: skip
    if not most or not full:
        return most, [], 0
    sizes = voting.choose_sizes(most)
    by_session = dict[str, Array]()  # session -> expected numbers of right answers and of all answers [sizes, 2]
    for case in full:
        sums = by_session.setdefault(case.conversation, np.zeros((len(sizes), 2)))
        for i, k in enumerate(sizes):
            turns = (voting.find_subset_rewards(voting.count_votes(turn.scores), k) for turn in case.turns)
            rewards = voting.combine_distributions(config.session_reward, turns)
            sums[i] += rewards.get(case.label, 0.0), 1 - rewards.get(None, 0.0)
    sums_S = np.stack(list(by_session.values()))
    points = []
    for i, (k, (right, answered)) in enumerate(zip(sizes, sums_S.sum(0), strict=True)):
        accuracy = float(right / answered) if answered else None
        answered_S = sums_S[:, i][sums_S[:, i, 1] > 0]
        interval = None
        if len(answered_S):
            shares_B = np.divide(*resample_sums(answered_S, config.seed).T)
            interval = share_interval(shares_B, accuracy, len(answered_S))
        points.append(Point(k, accuracy, interval, float(answered / len(full)), measure_independent(full, k)))
    if all(len(case.turns) == 1 for case in full):
        beyond = (k for k in voting.choose_sizes(EXTRAPOLATED) if k > most and k % 2)
        points += [Point(k, None, None, None, measure_independent(full, k)) for k in beyond]
    return most, points, len(full)


def measure_independent(cases: list[Case], k: int) -> float | None:
    """Return the accuracy of k votes, independent given the label, each drawn from the votes on turns with that label.

    It is exact if all turns with the same label are equally hard for the judge. None if a label is of a session with
    several turns, which have no labels of their own.
    """
    if any(len(case.turns) > 1 for case in cases):
        return None
    right = answered = 0.0
    for label in agreement.CLASSES:
        votes = Counter(score for case in cases if case.label == label for score in case.turns[0].scores)
        if votes:
            share = sum(case.label == label for case in cases)
            rewards = voting.find_independent_rewards({score: n / votes.total() for score, n in votes.items()}, k)
            right += share * rewards.get(label, 0.0)
            answered += share * (1 - rewards.get(None, 0.0))
    return float(right / answered) if answered else None
