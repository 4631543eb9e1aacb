"""Suggestions of ids of turns or sessions for an id that a run does not have."""

import difflib
import os
from pathlib import Path

from opdkit.config.command_line import quote
from opdkit.store.reading import read_all
from opdkit.store.turn_ids import session_of

_SHOWN = 5
_COMPARED = 2000  # ids that are compared letter by letter: those with the longest common prefix


def suggest_turns(run: Path, name: str, kind: str = "turn") -> str:
    """Return in words which turns of a run `name` may mean: those of its session, else those spelled similarly.

    If `kind` is "session", return which sessions.
    """
    session = session_of(name) or name
    ids = [row["turn_id"] for row in read_all(run, "turns", ["turn_id"])]
    if kind == "session":
        ids = list(dict.fromkeys(map(session_of, ids)))
    elif names := [turn for turn in ids if session_of(turn) in (session, name)]:
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return f"turns of that session: {', '.join(names[:_SHOWN])}{more}"
    alike = sorted(ids, key=lambda turn: -len(os.path.commonprefix([turn, name])))[:_COMPARED]  # noqa: RUF071
    if near := difflib.get_close_matches(name, alike, n=_SHOWN):
        return f"did you mean {', '.join(near)}?"
    return f"its {kind}s are named like {ids[0]}; `opdkit show {quote(run)}` lists them" if ids else "it has no turns"
