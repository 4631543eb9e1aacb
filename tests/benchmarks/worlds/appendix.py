"""Appendix of docs/learning.md: the worlds, all trainings, all ways, all forecasts, the machine."""

from collections.abc import Callable, Sequence

from opdkit.config.fields import JSON

from ..learning.lookup import table
from . import WORLDS, findings
from .benchmark import OBJECTIVES, PATH_RATES, RATES, SEARCH, SEEDS, path_cells, world_cell
from .findings import ALL_NOISY, STUDENTS, Results, mean_shares
from .trainings import before_cell
from .ways import WAYS, way_cell
from .words import NOTHING, TITLES, given, number, outcome, pair, section, spread, text, thousands, title, whole


def _worlds(results: Results) -> str:
    built = findings.built_worlds(results)
    lines = []
    for name in {**dict.fromkeys(results.worlds), **built}:
        world, numbers = WORLDS[name.partition("-")[0]], built.get(name, {})
        about = "the same" if "-" in name else world.about
        cells = [before_cell(world.name, seed) for seed in SEEDS]
        before = [shares for cell in cells if (shares := results.shares(cell))]
        lines.append([
            title(name), about, world.size, pair(mean_shares(before)) if before else "-",
            number(numbers.get("with_hint")), str(numbers.get("turns", "-")), str(numbers.get("hints", "-")),
            number(numbers.get("rewards_right")), number(numbers.get("hints_right")),
        ])  # fmt: skip
    heads = ["world", "what is wanted", "model", "before", "corrected, with a hint", "judged turns", "hints",
             "rewards right", "hint or none, as due"]  # fmt: skip
    cells = [world_cell(world) for world in (*WORLDS, *ALL_NOISY)]
    return section("Appendix: the worlds", results, cells, table(heads, lines) if lines else NOTHING)


def _matrices(results: Results) -> str:
    parts = []
    rows, free = findings.trainings(results), findings.paths(results)
    for world in results.worlds:
        mine, ends = [row for row in rows if row.world == world], [path for path in free if path.world == world]
        if mine or ends:
            lines = [[o, *(outcome(mine, o, rate) for rate in (None, *RATES)), *(_end(ends, o, r) for r in PATH_RATES)]
                     for o in OBJECTIVES]  # fmt: skip
            heads = ["objective", *map(given, (None, *RATES)), *(f"{rate:g}, free" for rate in PATH_RATES)]
            parts.append(f"### {title(world)}\n\n" + table(heads, lines))
    note = text("Corrected / uncorrected after each training; (1): no model was written, and the numbers are those "
                "before. *Free*: the end of the path, with nothing that holds it back.")  # fmt: skip
    cells = findings.search_cells(WORLDS) + path_cells(WORLDS)
    return section("Appendix: all objectives at all rates", results, cells, *([note, *parts] if parts else [NOTHING]))


def _end(paths: Sequence[findings.TrainingPath], objective: str, rate: float) -> str:
    ends = [path for path in paths if (path.objective, path.rate) == (objective, rate)]
    return "-" if not ends else "error" if ends[0].error else pair(ends[0].truth[-1])


def tuned_ways(results: Results) -> str:
    rows = [way for some in findings.ways(results).values() for way in some.values()]
    cells = [way_cell(w, way, value, SEARCH) for w in WORLDS for way, values in WAYS.items() for value in values]
    lines = [[title(way.world), TITLES[way.name], "-" if way.value is None else given(way.value),
              spread([c.after.corrected for c in way.changes]), spread([c.after.uncorrected for c in way.changes]),
              thousands(way.tokens), whole(way.request)] for way in rows]  # fmt: skip
    heads = ["world", "way", "best value", "corrected", "uncorrected", "tokens", "tokens per request"]
    return section("Appendix: all ways", results, cells, table(heads, lines) if lines else NOTHING)


def all_forecasts(results: Results) -> str:
    lines = [[title(row.world), str(row.sessions), STUDENTS[row.taught], "go" if row.go else "no-go", number(row.gain),
              " to ".join(map(number, row.interval or (None,))),
              number(row.measured) + (" (no model)" if row.refused else "")]
             for row in findings.forecasts(results)]  # fmt: skip
    heads = ["world", "sessions", "model", "decision", "forecast", "90% interval", "measured"]
    return section("Appendix: all forecasts", results, findings.forecast_cells(WORLDS),
                   table(heads, lines) if lines else NOTHING)  # fmt: skip


def machine(facts: JSON) -> str:
    return "\n\n".join([
        "## Appendix: how to run it",
        "```text\n"
        "python -m tests.benchmarks.worlds                # what is missing, then results, page and pictures\n"
        "python -m tests.benchmarks.worlds --people       # also edits, thumbs, and prompts from the log\n"
        "python -m tests.benchmarks.worlds habit tools    # two worlds\n"
        "python -m tests.benchmarks.worlds --finished     # results, page and pictures of the finished cells\n"
        "python -m tests.benchmarks.worlds --draw         # page and pictures from the results there are\n"
        "```",
        text("Finished cells stay in `--work`: an interrupted run resumes.", "Machine: "
             + ", ".join(f"{name} {value}" for name, value in facts.items()) + "." if facts else ""),
    ])  # fmt: skip


SECTIONS: Sequence[Callable[[Results], str]] = (_worlds, _matrices, tuned_ways, all_forecasts)
