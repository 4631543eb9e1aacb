"""Names of turns that are close to one that is not there."""

import difflib
from collections.abc import Iterator
from pathlib import Path

from opdkit.config.command_line import quote
from opdkit.store import part_count, read_arrow

_SHOWN = 5
_COMPARED = 2000  # names that are compared letter by letter: of the others, none begins so much alike


def nearest_turns(run: Path, name: str) -> str:
    """In words, which turns of a run `name` may have meant: those of its session, else those that are spelled alike."""
    session = name.rpartition(":")[0] or name
    ids = [each for part in range(part_count(run, "extract")) for each in _turn_ids(run, part)]
    own = [each for each in ids if each.rpartition(":")[0] in (session, name)]
    if own:
        return f"turns of that session: {_listed(own)}"
    alike = sorted(ids, key=lambda each: -_common(each, name))[:_COMPARED]
    near = difflib.get_close_matches(name, alike, n=_SHOWN)
    if near:
        return f"did you mean {_listed(near)}?"
    return (
        f"its turns are named like {ids[0]}; `opdkit show {quote(run)}` lists them" if ids else "it has no turns at all"
    )


def _turn_ids(run: Path, part: int) -> Iterator[str]:
    yield from read_arrow(run, "turns", part, ["turn_id"])["turn_id"].to_pylist()


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


def _common(a: str, b: str) -> int:
    """How many characters two names begin with alike."""
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
