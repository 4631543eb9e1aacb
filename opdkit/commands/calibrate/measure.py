"""The judge's verdicts beside labels that people gave."""

from collections import Counter

import numpy as np

from opdkit.commands.calibrate import agreement, voting
from opdkit.commands.calibrate.agreement import HintScore
from opdkit.commands.calibrate.cases import Case, match
from opdkit.commands.calibrate.intervals import Array, interval, resampled, share_interval
from opdkit.commands.calibrate.labels import labels_of_reviews, read_labels
from opdkit.commands.calibrate.result import Calibration, Interval, Point
from opdkit.config.calibrate import CalibrateConfig
from opdkit.console import warn
from opdkit.errors import OpdkitError

EXTRAPOLATED = 21  # votes up to which the curve of independent votes is drawn


def measure(config: CalibrateConfig) -> Calibration:
    """The judge's votes against a file of labels, or against what people decided in `opdkit review`.

    Raises OpdkitError when the file holds no label, the run is not judged, or no label is of a judged turn.
    """
    read = labels_of_reviews(config.run) if config.labels is None else read_labels(config.labels)
    matched = match(config.run, read.labels, config.labels)
    for message in [*read.examples, *matched.guesses]:
        warn(message)
    if not matched.cases:
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in matched.dropped.most_common())
        raise OpdkitError(
            f"no label{f' of {config.labels}' if config.labels else ''} is of a judged turn of {config.run}: {reasons}"
        )
    cases = matched.cases
    rewards = [voting.session_reward(config.session_reward, (t.reward for t in case.turns)) for case in cases]
    pairs = [(case.label, reward) for case, reward in zip(cases, rewards, strict=True) if reward is not None]
    matrix = agreement.confusion([a for a, _ in pairs], [b for _, b in pairs])
    confusions = _confusions(cases, rewards)
    by_session = resampled(confusions, config.seed).reshape(-1, 3, 3)
    right = _known(agreement.accuracy(matrix))
    levels, error = agreement.calibration(*_agreements(cases))
    stored, points, used = curve(cases, config)
    return Calibration(
        rows=read.rows,
        set_aside=dict((read.set_aside + matched.dropped).most_common()),
        labels=len(cases),
        answered=len(pairs),
        statuses=dict(Counter(turn.status for case in cases for turn in case.turns).most_common()),
        accuracy=right,
        accuracy_interval=_interval(agreement.accuracy(by_session), right, len(confusions)),
        kappa=_known(agreement.kappa(matrix, config.kappa_weights)),
        kappa_interval=interval(agreement.kappa(by_session, config.kappa_weights)),
        confusion=matrix.astype(int).tolist(),
        classes=agreement.by_class(matrix),
        levels=levels,
        calibration_error=error,
        stored_votes=stored,
        curve=points,
        curve_labels=used,
        votes_worth_paying=voting.worth_paying(
            [(p.votes, p.accuracy, p.coverage) for p in points if p.accuracy is not None and p.coverage is not None],
            config.tolerance,
        ),
        hints=_hints(cases),
    )


def curve(cases: list[Case], config: CalibrateConfig) -> tuple[int, list[Point], int]:
    """The number of votes stored, the voting curve, and how many labels are behind it: those with all the votes."""
    most = max(len(turn.scores) for case in cases for turn in case.turns)
    full = [case for case in cases if all(len(turn.scores) == most for turn in case.turns)]
    if not most:
        return 0, [], 0
    measured = voting.sizes(most)
    sums = np.stack([_answers(full, k, config.session_reward) for k in measured], axis=1)  # (sessions, sizes, 2)
    drawn = resampled(sums.reshape(len(sums), -1), config.seed).reshape(-1, len(measured), 2)
    beyond = [k for k in voting.sizes(EXTRAPOLATED) if k > most and k % 2] if _of_turns(full) else []
    points = []
    for i, (k, (right, answered)) in enumerate(zip(measured, sums.sum(0), strict=True)):
        share = _ratio(right, answered)
        between = _interval(_ratios(drawn[:, i]), share, len(sums))
        points.append(Point(k, share, between, float(answered / len(full)), independent(full, k)))
    return most, points + [Point(k, None, None, None, independent(full, k)) for k in beyond], len(full)


def independent(cases: list[Case], k: int) -> float | None:
    """The accuracy of k votes that are independent given the label, each drawn as the votes on such labels are.

    So this is exact for a judge to whom all turns of a label are equally hard. Null for labels of sessions, whose turns
    have none.
    """
    if not _of_turns(cases):
        return None
    right = answered = 0.0
    for label in agreement.CLASSES:
        votes = Counter(score for case in cases if case.label == label for score in case.turns[0].scores)
        if votes:
            share = sum(case.label == label for case in cases)
            found = voting.of_independent({score: n / votes.total() for score, n in votes.items()}, k)
            right += share * found.get(label, 0.0)
            answered += share * (1 - found.get(None, 0.0))
    return _ratio(right, answered)


def _of_turns(cases: list[Case]) -> bool:
    return all(len(case.turns) == 1 for case in cases)


def _answers(cases: list[Case], k: int, how: str) -> Array:
    """Expected numbers of right and of all answers with k of the votes, by session: shape (sessions, 2)."""
    sums = dict[str, Array]()
    for case in cases:
        found = voting.session_distribution(how, (voting.of_subsets(voting.counts_of(t.scores), k) for t in case.turns))
        sums.setdefault(case.session_id, np.zeros(2))
        sums[case.session_id] += found.get(case.label, 0.0), 1 - found.get(None, 0.0)
    return np.stack(list(sums.values()))


def _confusions(cases: list[Case], rewards: list[int | None]) -> Array:
    """The confusion matrix of each session, flat: shape (sessions, 9)."""
    sums = dict[str, Array]()
    for case, reward in zip(cases, rewards, strict=True):
        cell = sums.setdefault(case.session_id, np.zeros(9))
        if reward is not None:
            cell[3 * (case.label + 1) + reward + 1] += 1
    return np.stack(list(sums.values()))


def _agreements(cases: list[Case]) -> tuple[list[float], list[bool]]:
    """Share of the votes that agree, and whether the reward is right, of every labelled turn that has a reward."""
    turns = [(case.label, case.turns[0]) for case in cases if len(case.turns) == 1]
    known = [(t.agreement, t.reward == label) for label, t in turns if t.agreement is not None]
    return [a for a, _ in known], [right for _, right in known]


def _interval(values_B: Array, share: float | None, sessions: int) -> Interval:
    return None if share is None else share_interval(values_B, share, sessions)


def _hints(cases: list[Case]) -> HintScore | None:
    """Over the labels of turns, and of sessions with one judged turn, that say whether something was wanted."""
    said = [case for case in cases if case.wanted is not None and len(case.turns) == 1]
    if not said:
        return None
    return agreement.hint_score([bool(case.wanted) for case in said], [case.turns[0].hinted for case in said])


def _known(value: Array) -> float | None:
    return None if np.isnan(value) else float(value)


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


def _ratios(sums_B2: Array) -> Array:
    right, answered = sums_B2.T
    return np.divide(right, answered, out=np.full(len(right), np.nan), where=answered > 0)
