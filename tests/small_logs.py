"""Write small logs, and read what extract makes of them."""

import json
from pathlib import Path

from opdkit.chat.conversation import Conversation
from opdkit.config.extract import ExtractConfig
from opdkit.extract import stage as extract
from opdkit.extract.turns import turns
from opdkit.store.counters import Summary
from opdkit.store.reading import read_all
from opdkit.store.tables import TURNS


def run(folder: Path, *logs: Path | str, **options) -> Summary:
    return extract.run(ExtractConfig(run=folder, logs=tuple(map(str, logs)), **options))


def tables(folder: Path) -> dict[str, list[dict]]:
    return {name: list(read_all(folder, name)) for name in ("sessions", "turns", "rejected")}


def chat(*texts: str, **more) -> dict:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)], **more}


def jsonl(path: Path, *records) -> Path:
    data = [r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(data))
    return path


def lines_mb(path: Path, count: int) -> float:
    """Return the --part-mb that holds `count` lines of a log whose lines are about equally long."""
    data = path.read_bytes()
    return (count - 0.5) * len(data) / data.count(b"\n") / 1e6


def turn_rows(session_id: str, conversation: Conversation) -> list[dict]:
    """Return the rows of the turns table as dicts by column."""
    return [dict(zip(TURNS.schema.names, row, strict=True)) for row in turns(session_id, conversation)]
