"""`opdkit extract`: conversation logs -> sessions, turns, and what could not be read.

Two passes. The first one pins the inputs and finds their units, so that the number of parts is known before one is
written; the second computes each part from its own units and from nothing else.
"""

import contextlib
import gc
import itertools
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.chat.messages import dump
from opdkit.config.conditions import Filter, parse_filters, refused
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig
from opdkit.config.shard import parse_shard
from opdkit.console import counted, progress, say, warn
from opdkit.errors import OpdkitError
from opdkit.extract.formats.reader import LeftOut, Reader, Rejected
from opdkit.extract.inputs.files import Input, expand
from opdkit.extract.inputs.survey import SharedSurvey, Survey, SurveyedInput, survey
from opdkit.extract.inputs.units import Unit, Units
from opdkit.extract.turns import turns
from opdkit.extract.workers import Prepare, Workers
from opdkit.store import Counters, PartWriter, Stage, Summary, stopping
from opdkit.store.plans import stage_dir
from opdkit.store.skip_reasons import NO_NEXT, SIDE
from opdkit.store.tables import REJECTED, SESSIONS, TURNS, to_arrow

if TYPE_CHECKING:
    from opdkit.extract.redact import Redactor

TABLES = [SESSIONS, TURNS, REJECTED]
_MB = 1_000_000
_PARTS, _LEAST_PART, _LARGEST_PART = 64, 250_000, 8_000_000  # bytes
_PACKED = (".gz", ".zst", ".parquet")
_COLUMN = TURNS.schema.get_field_index
_SKIP_REASON = itemgetter(_COLUMN("skip_reason"))
_MESSAGE_INDEX, _FINISH_REASON = _COLUMN("message_index"), _COLUMN("finish_reason")
_TOKEN_IDS, _LOGPROBS = _COLUMN("response_token_ids"), _COLUMN("behavior_logprobs")
_NAMED = 20  # inputs whose format is said one by one
_TURNS, _TRAINABLE, _LOST, _SKIPPED = "turns", "trainable", "log sessions unread", "skipped"


def run(config: ExtractConfig) -> Summary:
    """Extract the parts of this shard that are not done yet.

    Raises ConfigError for inputs that are missing or of no known format, and OpdkitError, after the parts are written,
    when most of the log could not be read or nothing in it can be trained on.
    """
    check_options(config)
    if config.dry_run:
        return dry_run(config)
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(Workers(config.workers, ready)) if config.workers > 1 else None
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opdkit-extract-")))
        inputs = expand(config.logs, scratch)
        found = survey(
            inputs,
            chosen_format(config),
            part_bytes(config, inputs),
            config.max_line_mb * _MB,
            config.limit,
            scratch,
            shared_survey(config),
        )
        say_formats(found.inputs)
        if found.parts == 0 and not any(f.set_aside for f in found.inputs):
            raise OpdkitError(f"nothing to read: no line but blank ones in {', '.join(config.logs)}")
        stage = Stage.open(
            config,
            "extract",
            TABLES,
            parts=max(1, found.parts),
            inputs={f.input.name: f.pinned() for f in found.inputs},
        )
        write_parts(stage, found, workers)
    summary = stage.summary()
    if summary.parts_done == summary.parts:
        check(summary.counters)
    return summary


def check_options(config: ExtractConfig) -> None:
    """Raise ConfigError for a wrong --map file or --redact-pattern, before anything is read or written."""
    chosen_format(config)
    redactor_of(config)


def part_bytes(config: ExtractConfig, inputs: Sequence[Input]) -> int:
    """The size of a part: what a process that is killed loses at most, and what processes share the work by.

    So a log of any size is some parts, and one of terabytes is not millions of files. A packed log counts as five times
    its size.
    """
    if config.part_mb is not None:
        return max(1, round(config.part_mb * _MB))
    size = sum(given.path.stat().st_size * (5 if given.path.suffix in _PACKED else 1) for given in inputs)
    return min(max(size // _PARTS, _LEAST_PART), _LARGEST_PART)


def dry_run(config: ExtractConfig) -> Summary:
    """Say what the first lines of each input would become, and write nothing. Raises OpdkitError if that is nothing."""
    from opdkit.extract.preview import preview  # imported here: few ask for it

    redactor, filters = redactor_of(config), filters_of(config)
    summary = preview(config, chosen_format(config), lambda unit, out: write_unit(unit, out, redactor, filters))
    if summary.counters.total(_LOST) and not summary.counters.rows_out:
        check(summary.counters)
    return summary


def chosen_format(config: ExtractConfig) -> str | Reader:
    """The format as `--format` names it, or the reader that `--map` makes."""
    if config.map is None:
        return config.format
    from opdkit.extract.formats.mapped import reader_of  # imported here: few ask for it
    from opdkit.extract.mapping import load

    return reader_of(load(config.map))


def shared_survey(config: ExtractConfig) -> SharedSurvey | None:
    """Where the shards of a run tell each other what they know of the inputs; nobody is told by a run of one shard."""
    index, count = parse_shard(config.shard)
    return SharedSurvey(stage_dir(config.run, "extract") / ".survey", index, count) if count > 1 else None


def write_parts(stage: Stage, found: Survey, workers: Workers | None) -> None:
    """Compute and commit every part of this shard that is missing, here or in other processes."""
    todo = stage.todo()
    if workers is not None:
        wanted = itertools.takewhile(lambda _: not stopping.requested(), todo)
        left = len(todo)
        for _ in progress(workers.do((stage, found), wanted), "extract", left, "parts"):
            stopping.after_part()
            left -= 1
        if left:
            stopping.before_part()
        return
    with part_writer((stage, found)) as write:
        for part in progress(todo, "extract", len(todo), "parts"):
            write(part)


@contextlib.contextmanager
def part_writer(job: tuple[Stage, Survey]) -> Iterator[Callable[[int], None]]:
    """A function that computes and commits one part."""
    stage, found = job
    with contextlib.closing(Units(found)) as units, rare_collections():

        def write(part: int) -> None:
            redactor = redactor_of(stage.config)
            filters = filters_of(stage.config)
            with stage.writing(part) as out:
                if part == 0:
                    write_set_aside(found.inputs, out, redactor)
                for unit in units.read(part):
                    write_unit(unit, out, redactor, filters)
                for name, n in redactor.counts.items() if redactor is not None else ():
                    out.counters.count("redacted", n, label=name)

        yield write


def redactor_of(config: StageConfig) -> "Redactor | None":
    """What replaces personal data and secrets in one part; None where nobody asked for it."""
    assert isinstance(config, ExtractConfig)
    if not (config.redact or config.redact_pattern):
        return None
    from opdkit.extract.redact import SHAPES, Redactor, own_patterns  # imported here: few ask for it

    return Redactor(SHAPES if config.redact else (), own_patterns(config.redact_pattern))


def filters_of(config: StageConfig) -> list[Filter]:
    """The conditions of `--filter`."""
    assert isinstance(config, ExtractConfig)
    return parse_filters(config.filter)


def ready() -> Prepare:
    """What a worker does while the first pass is still under way: pyarrow imports pandas with its first array."""
    to_arrow(SESSIONS, [])
    return part_writer


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Let the cyclic garbage collector look at a part once rather than hundreds of times: there are no cycles in it."""
    before = gc.get_threshold()
    gc.set_threshold(1_000_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def write_set_aside(inputs: Sequence[SurveyedInput], out: PartWriter, redactor: "Redactor | None" = None) -> None:
    """One rejected row for every input that no reader knows."""
    for found in inputs:
        if found.problem is not None and found.set_aside:
            out.counters.rows_in += 1
            set_aside(Rejected(found.input.source, 0, found.problem.reason, found.problem.detail), out, redactor)


def write_unit(unit: Unit, out: PartWriter, redactor: "Redactor | None" = None, filters: Sequence[Filter] = ()) -> None:
    """The rows of one unit that the filters let pass, redacted where there is a redactor."""
    counters = out.counters
    counters.rows_in += 1
    if unit.problem is not None:
        set_aside(Rejected(unit.log.input.source, 0, unit.problem.reason, unit.problem.detail), out, redactor)
        return
    seen = left_out = 0
    for item in unit.log.reader.read(unit.lines):
        reason = why_left_out(item, unit, filters)
        if reason is not None:
            counters.drop(reason)
            left_out += 1
            seen += isinstance(item, Conversation)  # a filter decides which sessions there are, not how they are called
            continue
        failed = write_session(item, unit, seen + 1, out, redactor) if isinstance(item, Conversation) else item
        seen += failed is None
        if isinstance(failed, Rejected):
            set_aside(failed, out, redactor)
    if not seen and not left_out:
        counters.count(_LOST)


def why_left_out(item: Conversation | Rejected | LeftOut, unit: Unit, filters: Sequence[Filter]) -> str | None:
    """The reason under which something that could be read is counted, and nothing else."""
    if isinstance(item, LeftOut):
        return item.reason
    return refused(filters, item, unit.log.format or "") if isinstance(item, Conversation) and filters else None


def write_session(
    told: Conversation, unit: Unit, ordinal: int, out: PartWriter, redactor: "Redactor | None"
) -> Rejected | None:
    """The rows of one conversation; or why there are none."""
    try:
        row = session_row(told, unit, ordinal, redactor)
        rows = turns(row["session_id"], told)  # of the text as it was logged: placeholders are all alike
        if redactor is not None:
            rows = redact(row, rows, redactor)
    except Unreadable as why:
        return Rejected(told.source, told.line, why.reason, why.detail)
    out.rows("sessions", [row])
    out.rows("turns", rows)
    counters = out.counters
    counters.count(_TURNS, len(rows))
    for skipped, count in Counter(map(_SKIP_REASON, rows)).items():
        counters.count(_TRAINABLE if skipped is None else _SKIPPED, count, label=skipped or "")
    return None


def redact(row: JSON, rows: Sequence[tuple[Any, ...]], redactor: "Redactor") -> list[tuple[Any, ...]]:
    """Redact the messages and tools of a session's row, in place; its turns, as they may be written then.

    The sampled tokens of a reply say what its text says: where that was redacted, they are left out.
    """
    logged: list[JSON] = row["messages"]
    row["messages"] = [redactor.message(message) for message in logged]
    for key, clean in (("tools", redactor.json), ("model", redactor.text)):
        row[key] = clean(row[key]) if row[key] else None
    changed = {i for i, message in enumerate(logged) if message != row["messages"][i]}
    kept = []
    for turn in map(list, rows):
        if turn[_FINISH_REASON]:
            turn[_FINISH_REASON] = redactor.text(turn[_FINISH_REASON])
        if turn[_MESSAGE_INDEX] in changed:
            turn[_TOKEN_IDS] = turn[_LOGPROBS] = None
        kept.append(tuple(turn))
    return kept


def set_aside(item: Rejected, out: PartWriter, redactor: "Redactor | None" = None) -> None:
    """One row of the rejected table, counted as dropped."""
    out.rows("rejected", [item.row(redactor.raw if redactor is not None else str)])
    out.counters.drop(item.reason)


def session_row(told: Conversation, unit: Unit, ordinal: int, redactor: "Redactor | None" = None) -> JSON:
    """The row of tables.SESSIONS for the `ordinal`-th conversation, from 1, of a unit; id and metadata redacted."""
    name = str(told.line) if unit.name is None else unit.name
    metadata: JSON = told.metadata
    if redactor is not None:
        metadata = redactor.value(metadata)
        if unit.name is not None and (redacted := redactor.text(name)) != name:
            # The ids of two users become one placeholder: the line where the unit begins tells them apart.
            name = f"{redacted}~{unit.lines[0].number}"
    return {
        "session_id": f"{unit.log.input.name}:{name}" + (f"#{ordinal}" if ordinal > 1 else ""),
        "source": told.source,
        "line": told.line,
        "format": unit.log.format,
        "model": told.model,
        "messages": told.messages,
        "tools": told.tools,
        "metadata": dump(metadata) if metadata else None,
    }


def say_formats(inputs: Sequence[SurveyedInput]) -> None:
    """On stderr: what each input was taken for."""
    for found in inputs[:_NAMED]:
        what = found.format or (f"set aside: {found.problem.reason}" if found.problem else "empty")
        say(f"{found.input.source}: {what}")
    rest = [found.format or "set aside" for found in inputs[_NAMED:]]
    if rest:
        say("and " + ", ".join(f"{rest.count(name):,} more as {name}" for name in sorted(set(rest))))


def check(counters: Counters) -> None:
    """Raise OpdkitError when most of the log was lost, or none of it can be trained on: say so in words."""
    reasons = ", ".join(f"{reason} ({n:,})" for reason, n in counters.dropped.most_common(3))
    lost = counters.total(_LOST)
    if 2 * lost > counters.rows_in:
        raise OpdkitError(
            f"{lost:,} of {counted(counters.rows_in, 'log session')} could not be read: {reasons}. "
            "The rejected table shows line and text of each; is --format right?"
        )
    if counters.total(_TRAINABLE):
        return
    skipped = counters.labels(_SKIPPED)
    why = ", ".join(f"{reason} ({n:,})" for reason, n in skipped.most_common(3)) or reasons or "no turns at all"
    if NO_NEXT in skipped:
        warn(f"no turn has a reaction to learn from: {why}. Where the log itself says how good replies were, `opdkit "
             "judge --good ... --bad ...` rewards them by that")  # fmt: skip
        return
    side = " Every turn is marked as side." if set(skipped) == {SIDE} else ""
    raise OpdkitError(
        f"nothing can be trained on: none of {counted(counters.total(_TURNS), 'turn')}.{side} Reasons: {why}."
    )
