"""Loop of `opdkit export`: read the judged turns of a part, write the rows that the target makes of them."""

import time
from collections.abc import Iterator

import pyarrow as pa

from opdkit.commands.export.files import check_output, message_type, replaced_file, write_rows
from opdkit.commands.export.messages import read_judged_turns
from opdkit.commands.export.targets import FEWEST_LINES, MESSAGES, TARGETS
from opdkit.commands.review.sheet import Imported, read_csv, write_csv
from opdkit.config.export import REVIEW, ExportConfig
from opdkit.config.fields import JSON
from opdkit.console import counted, progress, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store import Counters, Summary, part_count
from opdkit.store.plans import stage_dir
from opdkit.store.reviews import reviews_in_force


def run(config: ExportConfig) -> Summary | Imported:
    """Export the judged turns of a run to one file, or read decisions back from one.

    Raises ConfigError for a file that exists or a suffix that the target does not have, OpdkitError when the judge
    stage has not finished or no turn is left to export.
    """
    if config.import_reviews is not None:
        return read_csv(config.run, config.import_reviews)
    start, parts, counters = time.monotonic(), part_count(config.run, "judge"), Counters()
    suffixes = (".csv",) if config.to == REVIEW else TARGETS[str(config.to)].suffixes
    path = config.out or stage_dir(config.run, "export") / f"{config.to}{suffixes[0]}"
    if path.suffix not in suffixes:
        raise ConfigError(f"OUT is {str(path)!r}; --to {config.to} writes {' or '.join(suffixes)}")
    check_output(path, overwrite=config.overwrite)  # before anything is read
    if config.to == REVIEW:
        with replaced_file(path, overwrite=config.overwrite) as temporary:
            counters.rows_in = counters.rows_out = write_csv(config.run, temporary)
    else:
        messages = pa.list_(message_type(config.run, parts))
        columns = TARGETS[str(config.to)].columns.items()
        schema = pa.schema([(name, messages if kind == MESSAGES else kind) for name, kind in columns])
        with replaced_file(path, overwrite=config.overwrite) as temporary:
            write_rows(temporary, _rows(config, parts, counters), schema, jsonl=path.suffix == ".jsonl")
            if not counters.rows_out:
                reasons = ", ".join(f"{reason} {n:,}" for reason, n in counters.dropped.most_common())
                raise OpdkitError(f"{config.run} has no turn for {config.to}: {reasons or 'it has no turns'}")
        if config.to == "openai" and (lines := counters.total("conversations")) < FEWEST_LINES:
            warn(f"{path} has {counted(lines, 'line')}; OpenAI takes no fewer than {FEWEST_LINES}")
    counters.seconds = time.monotonic() - start
    return Summary(f"export {config.to}", counters, parts, parts, path)


def _rows(config: ExportConfig, parts: int, counters: Counters) -> Iterator[JSON]:
    """Yield the rows of all parts, and count them and the turns that they are made of."""
    target, rewards = TARGETS[str(config.to)], ((1, 0) if config.include_neutral else (1,))
    reviews = reviews_in_force(config.run)
    for part in progress(range(parts), "export", parts, "parts"):
        for turns in read_judged_turns(config.run, part, config.limit, reviews, counters):
            yield from target.rows(turns, rewards, counters)
