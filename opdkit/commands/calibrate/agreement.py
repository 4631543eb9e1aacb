"""Agreement of two raters: confusion matrix, accuracy, Cohen's kappa, calibration. Pure functions.

Confusion matrices are arrays of shape (..., 3, 3): rows are the labels -1, 0, 1, columns the judge's rewards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from opdkit.evaluate.bootstrap import FEWEST, Interval, compute_quantile_interval, resample_sums, share_interval

CLASSES = (-1, 0, 1)
Matrix = NDArray[np.float64]

_LEVELS = 10  # more levels of agreement than this are binned in tenths


def accuracy(matrix: Matrix) -> NDArray[np.float64]:
    """Return the share on the diagonal, in [0, 1]; NaN for an empty matrix. Shape (...,)."""
    total = matrix.sum((-2, -1))
    return np.divide(np.trace(matrix, axis1=-2, axis2=-1), total, out=np.full(total.shape, np.nan), where=total > 0)


def kappa(matrix: Matrix, weights: str = "none") -> NDArray[np.float64]:
    """Return Cohen's kappa, in [-1, 1]: agreement beyond what the margins give by chance. Shape (...,).

    1 - sum(w * observed) / sum(w * expected), expected = outer product of the margins / n. The weight w of a cell is 0
    on the diagonal; off it 1 ("none": Cohen 1960), |i - j| ("linear") or (i - j)^2 ("quadratic"; Cohen 1968). NaN
    for an empty matrix, and if both raters always give the same single label.
    """
    distance = np.abs(np.subtract.outer(np.arange(3), np.arange(3))).astype(float)
    w = {"none": (distance > 0).astype(float), "linear": distance, "quadratic": distance**2}[weights]
    total = matrix.sum((-2, -1))
    expected = matrix.sum(-1)[..., :, None] * matrix.sum(-2)[..., None, :]
    observed, by_chance = (w * matrix).sum((-2, -1)) * total, (w * expected).sum((-2, -1))
    return 1 - np.divide(observed, by_chance, out=np.full(total.shape, np.nan), where=by_chance > 0)


@dataclass(frozen=True)
class ClassScore:
    """Scores of one class. Precision is over cases that the judge put in it, recall over cases that are labelled so."""

    label: int
    labelled: int
    judged: int
    precision: float | None
    recall: float | None


def score_classes(matrix: Matrix) -> list[ClassScore]:
    """Return precision and recall of each class, None instead of a division by zero. `matrix` has shape (3, 3)."""
    scores = []
    for i, label in enumerate(CLASSES):
        right, labelled, judged = matrix[i, i], matrix[i].sum(), matrix[:, i].sum()
        precision, recall = right / judged if judged else None, right / labelled if labelled else None
        scores.append(ClassScore(label, int(labelled), int(judged), precision, recall))
    return scores


@dataclass(frozen=True)
class Level:
    """Turns on which the same share of the votes agree, and how often their reward is right."""

    agreement: float  # mean share of agreeing votes
    turns: int
    right: float


def measure_calibration(agreements: Sequence[float], right: Sequence[bool]) -> tuple[list[Level], float | None]:
    """Return the share right at each level of agreement, lowest first, and the expected calibration error.

    The error is the mean over turns of |share right - agreement| of their level (Naeini et al. 2015). It is 0 if
    rewards that 80% of the votes agree on are right 80% of the time, and so on. None without turns.
    """
    if not agreements:
        return [], None
    said, hit = np.round(np.asarray(agreements, float), 6), np.asarray(right, float)
    bins = said if len(np.unique(said)) <= _LEVELS else np.ceil(said * _LEVELS)
    groups = [bins == level for level in np.unique(bins)]
    levels = [Level(float(said[g].mean()), int(g.sum()), float(hit[g].mean())) for g in groups]
    error = sum(level.turns * abs(level.right - level.agreement) for level in levels) / len(said)
    return levels, error


@dataclass(frozen=True)
class MajorityScore:
    """Agreement of labels with rewards that are counted from the stored votes in one way."""

    majority: str  # "stored", "plain" (each vote counts as one), "weighed" (by confidence), or judges of a cascade
    answered: int
    accuracy: float | None
    accuracy_interval: Interval
    kappa: float | None
    kappa_interval: Interval
    gain: Interval  # 95% interval of the accuracy minus that of the plain majority, or of a cascade's other judge;
    # None for fewer than six sessions, and if the other judge was not asked


def score_majority(majority: str, confusions_S: Matrix, weights: str, seed: int, other_S: Matrix) -> MajorityScore:
    """Return accuracy and kappa (with these `weights`), and their intervals from resampled sessions.

    `confusions_S` are the confusion matrices of the sessions, flat [S, 9]; the gain is measured against `other_S`.
    Sessions without a reward in either are left out.
    """
    answered_S = (confusions_S + other_S).any(1)
    confusions_S, other_S = confusions_S[answered_S], other_S[answered_S]
    matrix = confusions_S.sum(0).reshape(3, 3)
    resampled_B, other_B = (resample_sums(x, seed).reshape(-1, 3, 3) for x in (confusions_S, other_S))
    sessions = int(confusions_S.any(1).sum())
    share, beyond_chance = (None if np.isnan(x) else float(x) for x in (accuracy(matrix), kappa(matrix, weights)))
    share_span = share_interval(accuracy(resampled_B), share, sessions)
    values = kappa(resampled_B, weights), accuracy(resampled_B) - accuracy(other_B)
    kappa_span, gain_span = (compute_quantile_interval(x) if sessions >= FEWEST else None for x in values)
    return MajorityScore(majority, int(matrix.sum()), share, share_span, beyond_chance, kappa_span, gain_span)


@dataclass(frozen=True)
class HintScore:
    """Hints compared with the `wanted` of labels. Precision: the share of hinted turns on which something was wanted.

    Recall: of the turns on which something was wanted, the share with a hint. The text of the hints is not compared.
    """

    turns: int
    wanted: int
    hinted: int
    precision: float | None
    recall: float | None


def score_hints(wanted: Sequence[bool], hinted: Sequence[bool]) -> HintScore:
    """Return precision and recall of having a hint at all, None instead of a division by zero."""
    both = sum(w and h for w, h in zip(wanted, hinted, strict=True))
    precision, recall = (both / n if n else None for n in (sum(hinted), sum(wanted)))
    return HintScore(len(wanted), sum(wanted), sum(hinted), precision, recall)


@dataclass(frozen=True)
class PeopleRow:
    """Agreement of `who` with labels of people.

    `same` is the share of equal labels. `share` is kappa divided by the kappa between people (the human ceiling), None
    unless that is above 0. In the row of one judge minus another, all figures are differences.
    """

    against: str  # person: another person; majority: the most frequent other label; each: named people, mean of kappas
    who: str  # another person, a judge, a constant, chance, or one judge minus another
    same: float | None
    kappa: float | None
    kappa_interval: Interval
    share: float | None
    share_interval: Interval


@dataclass(frozen=True)
class RaterScore:
    """Agreement of one person with the others (mean of Cohen's kappa over pairs), and of each judge with this person.

    Pairs that share fewer than `people.FEWEST_SHARED` turns are left out.
    """

    rater: str
    labels: int
    kappa_people: float | None
    kappa_judges: list[float | None]


@dataclass(frozen=True)
class PeopleScore:
    """Agreement of people and judges on labelled turns with a reward of every judge, as `measure_people` picks them."""

    turns: int
    labels: int
    fewest: int  # fewest labels of a turn
    most: int  # most labels of a turn
    judges: list[str]
    rows: list[PeopleRow]
    raters: list[RaterScore]  # [] if no row names its rater
    pairs: int  # pairs of raters who share enough turns


@dataclass(frozen=True)
class Point:
    """Figures of the judge with `votes` votes, over all subsets of the stored votes; None if fewer are stored.

    `independent` is the accuracy that votes with independent errors would have, each vote as accurate as measured.
    """

    votes: int
    accuracy: float | None
    interval: Interval
    coverage: float | None
    independent: float | None


@dataclass(frozen=True)
class CascadeScore:
    """Agreement of the judges of a cascade with labels, and how much each judge was asked."""

    questions: int  # questions of the run, labelled or not
    left: int  # questions that the first judge left to the second one
    votes: dict[str, int]  # votes of each judge
    scores: list[MajorityScore]


@dataclass(frozen=True)
class Calibration:
    """Figures of the judge against labels. Shares are over the labels with a reward; coverage is the share with one."""

    rows: int
    set_aside: dict[str, int]
    labels: int  # labels with a verdict
    answered: int
    statuses: dict[str, int]  # statuses of the verdicts on labelled turns
    accuracy: float | None
    accuracy_interval: Interval
    kappa: float | None
    kappa_interval: Interval
    confusion: list[list[int]]  # rows: labels -1, 0, 1; columns: rewards -1, 0, 1
    classes: list[ClassScore]
    majorities: list[MajorityScore]  # plain and weighed; [] if no vote has a confidence
    levels: list[Level]
    calibration_error: float | None
    stored_votes: int
    curve: list[Point]
    curve_labels: int  # labels whose turns have votes
    votes_worth_paying: int | None
    hints: HintScore | None  # null if no label says whether something was wanted
    tied: int  # turns without a single most frequent label: these count only in `people`
    people: PeopleScore | None  # null if each turn has one label and there is one judge
    cascade: CascadeScore | None  # null without `opdkit judge --judge-first`
