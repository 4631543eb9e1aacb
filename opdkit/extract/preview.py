"""`opdkit extract --dry-run`: what the first thousand lines of every input would become. Nothing is written.

The lines are copied to a temporary folder and read as ever, by the same survey, the same readers and the same filters.
So the last session of a longer input may seem to end before it does.
"""

import contextlib
import datetime
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson

from opdkit.chat.conversation import LEFT_OUT
from opdkit.config.conditions import FILTERED, LANGUAGES, first_of, time_of
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON
from opdkit.console import printable, stdout
from opdkit.errors import OpdkitError
from opdkit.extract.formats.detect import remedy
from opdkit.extract.formats.reader import Reader
from opdkit.extract.inputs.files import Input, expand, is_damage, open_plain
from opdkit.extract.inputs.parquet import Rows, is_parquet
from opdkit.extract.inputs.survey import SurveyedInput, survey
from opdkit.extract.inputs.units import Unit, Units
from opdkit.store import Counters, PartWriter, Summary
from opdkit.store.tables import REJECTED, SESSIONS, TURNS

LINES = 1_000  # of each input
_SHOWN = 200  # characters of a text
_NAMED = 5  # values of a kind that are named
_MB = 1_000_000

Write = Callable[[Unit, PartWriter], None]


def preview(config: ExtractConfig, chosen: str | Reader, write: Write) -> Summary:
    """Print what was found in each input; `write` turns one unit into rows, as it does for a part.

    Raises ConfigError as `opdkit extract` does, but for inputs of no known format: of those it says so, and raises
    OpdkitError where there are no others.
    """
    with tempfile.TemporaryDirectory(prefix="opdkit-extract-") as folder:
        scratch = Path(folder)
        limit = config.max_line_mb * _MB
        inputs = expand(config.logs, scratch)
        heads = [_head(entry, scratch / f"head-{number}.jsonl", limit) for number, entry in enumerate(inputs)]
        found = survey([head for head, _ in heads], chosen, 8 * _MB, limit, config.limit, scratch)
        rows = {entry.number: PartWriter([SESSIONS, TURNS, REJECTED]) for entry in found.inputs}
        with contextlib.closing(Units(found)) as units:
            for unit in itertools.chain.from_iterable(map(units.read, range(found.parts))):
                write(unit, rows[unit.log.number])
    total = Counters()
    for surveyed, (_, whole) in zip(found.inputs, heads, strict=True):
        out = rows[surveyed.number]
        _say(_report(surveyed, out, whole))
        out.counters.rows_out = out.arrow(SESSIONS).num_rows
        total.merge(out.counters)
    refuse_nothing(found.inputs)
    return Summary("extract --dry-run", total, 0, 1, where=None)


def refuse_nothing(inputs: Sequence[SurveyedInput]) -> None:
    """Raise OpdkitError when there is nothing in any input that could be read."""
    if any(found.format is not None for found in inputs):
        return
    found = [f"{f.input.source}: {f.problem.reason} ({f.problem.detail}){remedy(f.problem)}"
             for f in inputs if f.problem is not None]  # fmt: skip
    names = ", ".join(f.input.source for f in inputs)
    raise OpdkitError("\n".join(found) or f"nothing to read: no line but blank ones in {names}")


def _head(entry: Input, path: Path, limit: int) -> tuple[Input, bool]:
    """(the input with its first lines alone, whether those are all of it)."""
    read = 0
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(path.open("wb"))
        try:
            if is_parquet(entry.path):
                rows = stack.enter_context(contextlib.closing(Rows(entry.path, entry.source, limit)))
                for _, line in rows.read(LINES + 1):
                    read += 1
                    out.write(line.data.rstrip(b"\n") + b"\n" if read <= LINES else b"")
            else:
                handle = stack.enter_context(open_plain(entry.path))
                read = _copy_lines(handle, out, limit)
        except Exception as error:
            if not is_damage(error):
                raise
    return replace(entry, path=path, given=False), read <= LINES


def _copy_lines(handle: Any, out: Any, limit: int) -> int:
    """Copy the first lines as they are, blank ones too, so that numbers stay; how many there are, up to one more."""
    for number in range(1, LINES + 2):
        data = handle.readline(limit + 1)
        if not data:
            return number - 1
        if number <= LINES:
            out.write(data)
            while data and not data.endswith(b"\n"):  # longer than any line that is read: it stays so
                data = handle.readline(1 << 20)
                out.write(data)
    return LINES + 1


# -- in words ----------------------------------------------------------------------------------------------------------


def _report(found: SurveyedInput, out: PartWriter, whole: bool) -> list[str]:
    """The lines about one input."""
    name = f"{found.input.source}: "
    if found.format is None:
        return [name + (f"{found.problem.reason} ({found.problem.detail})" if found.problem else "empty")]
    sessions, turns, rejected = (out.arrow(table).to_pylist() for table in (SESSIONS, TURNS, REJECTED))
    facts = {
        "sessions": f"{len(sessions):,}",
        "turns": _turns(turns),
        "left out": _counted(Counter({why: n for why, n in out.counters.dropped.items()
                                      if why.startswith((FILTERED, LEFT_OUT))})),
        "rejected": _rejected(rejected),
        "models": _counted(Counter(s["model"] or "(none)" for s in sessions)),
        "roles": _counted(Counter(m["role"] for s in sessions for m in s["messages"])),
    }  # fmt: skip
    told = [orjson.loads(s["metadata"] or "{}") for s in sessions]
    languages = Counter(str(first_of(metadata, LANGUAGES) or "(none)") for metadata in told)
    facts["languages"] = _counted(languages) if set(languages) - {"(none)"} else ""
    facts["times"] = _times([time_of(metadata) for metadata in told])
    facts["metadata"] = _counted(Counter(key for metadata in told for key in metadata))
    head = f"{name}{found.format}, " + ("all of it" if whole else f"the first {LINES:,} lines")
    return [head, *(f"  {label:<10}{text}" for label, text in facts.items() if text), *_sample(sessions, turns)]


def _counted(counter: Mapping[str, int]) -> str:
    """The most frequent values with their counts."""
    most = sorted(counter.items(), key=lambda one: (-one[1], one[0]))
    text = ", ".join(f"{_short(value, 60)} {count:,}" for value, count in most[:_NAMED])
    return text + (f", and {len(most) - _NAMED:,} more" if len(most) > _NAMED else "")


def _turns(turns: Sequence[JSON]) -> str:
    skipped = Counter(t["skip_reason"] for t in turns if t["skip_reason"])
    text = f"{len(turns):,}, of which {sum(t['trainable'] for t in turns):,} trainable"
    return text + (f"; skipped: {_counted(skipped)}" if skipped else "")


def _rejected(rows: Sequence[JSON]) -> str:
    """The reasons, and of each the first line with it."""
    reasons = Counter(row["reason"] for row in rows)
    texts = []
    for reason, count in reasons.most_common(_NAMED):
        first = next(row for row in rows if row["reason"] == reason)
        detail = f", {_short(first['detail'], 100)}" if first["detail"] else ""
        texts.append(f"{reason} {count:,} (line {first['line']}{detail}: {_short(first['raw'], 60)})")
    return f"\n{'':<12}".join(texts)


def _times(times: Sequence[datetime.datetime | None]) -> str:
    known = sorted(at for at in times if at is not None)
    if not known:
        return ""
    missing = len(times) - len(known)
    span = f"{known[0]:%Y-%m-%d %H:%M} to {known[-1]:%Y-%m-%d %H:%M} UTC"
    return span + (f", none in {missing:,}" if missing else "")


def _sample(sessions: Sequence[JSON], turns: Sequence[JSON]) -> Iterator[str]:
    """One turn: the end of its prompt, the reply, what came next."""
    turn = next((t for t in turns if t["trainable"]), turns[0] if turns else None)
    if turn is None:
        return
    messages = next(s["messages"] for s in sessions if s["session_id"] == turn["session_id"])
    at = turn["message_index"]
    yield f"  sample    {turn['turn_id']}" + (f" ({turn['skip_reason']})" if turn["skip_reason"] else "")
    for label, index in (("prompt", at - 1), ("reply", at), ("next", at + 1)):
        if 0 <= index < len(messages) and not (label == "next" and not turn["next_count"]):
            yield f"    {label:<8}{messages[index]['role']}: {_spoken(messages[index])}"


def _spoken(message: JSON) -> str:
    calls = [f"[calls {c['name']} {c['arguments']}]" for c in message["tool_calls"]]
    return _short(" ".join(filter(None, [message["content"], *calls])) or "(empty)", _SHOWN)


def _short(text: str, limit: int) -> str:
    """One line of a text, without what could drive a terminal."""
    line = " ".join(text.split())
    return printable(line if len(line) <= limit else line[: limit - 3] + "...")


def _say(report: Sequence[str]) -> None:
    for line in report:
        stdout.print(printable(line), markup=False, soft_wrap=True)
