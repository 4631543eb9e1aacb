"""`opdkit extract`: conversation logs -> sessions, turns, and what could not be read.

inputs/first_pass.py pins the inputs and finds their units, so that the number of parts is known before one is written.
inputs/second_pass.py computes each part from its own units and from nothing else.
"""

import contextlib
import functools
import gc
import pickle
import sqlite3
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path

from opdkit.chat.conversation import JSON, Conversation, Unreadable
from opdkit.chat.messages import dump
from opdkit.config.conditions import Filter, find_rejection, parse_filters
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import PythonFunction
from opdkit.config.shard import parse_shard
from opdkit.console import counted, progress, say, warn
from opdkit.errors import ConfigError, NothingLearnedError, OpdkitError
from opdkit.extract.formats.detect import NO_LINES, problem_text
from opdkit.extract.formats.function import reader_of_function
from opdkit.extract.formats.mapped import reader_of
from opdkit.extract.formats.openclaw_rl import VOTES
from opdkit.extract.formats.reader import LeftOut, Line, Reader, Rejected
from opdkit.extract.inputs.archives import DAMAGED
from opdkit.extract.inputs.files import SUFFIXES, Input, add_name, expand, scratch_folder
from opdkit.extract.inputs.first_pass import SharedSurvey, SurveyedInput, survey
from opdkit.extract.inputs.second_pass import Unit, Units
from opdkit.extract.known_turns import skip_known
from opdkit.extract.ledger import formats_of_news
from opdkit.extract.mapping import load
from opdkit.extract.preview import BEGINNING, DAMAGE, WHOLE, copy_head, print_report
from opdkit.extract.redact import Redactor, own_patterns, redact_session
from opdkit.extract.turns import turns
from opdkit.extract.workers import Workers
from opdkit.store import stopping
from opdkit.store.atomic import remove_entries
from opdkit.store.counters import Counters, Summary
from opdkit.store.digests import file_digest
from opdkit.store.part_writer import PartWriter, Stage
from opdkit.store.plans import stage_dir
from opdkit.store.skip_reasons import DUPLICATE, NO_NEXT, SIDE
from opdkit.store.tables import REJECTED, SESSIONS, TURNS, to_arrow
from opdkit.store.turn_ids import branch_session_id

TABLES = [SESSIONS, TURNS, REJECTED]
_MB = 1_000_000
_PARTS, _LEAST_PART, _LARGEST_PART = 64, 250_000, 8_000_000  # bytes
_PACKED = (".gz", ".zst", ".parquet")
_SKIP_REASON = itemgetter(TURNS.schema.get_field_index("skip_reason"))
# Objects between two runs of the cyclic garbage collector: about one run per part, since parts have no cycles.
_RARELY = 1_000_000
_NAMED = 20  # inputs whose format is printed one by one
_TURNS, _TRAINABLE, _UNREAD, _SKIPPED = "turns", "trainable", "log sessions unread", "skipped"


def run(config: ExtractConfig, known: Path | None = None) -> Summary:
    """Extract the parts of this shard that are not done yet.

    `known` is the file of turns that earlier nights have extracted, as `news.collect_news` writes it beside the logs:
    they are not trainable again, and the formats of these logs are not detected.
    Then a log without one trainable turn is no error.

    Raises ConfigError for a wrong --map file or --redact-pattern and for inputs that are missing or of no known format,
    before anything is written. Raises OpdkitError, after the parts are written, when most of the log could not be read
    or nothing in it can be trained on.
    """
    log_format = check_options(config)
    if config.dry_run:
        return preview(config, log_format)
    index, shards = parse_shard(config.shard)
    shared = SharedSurvey(stage_dir(config.run, "extract") / ".survey", index, shards)
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(Workers(config.workers, prepare_worker)) if config.workers > 1 else None
        scratch = stack.enter_context(scratch_folder())
        inputs = redact_sources(expand(config.logs, scratch), make_redactor(config))
        size, line_limit = part_bytes(config, inputs), config.max_line_mb * _MB
        formats = {} if known is None else formats_of_news(known)
        sharing = shared if shards > 1 else None
        logs = survey(inputs, log_format, size, line_limit, config.limit, scratch, sharing, formats)
        say_formats(logs.inputs)
        if logs.parts == 0 and not any(log.problem for log in logs.inputs):
            raise OpdkitError(f"nothing to read: no line but blank ones in {', '.join(config.logs)}")
        pinned = {
            log.input.name: {"position": log.number, "source": log.input.source, "bytes": log.stat[0],
                             "xxh3_128": log.digest, "format": log.format} for log in logs.inputs
        }  # fmt: skip
        if known is not None:
            known = known.resolve()
            pinned[":known turns"] = {"xxh3_128": file_digest(known)}  # no input has a colon in its name
        stage = Stage.open(config, "extract", TABLES, parts=max(1, logs.parts), inputs=pinned)
        todo = stage.todo()
        if workers is None:
            units = stack.enter_context(contextlib.closing(Units(logs)))
            stack.callback(gc.set_threshold, *gc.get_threshold())
            gc.set_threshold(_RARELY, *gc.get_threshold()[1:])
            for part in progress(todo, "extract", len(todo), "parts"):
                write_part(stage, units, part, known)
        else:
            job = scratch / "job.pickle"
            job.write_bytes(pickle.dumps((stage, logs, known)))
            write = functools.partial(write_part_in_worker, job)
            for _ in progress(workers.compute(write, todo), "extract", len(todo), "parts"):
                stopping.count_finished()
            if stage.todo():
                stopping.raise_if_requested()
    summary = stage.summary()
    if summary.parts_done == summary.parts:
        remove_entries([shared.folder])  # also what shards left that were killed
        try:
            check_results(summary.counters)
        except OpdkitError as error:
            if known is None:
                raise
            warn(str(error))  # a few lines may well hold nothing to train on
    return summary


def write_part(stage: Stage, units: Units, part: int, known: Path | None = None) -> None:
    """Compute and commit one part. The turns in `known` are not trainable."""
    config = stage.config
    assert isinstance(config, ExtractConfig)
    redactor, filters = make_redactor(config), parse_filters(config.filter)
    with contextlib.ExitStack() as stack, stage.writing(part) as out:
        known_turns = None
        if known is not None:
            known_turns = stack.enter_context(
                contextlib.closing(sqlite3.connect(f"{known.as_uri()}?mode=ro", uri=True))
            )
        for log in units.survey.inputs if part == 0 else ():
            if log.problem is not None and log.format is None:  # no reader knows it
                out.counters.rows_in += 1
                write_rejected(Line(log.input.source, 0, b"").reject(log.problem), out, redactor)
        for unit in units.read(part):
            write_unit(unit, out, redactor, filters, config.side, known_turns)
        for name, count in redactor.counts.items() if redactor is not None else ():
            out.counters.count("redacted", count, label=name)


def write_unit(
    unit: Unit,
    out: PartWriter,
    redactor: Redactor | None,
    filters: Sequence[Filter],
    side: bool,
    known: sqlite3.Connection | None = None,
) -> None:
    """Write the rows of one unit that the filters let pass, redacted if there is a redactor. `side`: see `turns`."""
    counters = out.counters
    counters.rows_in += 1
    if unit.problem is not None:
        write_rejected(Line(unit.log.input.source, 0, b"").reject(unit.problem), out, redactor)
        return
    ordinal = sessions = left_out = 0
    written: set[str | None] = set()  # replies of a tree that an earlier branch holds
    seen: Counter[bytes] = Counter()  # trainable turns, where some are known
    for item in unit.log.reader.read(unit.lines):
        # A filter decides which sessions are kept, not their ids.
        ordinal += isinstance(item, Conversation) and item.branch < 2
        if isinstance(item, Rejected):
            write_rejected(item, out, redactor)
        elif isinstance(item, LeftOut):
            counters.drop(item.reason)
            left_out += 1
        elif filters and (reason := find_rejection(filters, item, unit.log.format or "")) is not None:
            counters.drop(reason)
            left_out += 1
        else:
            ids = {note.message_id for note in item.notes.values()} - {None}
            for note in item.notes.values():
                if note.message_id in written:
                    note.skip_reason, note.decision = DUPLICATE, None
            try:
                row = session_row(item, unit, ordinal, redactor)
                # Of the text as it was logged: placeholders are all alike.
                rows = turns(row["session_id"], item, side=side)
                if redactor is not None:
                    rows = redact_session(row, rows, redactor)
                if known is not None:
                    rows = skip_known(row, rows, known, seen)
            except Unreadable as why:
                write_rejected(Line(item.source, item.line, b"").reject(why), out, redactor)
                continue
            sessions += 1
            written |= ids
            out.rows("sessions", [row])
            out.rows("turns", rows)
            counters.count(_TURNS, len(rows))
            count_decisions(item, counters)
            for skipped, count in Counter(map(_SKIP_REASON, rows)).items():
                counters.count(_TRAINABLE if skipped is None else _SKIPPED, count, label=skipped or "")
    if not sessions and not left_out:
        counters.count(_UNREAD)


def count_decisions(conversation: Conversation, counters: Counters) -> None:
    """Count what people decided about the replies of a conversation, by kind."""
    for decision in filter(None, (note.decision for note in conversation.notes.values())):
        rating = f"rated {decision['rating']:+d}" if decision["rating"] is not None else None
        kinds = {rating: True, "commented": decision["comment"], "edited": decision["edited"],
                 "regenerated": decision["kept"]}  # fmt: skip
        for kind in (kind for kind, is_there in kinds.items() if kind and is_there):
            counters.count("decisions", label=kind)


def write_rejected(item: Rejected, out: PartWriter, redactor: Redactor | None) -> None:
    """Write one row of the rejected table, and count it as dropped."""
    out.rows("rejected", [item.row(redactor.raw if redactor is not None else str)])
    out.counters.drop(item.reason)


def session_row(conversation: Conversation, unit: Unit, ordinal: int, redactor: Redactor | None) -> JSON:
    """Return the row of tables.SESSIONS for the `ordinal`-th conversation, from 1, of a unit; id and metadata redacted.

    The branches of a tree count as one conversation. Raises Unreadable for metadata that cannot be written as JSON.
    """
    name = str(conversation.line) if unit.name is None else unit.name
    metadata: JSON = conversation.metadata
    if redactor is not None:
        metadata = redactor.value(metadata)
        if unit.name is not None and (redacted := redactor.text(name)) != name:
            # The ids of two users become one placeholder: the number tells them apart. A line may hold several units.
            name = f"{redacted}~{unit.number}"
    first = f"{unit.log.input.name}:{name}" + (f"#{ordinal}" if ordinal > 1 else "")
    return {
        "session_id": branch_session_id(first, conversation.branch),
        "source": conversation.source,
        "line": conversation.line,
        "format": unit.log.format,
        "model": conversation.model,
        "messages": conversation.messages,
        "tools": conversation.tools,
        "metadata": dump(metadata) if metadata else None,
        "tree": first if conversation.branch else None,
    }


def check_options(config: ExtractConfig) -> str | Reader:
    """Return the format that `--format` names, the reader of the `--map` file, or that of a Python function.

    Raises ConfigError for a wrong --map file or --redact-pattern, before anything is read or written.
    """
    make_redactor(config)
    if isinstance(config.format, PythonFunction):
        return reader_of_function(config.format)
    return config.format if config.map is None else reader_of(load(config.map))


def make_redactor(config: ExtractConfig) -> Redactor | None:
    """Return a new redactor with its counts at 0; None where nothing is redacted. Raises ConfigError."""
    if not (config.redact or config.redact_pattern or config.redact_names):
        return None
    redactor = _build_redactor(config.redact, config.redact_pattern, config.redact_names)
    redactor.counts.clear()
    return redactor


@functools.lru_cache(1)
def _build_redactor(redact: bool, patterns: tuple[str, ...], names_model: str | None) -> Redactor:
    """Build it once per process: its cache of texts is of use to every part."""
    return Redactor(redact, own_patterns(patterns), names_model)


def redact_sources(inputs: list[Input], redactor: Redactor | None) -> list[Input]:
    """Return the inputs with their names and sources, which go into ids and tables, redacted; the paths stay."""
    if redactor is None:
        return inputs
    names: set[str] = set()
    redacted = []
    for entry in inputs:
        # Without the suffix: chat@12.jsonl, a log of a night, is no address.
        suffix = next((suffix for suffix in SUFFIXES if entry.source.endswith(suffix)), "")
        source = redactor.text(entry.source.removesuffix(suffix)) + suffix
        redacted.append(replace(entry, name=add_name(redactor.text(entry.name), names), source=source))
    return redacted


def part_bytes(config: ExtractConfig, inputs: Sequence[Input]) -> int:
    """Return the size of a part: what a process that is killed loses at most, and what processes share the work by.

    A log of any size is several parts, and one of terabytes is not millions of files. A packed log counts as five times
    its size.
    """
    if config.part_mb is not None:
        return max(1, round(config.part_mb * _MB))
    size = sum(entry.path.stat().st_size * (5 if entry.path.suffix in _PACKED else 1) for entry in inputs)
    return min(max(size // _PARTS, _LEAST_PART), _LARGEST_PART)


def say_formats(logs: Sequence[SurveyedInput]) -> None:
    """Print on stderr the format of each input."""
    for log in logs[:_NAMED]:
        read = f"{log.format}, up to where it breaks off: {log.problem.reason}" if log.problem else log.format
        aside = f"set aside: {log.problem.reason}" if log.problem else "empty"
        say(f"{log.input.source}: {read if log.format else aside}")
    rest = Counter(log.format or "set aside" for log in logs[_NAMED:])
    if rest:
        say("and " + ", ".join(f"{count:,} more as {name}" for name, count in sorted(rest.items())))


def prepare_worker() -> None:
    """Import what a part needs while the first pass is under way: pyarrow imports pandas with its first array."""
    to_arrow(SESSIONS, [])
    gc.set_threshold(_RARELY, *gc.get_threshold()[1:])


@functools.cache
def load_job(path: Path) -> tuple[Stage, Units, Path | None]:
    """Return the job of this process; it is the same for all parts."""
    stage, logs, known = pickle.loads(path.read_bytes())
    return stage, Units(logs), known


def write_part_in_worker(job: Path, part: int) -> None:
    """Compute and commit one part of a job."""
    stage, units, known = load_job(job)
    write_part(stage, units, part, known)


def preview(config: ExtractConfig, log_format: str | Reader) -> Summary:
    """Print what the first lines of each input would become (`--dry-run`), and write nothing.

    Raises OpdkitError if that is nothing.
    """
    redactor, filters = make_redactor(config), parse_filters(config.filter)
    line_limit, total = config.max_line_mb * _MB, Counters()
    with scratch_folder() as scratch:
        inputs = redact_sources(expand(config.logs, scratch), redactor)
        heads = [copy_head(entry, scratch / f"head-{n}.jsonl", line_limit) for n, entry in enumerate(inputs)]
        head_files = [head for head, _ in heads]
        logs = survey(head_files, log_format, 8 * _MB, line_limit, config.limit, scratch)
        writers = [PartWriter(TABLES) for _ in heads]
        with contextlib.closing(Units(logs)) as units:
            for part in range(logs.parts):
                for unit in units.read(part):
                    write_unit(unit, writers[unit.log.number], redactor, filters, config.side)
    for log, out, (_, extent) in zip(logs.inputs, writers, heads, strict=True):
        if extent == DAMAGE and log.format is None and (log.problem is None or log.problem.reason == NO_LINES):
            log.problem = Unreadable(DAMAGED, "no record is whole")
        taken = f"within the first {counted(config.limit, 'session')} of all inputs (--limit)" if config.limit else ""
        print_report(log, out, ", ".join(filter(None, [extent if extent != WHOLE or not taken else "", taken])))
        total.count("longer inputs", int(extent == BEGINNING))
        out.counters.rows_out = out.arrow(SESSIONS).num_rows
        total.merge(out.counters)
    nothing = all(log.format is None for log in logs.inputs)
    problems = [(entry, log.problem) for entry, log in zip(inputs, logs.inputs, strict=True) if log.problem is not None]
    # Those for which the extraction itself ends with this error: see survey.
    named = [
        problem_text(entry.source, problem) for entry, problem in problems
        if entry.given and (nothing if problem.reason == DAMAGED else not entry.problem and problem.reason != VOTES)
    ]  # fmt: skip
    if named:
        raise ConfigError("\n".join(named))
    if nothing:
        names = ", ".join(log.input.source for log in logs.inputs)
        texts = [problem_text(entry.source, problem) for entry, problem in problems]
        raise OpdkitError("\n".join(texts) or f"nothing to read: no line but blank ones in {names}")
    if total.total(_UNREAD) and not total.rows_out:
        check_results(total)
    return Summary("extract --dry-run", total, 0, 1, where=None)


def check_results(counters: Counters) -> None:
    """Raise OpdkitError when most of the log was lost, NothingLearnedError when none of it can be trained on."""
    reasons = ", ".join(f"{reason} ({n:,})" for reason, n in counters.dropped.most_common(3))
    unread = counters.total(_UNREAD)
    if 2 * unread > counters.rows_in:
        raise OpdkitError(
            f"{unread:,} of {counted(counters.rows_in, 'log session')} could not be read: {reasons}. "
            "The rejected table shows line and text of each; is --format right?"
        )
    if counters.total(_TRAINABLE):
        return
    skipped = counters.labels(_SKIPPED)
    why = ", ".join(f"{reason} ({n:,})" for reason, n in skipped.most_common(3)) or reasons or "no turns at all"
    if NO_NEXT in skipped:
        warn(
            f"no turn has a reaction to learn from: {why}. Where the log itself says how good replies were, `opdkit "
            "judge --good ... --bad ...` rewards them by that"
        )
        return
    side = " Every turn is marked as side; --side trains on such turns, too." if set(skipped) == {SIDE} else ""
    raise NothingLearnedError(
        f"nothing can be trained on: none of {counted(counters.total(_TURNS), 'turn')}.{side} Reasons: {why}."
    )
