"""Speed of `opdkit extract` compared with bare JSON parsing and with `datasets`, and with two workers.

    python -m tests.benchmarks.extract [--megabytes 100] [--memory]

The log repeats the tau-bench sessions in ../shared/data, or else those of sample_data, under new ids.

- against a loop of `orjson.loads` that discards its results: the limit of any reader in one process. Both run in this
  process and are measured in CPU seconds, so that the disk and other processes do not matter.
- against `datasets.load_dataset("json")` and a `map` that writes the same rows as Parquet: one per session with its
  messages, and one per reply with its prompt and next state as indices. Both run in this process, by the clock.
- one worker against two: the command as a user starts it, by the clock, on a log ten times as large.
- with --memory: the peak resident memory of the largest process of the command, at 100 MB and at 1,000 MB.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from opdkit.config.extract import ExtractConfig
from opdkit.extract import stage as extract
from opdkit.extract.formats.openai import KEYS

from .pairs import PAIRS, Comparison, save, turn_about

ROOT = Path(__file__).parents[2]
LOGS = (
    ROOT.parent / "shared" / "data" / "taubench" / "taubench_gpt4o_airline.jsonl",
    ROOT / "sample_data" / "logs" / "openai.jsonl",
)
MB = 1_000_000
# Runs in its own process: the peak memory of a process never goes down again.
MEASURED = """
import resource, subprocess, sys
subprocess.run([sys.executable, "-m", "opdkit", "extract", *sys.argv[1:]], check=True, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""


def build(path: Path, megabytes: float) -> Path:
    """Write a log of at least `megabytes` MB: the sessions of a real log repeatedly, each time under new ids."""
    source = next(log for log in LOGS if log.exists())
    records = list(_records(source))
    written = number = 0
    with path.open("wb") as out:
        while written < megabytes * MB:
            number += 1
            record = records[number % len(records)] | {"task_id": f"copy-{number}"}
            written += out.write(orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE))
    return path


def _records(source: Path) -> Iterator[dict[str, Any]]:
    for line in source.read_bytes().splitlines():
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError:  # the sample log ends with a line that is cut off
            return


# -- the ways --------------------------------------------------------------------------------------------------------


def parse_only(log: Path) -> None:
    """Parse each line, and discard the result."""
    with log.open("rb") as handle:
        for line in handle:
            orjson.loads(line)


def ours(log: Path, run: Path) -> None:
    """Run the extract stage into a new folder."""
    shutil.rmtree(run, ignore_errors=True)
    extract.run(ExtractConfig(run=run, logs=(str(log),)))


def with_datasets(log: Path, folder: Path) -> None:
    """Load, map to sessions and to replies, and save both as Parquet, as a user would, without an old cache."""
    import datasets

    shutil.rmtree(folder, ignore_errors=True)
    loaded = datasets.load_dataset("json", data_files=str(log), split="train", cache_dir=str(folder / "cache"))
    key = next(key for key in KEYS if key in loaded.column_names)

    def sessions(row: dict[str, Any], index: int) -> dict[str, Any]:
        metadata = {k: v for k, v in row.items() if k != key}
        messages = [_message(m) for m in row[key]]
        return {"session_id": f"log:{index + 1}", "messages": messages, "metadata": orjson.dumps(metadata).decode()}

    def replies(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows: dict[str, list[Any]] = {"session_id": [], "message_index": [], "prompt": [], "next_state": []}
        for session, messages in zip(batch["session_id"], batch["messages"], strict=True):
            found = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
            for index, end in zip(found, [*found[1:], len(messages)], strict=True):
                rows["session_id"].append(session)
                rows["message_index"].append(index)
                rows["prompt"].append(list(range(index)))
                rows["next_state"].append(list(range(index + 1, end)))
        return rows

    told = loaded.map(sessions, with_indices=True, remove_columns=loaded.column_names)
    turns = told.map(replies, batched=True, remove_columns=told.column_names)
    told.to_parquet(str(folder / "sessions.parquet"))
    turns.to_parquet(str(folder / "turns.parquet"))


def _message(logged: dict[str, Any]) -> dict[str, Any]:
    calls = [call["function"] | {"id": call["id"]} for call in logged.get("tool_calls") or []]
    return {
        "role": logged["role"],
        "content": logged.get("content"),
        "name": logged.get("name"),
        "tool_call_id": logged.get("tool_call_id"),
        "tool_calls": [{name: call[name] for name in ("id", "name", "arguments")} for call in calls],
    }


def command(log: Path, run: Path, workers: int) -> list[str]:
    return [str(run), str(log), "--overwrite", "--workers", str(workers)]


def start(log: Path, run: Path, workers: int) -> None:
    """Start the command as a user does."""
    started = [sys.executable, "-m", "opdkit", "extract", *command(log, run, workers)]
    subprocess.run(started, check=True, stderr=subprocess.DEVNULL, cwd=ROOT)


def peak_memory(log: Path, run: Path, workers: int) -> int:
    """Return the largest resident memory (bytes) of any one process of the command."""
    measured = [sys.executable, "-c", MEASURED, *command(log, run, workers)]
    return int(subprocess.run(measured, check=True, capture_output=True, cwd=ROOT).stdout)


# -- the table -------------------------------------------------------------------------------------------------------


def compare(
    name: str,
    usual: str,
    ways: tuple[Callable[[], object], Callable[[], object]],
    log: Path,
    pairs: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    for way in ways:  # warm up: imports, and the log in memory
        way()
    found = Comparison(name, usual, *turn_about(*ways, pairs=pairs, clock=clock))
    size = log.stat().st_size / MB
    rates = [size / statistics.median(seconds) for seconds in (found.seconds_usual, found.seconds_ours)]
    facts: dict[str, float | int | str] = {"MB": round(size), "MB/s, usual": round(rates[0], 1)}
    return replace(found, facts=facts | {"MB/s, ours": round(rates[1], 1)})


def memory(folder: Path, sizes: tuple[float, ...] = (100, 1000)) -> dict[str, float | int | str]:
    """Return the peak resident memory of the command by MB of log, with one worker and with two."""
    found: dict[str, float | int | str] = {}
    for size in sizes:
        log = build(folder / "log.jsonl", size)
        for workers in (1, 2):
            peak = peak_memory(log, folder / "run", workers)
            found[f"MB resident in the largest process, {size:g} MB of log, {workers} workers"] = round(peak / MB)
    return found


def benchmark(megabytes: float, pairs: int, with_memory: bool) -> Iterator[Comparison]:
    """Yield one comparison after the other."""
    os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = folder / "run"
        log = build(folder / "log.jsonl", megabytes)
        extracted = partial(ours, log, run)
        usual = "a loop of orjson.loads that makes nothing, in CPU seconds"
        yield compare(
            "one log to tables, one process",
            usual,
            (partial(parse_only, log), extracted),
            log,
            pairs,
            time.process_time,
        )
        usual = 'datasets.load_dataset("json") and map'
        yield compare("one log to tables", usual, (partial(with_datasets, log, folder / "sets"), extracted), log, pairs)
        large = build(folder / "large.jsonl", 10 * megabytes)
        ways = partial(start, large, run, 1), partial(start, large, run, 2)
        shared = compare("one log, two workers", "one worker", ways, large, pairs)
        if with_memory:
            large.unlink()
            shared = replace(shared, facts=shared.facts | memory(folder))
        yield shared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100, help="size of the log; ten times as much for workers")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--memory", action="store_true", help="also measure peak memory, up to 1,000 MB of log")
    options = parser.parse_args()
    found = []
    for comparison in benchmark(options.megabytes, options.pairs, options.memory):
        print(comparison.line(), flush=True)
        found.append(comparison)
    print(save("extract", found))


if __name__ == "__main__":
    main()
