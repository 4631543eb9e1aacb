"""`opdkit extract`: conversation logs -> sessions, turns, and what could not be read.

inputs/first_pass.py pins the inputs and finds their units, so that the number of parts is known before one is written.
inputs/second_pass.py computes each part from its own units and from nothing else.
"""

import contextlib
import functools
import gc
import pickle
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opdkit.chat.conversation import Unreadable
from opdkit.config.conditions import FILTERED, parse_filters
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import JSON, PythonFunction
from opdkit.config.shard import parse_shard
from opdkit.console import counted, progress, say, warn
from opdkit.errors import ConfigError, NothingLearnedError, OpdkitError
from opdkit.extract.formats.detect import NO_LINES, explain_problem
from opdkit.extract.formats.function import make_function_reader
from opdkit.extract.formats.mapped import make_mapped_reader
from opdkit.extract.formats.openclaw_rl import VOTES
from opdkit.extract.formats.reader import Reader
from opdkit.extract.inputs.archives import DAMAGED
from opdkit.extract.inputs.files import SUFFIXES, Input, add_name, choose_stem, expand, scratch_folder
from opdkit.extract.inputs.first_pass import SharedSurvey, SurveyedInput, make_survey
from opdkit.extract.inputs.second_pass import Unit, Units
from opdkit.extract.known_turns import BY_LINE
from opdkit.extract.ledger import describe_news, read_news
from opdkit.extract.mapping import load
from opdkit.extract.preview import BEGINNING, DAMAGE, WHOLE, copy_head, print_report
from opdkit.extract.redact import Redactor, parse_own_patterns
from opdkit.extract.unit_rows import SKIPPED, UNREAD, RowOptions, write_unit
from opdkit.extract.workers import Workers, is_importable
from opdkit.store import stopping
from opdkit.store.atomic import remove_entries
from opdkit.store.counters import TRAINABLE_COUNT, TURN_COUNT, Counters, Summary, list_reasons
from opdkit.store.digests import digest_file
from opdkit.store.part_writer import PartWriter, Stage
from opdkit.store.plans import differences, has_stage, manifest, stage_dir
from opdkit.store.reviews import read_reviews_in_force, reviews_dir
from opdkit.store.skip_reasons import NO_NEXT, SIDE
from opdkit.store.tables import REJECTED, SESSIONS, TURNS, to_arrow

TABLES = [SESSIONS, TURNS, REJECTED]
_MB = 1_000_000
_PARTS, _LEAST_PART, _LARGEST_PART = 64, 250_000, 8_000_000  # number of parts; bytes of one
_PACKED = (".gz", ".zst", ".parquet")
# Objects between two runs of the cyclic garbage collector: about one run per part, since parts have no cycles.
_RARELY = 1_000_000
_NAMED = 20  # inputs whose format is printed one by one


def run(config: ExtractConfig, known: Path | None = None) -> Summary:
    """Extract the parts of this shard that are not done yet.

    `known` is the file that `news.collect_news` writes beside the logs of a night. It holds the turns that earlier
    nights have extracted, which are not trainable again, and the format and the origin of each log.

    Raises ConfigError for a wrong --map file or --redact-pattern and for inputs that are missing or of no known format,
    before anything is written. Raises OpdkitError, after the parts are written, if most of the log could not be read or
    nothing in it can be trained on; with `known` these are only warnings.
    """
    log_format = choose_format(config)
    if config.dry_run:
        return preview(config, log_format)
    index, shards = parse_shard(config.shard)
    shared = SharedSurvey(stage_dir(config.run, "extract") / ".survey", index, shards)
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(Workers(config.workers, prepare_worker)) if config.workers > 1 else None
        scratch = stack.enter_context(scratch_folder())
        news = {} if known is None else describe_news(known)
        inputs = [replace(entry, source=news[entry.path.name][1]) if entry.path.name in news else entry
                  for entry in expand(config.logs, scratch)]  # fmt: skip
        inputs = redact_sources(inputs, make_redactor(config), {file: number for file, (*_, number) in news.items()})
        size, line_limit = part_bytes(config, inputs), config.max_line_mb * _MB
        formats = {file: known_format for file, (known_format, *_) in news.items()}
        sharing = shared if shards > 1 else None
        survey = make_survey(inputs, log_format, size, line_limit, config.limit, scratch, sharing, formats)
        say_formats(survey.inputs)
        if survey.parts == 0 and not any(surveyed.problem for surveyed in survey.inputs):
            raise OpdkitError(f"nothing to read: no record in {', '.join(config.logs)}")
        pinned = {
            surveyed.input.name: {"position": surveyed.number, "source": surveyed.input.source,
                                  "bytes": surveyed.stat[0], "xxh3_128": surveyed.digest, "format": surveyed.format}
            for surveyed in survey.inputs
        }  # fmt: skip
        if known is not None:
            pinned[":known turns"] = {"xxh3_128": digest_file(known)}  # no input has a colon in its name
        if config.overwrite and has_stage(config.run, "extract"):
            warn_of_decisions(config.run, pinned)
        stage = Stage.open(config, "extract", TABLES, parts=max(1, survey.parts), inputs=pinned)
        todo = stage.todo()
        if workers is None:
            units = stack.enter_context(contextlib.closing(Units(survey)))
            stack.callback(gc.set_threshold, *gc.get_threshold())
            gc.set_threshold(_RARELY, *gc.get_threshold()[1:])
            for part in progress(todo, "extract", len(todo), "parts"):
                write_part(stage, units, known, part)
        else:
            job = scratch / "job.pickle"
            job.write_bytes(pickle.dumps((stage, survey, known)))
            write = functools.partial(write_part_in_worker, job)
            for _ in progress(workers.compute(write, todo), "extract", len(todo), "parts"):
                stopping.count_finished()
            if stage.todo():
                stopping.raise_if_requested()
    summary = stage.summary()
    if summary.parts_done == summary.parts:
        remove_entries([shared.folder])  # including files of killed shards
        try:
            check_results(summary.counters)
        except OpdkitError as error:
            if known is None:
                raise
            warn(str(error))  # the few lines of a night may hold nothing to train on
    return summary


def warn_of_decisions(run: Path, inputs: JSON) -> None:
    """Warn if `inputs` are other logs than those of a run with decisions of people, which know turns by their ids."""
    decided = read_reviews_in_force(run)
    if decided and manifest(run, "extract")["plan"]["inputs"] != inputs:
        warn(f"{counted(len(decided), 'decision')} of people stay with the ids of their turns, and the logs "
             "are others: see in `opdkit review` whether the turns are the same; if not, remove "
             f"{reviews_dir(run)}")  # fmt: skip


def write_part(stage: Stage, units: Units, known: Path | None, part: int) -> None:
    """Compute and commit one part. Turns in the file `known` are not trainable."""
    config = stage.config
    assert isinstance(config, ExtractConfig)
    redactor = make_redactor(config)
    with contextlib.ExitStack() as stack, stage.writing(part) as out:
        known_turns = None if known is None else stack.enter_context(read_news(known))
        options = RowOptions(redactor, parse_filters(config.filter), config.side, known_turns)
        for surveyed in units.survey.inputs if part == 0 else ():
            if surveyed.problem is not None and surveyed.format is None:  # set aside as a whole
                write_unit(Unit(surveyed, None, (), surveyed.problem), out, options)
        for unit in units.read(part):
            write_unit(unit, out, options)
        for name, count in redactor.counts.items() if redactor is not None else ():
            out.counters.count("redacted", count, label=name)


def choose_format(config: ExtractConfig) -> str | Reader:
    """Return the format that `--format` names, the reader of the `--map` file, or the reader of a Python function.

    Raises ConfigError for a wrong --map file or --redact-pattern, and for a function that --workers cannot import,
    before anything is read or written.
    """
    make_redactor(config)
    if isinstance(config.format, PythonFunction):
        if config.workers > 1 and not is_importable(config.format.call):
            raise ConfigError(f"--workers is {config.workers}, and other processes cannot import {config.format}; "
                              "write the function in a file with `def`, outside of functions, or leave workers "
                              "out")  # fmt: skip
        return make_function_reader(config.format)
    return config.format if config.map is None else make_mapped_reader(load(config.map))


def make_redactor(config: ExtractConfig) -> Redactor | None:
    """Return the redactor of this process with its counts at 0; None if nothing is redacted. Raises ConfigError."""
    if not (config.redact or config.redact_pattern or config.redact_names):
        return None
    redactor = _build_redactor(config.redact, config.redact_pattern, config.redact_names)
    redactor.counts.clear()
    return redactor


@functools.lru_cache(1)
def _build_redactor(redact: bool, patterns: tuple[str, ...], names_model: str | None) -> Redactor:
    """Build the redactor, once per process: all parts share its cache of texts."""
    return Redactor(redact, parse_own_patterns(patterns), names_model)


def redact_sources(
    inputs: list[Input], redactor: Redactor | None, numbers: Mapping[str, int] | None = None
) -> list[Input]:
    """Return the inputs with redacted names and sources, which go into ids and tables. Paths stay unchanged.

    `numbers`: numbers of the logs of nights by file name, which keep equal redacted names apart from night to night.
    """
    if redactor is None:
        return inputs
    names, redacted = dict[str, int](), list[Input]()
    for entry in inputs:
        # Leave out the suffix: chat@12.jsonl, a log of a night, looks like an address.
        suffix = next((suffix for suffix in SUFFIXES if entry.source.endswith(suffix)), "")
        path = redactor.text(entry.source.removesuffix(suffix))
        # Then each part of the path by itself: between slashes, a number may be part of a URL.
        source = "/".join(map(redactor.text, path.split("/"))) + suffix
        name = redactor.text(entry.name)
        if source != entry.source:  # the name has `_` for characters by which a rule knows what to redact
            number, tail = (numbers or {}).get(entry.path.name), re.search(rf"{BY_LINE}\d+\Z", entry.name)
            name = choose_stem(source) + (f"~{number}" if number else "") + (tail[0] if tail and number else "")
        redacted.append(replace(entry, name=add_name(name, names), source=source))
    return redacted


def part_bytes(config: ExtractConfig, inputs: Sequence[Input]) -> int:
    """Return the bytes of log per part: the most work that a killed process loses, and the unit that processes share.

    Logs of 16 to 512 MB have 64 parts, smaller logs parts of 250 kB, larger logs of 8 MB. Packed logs count fivefold.
    """
    if config.part_mb is not None:
        return max(1, round(config.part_mb * _MB))
    size = sum(entry.path.stat().st_size * (5 if entry.path.suffix in _PACKED else 1) for entry in inputs)
    return min(max(size // _PARTS, _LEAST_PART), _LARGEST_PART)


def say_formats(inputs: Sequence[SurveyedInput]) -> None:
    """Print on stderr the format of each input."""
    for surveyed in inputs[:_NAMED]:
        problem, what = surveyed.problem, surveyed.format or "empty"
        if problem is not None:
            what = (f"{what}, up to where it breaks off" if surveyed.format else "set aside") + f": {problem.reason}"
        say(f"{surveyed.input.source}: {what}")
    if rest := Counter(surveyed.format or "set aside" for surveyed in inputs[_NAMED:]):
        say("and " + ", ".join(f"{count:,} more as {name}" for name, count in sorted(rest.items())))


def prepare_worker() -> None:
    """Import what a part needs during the first pass: pyarrow imports pandas when it makes its first array."""
    to_arrow(SESSIONS, [])
    gc.set_threshold(_RARELY, *gc.get_threshold()[1:])


@functools.cache
def load_job(path: Path) -> tuple[Stage, Units, Path | None]:
    """Return the job of this process; it is the same for all parts."""
    stage, survey, known = pickle.loads(path.read_bytes())
    return stage, Units(survey), known


def write_part_in_worker(job: Path, part: int) -> None:
    write_part(*load_job(job), part)


def check_logs(config: ExtractConfig) -> None:
    """Raise ConfigError if extract was begun with other logs. Only names and sizes count; the tasks compare digests."""
    if not has_stage(config.run, "extract") or any(log.startswith("hf:") for log in config.logs):
        return
    pinned = manifest(config.run, "extract")["plan"]["inputs"]
    with scratch_folder() as scratch:
        inputs = redact_sources(expand(config.logs, scratch), make_redactor(config))
        now = {log.name: log.path.stat().st_size for log in inputs}
    if changes := differences({name: log.get("bytes") for name, log in pinned.items()}, now, "bytes of the log"):
        lines = "\n".join(f"  {line}" for line in changes)
        raise ConfigError(f"{stage_dir(config.run, 'extract')} was begun with other logs:\n{lines}\n"
                          "Choose another run directory, or pass the same logs as before")  # fmt: skip


def preview(config: ExtractConfig, log_format: str | Reader) -> Summary:
    """Print what the first lines of each input would become (`--dry-run`), and write nothing.

    Raises ConfigError for a named input that no reader knows, and for other logs than those that extract was begun
    with. Raises OpdkitError if nothing could be read.
    """
    if not config.overwrite:
        check_logs(config)
    redactor = make_redactor(config)
    options = RowOptions(redactor, parse_filters(config.filter), config.side)
    line_limit, total = config.max_line_mb * _MB, Counters()
    with scratch_folder() as scratch:
        inputs = redact_sources(expand(config.logs, scratch), redactor)
        heads = [copy_head(entry, scratch / f"head-{n}.jsonl", line_limit) for n, entry in enumerate(inputs)]
        survey = make_survey([head.copy for head in heads], log_format, 8 * _MB, line_limit, config.limit, scratch)
        writers = [PartWriter(TABLES) for _ in heads]
        with contextlib.closing(Units(survey)) as units:
            for part in range(survey.parts):
                for unit in units.read(part):
                    write_unit(unit, writers[unit.surveyed.number], options)
    within = f"within the first {counted(config.limit, 'session')} of all inputs (--limit)" if config.limit else ""
    for surveyed, out, head in zip(survey.inputs, writers, heads, strict=True):
        has_no_record = surveyed.problem is None or surveyed.problem.reason == NO_LINES
        if head.extent == DAMAGE and surveyed.format is None and has_no_record:
            surveyed.problem = Unreadable(DAMAGED, "no record is whole")
        extent = "" if within and head.extent == WHOLE else head.extent
        print_report(surveyed, out, ", ".join(filter(None, [extent, within])))
        total.count("longer inputs", int(head.extent == BEGINNING))
        out.counters.rows_out = out.to_arrow(SESSIONS).num_rows
        total.merge(out.counters)
    problems = [(entry, surveyed.problem) for entry, surveyed in zip(inputs, survey.inputs, strict=True)
                if surveyed.problem is not None]  # fmt: skip
    is_nothing_read = all(surveyed.format is None for surveyed in survey.inputs)
    # A real extraction raises these errors about inputs that the user named: damage, if there is nothing else to read,
    # and first lines that no reader knows. Here `make_survey` does not raise them: the user did not name the copies.
    fatal = [
        explain_problem(entry.source, problem) for entry, problem in problems if entry.given
        and (is_nothing_read if problem.reason == DAMAGED else entry.problem is None and problem.reason != VOTES)
    ]  # fmt: skip
    if fatal:
        raise ConfigError("\n".join(fatal))
    if is_nothing_read:
        texts = [explain_problem(entry.source, problem) for entry, problem in problems]
        names = ", ".join(entry.source for entry in inputs)
        raise OpdkitError("\n".join(texts) or f"nothing to read: no record in {names}")
    if total.total(UNREAD) and not total.rows_out:
        check_results(total)
    return Summary("extract --dry-run", total, 0, 1, where=None)


def check_results(counters: Counters) -> None:
    """Raise OpdkitError if most of the log is unread, NothingLearnedError if no turn is trainable (warn if NO_NEXT)."""
    unread, reasons = counters.total(UNREAD), list_reasons(counters.dropped)
    if 2 * unread > counters.rows_in:
        raise OpdkitError(f"{unread:,} of {counted(counters.rows_in, 'log session')} could not be read: {reasons}. The "
                          "rejected table shows line and text of each; is --format right?")  # fmt: skip
    if counters.total(TRAINABLE_COUNT):
        return
    skipped = counters.labels(SKIPPED)
    why = list_reasons(skipped) or reasons or "no turns at all"
    if NO_NEXT in skipped:
        warn(f"no turn has a reaction to learn from: {why}. Where the log itself says how good replies were, `opdkit "
             "judge --good ... --bad ...` rewards them by that")  # fmt: skip
        return
    advice = " Every turn is marked as side; --side trains on such turns, too." if set(skipped) == {SIDE} else ""
    advice = " `extract --dry-run` without --filter shows the fields of a log." if why.startswith(FILTERED) else advice
    raise NothingLearnedError(f"nothing can be trained on: none of {counted(counters.total(TURN_COUNT), 'turn')}."
                              f"{advice} Reasons: {why}.")  # fmt: skip
