"""Logged fields of sessions, for conditions on sessions and for grouping sessions."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.store.reading import read_all


@dataclass(frozen=True)
class LoggedFields:
    """Fields of a session that `opdkit.config.conditions` compares."""

    session_id: str
    source: str
    model: str | None
    format: str
    metadata: JSON


def read_logged_fields(run: Path) -> Iterator[LoggedFields]:
    """Yield the fields of every session of a run, in the order of the log."""
    columns = ["session_id", "source", "model", "format", "metadata"]
    for row in read_all(run, "sessions", columns):
        yield LoggedFields(**row | {"metadata": json.loads(row["metadata"] or "{}")})
