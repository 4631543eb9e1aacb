"""Best state of a training by its validations. A training that only made the model worse writes no model.

Pure functions of the rows of the table `validations`. The first row is the student before training.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from opdkit.config.fields import JSON
from opdkit.errors import NothingLearnedError

PATIENCE = 3  # a training ends after this many measurements in a row without a better score
# Largest share that may be lost of the replies to prompts without a complaint. A single lost reply among validation.FEW
# or more counts as none (`validation._row`). So 2 of 20 and 1 of 5 pass, 2 of 19 do not.
FORGOTTEN = 0.1
LITTLE_LEFT = 0.01  # of the first hint_kl: a best score above it may call for another cycle
MUCH_LEFT = 1 / 3  # of the first hint_kl: with a hint_kl above it, the hints were not learned
CLEAR_CHANGE = 0.1  # of the earlier hint_kl or score: a smaller change can be chance
MOST_DRIFT = 0.5  # of the fall of hint_kl: largest kept_kl of a state that has much left to learn
BROKEN_TIMES = 1.5  # times the first hint_kl: a state with a higher one is broken; less can be chance
RELAPSE = 2 / 3  # of the first hint_kl: a state whose hint_kl is higher than the lowest one by more is broken
_NAMED = 8  # most turns that an error names
_DISTANCES = {"hint_kl": "from the hinted teacher", "kept_kl": "from the student before training"}


def has_forgotten(row: JSON) -> bool:
    """Return True if too many replies to prompts without a complaint are lost."""
    return (row["forgotten"] or 0.0) > FORGOTTEN


def is_nearer(row: JSON, before: JSON) -> bool:
    """Return True if a state is nearer to the hints than the student before training, by more than chance.

    A gain below CLEAR_CHANGE must exceed its standard error, computed from the gains at the same prompts. With few
    replies, a single lucky one can decide the mean.
    """
    if row["hint_kl"] < (1 - CLEAR_CHANGE) * before["hint_kl"]:
        return True
    now = {reply["turn_id"]: reply["kl"] for reply in row["hint_kls"]}
    gains = [reply["kl"] - now[reply["turn_id"]] for reply in before["hint_kls"] if reply["turn_id"] in now]
    return len(gains) > 1 and fmean(gains) > stdev(gains) / math.sqrt(len(gains))


def drifts_too_far(row: JSON, before: JSON) -> bool:
    """Return True if a state moved from the student before training by more than MOST_DRIFT of what it gained.

    A state that has learned most of what the hints ask for is exempt: its other replies may need the same change.
    """
    has_much_left = row["hint_kl"] > MUCH_LEFT * before["hint_kl"]
    return bool(has_much_left and (row["kept_kl"] or 0.0) > MOST_DRIFT * (before["hint_kl"] - row["hint_kl"]))


def find_best(rows: Sequence[JSON], *, any_gain: bool = False, distance: str = "score") -> JSON:
    """Return the row of the best state, or the row before training if no state is better.

    Candidates are nearer to the hints than before training, have not forgotten (`has_forgotten`), and do not drift too
    far (`drifts_too_far`). The best has the lowest value in the column `distance` (if equal, the last); without hinted
    prompts, it is the last that has not forgotten. With `any_gain` (to go on or stop, not to save), a chance gain and
    any drift count, too.
    """
    before = rows[0]
    hinted, eligible = before["hint_kl"] is not None, [row for row in rows[1:] if not has_forgotten(row)]
    if hinted and any_gain:
        eligible = [row for row in eligible if row["hint_kl"] < before["hint_kl"]]
    elif hinted:
        eligible = [row for row in eligible if is_nearer(row, before) and not drifts_too_far(row, before)]
    return min(reversed(eligible), key=lambda row: row[distance] if hinted else 0.0, default=before)


def is_broken(rows: Sequence[JSON]) -> bool:
    """Return True if the last state has forgotten, or is clearly further from the hints than an earlier one.

    That is: more than BROKEN_TIMES as far as before training, or further by RELAPSE of the distance before training
    than the nearest state so far that has not forgotten.
    """
    first, last = rows[0]["hint_kl"], rows[-1]
    if has_forgotten(last) or first is None:
        return has_forgotten(last)
    nearest: float = min(row["hint_kl"] for row in rows if not has_forgotten(row))
    return bool(last["hint_kl"] > min(BROKEN_TIMES * first, nearest + RELAPSE * first))


def has_two_broken(rows: Sequence[JSON]) -> bool:
    """Return True if the last two states, both since the training last went back, are broken, and the last is not best.

    The training then goes back to its best state. A single broken state can be on the way to a better one: the student
    no longer writes its old replies, but does not yet complete the new ones.
    """
    are_new = len(rows) > 2 and rows[-2]["step"] > _find_last_return(rows)
    return are_new and is_broken(rows) and is_broken(rows[:-1]) and find_best(rows) is not rows[-1]


def has_stalled(rows: Sequence[JSON], start: int, distance: str = "score") -> bool:
    """Return True if PATIENCE or more states have followed the best one without a lower `distance`, see `find_best`.

    Only states later than step `start` count, and since the training last went back.
    """
    best = find_best(rows, any_gain=True, distance=distance)["step"]
    later = [row for row in rows if row["step"] > max(start, _find_last_return(rows), best)]
    return len(later) >= PATIENCE


def _find_last_return(rows: Sequence[JSON]) -> int:
    """Return the last step after which the training went back to an earlier state; 0 if it never did."""
    return max((row["step"] for row in rows if row["went_back_to"] is not None), default=0)


def trace_steps(rows: Sequence[JSON], kept: int) -> list[int]:
    """Return the numbers of the steps that led to the state after step `kept`, in order.

    Steps that the training took back, when it went back to an earlier state, are not among them.
    """
    went_back_to = {row["step"]: row["went_back_to"] for row in rows if row["went_back_to"] is not None}
    steps: list[int] = []
    while kept > 0:
        steps.append(kept)
        kept = went_back_to.get(kept - 1, kept - 1)
    return steps[::-1]


def needs_another_cycle(rows: Sequence[JSON], start: int, end: int, distance: str = "score") -> bool:
    """Return True if a cycle of the schedule, steps `start` + 1 to `end`, left much to learn and was not in vain.

    Much is left if the best state so far is far from the hints, or from the student before training. It is far from the
    latter if hints for some requests changed the replies to others. The last state must not have forgotten, and must be
    nearer to the hints than before training, or nearly as good as the best state. It may be a little worse than that,
    since few replies decide a score. A cycle after the first must also have found a clearly better state than the
    cycles before it: what two cycles do not learn is most likely out of reach.
    """
    done = [row for row in rows if row["step"] <= end]
    last, best = done[-1], find_best(done, any_gain=True, distance=distance)
    earlier = find_best([row for row in done if row["step"] <= start], any_gain=True, distance=distance)
    has_some_left = best[distance] > LITTLE_LEFT * (rows[0]["hint_kl"] or math.inf)
    is_close_to_best = last[distance] <= (1 + CLEAR_CHANGE) * best[distance]
    is_in_vain = start > 0 and best[distance] > (1 - CLEAR_CHANGE) * earlier[distance]
    is_sound = not has_forgotten(last) and (is_close_to_best or is_nearer(last, rows[0]))
    return bool(last["step"] == end and has_some_left and is_sound and not is_in_vain)


def check_better(rows: Sequence[JSON], metrics: Sequence[JSON]) -> None:
    """Raise NothingLearnedError if no state of the training is better than the student before training.

    The message names the turns of the step that moved the replies most, among the steps up to the worst state.
    """
    if find_best(rows)["step"] > 0:
        return
    reason, states = _explain_failure(rows)
    worst = max(states, key=lambda row: row["score"])
    steps = [row for row in metrics if row["step"] <= worst["step"]]
    broke = max(steps, key=lambda row: (row["step_kl"] or 0.0, row["shift"]))
    turn_ids = list(dict.fromkeys(broke["turn_ids"]))  # a turn can have replies of the teacher in the same step
    turns = ", ".join(turn_ids[:_NAMED]) + (", ..." if len(turn_ids) > _NAMED else "")
    raise NothingLearnedError(
        f"training {reason}, so no model is written. Distances of its own replies to validation "
        f"prompts, per reply: before training, {describe_state(rows[0])}; after step {worst['step']}, "
        f"{describe_state(worst)}. Step {broke['step']} moved the replies most, at "
        f"turns {turns}. Look at their hints and rewards, try another --objective or a stronger --judge; --validate 0 "
        "writes the model anyway"
    )


def _explain_failure(rows: Sequence[JSON]) -> tuple[str, Sequence[JSON]]:
    """Return what is wrong with all states after the first row, to follow the word "training", and states that show it.

    The reason is what was lost if all states that came nearer to the hints have forgotten, or all states have.
    """
    remembered = [row for row in rows[1:] if not has_forgotten(row)]
    if drifted := [row for row in remembered if is_nearer(row, rows[0])]:
        return ("moved replies that nobody complained about more than half as far as it came nearer to the hints",
                drifted)  # fmt: skip
    if remembered and not any(is_nearer(row, rows[0]) for row in rows[1:]):
        return "brought the model no nearer to the hints than chance would", rows[1:]
    return "lost replies that nobody complained about", [row for row in rows[1:] if has_forgotten(row)]


def describe_state(row: JSON) -> str:
    """Return the two distances of a row as text."""
    known = {name: row[column] for column, name in _DISTANCES.items() if row[column] is not None}
    return " and ".join(f"{value:.2f} nats {name}" for name, value in known.items())
