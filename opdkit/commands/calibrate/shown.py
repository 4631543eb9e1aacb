"""A calibration as tables for people."""

from rich.table import Table as RichTable

from opdkit.commands.calibrate.agreement import CLASSES
from opdkit.commands.calibrate.result import Calibration, Interval
from opdkit.config.calibrate import CalibrateConfig
from opdkit.console import counted, printable, stdout, verb


def show(measured: Calibration, config: CalibrateConfig) -> None:
    """Print everything on stdout."""
    aside = "".join(f", {reason} {n:,}" for reason, n in measured.set_aside.items())
    turns = sum(measured.statuses.values())
    statuses = ", ".join(f"{status} {n:,}" for status, n in measured.statuses.items())
    if turns != measured.labels:  # of sessions, which have several
        statuses = f"of their {counted(turns, 'turn')}: {statuses}"
    _say(f"{counted(measured.rows, 'label')}: {measured.labels:,} of judged turns or sessions{aside}")
    _say(
        f"{measured.answered:,} {verb(measured.answered, 'has', 'have')} a reward (coverage "
        f"{measured.answered / measured.labels:.3f}; {statuses})"
    )
    _say(f"accuracy {_with(measured.accuracy, measured.accuracy_interval)}")
    weights = "" if config.kappa_weights == "none" else f", {config.kappa_weights} weights"
    _say(f"Cohen's kappa{weights} {_with(measured.kappa, measured.kappa_interval)}{_no_kappa(measured)}")
    stdout.print(_confusion(measured))
    if measured.levels:
        stdout.print(_levels(measured))
        _say(f"expected calibration error {measured.calibration_error:.3f}")
    if measured.hints:
        found = measured.hints
        _say(f"hints: {found.hinted:,} on {counted(found.turns, 'turn')}; something was wanted on {found.wanted:,}: "
             f"precision "
             f"{_number(found.precision)}, recall {_number(found.recall)}")  # fmt: skip
    if measured.stored_votes == 1:
        _say("one vote a turn is stored: to know what more would bring, judge some sessions with --votes 3 or more")
    elif measured.curve:
        stdout.print(_curve(measured))
        _say(_advice(measured, config.tolerance))


def _say(text: str) -> None:
    stdout.print(printable(text), markup=False, soft_wrap=True)


def _no_kappa(measured: Calibration) -> str:
    """Why there is no kappa, or no interval of it."""
    if not measured.answered:
        return " (no label's turn has a reward)"
    if measured.kappa is None:
        return " (labels and judge all say the same one thing: nothing to disagree about)"
    if measured.kappa_interval is None:
        return " (no interval: few labels, or nearly all alike, so that in some resamples all say the same one thing)"
    return ""


def _confusion(measured: Calibration) -> RichTable:
    table = RichTable("label", *(f"judged {c:+d}" if c else "judged 0" for c in CLASSES), "precision", "recall")
    for row, scores in zip(measured.confusion, measured.classes, strict=True):
        name = f"{scores.label:+d}" if scores.label else "0"
        table.add_row(name, *(f"{n:,}" for n in row), _number(scores.precision), _number(scores.recall))
    return table


def _levels(measured: Calibration) -> RichTable:
    table = RichTable("votes that agree", "turns", "share right")
    for level in measured.levels:
        table.add_row(_number(level.agreement), f"{level.turns:,}", _number(level.right))
    return table


def _curve(measured: Calibration) -> RichTable:
    table = RichTable("votes", "accuracy", "95% interval", "coverage", "if votes were independent")
    for point in measured.curve:
        table.add_row(str(point.votes), _number(point.accuracy), _range(point.interval), _number(point.coverage),
                      _number(point.independent))  # fmt: skip
    return table


def _advice(measured: Calibration, tolerance: float) -> str:
    stored, worth = measured.stored_votes, measured.votes_worth_paying
    labels, votes = counted(measured.curve_labels, "label"), counted(stored, "vote")
    text = f"the curve is over {labels} and all subsets of their {votes}"
    if worth is None:
        return text + "; no vote is worth paying for: none gives a reward"
    saved = f", {1 - worth / stored:.0%} fewer than now" if worth < stored else ", all that there are"
    text += f"; worth paying for: --votes {worth} (within {tolerance:g} of the best measured{saved})"
    if worth == stored > 1:
        text += "; more may be better still: the last column says what they would bring if they erred independently"
    return text


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:z.3f}"


def _range(found: Interval) -> str:
    return "-" if found is None else f"{found[0]:z.3f} to {found[1]:z.3f}"


def _with(value: float | None, found: Interval) -> str:
    return _number(value) + ("" if found is None else f" (95% interval {_range(found)})")
