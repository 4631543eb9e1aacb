"""Labels of several people per turn: how far they agree, and how far judges agree with them. Pure functions.

A turn counts once, however many labels it has. Counts of labels are arrays [..., 3], for -1, 0 and 1.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np

from opdkit.commands.calibrate.agreement import CLASSES, Matrix, PeopleRow, PeopleScore, RaterScore, accuracy, kappa
from opdkit.commands.calibrate.labels import Case
from opdkit.commands.turns.line import signed
from opdkit.evaluate.bootstrap import FEWEST, Array, compute_quantile_interval, resample_sums

FEWEST_SHARED = 10  # turns in common that a pair of raters needs; kappa over fewer is mostly 0 or undefined


def count_meetings(counts_N3: Array, of_majority: bool = False) -> Matrix:
    """Return how often a label of a turn meets each other label, or the most frequent of the others. Shape (N, 3, 3).

    Columns are the label, rows the other label; ties for the most frequent are split equally. The entries of a turn sum
    to 1, or to 0 if it has a single label. `kappa` of the sum over turns is Fleiss' kappa (1971) if all turns have the
    same number of labels, and a generalization otherwise: each turn counts as one.
    """
    others_N33 = np.maximum(counts_N3[:, None, :] - np.eye(3), 0)  # [turn, the label that is left out, other label]
    if of_majority:
        others_N33 = np.where(others_N33 > 0, others_N33 == others_N33.max(-1, keepdims=True), 0.0)
    shares_N3 = counts_N3 / counts_N3.sum(1, keepdims=True)
    met_N33 = others_N33 / np.maximum(others_N33.sum(-1, keepdims=True), 1) * shares_N3[:, :, None]
    return np.swapaxes(met_N33, 1, 2)


def score_people(
    cases: Sequence[Case], rewards_NJ: Sequence[Sequence[int]], judges: Sequence[str], weights: str, seed: int
) -> PeopleScore:
    """Compare people with each other, and compare the judges, the most frequent label and chance with people.

    `rewards_NJ` are the rewards of each judge on each case. Intervals come from resampled sessions, the same for all
    rows; None for fewer than six sessions. Raises ValueError without cases.
    """
    counts_N3 = np.array([[sum(label.value == value for label in case.labels) for value in CLASSES] for case in cases])
    shares_N3, most = counts_N3 / counts_N3.sum(1, keepdims=True), int(counts_N3.sum(1).max())
    frequent = int(shares_N3.sum(0).argmax())
    names = ["another person", *judges, f"always {signed(CLASSES[frequent])}", "chance"]
    # For each rater but people: its answer on every turn, as a distribution over the labels.
    said = [np.eye(3)[rewards_N + 1] for rewards_N in np.transpose(rewards_NJ)]
    said += [np.tile(row, (len(cases), 1)) for row in (np.eye(3)[frequent], shares_N3.mean(0))]
    sessions = {name: s for s, name in enumerate(dict.fromkeys(case.conversation for case in cases))}
    rows = []
    for against in ("person", "majority") if most > 2 else ("person",):  # for two labels, both are the same
        people_N33 = count_meetings(counts_N3, of_majority=against == "majority")
        target_N3 = people_N33.sum(2) if most > 1 else shares_N3
        matrices_NW = np.stack([people_N33, *(target_N3[:, :, None] * one_N3[:, None] for one_N3 in said)], axis=1)
        sums_SF = np.zeros((len(sessions), matrices_NW[0].size))
        np.add.at(sums_SF, [sessions[case.conversation] for case in cases], matrices_NW.reshape(len(cases), -1))
        resampled_BW = resample_sums(sums_SF, seed).reshape(-1, len(names), 3, 3)
        rows += _compare(against, names, matrices_NW.sum(0), resampled_BW, weights, len(sessions) >= FEWEST)
    raters, pairs, kappas = _score_raters(cases, rewards_NJ, weights)
    for name, value in zip(names, kappas, strict=False):
        share = value / kappas[0] if value is not None and kappas[0] is not None and kappas[0] > 0 else None
        rows.append(PeopleRow("each", name, None, value, None, share, None))
    sizes = [len(case.labels) for case in cases]
    return PeopleScore(len(cases), sum(sizes), min(sizes), max(sizes), list(judges), rows, raters, pairs)


def _compare(
    against: str, names: list[str], matrices_W: Matrix, resampled_BW: Matrix, weights: str, has_intervals: bool
) -> list[PeopleRow]:
    """Return the rows of people, judges, constant and chance, and the rows of each other judge minus the first.

    The matrices have the shapes (W, 3, 3) and (B, W, 3, 3), in the order of `names`.
    """
    kappas_W, kappas_BW = kappa(matrices_W, weights)[None], kappa(resampled_BW, weights)
    kappas_BW[:, -2:] = np.nan  # constant and chance: 0 in every resample, so no interval
    shares_W, shares_BW = (x / np.where(x[:, :1] > 0, x[:, :1], np.nan) for x in (kappas_W, kappas_BW))
    shares_BW[:, 0] = np.nan
    others = range(2, len(names) - 2)
    figures = [np.concatenate([x, *(x[:, j : j + 1] - x[:, 1:2] for j in others)], axis=1)
               for x in (accuracy(matrices_W)[None], kappas_W, shares_W, kappas_BW, shares_BW)]  # fmt: skip
    rows = []
    for w, who in enumerate([*names, *(f"{names[j]} - {names[1]}" for j in others)]):
        same, value, share = (None if np.isnan(x[0, w]) else float(x[0, w]) for x in figures[:3])
        intervals = [compute_quantile_interval(x[:, w]) if has_intervals else None for x in figures[3:]]
        if same is not None:  # None for people if each turn has one label
            rows.append(PeopleRow(against, who, same, value, intervals[0], share, intervals[1]))
    return rows


def _score_raters(
    cases: Sequence[Case], rewards_NJ: Sequence[Sequence[int]], weights: str
) -> tuple[list[RaterScore], int, list[float | None]]:
    """Return the scores of each rater with a name, the number of pairs of raters, and mean kappas.

    The mean kappas are that over pairs of raters, then for each judge that over raters; [] without pairs.
    """
    counts = Counter[str]()
    matrices: defaultdict[tuple[str, str | int], Matrix] = defaultdict(lambda: np.zeros((3, 3)))
    for case, rewards in zip(cases, rewards_NJ, strict=True):
        known = sorted((label.rater, label.value) for label in case.labels if label.rater)
        counts.update(rater for rater, _ in known)
        for (rater, label), (other, its) in combinations(known, 2):
            matrices[rater, other][label + 1, its + 1] += 1
        for (rater, label), (j, reward) in product(known, enumerate(rewards)):
            matrices[rater, j][label + 1, reward + 1] += 1
    kappas = {key: value for key, matrix in matrices.items()
              if matrix.sum() >= FEWEST_SHARED and not np.isnan(value := float(kappa(matrix, weights)))}  # fmt: skip
    pairs = {key: value for key, value in kappas.items() if isinstance(key[1], str)}
    raters = [RaterScore(rater, number, _mean([value for key, value in pairs.items() if rater in key]),
                         [kappas.get((rater, j)) for j in range(len(rewards_NJ[0]))])
              for rater, number in counts.most_common()]  # fmt: skip
    of_judges = [_mean([value for key, value in kappas.items() if key[1] == j]) for j in range(len(rewards_NJ[0]))]
    return raters, len(pairs), [_mean(list(pairs.values())), *of_judges] if pairs else []


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
