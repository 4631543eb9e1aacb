"""Tables that show a calibration."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table as RichTable

from opdkit.commands.calibrate.agreement import CLASSES, Calibration, MajorityScore, PeopleScore
from opdkit.commands.calibrate.people import FEWEST_SHARED
from opdkit.commands.calibrate.voting import is_too_coarse
from opdkit.commands.turns.line import signed
from opdkit.config.calibrate import CalibrateConfig
from opdkit.console import counted, print_line, printable, stdout, verb
from opdkit.evaluate.bootstrap import Interval

_AGAINST = {"person": "with one person", "majority": "with most others", "each": "with each, mean"}


def show(measured: Calibration, config: CalibrateConfig) -> None:
    set_aside = "".join(f", {reason} {n:,}" for reason, n in measured.set_aside.items())
    turns = sum(measured.statuses.values())
    statuses = ", ".join(f"{status} {n:,}" for status, n in measured.statuses.items())
    if turns != measured.labels:  # some labels are of sessions, which have several turns
        statuses = f"of their {counted(turns, 'turn')}: {statuses}"
    used = measured.rows - sum(measured.set_aside.values())
    if measured.accuracy is None:
        print_line("accuracy -")
    else:
        noun, span = "labelled turn" if turns == measured.labels else "label", measured.accuracy_interval
        interval = f", 95% interval {span[0]:z.2f} to {span[1]:z.2f}" if span else ""
        print_line(f"The judge gives the same reward as people on {measured.accuracy:.0%} of "
                   f"{counted(measured.answered, noun)} (accuracy {measured.accuracy:z.3f}{interval}).")  # fmt: skip
    reason = ""
    if not measured.answered:
        reason = " (no label's turn has a reward)"
    elif measured.kappa is None:
        reason = " (labels and judge all say the same one thing: nothing to disagree about)"
    elif measured.kappa_interval is None:
        reason = " (no interval: few labels, no errors, or labels so alike that in some resamples all are the same)"
    weights = "" if config.kappa_weights == "none" else f", {config.kappa_weights} weights"
    print_line(f"Cohen's kappa{weights} {_format(measured.kappa, measured.kappa_interval)}{reason}")
    print_line(f"{counted(measured.rows, 'label')}: {used:,} of judged turns or sessions{set_aside}")
    if used != measured.labels:
        tied = f"; {measured.tied:,} with a tie left out" if measured.tied else ""
        print_line(f"of several labels the most frequent one counts: {counted(measured.labels, 'label')}{tied}")
    print_line(f"{measured.answered:,} {verb(measured.answered, 'has', 'have')} a reward (coverage "
               f"{measured.answered / measured.labels:.3f}; {statuses})")  # fmt: skip
    if measured.people:
        _show_people(measured.people)

    table = RichTable("label", *(f"judged {signed(label)}" for label in CLASSES), "precision", "recall")
    for row, scores in zip(measured.confusion, measured.classes, strict=True):
        table.add_row(signed(scores.label), *(f"{n:,}" for n in row), _format(scores.precision), _format(scores.recall))
    stdout.print(table)
    if measured.majorities:
        _show_scores("majority", measured.majorities)
        plain, weighed = measured.majorities
        if plain.accuracy is not None and weighed.accuracy is not None:
            gain = f"{weighed.accuracy - plain.accuracy:+.3f} (95% interval {_format_range(weighed.gain)})"
            print_line(f"weighing votes by confidence changes the accuracy by {gain}; judge --weigh-votes does so")
    if cascade := measured.cascade:
        _show_scores("cascade", cascade.scores)
        votes = ", ".join(f"{n:,} of the {who}" for who, n in cascade.votes.items())
        print_line(f"the first judge left {cascade.left:,} of {counted(cascade.questions, 'question')} "
                   f"({cascade.left / max(1, cascade.questions):.0%}) to the second one; votes: {votes}")  # fmt: skip
        print_line("what the second judge alone would get: judge these sessions with it alone, and pass that run as "
                   "--other-run")  # fmt: skip
    if measured.levels:
        table = RichTable("votes that agree", "turns", "share right")
        for level in measured.levels:
            table.add_row(_format(level.agreement), f"{level.turns:,}", _format(level.right))
        stdout.print(table)
        print_line(f"expected calibration error {measured.calibration_error:.3f}")
    if hints := measured.hints:
        print_line(f"hints: {hints.hinted:,} on {counted(hints.turns, 'turn')}; something was wanted on "
                   f"{hints.wanted:,}: precision {_format(hints.precision)}, "
                   f"recall {_format(hints.recall)}")  # fmt: skip
    if measured.stored_votes == 1:
        print_line("one vote per turn is stored: to know what more would bring, judge some sessions with --votes 3 or "
                   "more")  # fmt: skip
    elif measured.curve:
        table = RichTable("votes", "accuracy", "95% interval", "coverage", "if votes were independent")
        for point in measured.curve:
            table.add_row(str(point.votes), _format(point.accuracy), _format_range(point.interval),
                          _format(point.coverage), _format(point.independent))  # fmt: skip
        stdout.print(table)
        print_line(_advise(measured, config.tolerance))


def _show_scores(title: str, scores: Sequence[MajorityScore]) -> None:
    """Print a table of accuracy and kappa, with a row per way to count the votes or per judge of a cascade."""
    table = RichTable(title, "answered", "accuracy", "95% interval", "kappa", "95% interval")
    for score in scores:
        figures = (_format(score.accuracy), _format_range(score.accuracy_interval), _format(score.kappa))
        table.add_row(score.majority, f"{score.answered:,}", *figures, _format_range(score.kappa_interval))
    stdout.print(table)


def _show_people(people: PeopleScore) -> None:
    """Print the table of people and judges, which fits into 80 columns however many labels there are."""
    least, most = people.fewest, people.most
    numbers = f"{most} per turn" if least == most else f"{least} to {most} per turn; each turn counts as one"
    labelled = f"{counted(people.turns, 'turn')} with {counted(people.labels, 'label')}"
    print_line(f"people and judges on {labelled}: {numbers}")
    table = RichTable("", "same label", "kappa (95%)", "share of people's (95%)", show_edge=False)
    for against, title in _AGAINST.items():
        rows = [row for row in people.rows if row.against == against]
        if rows:
            table.add_row(title, style="bold")
        for row in rows:
            figures = (_format_short(row.kappa, row.kappa_interval), _format_short(row.share, row.share_interval))
            table.add_row(escape(printable(f"  {row.who}")), _format_short(row.same), *figures)
    stdout.print(table)
    if people.raters:
        named = f"{counted(people.pairs, 'pair')} of {counted(len(people.raters), 'rater')}"
        print_line(f"with each: {named} with {FEWEST_SHARED} turns or more in common; each of them: --json")
    elif most > 1:
        print_line("labels without a rater count as those of different people")


def _advise(measured: Calibration, tolerance: float) -> str:
    """Return how many votes are worth paying for, in words."""
    stored, worth = measured.stored_votes, measured.votes_worth_paying
    labels, votes = counted(measured.curve_labels, "label"), counted(stored, "vote")
    text = f"the curve is over {labels} and all subsets of their {votes}"
    if is_too_coarse(measured.curve_labels, tolerance):
        return f"{text}; too few labels to say how many votes are worth paying for"
    if worth is None:
        why = ("none is near the best in both accuracy and coverage, unless --tolerance is higher"
               if any(point.coverage for point in measured.curve) else "none gives a reward")  # fmt: skip
        return f"{text}; no number of votes is worth paying for: {why}"
    saved = f", {1 - worth / stored:.0%} fewer than now" if worth < stored else ", all that there are"
    text += f"; worth paying for: --votes {worth} (within {tolerance:g} of the best measured{saved})"
    if worth == stored > 1:
        text += "; more may be better still: the last column says what they would bring if they erred independently"
    return text


def _format(value: float | None, interval: Interval = None) -> str:
    text = "-" if value is None else f"{value:z.3f}"
    return text if interval is None else f"{text} (95% interval {_format_range(interval)})"


def _format_short(value: float | None, interval: Interval = None) -> str:
    text = "-" if value is None else f"{value:z.2f}"
    return text if interval is None else f"{text} ({interval[0]:z.2f} to {interval[1]:z.2f})"


def _format_range(interval: Interval) -> str:
    return "-" if interval is None else f"{interval[0]:z.3f} to {interval[1]:z.3f}"
