"""Check that lines of every log format, real or generated and then damaged, are read or rejected with a reason.

    python -m tests.fuzz.logs [--lines 100000] [--seed 0] [--keep FOLDER]

Every line is read twice: alone, up to the rows of its tables, timed and under tracemalloc; and by `opdkit extract` in a
file of up to 1,000 lines, after which each line must be in one table or the other. Exit code 1 if a line crashes a
reader, is lost, or exceeds a bound; --keep writes those lines to a folder.

Bounds: 50 ms of CPU time per line of up to 100 KB, and 10 times the line's size in memory above a floor of 64 KiB plus
250 bytes per value. A JSON value becomes a Python object and a part of a row, together at most about 250 bytes, however
short it is in the log; `opdkit extract` limits the number of values per line (opdkit/extract/formats/json_lines.py).
The factor of 10 is for the text itself. The scratch memory of orjson, which requests 12 times a line and 8 times a
text, is counted by what it touches: 16 bytes per value, and the text.
"""

import argparse
import contextlib
import functools
import gc
import io
import json
import random
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import orjson

from opdkit.chat import markup, messages
from opdkit.chat.conversation import LEFT_OUT, Unreadable
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.extract import stage as extract
from opdkit.extract.formats import READERS, chains, json_lines, sharegpt, spans
from opdkit.extract.formats.reader import Line, Reader
from opdkit.extract.inputs import index
from opdkit.extract.inputs.files import Input, expand
from opdkit.extract.inputs.first_pass import SurveyedInput, make_survey
from opdkit.extract.inputs.second_pass import Unit, Units
from opdkit.store.counters import read_counters
from opdkit.store.part_writer import PartWriter
from opdkit.store.reading import read_all

from .mappings import MAPPINGS, options, reader
from .mutations import mutated
from .pool import made_lines, real_lines
from .strategies import JUNK_LINES

SLOWEST = 50.0  # ms of CPU time per line
MOST_MEMORY, FLOOR, VALUE = 10.0, 64 << 10, 250  # times the line's size; bytes; bytes per value
BATCH = 1_000  # lines of a file
LINKED = (
    "openclaw_rl",
    "langfuse",
    "otel",
    "litellm",
    "openai_stored",
    "langsmith",
    "mapped links",
)  # sessions are joined from records, whose lines are in the metadata
SEVERAL = (
    "lmsys",
    "chatgpt",
    "claude_ai",
    "librechat",
    "open_webui",
    "gemini_cli",
)  # a line holds several sessions, or pieces that are rejected one by one
LONGEST = 100_000  # bytes of a line: mutations may add up, and the bound on time is for lines up to this size
_LINE_LIMIT = 64_000_000


@dataclass
class Found:
    """Outcome of the lines of one format."""

    lines: int = 0
    read: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    crashes: list[tuple[str, bytes]] = field(default_factory=list)
    lost: list[bytes] = field(default_factory=list)
    slowest: tuple[float, bytes] = (0.0, b"")  # ms
    largest: tuple[float, bytes] = (0.0, b"")  # memory above the floor, as a multiple of the size

    @property
    def broken(self) -> dict[str, list[bytes]]:
        """Return the lines that break a bound, by the bound."""
        costly = {"slow": self.slowest, "large": self.largest}
        bounds = {"slow": SLOWEST, "large": MOST_MEMORY}
        found = {name: [line] for name, (cost, line) in costly.items() if cost > bounds[name]}
        return found | {name: broken for name, broken in
                        (("crash", [line for _, line in self.crashes]), ("lost", self.lost)) if broken}  # fmt: skip


def fuzz(name: str, count: int, seed: int) -> Found:
    """Read `count` lines of a format."""
    draw = random.Random(f"{seed} {name}")
    pool = real_lines().get(name, []) + made_lines(name, max(20, min(400, count // 10)), seed) + list(JUNK_LINES)
    found = Found()
    read_alone(name, pool[0], Found())  # imports on first use must not count for a line
    while found.lines < count:
        batch = [_line(pool, draw) for _ in range(min(BATCH, count - found.lines))]
        found.lines += len(batch)
        for line in batch:
            read_alone(name, line, found)
        read_together(name, batch, found)
    return found


def _line(pool: Sequence[bytes], draw: random.Random) -> bytes:
    while True:
        line = mutated(draw.choice(pool), draw)
        if len(line) <= LONGEST and not line.isspace() and line not in (b"", b"\xef\xbb\xbf"):
            return line


# -- alone -----------------------------------------------------------------------------------------------------------


def read_alone(name: str, line: bytes, found: Found) -> None:
    """Measure time and memory of one line, and ask every format whether it recognises it."""
    try:
        _recognised(line)
        took = _timed(name, line)
        if took > SLOWEST / 2:  # a garbage collection may have been the reason
            took = min(took, *(_timed(name, line) for _ in range(4)))
        memory = _memory(name, line)
    except Exception as error:
        found.crashes.append((f"{type(error).__name__}: {error}"[:200], line))
        return
    found.slowest = max(found.slowest, (took, line))
    floor = FLOOR + VALUE * values(line)
    found.largest = max(found.largest, (max(0, memory - floor) / len(line), line))


def _recognised(line: bytes) -> set[str]:
    """Return the formats that recognise this line."""
    try:
        record = json_lines.parse(Line("log", 1, line + b"\n"))
    except Unreadable:
        return set()
    return {name for name, reader in READERS.items() if reader.recognises(record)}


def _timed(name: str, line: bytes) -> float:
    start = time.process_time()
    _rows(name, line)
    return 1e3 * (time.process_time() - start)


def values(line: bytes) -> int:
    """Return the most values that a line can have: between any two values is one of these characters."""
    return 1 + sum(map(line.count, (b",", b"[", b"{", b":")))


def _memory(name: str, line: bytes) -> int:
    """Return the peak of the bytes that Python held while the line was read, plus the size of its columns."""
    peaks = [0]

    def counted(function: Callable[..., Any], touched: Callable[[Any], int]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            peaks.append(tracemalloc.get_traced_memory()[1])
            result = None
            try:
                result = function(*arguments, **options)
            finally:
                tracemalloc.reset_peak()
                peaks.append(tracemalloc.get_traced_memory()[0] + touched(result))
            return result

        return call

    loads = counted(orjson.loads, lambda _: 16 * values(line))
    dumps = counted(_exactly(orjson.dumps), lambda written: len(written or b""))
    measured = SimpleNamespace(**vars(orjson) | {"loads": loads, "dumps": dumps})
    gc.disable()
    with contextlib.ExitStack() as patched:
        for module in (json_lines, messages, sharegpt, chains, markup, spans, index):
            patched.enter_context(mock.patch.object(module, "orjson", measured))
        tracemalloc.start()
        try:
            columns = _rows(name, line)
            return max(*peaks, tracemalloc.get_traced_memory()[1]) + columns
        finally:
            tracemalloc.stop()
            gc.enable()


def _exactly(dumps: Callable[..., bytes]) -> Callable[..., bytes]:
    """Return `dumps` with results of exact size: orjson 3.13 and later keep spare bytes behind them allocated."""
    return lambda *arguments, **options: bytes(memoryview(dumps(*arguments, **options)))


def _rows(name: str, line: bytes) -> int:
    """Read one line to the end, as a part of one unit. Return the bytes of its columns."""
    writer = PartWriter(extract.TABLES)
    options = extract.RowOptions(None, (), side=False)
    whole = SurveyedInput(Input("log", "log", Path(), True), 0, (len(line),), Path(), _reader(name), name)
    extract.write_unit(Unit(whole, None, [Line("log", 1, line + b"\n")]), writer, options)
    return sum(writer.to_arrow(table).nbytes for table in extract.TABLES)


@functools.cache
def _reader(name: str) -> Reader | None:
    """Return the reader of a mapping; None for a format of READERS."""
    with tempfile.TemporaryDirectory() as folder:
        return reader(name, folder) if name in MAPPINGS else None


# -- among others ----------------------------------------------------------------------------------------------------


def read_together(name: str, batch: Sequence[bytes], found: Found) -> None:
    """Extract a file of these lines, and check that each line is in one table or the other."""
    data = b"\n".join(batch) + b"\n"
    with tempfile.TemporaryDirectory() as folder:
        log, run = Path(folder, "log.jsonl"), Path(folder, "run")
        log.write_bytes(data)
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                extract.run(ExtractConfig(run=run, logs=(str(log),), part_mb=0.5, **options(name, folder)))
        except OpdkitError:
            pass  # most lines were bad: raised after the parts are written
        except Exception as error:
            found.crashes.append((f"{type(error).__name__}: {error}"[:200], data))
            return
        aside = Counter(row["line"] for row in read_all(run, "rejected"))
        kept = _kept_lines(name, run, log, aside)
        # A line may hold many records or messages: some of them may be kept, and several rejected.
        is_many = (_reader(name) or READERS[name]).unfold is not None or name in SEVERAL
        rows = [(row["line"], row["reason"] or "NO REASON") for row in read_all(run, "rejected")]
        found.rejected.update(dict(rows).values() if is_many else [reason for _, reason in rows])
        left_out = sum(n for path in (run / "extract" / "sessions").iterdir()
                       for why, n in read_counters(path).dropped.items() if why.startswith(LEFT_OUT))  # fmt: skip
    if is_many:
        kept, aside = kept - aside.keys(), Counter(set(aside))
    missing = [line for number, line in enumerate(batch, 1) if (number in kept) + aside[number] != 1]
    found.read += len(kept) + min(left_out, len(missing))
    if len(missing) > left_out:
        found.lost += missing


def _kept_lines(name: str, run: Path, log: Path, aside: Counter[int]) -> set[int]:
    """Return the lines that went into sessions."""
    sessions = list(read_all(run, "sessions"))
    if name in LINKED:
        return {record["line"] for s in sessions for record in json.loads(s["metadata"])["records"]}
    first = {session["line"] for session in sessions}
    if (_reader(name) or READERS[name]).grouping == "line":
        return first
    # A line of an agent's log is an event: it is in its session, or is rejected, alone or with the whole session.
    known = first | set(aside)
    return {line.number for unit in _units(name, log) if any(line.number in known for line in unit)
            for line in unit if line.number not in aside}  # fmt: skip


def _units(name: str, log: Path) -> Iterator[Sequence[Line]]:
    """Yield the lines of every unit."""
    with tempfile.TemporaryDirectory() as folder:
        found = make_survey(
            expand([str(log)], Path(folder)), _reader(name) or name, 10**9, _LINE_LIMIT, None, Path(folder)
        )
        with contextlib.closing(Units(found)) as units:
            for part in range(found.parts):
                yield from (unit.lines for unit in units.read(part))


# -- the command -----------------------------------------------------------------------------------------------------


def main(written: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the lines that break a bound")
    arguments = parser.parse_args(written)
    names = [*READERS, *MAPPINGS]
    share = -(-arguments.lines // len(names))
    broken = False
    for name in names:
        start = time.monotonic()
        found = fuzz(name, share, arguments.seed)
        report(name, found, time.monotonic() - start)
        broken |= bool(found.broken)
        if arguments.keep:
            keep(arguments.keep, name, found.broken)
    print("a bound is broken" if broken else "all bounds hold")
    return int(broken)


def report(name: str, found: Found, seconds: float) -> None:
    print(f"{name}: {found.lines:,} lines, {found.read:,} read, {found.rejected.total():,} rejected, "
          f"{len(found.crashes)} crashes, {len(found.lost)} unaccounted, slowest {found.slowest[0]:.1f} ms "
          f"({len(found.slowest[1]):,} bytes), most memory {found.largest[0]:.1f} times the line above the floor "
          f"({len(found.largest[1]):,} bytes); {seconds:.0f} s")  # fmt: skip
    for reason, count in found.rejected.most_common():
        print(f"    {reason}: {count:,}")
    for message in sorted({message for message, _ in found.crashes}):
        print(f"    CRASH {message}")
    sys.stdout.flush()


def keep(folder: Path, name: str, broken: JSON) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for what, found in broken.items():
        for number, line in enumerate(found[:20]):
            (folder / f"{name}-{what}-{number}.jsonl").write_bytes(line + b"\n")


if __name__ == "__main__":
    sys.exit(main())
