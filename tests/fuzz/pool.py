"""The lines that fuzzing starts from: real lines of every format, and lines that hypothesis generates."""

import json
from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from opdkit.chat.conversation import Unreadable
from opdkit.extract.formats import READERS
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.reader import Line

from . import strategies

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "sample_data" / "logs", ROOT.parent / "shared" / "data")
LONGEST = 40_000  # bytes; longer real lines are not taken, since a line is read thousands of times
MOST = 150  # real lines per file


def real_lines(folders: Sequence[Path] = FOLDERS) -> dict[str, list[bytes]]:
    """Return real lines by format, evenly from each file."""
    found: dict[str, list[bytes]] = {name: [] for name in READERS}
    for path in (path for folder in folders for path in sorted(folder.rglob("*.jsonl"))):
        lines = path.read_bytes().splitlines()
        try:
            name = detect((Line(path.name, n, data) for n, data in enumerate(lines, 1)))
        except Unreadable:
            continue
        short = [line for line in lines if len(line) <= LONGEST]
        found[name] += short[:: max(1, len(short) // MOST)][:MOST]
    return found


def made_lines(name: str, count: int, number: int) -> list[bytes]:
    """Return `count` records of a format by its strategy: valid, almost valid and hostile. `number` is the seed."""
    made: list[bytes] = []
    quietly = settings(max_examples=count, database=None, deadline=None, phases=[Phase.generate],
                       suppress_health_check=list(HealthCheck))  # fmt: skip

    @seed(number)
    @quietly
    @given(strategies.RECORDS[name])
    def collect(record: object) -> None:
        made.append(json.dumps(record).encode())

    collect()
    return made
