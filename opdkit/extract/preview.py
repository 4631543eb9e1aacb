"""`opdkit extract --dry-run`: the first thousand lines of every input, and what they would become.

The lines are copied to a temporary folder. The survey, the readers and the filters of a real extraction read the copy,
so the last session of a longer input may be cut short.
"""

import datetime
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import orjson

from opdkit.chat.conversation import LEFT_OUT
from opdkit.config.conditions import FILTERED, LANGUAGES, find_first, find_time
from opdkit.config.fields import JSON
from opdkit.console import print_line, printable
from opdkit.extract.inputs.files import Input, find_documents, open_plain, packing, until_damage
from opdkit.extract.inputs.first_pass import SurveyedInput
from opdkit.extract.inputs.index import copy_lines
from opdkit.extract.inputs.parquet import read_rows
from opdkit.store.part_writer import PartWriter
from opdkit.store.tables import REJECTED, SESSIONS, TURNS

LINES = 1_000  # of each input
WHOLE, BEGINNING, DAMAGE = "all of it", f"the first {LINES:,} lines", "what lies before the damage of its archive"
_SHOWN = 200  # characters of a message in the sample
_NAMED = 5  # values that a line of the report lists


class Head(NamedTuple):
    """Copy of the first lines of an input, and how much of the input it holds: WHOLE, BEGINNING or DAMAGE."""

    copy: Input
    extent: str


def copy_head(entry: Input, path: Path, line_limit: int) -> Head:
    """Copy the first lines of an input to `path`, up to any damage. Blank lines are kept for the line numbers."""
    if entry.problem is not None:
        path.touch()
        return Head(replace(entry, path=path), WHOLE)
    is_parquet, extent = packing(entry.path) == "parquet", DAMAGE
    with until_damage():
        if is_parquet:
            rows = read_rows(entry.path, entry.source, line_limit)
            deque(copy_lines(((0, line) for line in islice(rows, LINES)), path, None), maxlen=0)
            extent = WHOLE if next(rows, None) is None else BEGINNING
        else:
            with path.open("wb") as out, open_plain(entry.path, find_documents(entry.path, line_limit)) as handle:
                left = LINES
                while left and (data := handle.readline(1 << 20)):  # 1 MiB at a time: lines may be longer
                    out.write(data)
                    left -= data.endswith(b"\n")
                extent = BEGINNING if handle.read(1) else WHOLE
    return Head(replace(entry, path=path, given=False, copied=is_parquet), extent)


def print_report(surveyed: SurveyedInput, out: PartWriter, extent: str) -> None:
    """Print what one input would become: its sessions and turns, what is left out, and a sample turn."""
    name = f"{surveyed.input.source}: "
    if surveyed.format is None:
        report = [name + (f"{surveyed.problem.reason} ({surveyed.problem.detail})" if surveyed.problem else "empty")]
    else:
        report = [f"{name}{surveyed.format}, {extent}"]
        sessions, turns, rejected = (out.to_arrow(table).to_pylist() for table in (SESSIONS, TURNS, REJECTED))
        left_out = {why: n for why, n in out.counters.dropped.items() if why.startswith((FILTERED, LEFT_OUT))}
        skipped = Counter(t["skip_reason"] for t in turns if t["skip_reason"])
        metadata = [orjson.loads(s["metadata"] or "{}") for s in sessions]
        languages = Counter(str(find_first(m, LANGUAGES) or "(none)") for m in metadata)
        facts = {
            "sessions": f"{len(sessions):,}",
            "turns": f"{len(turns):,}, of which {sum(t['trainable'] for t in turns):,} trainable"
            + (f"; skipped: {_format_counts(skipped)}" if skipped else ""),
            "left out": _format_counts(left_out),
            "rejected": _format_rejections(rejected),
            "models": _format_counts(Counter(s["model"] or "(none)" for s in sessions)),
            "roles": _format_counts(Counter(m["role"] for s in sessions for m in s["messages"])),
            "languages": _format_counts(languages) if set(languages) - {"(none)"} else "",
            "times": _format_span([find_time(m) for m in metadata]),
            "metadata": _format_counts(Counter(key for m in metadata for key in m)),
        }
        report += [f"  {label:<10}{text}" for label, text in facts.items() if text]
        report += _sample(sessions, turns)
    for line in report:
        print_line(line)


def _format_counts(counts: Mapping[str, int]) -> str:
    """Return the most frequent values with their counts."""
    most = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = ", ".join(f"{_shorten(value, 60)} {count:,}" for value, count in most[:_NAMED])
    return text + (f", and {len(most) - _NAMED:,} more" if len(most) > _NAMED else "")


def _format_rejections(rows: Sequence[JSON]) -> str:
    """Return the most frequent reasons, each with its count and the first line that was rejected for it."""
    texts = []
    for reason, count in Counter(row["reason"] for row in rows).most_common(_NAMED):
        first = next(row for row in rows if row["reason"] == reason)
        detail = f", {_shorten(first['detail'], 100)}" if first["detail"] else ""
        texts.append(f"{reason} {count:,} (line {first['line']}{detail}: {_shorten(first['raw'], 60)})")
    return f"\n{'':<12}".join(texts)


def _format_span(times: Sequence[datetime.datetime | None]) -> str:
    """Return the first and the last time, and how many sessions have no time; "" if none has one."""
    known = sorted(at for at in times if at is not None)
    if not known:
        return ""
    missing = len(times) - len(known)
    span = f"{known[0]:%Y-%m-%d %H:%M} to {known[-1]:%Y-%m-%d %H:%M} UTC"
    return span + (f", none in {missing:,}" if missing else "")


def _sample(sessions: Sequence[JSON], turns: Sequence[JSON]) -> Iterator[str]:
    """Yield the lines about one turn: the last message of its prompt, the reply, and the first message after it."""
    turn = next((t for t in turns if t["trainable"]), turns[0] if turns else None)
    if turn is None:
        return
    messages = next(s["messages"] for s in sessions if s["session_id"] == turn["session_id"])
    at = turn["message_index"]
    yield f"  sample    {turn['turn_id']}" + (f" ({turn['skip_reason']})" if turn["skip_reason"] else "")
    for label, index in (("prompt", at - 1), ("reply", at), ("next", at + 1)):
        if 0 <= index < len(messages) and not (label == "next" and not turn["next_count"]):
            message = messages[index]
            calls = [f"[calls {c['name']} {c['arguments']}]" for c in message["tool_calls"]]
            text = " ".join(filter(None, [message["content"], *calls])) or "(empty)"
            yield f"    {label:<8}{message['role']}: {_shorten(text, _SHOWN)}"


def _shorten(text: str, limit: int) -> str:
    """Return a text as one line of at most `limit` characters, with control characters replaced."""
    line = " ".join(text.split())
    return printable(line if len(line) <= limit else line[: limit - 3] + "...")
