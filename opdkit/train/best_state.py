"""Best state of a training by its validations; a training that only made the model worse writes no model.

Pure functions of the rows of the table `validations`, the first of which is the student before training.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from opdkit.config.fields import JSON
from opdkit.errors import NothingLearnedError

PATIENCE = 3  # measurements in a row without a better score, after which a training ends
# Largest share of the replies that nobody complained about that may be lost. A single lost reply among validation.FEW
# or more is counted as none (`validation._row`). So 2 of 20 and 1 of 5 pass, 2 of 19 do not.
FORGOTTEN = 0.1
LITTLE_LEFT = 0.1  # of the score before training: with more, another cycle follows
MUCH_LEFT = 1 / 3  # of that distance: with more, the hints were not learned
CLEAR_CHANGE = 0.1  # of that distance, or of a score: less can be chance
BROKEN_TIMES = 1.5  # the distance from the hints before training: a state further away is broken; less can be chance
_NAMED = 8  # turns that an error names
_DISTANCES = {"hint_kl": "from the hinted teacher", "kept_kl": "from the student before training"}


def has_forgotten(row: JSON) -> bool:
    """Return True where too many of the replies that nobody complained about are lost."""
    return (row["forgotten"] or 0.0) > FORGOTTEN


def is_nearer(row: JSON, before: JSON) -> bool:
    """Return True for a state that is nearer to the hints than the student before training, by more than chance.

    A gain of less than CLEAR_CHANGE has to exceed its standard error, from the differences at the same prompts: with
    few replies, a single lucky one decides the mean.
    """
    if row["hint_kl"] < (1 - CLEAR_CHANGE) * before["hint_kl"]:
        return True
    now = {reply["turn_id"]: reply["kl"] for reply in row["hint_kls"]}
    gains = [reply["kl"] - now[reply["turn_id"]] for reply in before["hint_kls"] if reply["turn_id"] in now]
    return len(gains) > 1 and fmean(gains) > stdev(gains) / math.sqrt(len(gains))


def costs_more(row: JSON, before: JSON) -> bool:
    """Return True for a state that moved clearly further from the student before training than towards the hints.

    One that has learned most of what the hints ask for may: they can ask for it elsewhere, too.
    """
    is_far = row["hint_kl"] > MUCH_LEFT * before["hint_kl"]
    return bool(is_far and row["score"] > (1 + CLEAR_CHANGE) * before["score"])


def find_best(rows: Sequence[JSON], *, any_gain: bool = False) -> JSON:
    """Return the row of the best state; the row before training if there is none.

    Of the states that are nearer to the hints than before training, have not forgotten and do not cost more than they
    gain (`costs_more`), it is the one with the lowest score; of equal ones the last. Without hinted prompts, it is the
    last that has not forgotten. With `any_gain`, a state whose gain may be chance counts as nearer, too.
    """
    before = rows[0]
    hinted, eligible = before["hint_kl"] is not None, [row for row in rows[1:] if not has_forgotten(row)]
    if hinted:
        eligible = [row for row in eligible if not costs_more(row, before)
                    and (is_nearer(row, before) or (any_gain and row["hint_kl"] < before["hint_kl"]))]  # fmt: skip
    return min(reversed(eligible), key=lambda row: row["score"] if hinted else 0.0, default=before)


def is_broken(row: JSON, before: JSON) -> bool:
    """Return True for a state that has forgotten, or is clearly further from the hints than the student before."""
    return has_forgotten(row) or (row["hint_kl"] or 0.0) > BROKEN_TIMES * (before["hint_kl"] or math.inf)


def has_two_broken(rows: Sequence[JSON]) -> bool:
    """Return True where the last two states are broken: the training goes back to its best one.

    One such state can be on the way to a better one: the student no longer writes what it did, and does not yet finish
    what it begins.
    """
    return len(rows) > 2 and all(is_broken(row, rows[0]) for row in rows[-2:])


def has_stalled(rows: Sequence[JSON], cycle_start: int) -> bool:
    """Return True where the cycle that began after step `cycle_start` has found no better score for PATIENCE rows."""
    later = [row for row in rows if row["step"] > max(cycle_start, find_best(rows, any_gain=True)["step"])]
    return len(later) >= PATIENCE


def needs_another_cycle(rows: Sequence[JSON], start: int, end: int) -> bool:
    """Return True where a cycle of the schedule ended with much to learn, and was not in vain.

    It had the steps after `start` up to `end`. Its best state is far from the hints, or from the student before
    training: hints for some requests changed replies to others. Its last state has not forgotten, and is nearer to the
    hints than before training, or near the best state. An earlier state with a better score does not count against it:
    few replies decide a score. But a cycle after the first must have found a clearly better state than those before it:
    what two cycles do not learn is most likely out of reach.
    """
    done = [row for row in rows if row["step"] <= end]
    last, best = done[-1], find_best(done, any_gain=True)
    earlier = find_best([row for row in done if row["step"] <= start], any_gain=True)
    is_far = best["score"] > LITTLE_LEFT * (rows[0]["hint_kl"] or math.inf)
    is_near = last["score"] <= (1 + CLEAR_CHANGE) * best["score"]
    is_in_vain = start > 0 and best["score"] > (1 - CLEAR_CHANGE) * earlier["score"]
    is_sound = not has_forgotten(last) and (is_near or is_nearer(last, rows[0]))
    return bool(last["step"] == end and is_far and is_sound and not is_in_vain)


def check_better(rows: Sequence[JSON], metrics: Sequence[JSON]) -> None:
    """Raise NothingLearnedError where no state of the training is better than the student before it.

    The message names the turns of the step that moved the replies most, among the steps before the worst state.
    """
    if find_best(rows)["step"] > 0:
        return
    worst = max(rows[1:], key=lambda row: row["score"])
    steps = [row for row in metrics if row["step"] <= worst["step"]]
    broke = max(steps, key=lambda row: (row["step_kl"] or 0.0, row["shift"]))
    turn_ids = list(dict.fromkeys(broke["turn_ids"]))  # a turn can have replies of the teacher in the same step
    turns = ", ".join(turn_ids[:_NAMED]) + (", ..." if len(turn_ids) > _NAMED else "")
    raise NothingLearnedError(
        f"training {_explain_failure(rows)}, so no model is written. Distances of its own replies to prompts kept "
        f"out of training, per reply: before training, {describe_state(rows[0])}; after step {worst['step']}, "
        f"{describe_state(worst)}. Step {broke['step']} moved the replies most, at "
        f"turns {turns}. Look at their hints and rewards, try another --objective or a stronger --judge; --validate 0 "
        "writes the model anyway"
    )


def _explain_failure(rows: Sequence[JSON]) -> str:
    """Return what is wrong with all states after the first row, as the end of a sentence about the training."""
    eligible = [row for row in rows[1:] if not has_forgotten(row)]
    if not eligible:
        return "lost replies that nobody complained about"
    if not any(is_nearer(row, rows[0]) for row in eligible):
        return "brought the model no nearer to the hints than chance would"
    return "moved the model further away from the student before training than towards the hints"


def describe_state(row: JSON) -> str:
    """Return the two distances of a row as text."""
    known = {name: row[column] for column, name in _DISTANCES.items() if row[column] is not None}
    return " and ".join(f"{value:.2f} nats {name}" for name, value in known.items())
