"""Loop of `opdkit export`: turn judged turns into the rows of the target. Writes a complete file or none."""

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from opdkit.chat.control_tokens import has_control_tokens
from opdkit.commands.export.messages import CONTROL_TOKENS, dump_json, read_judged_turns
from opdkit.commands.export.rules import merge_hints, write_prompt_and_evidence
from opdkit.commands.export.targets import ANY, FEWEST_LINES, MESSAGES, PLAIN, TARGETS
from opdkit.commands.review.spreadsheet import Imported, read_csv, write_csv
from opdkit.config.command_line import quote
from opdkit.config.export import REVIEW, RULES, ExportConfig
from opdkit.config.fields import JSON
from opdkit.console import counted, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.votes import holds_reply
from opdkit.store.atomic import replaced_file
from opdkit.store.counters import Counters, Summary
from opdkit.store.plans import check_upstream, has_stage, manifest, stage_dir
from opdkit.store.reading import count_parts
from opdkit.store.reviews import check_targets_current
from opdkit.store.template_args import choose_template_args
from opdkit.store.turn_ids import logged_session_id

if TYPE_CHECKING:
    from opdkit.chat.template import Chat

_GROUP_ROWS = 256  # a row holds its whole prompt: few enough to fit in memory, enough to compress well


def run(config: ExportConfig) -> Summary | Imported:
    """Export the judged turns of a run to one file, or read decisions back from one.

    Raises ConfigError if the file exists or has a wrong suffix for the target; OpdkitError if a stage has not finished
    or is older than the stage before it, or if no turn is left to export.
    """
    if config.import_reviews is not None:
        return read_csv(config.run, config.import_reviews)
    check_upstream(config.run, ["judge"])
    start, parts, counters = time.monotonic(), count_parts(config.run, "judge"), Counters()
    suffixes = {REVIEW: (".csv",), RULES: (".md", ".txt")}.get(config.to or "") or TARGETS[str(config.to)].suffixes
    path = config.out or stage_dir(config.run, "export") / f"{config.to}{suffixes[0]}"
    if path.suffix not in suffixes:
        raise ConfigError(f"OUT is {str(path)!r}; --to {config.to} writes {' or '.join(suffixes)}")
    check_output(path, overwrite=config.overwrite)  # before anything is read
    with replaced_file(path, replace=config.overwrite) as temporary:
        if config.to == REVIEW:
            counters = write_csv(config.run, temporary)
        elif config.to == RULES:
            write_rules(config, temporary, path, counters)
        else:
            write_target(config, temporary, path.suffix, counters)
        if not counters.rows_out and config.to != REVIEW:
            reasons = ", ".join(f"{reason} {n:,}" for reason, n in counters.dropped.most_common())
            can_be_written = config.to == "trl-dpo" and not has_stage(config.run, "teacher")
            advice = f"; `opdkit teacher {quote(config.run)} ...` writes replies to prefer" if can_be_written else ""
            raise OpdkitError(f"{config.run} has no turn for {config.to}: {reasons or 'it has no turns'}{advice}")
    if config.to == "openai" and (lines := counters.total("conversations")) < FEWEST_LINES:
        warn(f"{path} has {counted(lines, 'line')}; OpenAI takes no fewer than {FEWEST_LINES}")
    counters.seconds = time.monotonic() - start
    return Summary(f"export {config.to}", counters, parts, parts, path)


def load_student_chat(config: ExportConfig) -> "Chat | None":
    """Return the student's chat template, which decodes the teacher's replies; None if the export has none."""
    if config.to != "trl-dpo" or not has_stage(config.run, "teacher"):
        return None
    check_upstream(config.run, ["teacher"])
    check_targets_current(config.run)
    from opdkit.model.load import load_template  # imported here: no other target needs a tokenizer

    model = manifest(config.run, "teacher")["plan"]["config"]["model"]
    return load_template(model, choose_template_args(config.run, "teacher"))


def write_target(config: ExportConfig, temporary: Path, suffix: str, counters: Counters) -> None:
    """Write the rows for a trainer as JSONL, or as Parquet after a first pass that finds their schema."""
    target, chat = TARGETS[str(config.to)], load_student_chat(config)
    rewards = (1, 0) if config.include_neutral else (1,)

    def rows(counters: Counters) -> Iterator[JSON]:
        for turns in read_judged_turns(config.run, config.limit, counters, chat):
            yield from target.rows(turns, rewards, counters)

    if suffix == ".jsonl":
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(dump_json(row) + "\n" for row in rows(counters))
    else:
        write_parquet(temporary, rows(counters), choose_schema(target.columns, rows(Counters())))


def write_rules(config: ExportConfig, temporary: Path, path: Path, counters: Counters) -> None:
    """Write the hints as rules to `temporary`, and the turns that ask for each rule as JSONL beside `path`."""
    check_output(beside := path.with_suffix(".jsonl"), overwrite=config.overwrite)
    hints = []
    for turn in chain.from_iterable(read_judged_turns(config.run, config.limit, counters)):
        hint = turn.verdict["hint"]
        status = turn.verdict["hint_status"]
        if hint is None or has_control_tokens(hint):
            counters.drop(f"no hint ({status})" if hint is None else CONTROL_TOKENS)
        elif holds_reply(hint, status, turn.turn["decision"]):
            counters.drop(f"the hint is a reply ({status})")
        else:
            hints.append((hint, turn.turn_id, logged_session_id(turn.session_id)))
    prompt, evidence = write_prompt_and_evidence(merge_hints(hints)[: config.max_rules])
    counters.rows_out = sum(row["turns"] for row in evidence)
    if counters.rows_out < len(hints):
        counters.drop("beyond --max-rules", len(hints) - counters.rows_out)
    counters.count("rules", len(evidence))
    temporary.write_text(prompt, encoding="utf-8")
    if evidence:
        with replaced_file(beside, replace=config.overwrite) as file:  # another process may have written it meanwhile
            file.write_text("".join(dump_json(row) + "\n" for row in evidence), encoding="utf-8")
    if disputed := [str(row["rule"]) for row in evidence if row["contradicts"]]:
        warn(f"{path}: some of the rules {', '.join(disputed)} contradict each other; decide which to keep")


def write_parquet(path: Path, rows: Iterator[JSON], schema: pa.Schema) -> None:
    """Write rows as Parquet, with only a few in memory at a time."""
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        while batch := list(islice(rows, _GROUP_ROWS)):
            columns = []
            for field in schema:
                values = [row[field.name] for row in batch]
                if field.type == pa.list_(ANY):
                    texts = [[dump_json(item) for item in items] for items in values]
                    columns.append(pa.array(texts, pa.list_(pa.string())).cast(field.type))
                else:
                    columns.append(pa.array(values, field.type))
            file.write_table(pa.Table.from_arrays(columns, schema=schema))


def choose_schema(columns: Mapping[str, pa.DataType], rows: Iterable[JSON]) -> pa.Schema:
    """Return the schema of the rows. Messages are PLAIN if all of them have only role and content, else ANY."""
    names = [name for name, kind in columns.items() if kind == MESSAGES]
    is_plain = all(message.keys() == {"role", "content"} for row in rows for name in names for message in row[name])
    messages = pa.list_(PLAIN if is_plain else ANY)
    return pa.schema([(name, messages if name in names else kind) for name, kind in columns.items()])


def check_output(path: Path, *, overwrite: bool) -> None:
    """Raise ConfigError if `path` is a folder, or exists and must not be overwritten."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name the file to write")
    if path.exists() and not overwrite:
        raise ConfigError(f"{path} already exists; name another file, or pass --overwrite to replace it")
