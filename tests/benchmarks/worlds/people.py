"""Sections of docs/learning.md on people's decisions (edits, thumbs) and on prompts from the log."""

from statistics import median

from opdkit.config.fields import JSON
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED

from ..learning.lookup import table
from .benchmark import SEEDS
from .decisions import DECIDED, EDITS, LOGS, TIMES, decided_cell
from .findings import Results, mean, mean_shares, rank_correlation
from .mined import HOLDOUT, RATES, mined_cell
from .trainings import before_cell
from .words import NOTHING, count, judgement, number, pair, section, text, title

BLAMED, THUMBS = 0.95, 0.9  # limits at which a section's answer is yes
MINED_SPEARMAN, FAILED = 0.95, 0.05


def decisions(results: Results) -> str:
    """Return the section on edits and thumbs."""
    heading = "What are edits and thumbs worth?"
    cells = {log: {world: [decided_cell(world, log, seed) for seed in SEEDS] for world in DECIDED} for log in LOGS}
    every = [cell for of_world in cells.values() for several in of_world.values() for cell in several]
    worlds = [world for world in DECIDED
              if all(results.shares(cell) for log in LOGS for cell in cells[log][world])]  # fmt: skip
    if not worlds:
        return section(heading, results, every, NOTHING)
    shares = {log: {world: mean_shares(filter(None, map(results.shares, cells[log][world]))) for world in worlds}
              for log in LOGS}  # fmt: skip
    before = {world: mean_shares(filter(None, (results.before(before_cell(world, seed)) for seed in SEEDS)))
              for world in worlds}  # fmt: skip
    edits, corrections, thumbs, judged = (mean(s.corrected for s in shares[log].values()) for log in LOGS)
    numbers = [found for cell in every if (found := results.numbers(cell)) and "edited" in found]
    edited, marked = (sum(found[name] for found in numbers) for name in ("edited", "blamed"))
    at_least = sum(shares["edits"][w].corrected >= shares["corrections"][w].corrected for w in worlds)
    answer = text(
        judgement(edits >= corrections and thumbs >= THUMBS * judged and marked >= BLAMED * edited, "Not all of it"),
        f"{EDITS} edited replies teach {number(edits)} of what users want, {TIMES * EDITS} corrected ones "
        f"{number(corrections)}; the edits teach at least as much in {count(at_least, len(worlds), 'worlds')}. In "
        f"{marked / edited:.0%} of {edited:,} edited replies the first wrong token is marked as less likely. Thumbs "
        f"alone reach {number(thumbs)}, {thumbs / judged:.2f} times what judged rewards of the same replies reach "
        f"({number(judged)}). A yes takes edits that teach no less than corrections, {BLAMED:.0%} marked, and {THUMBS} "
        "of judged rewards.",
    )
    note = text(
        "*Edits*: first replies of sessions as their users edited them, without a word; *corrections*: with what the "
        "users said; both with all first replies that nobody corrected, trained with the default. *Thumbs*: the whole "
        "log, a thumb at each reply that was praised or complained of, and no judge; *judged rewards*: those of the "
        "rules, without their hints; both trained with `--objective binary`. The models learned to follow edits "
        "before, as they learned to follow hints. When this was measured, a training on fewer than 30 hints, such "
        "as one on 20 edits, had no validation, and so a single cycle of the schedule."
    )
    lines = [[title(world), pair(before[world]), *(pair(shares[log][world]) for log in LOGS)] for world in worlds]
    heads = ["world", "before", f"{EDITS} edits", f"{TIMES * EDITS} corrections", "thumbs", "judged rewards"]
    return section(heading, results, every, answer, note, table(heads, lines))


def mined_prompts(results: Results) -> str:
    """Return the section on prompts from the log."""
    heading = "Do prompts from the log tell the truth?"
    cells = [mined_cell(world, SEEDS[0]) for world in DECIDED]
    found: dict[str, JSON] = {cell.settings["world"]: numbers for cell in cells
                              if (numbers := results.numbers(cell))}  # fmt: skip
    if not found:
        return section(heading, results, cells, NOTHING)
    points = {world: [(_both(mark["mined"]), _both(mark)) for mark in numbers["marks"]]
              for world, numbers in found.items()}  # fmt: skip
    overall = rank_correlation(*zip(*(point for several in points.values() for point in several), strict=True))
    within = {world: rank_correlation(*zip(*several, strict=True)) for world, several in points.items()}
    prompts, failed, asked = (sum(numbers[name] for numbers in found.values())
                              for name in ("prompts", "failed", "by_judge"))  # fmt: skip
    answer = text(
        judgement((overall or 0) >= MINED_SPEARMAN and failed <= FAILED * prompts, "Not closely enough"),
        f"Over {sum(map(len, points.values()))} checkpoints of {len(points)} worlds, the rank correlation (Spearman) "
        f"of the shares that pass `opdkit eval --from-log` and the true held-out shares is {number(overall)}; within "
        f"a world it is {number(median(r for r in within.values() if r is not None))} in the median. Of "
        f"{prompts:,} prompts, a right reply fails {failed} ({failed / prompts:.1%}). A yes takes {MINED_SPEARMAN} "
        f"over all, and at most {FAILED:.0%}.",
    )
    note = text(
        "A checkpoint is the model before training, the one that the default writes, or the end of a training "
        f"without trust region at one of {len(RATES)} rates ({RATES[0]:g} to {RATES[-1]:g}). {HOLDOUT:.0%} of the "
        "sessions are kept out of training, and the prompts come from their complaints, their praise, and replies with "
        "neither. Each share is the mean of those corrected and uncorrected. A judge that knows the world answers the "
        f"{asked:,} questions."
    )
    lines = [[title(world), str(numbers["prompts"]), str(numbers["by_judge"]), str(numbers["failed"]),
              number(within[world])] for world, numbers in found.items()]  # fmt: skip
    heads = ["world", "prompts", "by the judge", "failed by a right reply", "Spearman"]
    return section(heading, results, cells, answer, note, table(heads, lines))


def _both(shares: JSON) -> float:
    return mean(shares[name] for name in (CORRECTED, UNCORRECTED) if name in shares)


SECTIONS = (decisions, mined_prompts)
