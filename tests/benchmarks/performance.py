"""Write docs/performance.md and its plot from the benchmarks' results in tests/benchmarks/results.

python -m tests.benchmarks.performance
"""

import argparse
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from .families import IN_FLOAT64, ROUNDED
from .pairs import RESULTS, Comparison, load

DOCS = Path(__file__).parents[2] / "docs"
JSON = dict[str, Any]

# Benchmark -> heading, and what the page says about it.
TIMED = {
    "scoring": ("Scoring", "`opdkit teacher` without preparing the prompts, which both ways need: the log-probs of "
                "every reply under the student and, where there is a hint, under the teacher."),
    "training": ("Training", "`opdkit train`, an optimizer step."),
    "families": ("Models of other families", "Small models with random weights, built from the configurations in "
                 "transformers, score one session of tau-bench, that of median length, and take a training step on it. "
                 "Where layers see a window, it is of 256 tokens. Where the tokens read are those of the usual way, "
                 "the family is read turn by turn."),
    "judge": ("Judging", "`opdkit judge`."),
    "extract": ("Reading logs", "`opdkit extract`."),
}  # fmt: skip


_SCORING, _STEP = "scoring", "a training step"  # the two measurements of a family


def page(results: Path = RESULTS) -> str:
    """Return docs/performance.md, which also says what has not been measured."""
    sections = [_HEAD, _machines(results)]
    for name, (heading, words) in TIMED.items():
        write = _families if name == "families" else _timed
        sections.append(_section(results, name, f"## {heading}\n\n{words}", write))
        if name == "scoring":
            sections += [
                _COST,
                _section(results, "turns", "### Cost against the number of turns", _turns),
                _section(results, "memory", "### Memory beside the weights", _memory),
                _section(results, "exact", "### The same numbers", _exact, "scoring --exact"),
            ]
        if name == "judge":
            sections.append(_section(results, "chaos", "### A server that fails", _chaos))
    sections += [
        _section(results, "ceiling", "## Against the ceiling", _ceiling),
        _section(results, "gpu", "## On a GPU", gpu_section),
        _section(results, "busy", "## Beside another process", _busy),
        _section(results, "report", _REPORT, _report),
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


_HEAD = """
# What opdkit costs

Written by `python -m tests.benchmarks.performance` from `tests/benchmarks/results`; do not edit.

Every figure compares two ways to the same result, which run in alternation in one process, at least three times each.
The usual way is what one would write with the existing libraries; the other is opdkit's. *Times as fast* is the median
of the ratios of neighbouring runs, with the lowest and the highest ratio. Times are CPU seconds of the process where it
does all the work itself, else wall-clock seconds.
"""

_REPORT = """## The report

`opdkit report`, and its page in headless Chromium: the time from an input to the new list on the screen, for the \
slowest input of each kind (median). The texts are random words."""

_COST = """
### Why: tokens read

A session has a first prompt of *s* tokens and *n* turns that add *t* tokens each (the message to the assistant and its
reply). A share *h* of the turns has a hint; from the hint to the end of the reply there are *b* tokens.

| | tokens through the layers | logits at once |
|---|---|---|
| the usual way | (1 + *h*) (*n s* + *t n* (*n* + 1) / 2), and the padding | tokens of a batch times vocabulary |
| opdkit | *s* + *n t* + *h n b* | 33.5 million (0.13 GB), whatever the length; on a GPU 1/64 of its memory |

The usual way reads the conversation again at each turn, so its cost grows with the square of *n*; here each token of
the conversation (the trunk) is read once, and each hinted turn adds its branch. In a long session the ratio approaches
(1 + *h*) / 2 × *n* *t* / (*t* + *h b*). Attention adds to both a cost that grows faster, since each token attends to
all tokens before it. Where a template rewrites earlier messages (removes the thinking of earlier turns), the branch
begins there; the place is found by comparing token ids. What fits into `--batch-tokens`, one session or several short
ones, goes through the layers as one row. The trunk attends to itself causally. Branches follow it, 512 tokens at a
time, and attend to the part of the trunk before them and to themselves, under a mask. Layers that see a window of the
last tokens alone (Gemma, GPT-OSS, Mistral) leave out the keys before it. A longer session is read in passes. Then the
keys and values of the trunk are kept: 2 × layers × key heads × head size × bytes per number × tokens of the longest
turn (147 kB per token for a model like Qwen3-4B in bfloat16).

A layer that keeps a state in place of keys (Mamba, LFM2, Qwen3-Next) takes no
mask, and neither does one that sees chunks (Llama 4): the trunk is cut at its forks, and branches go on from copies of
the state there, several side by side. Besides the keys, one state per waiting branch is kept. At most 5% of the tokens
are read twice where that saves passes. In training, such a model reads turns that continue each other as one sequence,
and other turns one by one. An attention with soft caps or sinks (Gemma 2, GPT-OSS) writes its scores into memory. In
training, these are held for 1,024 tokens at a time, and computed again in the backward pass. Models that cannot go on
from a cache (RecurrentGemma, RWKV) are read turn by turn; `opdkit teacher` reports this. It also reads part of the
first session both ways, and stops if they differ.
"""


def _section(results: Path, name: str, head: str, write: Callable[[JSON], str], command: str = "") -> str:
    """Return a section: the results of a benchmark as `write` formats them, or the command that measures them."""
    path = results / f"{name}.json"
    if not path.exists():
        return f"{head}\n\nNot measured yet: `python -m tests.benchmarks.{command or name}`."
    return f"{head}\n\n{write(json.loads(path.read_text(encoding='utf-8')))}"


def _machines(results: Path) -> str:
    found: dict[str, list[str]] = {}
    for path in sorted(results.glob("*.json")):
        machine = json.loads(path.read_text(encoding="utf-8"))["machine"]
        words = f"{machine['cpu']}, {machine['cores']} cores, GPU: {machine['gpu']}, torch {machine['torch']}"
        found.setdefault(words, []).append(path.stem)
    lines = "\n".join(f"- {words}: {', '.join(names)}" for words, names in found.items())
    return f"Measured on:\n\n{lines}" if found else ""


def _timed(found: JSON) -> str:
    comparisons = [Comparison(**row) for row in found["comparisons"]]
    return f"{table(comparisons)}\n\n{_facts(comparisons)}"


def _families(found: JSON) -> str:
    """Return a row per family, with both kinds of work."""
    comparisons = [Comparison(**row) for row in found["comparisons"]]
    works: dict[str, dict[str, Comparison]] = {}
    for c in comparisons:
        family, _, work = c.name.rpartition(", ")
        works.setdefault(family, {})[work] = c
    here = f"{found['machine']['cpu']}, torch {found['machine']['torch']}"
    machines = list(dict.fromkeys(str(c.facts.get("measured on", here)) for c in comparisons))
    rows = ["| family | scoring, times as fast | a training step | tokens read for scoring | for training "
            "| log-probs differ, nats | gradients, relative | machine |", "|---" * 8 + "|"]  # fmt: skip
    for family, both in works.items():
        cells = [family, *(f"{median(both[w].ratios):.1f} ({both[w].ratios[0]:.1f} to {both[w].ratios[-1]:.1f})"
                           if w in both else "-" for w in (_SCORING, _STEP))]  # fmt: skip
        cells += [f"{both[w].facts['tokens read, ours']:,} of {both[w].facts['tokens read, usual']:,}"
                  if w in both else "-" for w in (_SCORING, _STEP)]  # fmt: skip
        cells += [str(both[w].facts[name]) if w in both else "-"
                  for w, name in ((_SCORING, "largest difference in nats"),
                                  (_STEP, "difference of the gradients, relative"))]  # fmt: skip
        some = next(iter(both.values()))
        cells.append(str(1 + machines.index(str(some.facts.get("measured on", here)))))
        rows.append(f"| {' | '.join(cells)} |")
    facts, pairs = comparisons[0].facts, {len(c.ratios) for c in comparisons}
    exact = [f"{c.facts[IN_FLOAT64]} for {c.name.rpartition(', ')[0]}" for c in comparisons if IN_FLOAT64 in c.facts]
    rounded = (
        f" Differences of gradients above {ROUNDED:g} are rounding: in float64, {', '.join(exact)}." if exact else ""
    )
    note = (
        f"In brackets the lowest and the highest of {min(pairs)} pairs. The session has {facts['turns']} turns, "
        f"{facts['turns with a hint']} of them with a hint. Tokens: those that opdkit reads, of those of the usual way "
        f"({comparisons[0].usual}). The differences are those of float32 between both ways.{rounded} For the "
        "head sizes of DeepSeek-V3, torch has no fast attention on a CPU: opdkit pads its values, the usual way does "
        "not. Machines, "
        f"with {facts['threads']} thread: "
        + "; ".join(f"{n}: {machine}" for n, machine in enumerate(machines, start=1))
        + "."
    )
    return "\n".join(rows) + f"\n\n{note}"


def table(comparisons: list[Comparison]) -> str:
    """Return a table with one row per comparison."""
    rows = ["| what | usual, s | opdkit, s | times as fast | from | to | pairs |", "|---|---|---|---|---|---|---|"]
    for c in comparisons:
        usual, ours = median(c.seconds_usual), median(c.seconds_ours)
        ratios = c.ratios
        rows.append(f"| {c.name} | {usual:.3g} | {ours:.3g} | {median(ratios):.2f} | {ratios[0]:.2f} | "
                    f"{ratios[-1]:.2f} | {len(ratios)} |")  # fmt: skip
    return "\n".join(rows)


def _facts(comparisons: list[Comparison]) -> str:
    ways = dict.fromkeys(c.usual for c in comparisons)
    lines = [f"The usual way: {way}." for way in ways]
    for c in comparisons:
        told = "; ".join(f"{name}: {_number(value)}" for name, value in c.facts.items())
        lines.append(f"- **{c.name}**: {told}" if told else f"- **{c.name}**")
    return "\n".join([*lines[: len(ways)], "", *lines[len(ways) :]])


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _report(found: JSON) -> str:
    rows = ["| turns | file, MB | write, s | open, ms | search, ms | filter, ms | sort, ms |", "|" + "---|" * 7]
    for r in found["rows"]:
        times = " | ".join(f"{r[name]:.0f}" for name in ("open_ms", "search_ms", "filter_ms", "sort_ms"))
        rows.append(f"| {r['turns']:,} | {r['mb']:.2f} | {r['write_seconds']:.1f} | {times} |")
    return "\n".join(rows)


def _ceiling(found: JSON) -> str:
    first, sizes = found["rows"][0], " or ".join(dict.fromkeys(row["weights"] for row in found["rows"]))
    lines = ["| work | needed, billion | ceiling, billion per second | reached | share | from | to |", "|---" * 7 + "|"]
    for row in found["rows"]:
        shares = row["shares"]
        lines.append(f"| {row['work']} | {row['needed'] / 1e9:,.0f} | {row['ceiling'] / 1e9:,.0f} | "
                     f"{row['reached'] / 1e9:,.0f} | {median(shares):.2f} | {shares[0]:.2f} | "
                     f"{shares[-1]:.2f} |")  # fmt: skip
    return (
        f"Multiplications and additions that a session of tau-bench needs ({first['turns']} turns, "
        f"{first['tokens']:,} tokens; {sizes} weights, {first['dtype']}), per second, against products of "
        "matrices of the model's own sizes in the same process. Needed are the weights of the layers for each token "
        "that is read, attention to the tokens before it, and logits of replies; in training three times that.\n\n"
        + "\n".join(lines)
    )


def gpu_section(found: JSON) -> str:
    """Return the section on a GPU: the share of the ceiling, and both ways compared."""
    return (
        f"Qwen3 with random weights on an {found['machine']['gpu']}. Training has float32 weights under autocast, as "
        "`opdkit train` has them; its optimizer is SGD here. With `--compile`, small operations between the matrix "
        f"products are fused.\n\n{_ceiling(found)}\n\nAgainst the usual way, on two shorter sessions, where the usual "
        "way fits into memory, and without `--compile`. Both ways repeat the same shapes, so that no kernel is planned "
        f"anew:\n\n{_timed(found)}"
    )


def _busy(found: JSON) -> str:
    rows = found["rows"]
    ratios = sorted(row["beside"] / row["alone"] for row in rows)
    alone, beside = (median(row[name] for row in rows) for name in ("alone", "beside"))
    return (
        f"`opdkit demo` takes {alone:.0f} s alone, and {beside:.0f} s beside a process that keeps one of "
        f"{found['machine']['cores']} cores busy: {median(ratios):.2f} times as long ({ratios[0]:.2f} to "
        f"{ratios[-1]:.2f} in {len(ratios)} pairs). A thread that waits for another one sleeps soon "
        "(`GOMP_SPINCOUNT=3000`, which opdkit sets unless you set it or `OMP_WAIT_POLICY`). By default it spins."
    )


def _turns(found: JSON) -> str:
    comparisons = [Comparison(**row) for row in found["comparisons"]]
    grown = [doubled(comparisons, ours=ours) for ours in (True, False)]
    return (
        f"![seconds against turns](performance-turns.svg)\n\n{table(comparisons)}\n\n"
        f"Twice as many turns cost at most {max(grown[0]):.2f} times as much ({_list(grown[0])}); by the usual way "
        f"{_list(grown[1])}.\n\n{_facts(comparisons)}"
    )


def doubled(comparisons: list[Comparison], *, ours: bool) -> list[float]:
    """Return the factor by which the median time grows from each row to the next."""
    seconds = [median(c.seconds_ours if ours else c.seconds_usual) for c in comparisons]
    return [after / before for before, after in pairwise(seconds)]


def _list(numbers: list[float]) -> str:
    return ", ".join(f"{x:.2f}" for x in numbers)


def _memory(found: JSON) -> str:
    rows, lengths = found["rows"], sorted({r["tokens"] for r in found["rows"]})
    ways = list(dict.fromkeys(r["way"] for r in rows))
    peaks = {(r["way"], r["tokens"]): r["peak_bytes"] for r in rows}
    lines = ["| | " + " | ".join(f"{n:,} tokens" for n in lengths) + " |", "|---" * (1 + len(lengths)) + "|"]
    for way in ways:
        lines.append(f"| {way} | " + " | ".join(f"{peaks[way, n] / 1e9:.2f} GB" for n in lengths) + " |")
    usual, longest = ways[0], lengths[-1]
    shares = ", ".join(f"{way} {peaks[way, longest] / peaks[usual, longest]:.1%}" for way in ways[1:])
    return (
        f"The peak memory of a process while scoring, less what it held before, with a vocabulary of "
        f"{rows[0]['vocabulary']:,} and a model so small that the rest is negligible. Here the usual way reads one "
        "sequence at a time, not eight.\n\n"
        + "\n".join(lines)
        + f"\n\nAs a share of the usual way's peak at {longest:,} tokens: {shares}."
    )


def _exact(found: JSON) -> str:
    lines = ["| template | turns | readings | tokens | largest difference, nats | dropped |", "|---" * 6 + "|"]
    for row in found["rows"]:
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in row["dropped"].items())
        lines.append(f"| {row['template']} | {row['turns']:,} | {row['readings']:,} | {row['tokens']:,} | "
                     f"{row['largest']:.1e} | {dropped or 'none'} |")  # fmt: skip
    return (
        "Tau-bench, a hint at every turn that answers a user, in float32: the log-probs of whole sessions "
        "against those of every prompt alone. ChatML is our own; the others are templates of real models, from TRL."
        "\n\n" + "\n".join(lines)
    )


def _chaos(found: JSON) -> str:
    rows = found["rows"]
    ratios = sorted(row["ratio"] for row in rows)
    failed = [1 - row["sent"]["answer"] / sum(row["sent"].values()) for row in rows]
    lines = ["| calm, s | failing, s | of it asked to wait, s | (failing - asked) / calm | wrong or missing votes |",
             "|---" * 5 + "|"]  # fmt: skip
    lines += [f"| {row['calm_seconds']:.1f} | {row['chaos_seconds']:.1f} | {row['told_seconds']:.1f} | "
              f"{row['ratio']:.2f} | {row['wrong_or_missing_votes']} |" for row in rows]  # fmt: skip
    return (
        f"{rows[0]['requests']:,} votes from a server that fails at {min(failed):.0%} to {max(failed):.0%} "
        "of its answers (429 with and without a time to wait, 500, resets, hangs of a minute, HTML, half of an answer, "
        "no content, another model's answer), and from the same server without failures.\n\n"
        + "\n".join(lines)
        + f"\n\nWithout the waits that the server asked for: {median(ratios):.2f} times the calm time "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f})."
    )


def draw(results: Path, folder: Path) -> None:
    """Write performance-turns.svg; the same results and version of matplotlib give the same bytes."""
    import matplotlib as mpl
    from matplotlib import pyplot as plt

    comparisons = load("turns", results)
    mpl.rcParams.update({"svg.hashsalt": "opdkit", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False})  # fmt: skip
    figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    turns = [int(c.facts["turns"]) for c in comparisons]
    for label, colour, seconds in (
        ("the usual way", "tab:red", [c.seconds_usual for c in comparisons]),
        ("opdkit", "tab:blue", [c.seconds_ours for c in comparisons]),
    ):
        axes.plot(turns, list(map(median, seconds)), color=colour, marker="o", label=label)
        axes.fill_between(turns, list(map(min, seconds)), list(map(max, seconds)), color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="turns of a session, all with a hint", ylabel="seconds", xscale="log", yscale="log")
    axes.set_xticks(turns, labels=[str(n) for n in turns], minor=False)
    axes.minorticks_off()
    axes.legend(frameon=False)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "performance-turns.svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS, help="where performance.md and its plot go")
    options = parser.parse_args()
    options.docs.mkdir(parents=True, exist_ok=True)
    (options.docs / "performance.md").write_text(page(options.results), encoding="utf-8")
    if (options.results / "turns.json").exists():
        draw(options.results, options.docs)


if __name__ == "__main__":
    main()
