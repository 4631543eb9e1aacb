"""Overhead of a part and of a run, and its consequences for ten terabytes: docs/scale.md.

    python -m tests.benchmarks.scale [--parts 200] [--draw]

Every part holds one short session, and the judge is `rules`, so that almost only overhead is measured:

- parts per second of `opdkit extract` and `opdkit judge`, by one process and by two shards at once;
- seconds per part, per run, and per part that is already done, computed from runs of two sizes;
- file-system calls per part on paths inside the run, by strace if it is installed.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from .pairs import PAIRS, RESULTS, save_rows

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
JSON = dict[str, Any]
# System call -> what the file system's metadata server does for it. Reads and writes of open files are not metadata.
CALLS = {
    "openat": "open", "rename": "rename", "renameat2": "rename", "link": "link", "linkat": "link", "unlink": "remove",
    "unlinkat": "remove", "mkdir": "make folder", "newfstatat": "stat", "statx": "stat", "access": "stat",
    "utimensat": "touch", "fsync": "sync", "fdatasync": "sync", "getdents64": "list",
}  # fmt: skip
_CALL = re.compile(r"^(?:\[pid +\d+\] |\d+ +)?(\w+)\((.*)$")


# -- measured --------------------------------------------------------------------------------------------------------


def build(log: Path, sessions: int) -> Path:
    """Write a log of `sessions` short conversations, one per line."""
    with log.open("wb") as out:
        for number in range(sessions):
            said = ["What is it?", f"It is number {number}.", "Thanks!"]
            messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
            out.write(orjson.dumps({"id": f"s{number}", "messages": messages}, option=orjson.OPT_APPEND_NEWLINE))
    return log


def command(stage: str, run: Path, log: Path) -> list[str]:
    own = [str(log), "--part-mb", "0.000001"] if stage == "extract" else ["--judge", "rules"]
    return [sys.executable, "-m", "opdkit", stage, str(run), *own]


def seconds(*commands: Sequence[str]) -> float:
    """Start all commands at once; return the seconds until all have ended."""
    start = time.perf_counter()
    started = [subprocess.Popen(words, stderr=subprocess.DEVNULL, cwd=ROOT) for words in commands]
    ended = [process.wait() for process in started]
    assert not any(ended), ended
    return time.perf_counter() - start


def measured(stage: str, log: Path, parts: int, folder: Path) -> JSON:
    """Return median seconds of a stage on `parts` parts: by one process, by two, and by one that finds all done."""
    found: dict[str, list[float]] = {"one": [], "two": [], "done": []}
    for _ in range(PAIRS):
        run = fresh(stage, log, folder)
        found["one"].append(seconds(command(stage, run, log)))
        found["done"].append(seconds(command(stage, run, log)))
        run = fresh(stage, log, folder)
        shards = [[*command(stage, run, log), "--shard", f"{k}/2"] for k in range(2)]
        found["two"].append(seconds(*shards))
    return {"parts": parts} | {name: statistics.median(times) for name, times in found.items()}


def fresh(stage: str, log: Path, folder: Path) -> Path:
    """Return a new run with everything that comes before `stage`."""
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    if stage == "judge":
        seconds(command("extract", run, log))
    return run


def asked(stage: str, log: Path, folder: Path) -> Counter[str] | None:
    """Count file-system calls on paths inside the run, by kind; None without strace."""
    if shutil.which("strace") is None:
        return None
    run, trace = fresh(stage, log, folder), folder / "trace"
    strace = ["strace", "-f", "-qq", "-y", "-e", f"trace={','.join(CALLS)}", "-o", str(trace)]
    seconds([*strace, *command(stage, run, log)])
    counted: Counter[str] = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        call = _CALL.match(line)
        if call and str(run) in call[2]:
            counted[CALLS[call[1]]] += 1
    return counted


def measure(parts: int) -> list[JSON]:
    """Measure one row per stage."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        logs = [build(folder / f"{n}.jsonl", n) for n in (parts, 2 * parts)]
        for stage in ("extract", "judge"):
            small, large = (measured(stage, log, n, folder) for log, n in zip(logs, (parts, 2 * parts), strict=True))
            calls = [asked(stage, log, folder) for log in logs]
            a_part = {
                kind: round((calls[1][kind] - calls[0][kind]) / parts, 1) for kind in sorted(calls[1])
            } if calls[0] is not None and calls[1] is not None else None  # fmt: skip
            rows.append({"stage": stage, "small": small, "large": large, "calls_a_part": a_part})
            print(f"{stage}: {derived(rows[-1])}", flush=True)
    return rows


def derived(row: JSON) -> dict[str, float]:
    """Derive from two sizes the seconds per part, per run and per finished part, and the parts per second."""
    small, large = row["small"], row["large"]
    more = large["parts"] - small["parts"]

    def slope(way: str) -> float:
        return float((large[way] - small[way]) / more)

    return {
        "seconds per part": slope("one"),
        "seconds per run": small["one"] - small["parts"] * slope("one"),
        "seconds per part that is done": slope("done"),
        "parts per second, one process": 1 / slope("one"),
        "parts per second, two processes": 1 / slope("two"),
    }


# -- the page --------------------------------------------------------------------------------------------------------

TB = 10**12
NODES, CORES, GPUS = 100, 32, 8
STORE = 20e9  # bytes per second that the shared file system reads, all nodes together
CALLS_PER_SECOND = 20_000  # metadata calls that its server answers
GPU_TOKENS = 20_000  # tokens per second that a GPU reads with a model of about 8B parameters in bfloat16
BYTES_PER_TOKEN = 4.0
PART_MB = (8, 256)


def page(results: Path = RESULTS) -> str:
    """Return docs/scale.md."""
    found = json.loads((results / "scale.json").read_text(encoding="utf-8"))
    extract = json.loads((results / "extract.json").read_text(encoding="utf-8"))
    speed = float(extract["comparisons"][0]["facts"]["MB/s, ours"]) * 1e6
    rows = {row["stage"]: row for row in found["rows"]}
    machine = "{cpu}, {cores} cores".format(**found["machine"])
    assumed = {"nodes": NODES, "cores": CORES, "gpus": GPUS, "store": STORE / 1e9, "answers": CALLS_PER_SECOND,
               "tokens": GPU_TOKENS, "bytes_per_token": BYTES_PER_TOKEN, "speed": speed / 1e6}  # fmt: skip
    tables = {"measured": _measured(rows), "calls": _calls(rows), "plan": _plan(rows, speed)}
    return _PAGE.format(machine=machine, **tables, **assumed).strip() + "\n"


def _measured(rows: dict[str, JSON]) -> str:
    numbers = {stage: derived(row) for stage, row in rows.items()}
    lines = ["| | " + " | ".join(rows) + " |", "|---" * (1 + len(rows)) + "|"]
    formats: dict[str, Callable[[float], str]] = {"seconds": "{:.2g}".format, "parts": "{:,.0f}".format}
    for name in next(iter(numbers.values())):
        shown = formats["parts" if name.startswith("parts") else "seconds"]
        lines.append(f"| {name} | " + " | ".join(shown(numbers[stage][name]) for stage in rows) + " |")
    return "\n".join(lines)


def _calls(rows: dict[str, JSON]) -> str:
    counted = {stage: row["calls_a_part"] or {} for stage, row in rows.items()}
    kinds = sorted({kind for calls in counted.values() for kind in calls})
    lines = ["| calls per part | " + " | ".join(rows) + " |", "|---" * (1 + len(rows)) + "|"]
    lines += [f"| {kind} | " + " | ".join(f"{counted[s].get(kind, 0):g}" for s in rows) + " |" for kind in kinds]
    lines.append("| together | " + " | ".join(f"{sum(counted[s].values()):g}" for s in rows) + " |")
    return "\n".join(lines)


def _plan(rows: dict[str, JSON], speed: float) -> str:
    """Plan ten terabytes on the cluster of the page, for each size of part."""
    calls = {stage: sum((row["calls_a_part"] or {}).values()) for stage, row in rows.items()}
    a_done = derived(rows["judge"])["seconds per part that is done"]
    size, shards = 10 * TB, NODES * CORES
    lines = ["| 10 TB | " + " | ".join(f"parts of {mb} MB" for mb in PART_MB) + " |", "|---" * (1 + len(PART_MB)) + "|"]
    parts = [size / (mb * 1e6) for mb in PART_MB]
    table: list[tuple[str, list[float], str]] = [
        ("parts", parts, "{:,.0f}"),
        ("files of `extract` (3 tables, a digest each)", [6 * n for n in parts], "{:,.0f}"),
        (f"extract, the CPU of {shards:,} cores, minutes", [size / speed / shards / 60] * 2, "{:.1f}"),
        ("extract, reading the logs twice, minutes", [2 * size / STORE / 60] * 2, "{:.0f}"),
        ("extract, metadata, minutes", [n * calls["extract"] / CALLS_PER_SECOND / 60 for n in parts], "{:.1f}"),
        ("to find all parts done, per shard, minutes", [n * a_done / 60 for n in parts], "{:.1f}"),
        (f"one reading of all tokens, {NODES * GPUS} GPUs, hours",
         [size / BYTES_PER_TOKEN / GPU_TOKENS / (NODES * GPUS) / 3600] * 2, "{:.0f}"),
    ]  # fmt: skip
    lines += [f"| {what} | " + " | ".join(shown.format(v) for v in values) + " |" for what, values, shown in table]
    return "\n".join(lines)


_PAGE = """
# How far it scales

Written by `python -m tests.benchmarks.scale` from `tests/benchmarks/results`; do not edit.

## Measured

The overhead of a part and of a run, beside the work in them: parts of one short session each, judged by rules.
Medians, on {machine}, a local disk.

{measured}

Two processes are two shards of one run at once. The overhead of a run is mostly Python and its imports.
File-system calls (on paths inside the run; reads and writes of open files are left out):

{calls}

Each table of a part is written, digested, synced, and moved into place. A mark for `opdkit status` is made while the
part is worked on, and removed after it.

## On paper: 10 TB of logs on {nodes} nodes

Assumed: {nodes} nodes of {cores} cores and {gpus} GPUs; a shared file system that reads {store:.0f} GB per second for
all of them together and answers {answers:,} metadata calls per second; {bytes_per_token:.0f} bytes of log per token; a
GPU that reads {tokens:,} tokens per second. Measured: extract at {speed:.0f} MB per second and core
([performance.md](performance.md)), and the tables above.

{plan}

What breaks first, in this order:

1. **The number of parts.** With parts of 8 MB, the largest default, a run has a million of them: folders of millions of
   files, which file systems list slowly, and every command checks for each part whether it is done, and adds up the
   footers of all of them at its end. Take `--part-mb 256` for logs of terabytes: a part, which is what a kill loses,
   is still minutes of GPU time.
2. **The first pass.** Every shard of extract must know where the parts begin. Shards begin at different inputs and
   share what they find (`RUN/extract/.survey`), so that logs with one conversation per line are read twice in all, and
   not once more per shard. But a single file of 10 TB would be read by every shard at once: split logs into files of
   some GB. Formats in which a session takes several lines (such as `pi`, `claude_code`, `openclaw_rl` and `otel`)
   are indexed by every shard, and every shard reads all of their lines: for those formats, make one run per folder.
3. **The judge.** Reading 10 TB once takes the GPUs longer than everything else together, and the judge reads an
   excerpt of each turn (`--max-section-chars`) and writes its votes. `--limit`, `--max-section-chars` and the
   choice of the logs that are worth a vote decide the cost; more nodes only divide it.
4. **One directory.** Above some ten million files no setting helps: split the logs into runs of 1 TB, and train on one
   after another.
"""


def write(results: Path, docs: Path) -> None:
    (docs / "scale.md").write_text(page(results), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=int, default=200, help="of the smaller run; the larger one has twice as many")
    parser.add_argument("--draw", action="store_true", help="measure nothing: the page from the results there are")
    options = parser.parse_args()
    if not options.draw:
        print(save_rows("scale", measure(options.parts)))
    write(RESULTS, DOCS)


if __name__ == "__main__":
    main()
