"""Write docs/learning.md: the answers of the benchmark of worlds, question by question, from its results."""

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import median

from opdkit.config.fields import JSON
from opdkit.config.train import ENOUGH_STEPS, MOST_CYCLES, MOST_EPOCHS

from ..learning.lookup import table
from . import WORLDS, appendix, findings, people
from .benchmark import (
    BUILD,
    DEFAULT,
    ERRORS,
    HINT_ERRORS,
    OBJECTIVES,
    PATH_RATES,
    RATES,
    SEARCH,
    SEEDS,
    SEEMS_WORSE,
    SESSIONS,
    TAUGHT,
    TAUGHT_SESSIONS,
    hint_cell,
    path_cells,
    searched_cells,
)
from .build import HELD_OUT_PROMPTS
from .findings import ALL_NOISY, OURS, Results, mean, mean_shares
from .trainings import AGAIN_SAMPLES, EPOCHS, MOVED, before_cell, path_cell
from .ways import REACTION, WAYS, way_cell
from .words import (
    NOTHING,
    TITLES,
    bullets,
    count,
    given,
    judgement,
    number,
    outcome,
    pair,
    section,
    spread,
    text,
    thousands,
    title,
    whole,
)

# Limits at which a section's answer is yes.
NEAR, FORGOTTEN_MORE, ACCURACY = 0.95, 0.01, 0.95
SPEARMAN, FOUND, SIGN, FORECAST_R, COVERAGE, COST = 0.9, 0.9, 0.95, 0.8, (0.80, 0.97), 0.15
RAW_LOSS, JUDGED_LOSS, AT_SHARE = 0.10, 0.02, 0.3
RIVALS = ("everything", "praised", "kto", "dpo")  # the default has to forget less than these ways


def page(document: JSON) -> str:
    """Return docs/learning.md."""
    results = Results(document["cells"])
    sections: Sequence[Callable[[Results], str]] = (
        _head, _own_rate, _worse, _alarm, _score, _cost, _noise, _hints, _forecast, _ways, *people.SECTIONS,
        *appendix.SECTIONS,
    )  # fmt: skip
    parts = (write(results) for write in sections)
    return "\n\n".join(part.strip() for part in (*parts, appendix.machine(document["machine"]))) + "\n"


# -- the sections ---------------------------------------------------------------------------------------------------


def _head(results: Results) -> str:
    measured, of = len(results.cells.keys() & findings.PLANNED), len(findings.PLANNED)
    aside = [world for world in results.worlds if WORLDS[world].aside]
    replies = HELD_OUT_PROMPTS * min(world.samples for world in WORLDS.values())
    return "\n\n".join([
        "# What training brings",
        "Written by `python -m tests.benchmarks.worlds` from `tests/benchmarks/worlds/results.json`; do not edit.",
        text(
            f"{len(results.worlds)} of {len(WORLDS)} worlds that code makes: each has a small chat model, a log of its "
            "talks with users, and requests that the log never mentions. *Corrected* is the share of replies to such "
            "requests that are as the users want, where the log corrects the model. *Uncorrected* is the share that is "
            "right where nobody complains. Pairs of numbers are corrected / uncorrected. The default objective and the "
            f"ways beside it take as many epochs as make {ENOUGH_STEPS} steps, at most {MOST_EPOCHS}; if validation "
            f"calls for it, the default and raw reactions as hints take up to {MOST_CYCLES} times as many. Other "
            f"objectives and paths take {EPOCHS}. Replies are sampled at temperature 1, {replies} of each kind: a "
            f"share of so many has a standard error of up to {number(0.5 / sqrt(replies))}.",
            f"The worlds are built with seed {results.build_seed}; other builds were looked at while the defaults were "
            f"chosen. What is searched for is searched with seed {SEARCH}; the default and its best rate have "
            f"the seeds {', '.join(map(str, SEEDS))}. Of other ways the best value is reported as it was when "
            "it was chosen, in their favour.",
            "† marks worlds that were kept aside: nobody looked at them while anything was chosen." if aside else "",
            "The objectives on the sample data: [sample-world.md](sample-world.md).",
        ),
        f"*Cells measured: {measured} of {of}, without those that the first ones choose.*" if measured < of else "",
    ]).replace("\n\n\n\n", "\n\n")  # fmt: skip


def _own_rate(results: Results) -> str:
    heading = "Does the default learn without a learning rate?"
    rows = findings.own_rates(results)
    cells = [c for w in WORLDS for c in (*findings.own_cells(w), *(before_cell(w, s) for s in SEEDS),
                                         *searched_cells(w))]  # fmt: skip
    if not rows:
        return section(heading, results, cells, NOTHING)
    ratios = {row.world: row.ratio for row in rows if row.ratio is not None}
    more = {row.world: row.forgotten_more for row in rows if row.forgotten_more is not None}
    accuracy = mean(c.after.corrected for row in rows for c in row.own)
    is_near = min(ratios.values()) >= NEAR and max(more.values()) <= FORGOTTEN_MORE if ratios else None
    lowest, worst = min(ratios, key=ratios.__getitem__, default=""), max(more, key=more.__getitem__, default="")
    answer = text(
        judgement(None if is_near is None else is_near and accuracy >= ACCURACY),
        f"Without a rate, {number(accuracy)} of the replies end as wanted, mean over {len(rows)} worlds "
        f"({number(mean(c.before.corrected for row in rows for c in row.own))} before)"
        + (f"; that is {number(mean(ratios.values()))} of what the best of several "
           f"rates reaches (lowest: {number(ratios[lowest])}, {title(lowest)}), and it forgets at most "
           f"{number(more[worst])} more than the best rate ({title(worst)})." if ratios and more else "."),
        f"A yes takes {ACCURACY} in the mean, {NEAR} of the best rate in each world, and at most {FORGOTTEN_MORE} more "
        "forgotten.",
    )  # fmt: skip
    lines = [
        [title(row.world), pair(mean_shares(c.before for c in row.own)),
         spread([c.after.corrected for c in row.own]), spread([c.after.uncorrected for c in row.own]),
         f"{min(row.rates):.2g}-{max(row.rates):.2g}" if row.rates else "-", given(row.best_rate) if row.best else "-",
         pair(mean_shares(c.after for c in row.best)) if row.best else "-", number(row.ratio), number(row.forgotten),
         number(row.forgotten_more)]
        for row in rows
    ]  # fmt: skip
    heads = ["world", "before", "default, corrected", "default, uncorrected", "rates it took", "best rate",
             "with the best rate", "ratio", "forgotten", "more than with the best"]  # fmt: skip
    note = text(
        f"In brackets: lowest and highest seed. The best rate is that of {len(RATES)}, or, in worlds in which no other "
        f"objective trains, of {len(WAYS[REACTION])}. The *ratio* is that of the corrected shares. *Forgotten* is the "
        "loss of the uncorrected share. A training that writes no model counts as the model before."
    )
    return section(heading, results, cells, answer, table(heads, lines), note,
                   "![corrected replies before, with the default, with the best rate](worlds-default.svg)")  # fmt: skip


def _worse(results: Results) -> str:
    rows = findings.trainings(results)
    cells = findings.search_cells(WORLDS) + [c for w in (*WORLDS, *ALL_NOISY) for c in findings.own_cells(w)]
    heading = "Is a trained model ever worse than before?"
    if not rows:
        return section(heading, results, cells, NOTHING)
    worse, refused = [row for row in rows if row.is_worse], sum(row.refused for row in rows)
    free = findings.paths(results)
    fallen = [p for p in free if p.error or any(a - b > findings.WORSE for a, b in zip(p.truth[0], p.truth[-1],
                                                                                      strict=True))]  # fmt: skip
    answer = text(
        "**Never.**" if not worse else "**Yes, sometimes.**",
        f"{count(len(worse), len(rows), 'trainings')} end with a model that is worse than before by more than "
        f"{findings.WORSE} in either share, and {refused} with none and exit code 1"
        + (f"; with nothing that holds them back, {count(len(fallen), len(free), 'end worse')}." if free else "."),
    )  # fmt: skip
    lines = [[f"**{o}** (default)" if o == DEFAULT else o, *(outcome(rows, o, rate) for rate in (None, *RATES))]
             for o in OBJECTIVES]  # fmt: skip
    note = text(
        "Mean shares after the training, over the worlds in which it was measured, by objective and the "
        "rate that is given; in brackets: trainings of them that wrote no model, and count as the model before. "
        f"Bold: one of them is worse. Where either share seems to have lost more than {SEEMS_WORSE}, the model and the "
        f"one before are measured once more, on {AGAIN_SAMPLES} new replies to each prompt; these count. Where "
        f"opdkit's own largest rate is below {RATES[-2]:g}, a training at {RATES[-1]:g} is the same as that one.",
        "Before training: " + pair(mean_shares(row.change.before for row in rows if row.rate is not None)) + "."
        if any(row.rate is not None for row in rows) else "",
    )  # fmt: skip
    named = [[title(row.world), row.objective, given(row.rate), str(row.seed), pair(row.change.before),
              pair(row.change.after)] for row in worse]  # fmt: skip
    heads = ["world", "objective", "rate", "seed", "before", "after"]
    return section(
        heading, results, cells, answer, note, table(["objective", *map(given, (None, *RATES))], lines),
        "Those that are worse:\n\n" + table(heads, named) if named else "",
        "![change of both shares, each training a dot](worlds-worse.svg)",
    )  # fmt: skip


def _alarm(results: Results) -> str:
    rows, cells = findings.paths(results), path_cells(WORLDS)
    heading = "Does the alarm come in time?"
    if not rows:
        return section(heading, results, cells, NOTHING)
    broken = [row for row in rows if row.breaks]
    late, honest = [row for row in broken if not row.in_time], [row for row in rows if row.is_honest]
    false = [row for row in honest if row.alarm is not None]
    better = [row for row in findings.trainings(results) if not row.refused and row.change.after.both
              > row.change.before.both]  # fmt: skip
    alarms = [row for row in better if row.alarm]
    own = [row for row in alarms if row.rate is None]
    answer = text(
        judgement(not late and not false and not own if broken else None, "Not always"),
        f"In {count(len(broken) - len(late), len(broken), 'paths that break')} the validation finds the student broken "
        "before half of the loss has happened, and "
        f"{count(len(false), len(honest), 'paths that end better and never break')} raise a false alarm. A yes takes "
        "all of the former, and none of the latter.",
    )
    also = text(
        f"Of {len(better)} trainings with opdkit's defaults that ended better, {len(alarms)} raised an alarm on the "
        f"way, {len(own)} of these without a rate given. With a rate that is too high it may have been right: what the "
        "model was worth then is not measured." if better else "",
    )  # fmt: skip
    lines = []
    for objective in OBJECTIVES:
        mine = [row for row in rows if row.objective == objective]
        bad, good = [row for row in mine if row.breaks], [row for row in mine if row.is_honest]
        lost = [row.lost_before_alarm for row in bad if row.lost_before_alarm is not None]
        numbers = (len(mine), len(bad), sum(row.in_time for row in bad), sum(row.alarm is None for row in bad))
        if mine:
            lines.append([objective, *map(str, numbers), number(max(lost)) if lost else "-", str(len(good)),
                          str(sum(row.alarm is not None for row in good))])  # fmt: skip
    heads = ["objective", "paths", "break", "alarm in time", "no alarm", "most lost before it", "end better",
             "false alarms"]  # fmt: skip
    named = [[title(row.world), row.objective, given(row.rate), "false" if row in false else
              "none" if row.alarm is None else f"after {number(row.lost_before_alarm)} of the loss",
              pair(row.truth[0]), pair(row.truth[-1])] for row in late + false]  # fmt: skip
    named += [[title(row.world), row.objective, given(row.rate), f"false, seed {row.seed}", *map(pair, row.change)]
              for row in own]  # fmt: skip
    note = text(
        "A *path* is a training without trust region, anchor, raised epsilon and validation that interferes, up to its "
        f"end, at the rates {', '.join(map(given, PATH_RATES))}. It *breaks* where either share falls by more "
        f"than {findings.BROKEN} below those before training.",
    )
    return section(
        heading, results, cells, answer, note, table(heads, lines), also,
        "Late and false alarms:\n\n" + table(["world", "objective", "rate", "alarm", "before", "end"], named)
        if named else "",
        "![share of the loss before the alarm, each broken path a dot](worlds-alarm.svg)" if broken else "",
    )  # fmt: skip


def _score(results: Results) -> str:
    rows, cells = findings.checkpoints(results), path_cells(WORLDS)
    heading = "Does the score follow the truth?"
    overall = findings.spearman(rows) if rows else None
    if overall is None:
        return section(heading, results, cells, NOTHING)
    of_worlds = {world: [row for row in rows if row.world == world] for world in results.worlds}
    each = {world: findings.spearman(some) for world, some in of_worlds.items() if some}
    within = {world: found for world, found in each.items() if found is not None}
    answer = text(
        judgement(overall >= SPEARMAN, "Not as closely as it should"),
        f"Over {len(rows):,} checkpoints, the rank correlation (Spearman) of the validation's score and the held-out "
        f"error is {number(overall)}"
        + (f"; within a world it is {number(median(within.values()))} in the median." if within else "."),
        f"A yes takes {SPEARMAN}.",
    )
    note = text(
        f"The checkpoints are the marks of the paths above from {MOVED:.0%} of their steps on, and the model before "
        "training once per world. The *error* is 1 - the mean of both shares. With the earlier marks, where the "
        f"student has hardly moved, the correlation is {number(findings.spearman(findings.checkpoints(results, 0)))}."
    )
    lines = [[title(world), str(len(of_worlds[world])), number(found)] for world, found in within.items()]
    return section(heading, results, cells, answer, note, table(["world", "checkpoints", "Spearman"], lines),
                   "![held-out error against score, each checkpoint a dot](worlds-score.svg)")  # fmt: skip


def _noise(results: Results) -> str:
    rows = findings.noises(results)
    cells = [cell for world in ALL_NOISY for cell in (*findings.own_cells(world), *(
        way_cell(world, REACTION, rate, SEARCH) for rate in WAYS[REACTION]))]  # fmt: skip
    heading = "What do irrelevant reactions do?"
    noisy = [row for row in rows if row.share]
    if not noisy:
        return section(heading, results, cells, NOTHING)
    some = [row for row in noisy if row.share == AT_SHARE]
    judged, raw = ([loss for row in some if (loss := getattr(row, name)) is not None]
                   for name in ("judged_loss", "raw_loss"))  # fmt: skip
    answer = text(
        f"Where {AT_SHARE:.0%} of the reactions are irrelevant," if judged or raw else "",
        f"the default on judged hints loses at most {number(max(judged))} of either share" if judged else "",
        "and" if judged and raw else "",
        f"raw reactions as hints lose at least {number(min(raw))}" if raw else "",
        f"(expected: at most {JUDGED_LOSS} and at least {RAW_LOSS})" if judged and raw else "",
    )
    verdict = judgement(max(judged) <= JUDGED_LOSS and min(raw) >= RAW_LOSS,
                        "Not what was expected") if judged and raw else ""  # fmt: skip
    verdict = verdict.replace("Yes", "They harm the raw way, not the judged one")
    lines = [[title(row.world), f"{row.share:.0%}", pair(row.judged) if row.judged else "-", number(row.judged_loss),
              pair(row.raw) if row.raw else "-", number(row.raw_loss)] for row in rows]  # fmt: skip
    heads = ["world", "irrelevant", "judged hints", "loss", "raw reactions", "loss"]
    note = text(
        f"Judged hints: the default without a rate. Raw reactions: `judge --judge {REACTION}` at its "
        "best rate. The loss is the larger one of both shares, against the log without irrelevant reactions."
    )
    return section(heading, results, cells, text(verdict, f"{answer}.") if answer else "", note, table(heads, lines),
                   "![corrected share against the share of irrelevant reactions](worlds-noise.svg)")  # fmt: skip


def _hints(results: Results) -> str:
    rows = findings.hint_checks(results)
    cells = [hint_cell(errors, seed) for errors in HINT_ERRORS for seed in SEEDS[:2]]
    heading = "Are bad hints found?"
    if not rows:
        return section(heading, results, cells, NOTHING)
    recall, precision = (min(rows, key=lambda row, name=name: getattr(row, name)) for name in ("recall", "precision"))
    answer = text(
        judgement(min(recall.recall, precision.precision) >= FOUND, "Not enough of them"),
        f"`opdkit teacher --check-hints` drops at least {number(recall.recall)} of the planted bad hints (a judge "
        f"that errs in {recall.errors:.0%} of its answers), and at least {number(precision.precision)} of what it "
        f"drops is bad ({precision.errors:.0%}). A yes takes {FOUND} of both.",
    )
    lines = [[f"{row.errors:.0%}", str(row.hints), str(row.planted), str(row.dropped), number(row.recall),
              number(row.precision)] for row in rows]  # fmt: skip
    heads = ["the judge errs in", "hints", "planted bad ones", "dropped", "recall", "precision"]
    return section(heading, results, cells, answer, table(heads, lines))


def _forecast(results: Results) -> str:
    rows, cells = findings.forecasts(results), findings.forecast_cells(WORLDS)
    heading = "Does the forecast hold?"
    if not rows:
        return section(heading, results, cells, NOTHING)
    sign, r, covered = _forecast_numbers(rows)
    short = sum(row.interval is None for row in rows)
    answer = text(
        judgement(None if r is None else sign >= SIGN and r >= FORECAST_R and COVERAGE[0] <= covered <= COVERAGE[1],
                  "Only in part"),
        f"Of {len(rows)} forecasts, {sign:.0%} have the right sign, {covered:.0%} of the 90% intervals hold the "
        f"measured gain, and forecast and gain correlate with r = {number(r)}. A yes takes {SIGN:.0%}, between "
        f"{COVERAGE[0]:.0%} and {COVERAGE[1]:.0%}, and {FORECAST_R}."
        + (f" {short} have no interval, and say no-go: their hints are from too few sessions." if short else ""),
    )  # fmt: skip
    lines = []
    for sessions, taught in [*((n, False) for n in SESSIONS), *((n, True) for n in TAUGHT_SESSIONS)]:
        some = [row for row in rows if (row.sessions, row.taught) == (sessions, taught)]
        if some:
            sign, r, covered = _forecast_numbers(some)
            error = mean(abs(row.gain - row.measured) for row in some)
            counts = (sum(row.go for row in some), sum(row.go and row.measured <= 0 for row in some))
            lines.append([str(sessions), findings.STUDENTS[taught], str(len(some)), f"{sign:.0%}", number(r),
                          f"{covered:.0%}", number(error), *map(str, counts)])  # fmt: skip
    heads = ["sessions", "model", "forecasts", "right sign", "r", "intervals that hold", "mean error", "go",
             "go without a gain"]  # fmt: skip
    builds = {numbers.get("build", BUILD) for cell in cells if (numbers := results.numbers(cell))}
    other = "" if builds == {BUILD} else (f" The worlds of this section are built with seed {max(builds)}, at which "
                                          "nobody looked before.")  # fmt: skip
    note = text(f"The judge of fresh replies errs in {ERRORS:.0%} of its answers. A training that writes no model "
                "has a gain of 0. A *taught* model was trained on the log before, at the rate "
                f"{TAUGHT:g}: less is to be expected from it.{other} All forecasts are in the appendix.")  # fmt: skip
    return section(heading, results, cells, answer, table(heads, lines), note,
                   "![measured gain against forecast gain](worlds-forecast.svg)")  # fmt: skip


def _forecast_numbers(rows: Sequence[findings.Forecast]) -> tuple[float, float | None, float]:
    """Return the share of right signs, r, and the share of intervals that hold the measured gain."""
    columns = [row.gain for row in rows], [row.measured for row in rows]
    return (mean(row.is_sign_right for row in rows), findings.correlation_of(columns),
            mean(row.is_covered for row in rows if row.is_covered is not None))  # fmt: skip


def _ways(results: Results) -> str:
    rows = {world: some for world, some in findings.ways(results).items() if OURS in some}
    cells = [way_cell(w, way, value, SEARCH) for w in WORLDS for way, values in WAYS.items() for value in values]
    heading = "What would a user do instead?"
    if not any(len(some) > 1 for some in rows.values()):
        return section(heading, results, cells, NOTHING)
    compared = {world: some for world, some in rows.items() if len(some) > 1}
    behind = {world: findings.ahead(some) for world, some in compared.items()}
    first = sum(not others for others in behind.values())
    less = {world: findings.forgets_less(some, RIVALS) for world, some in compared.items()}
    names = [OURS, *(name for name in WAYS if any(name in some for some in rows.values()))]
    complete = [some for some in rows.values() if all(name in some for name in names)] or rows.values()
    means = {name: [some[name] for some in complete if name in some] for name in names}
    rivals = [name for name in names if name != OURS]
    second = max(rivals, key=lambda name: mean(w.gain for w in means[name]))
    answer = text(
        judgement(first == len(compared), "The default is not first everywhere")
        .replace("Yes", "Nothing that gains more"),
        f"opdkit's default gains {number(mean(w.gain for w in means[OURS]))} in the mean and is first in "
        f"{count(first, len(compared), 'worlds')}; the next, {TITLES[second]}, gains "
        f"{number(mean(w.gain for w in means[second]))}.",
    )  # fmt: skip
    lines = [[title(world), *(f"{number(some[n].gain)} / {number(some[n].forgotten)}" if n in some else "-"
                              for n in names)] for world, some in rows.items()]  # fmt: skip
    lines += [
        ["**mean**", *(f"{number(mean(w.gain for w in means[n]))} / {number(mean(w.forgotten for w in means[n]))}"
                       for n in names)],
        ["tokens", *(thousands(mean(w.tokens for w in means[n])) for n in names)],
        ["tokens per request", *(whole(mean(w.request for w in means[n])) for n in names)],
    ]  # fmt: skip
    note = text(
        "Each cell has two numbers: the gain of the corrected share, and the loss of the uncorrected share. Those of "
        "the default are means over its seeds. All start from one model: its shares before are the mean over all "
        f"seeds. Each other way has its own best value of {len(WAYS[REACTION])}, as it was when it was chosen. "
        "*Tokens* are what models read and wrote for it, without judging; *tokens per request* are those of the prompt "
        "of a held-out request afterwards.",
    )
    return section(
        heading, results, cells, answer, table(["world", *(TITLES[n] for n in names)], lines), note,
        bullets(_why(world, rows[world][OURS], others) for world, others in behind.items() if others),
        bullets(f"In {title(world)} the default forgets {number(rows[world][OURS].forgotten)}, no less than "
                + ", ".join(f"{TITLES[w.name]} ({number(w.forgotten)})" for w in others) + "."
                for world, others in less.items() if others),
        "![forgotten against gain, each way in a world a dot](worlds-ways.svg)",
    )  # fmt: skip


def _why(world: str, ours: findings.Way, others: Sequence[findings.Way]) -> str:
    """Return a sentence on a world in which other ways gain more than the default."""
    said = []
    for way in others:
        facts = [number(way.gain)]
        if way.gain <= max(c.gain for c in ours.changes):
            facts.append("within the default's seeds")
        if way.forgotten > ours.forgotten + findings.WORSE:
            facts.append(f"it forgets {number(way.forgotten)}")
        if way.request > 1.05 * ours.request:
            facts.append(f"{way.request / ours.request:.1f} times the tokens per request")
        said.append(f"{TITLES[way.name]} ({', '.join(facts)})")
    return f"In {title(world)} the default gains {number(ours.gain)}; more: {'; '.join(said)}."


def _cost(results: Results) -> str:
    rows = findings.costs(results)
    cells = [c for w in WORLDS for c in (*findings.own_cells(w), *(path_cell(w, SEARCH, DEFAULT, rate)
                                                                  for rate in PATH_RATES))]  # fmt: skip
    heading = "What do validation and trust region cost?"
    if not rows:
        return section(heading, results, cells, NOTHING)
    whole = {row.world: row.together for row in rows if row.together is not None}
    highest = max(whole, key=whole.__getitem__, default="")
    trust = [row.trust_region for row in rows if row.trust_region is not None]
    answer = text(
        judgement(max(whole.values()) <= COST, "More than planned").replace(
            "Yes", "Little") if whole else "",
        f"Validation reads {mean(row.validation for row in rows):.0%} of the tokens that training steps read (mean of "
        f"{len(rows)} worlds)"
        + (f"; the trust region adds {mean(trust):.0%} to a step; together they add "
           f"{mean(whole.values()):.0%}, at most {whole[highest]:.1%} ({title(highest)}). *Little* is at most "
           f"{COST:.0%} in each world." if whole else "."),
    )  # fmt: skip
    lines = [[title(row.world), thousands(row.trained), thousands(row.validated), f"{row.validation:.0%}",
              f"{row.trained / row.steps:,.0f}", "-" if row.plain is None else f"{row.plain:,.0f}",
              *("-" if share is None else f"{share:+.0%}" for share in (row.trust_region, row.together))]
             for row in rows]  # fmt: skip
    heads = ["world", "tokens of steps", "of validation", "share", "per step", "per step, without trust region",
             "trust region", "together"]  # fmt: skip
    note = text("Trainings of the default without a rate, all seeds together; without trust region: its paths above. "
                "*Together* compares all tokens with those of as many steps without either.")  # fmt: skip
    return section(heading, results, cells, answer, table(heads, lines), note)
