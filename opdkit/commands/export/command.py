"""The loop of `opdkit export`: read the judged turns of a part, write the rows that the target makes of them."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opdkit.commands.export import kto, openai, sdft, sft, verl
from opdkit.commands.export.files import message_type, refuse_existing, whole, writing
from opdkit.commands.export.turns import Target, judged_turns
from opdkit.commands.review.sheet import Imported, read_csv, write_csv
from opdkit.config.export import REVIEW, ExportConfig
from opdkit.console import counted, progress, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store import Counters, Summary, part_count
from opdkit.store.plans import stage_dir
from opdkit.store.reviews import in_force

# Every target, from the rewards that make a reply worth imitating.
TARGETS: dict[str, Callable[[tuple[int, ...]], Target]] = {
    "trl-sdft": lambda _: sdft.TARGET,
    "trl-kto": lambda _: kto.TARGET,
    "trl-sft": sft.target,
    "verl": lambda _: verl.TARGET,
    "openai": openai.target,
}


def run(config: ExportConfig) -> Summary | Imported:
    """Export the judged turns of a run to one file, or read decisions back from one.

    Raises ConfigError for a file that exists or a suffix that the target does not have, OpdkitError when the judge
    stage has not finished or no turn is left to export.
    """
    if config.import_reviews is not None:
        return read_csv(config.run, config.import_reviews)
    if config.to == REVIEW:
        return _review_sheet(config)
    return _export(config, str(config.to))


def _export(config: ExportConfig, to: str) -> Summary:
    start, parts = time.monotonic(), part_count(config.run, "judge")
    target = TARGETS[to]((1, 0) if config.include_neutral else (1,))
    path = out_path(config, target.suffixes)
    refuse_existing(path, overwrite=config.overwrite)
    reviews = in_force(config.run)
    counters, schema = Counters(), target.schema(message_type(config.run, parts))
    with writing(path, schema, overwrite=config.overwrite) as out:
        for part in progress(range(parts), "export", parts, "parts"):
            for turns in judged_turns(config.run, part, config.limit, reviews, counters):
                for row in target.rows(turns, counters):
                    out.write(row)
        if not counters.rows_out:
            raise OpdkitError(f"{config.run} has no turn for {to}: {_reasons(counters)}")
    counters.seconds = time.monotonic() - start
    if to == "openai" and (lines := counters.total("conversations")) < openai.FEWEST_LINES:
        warn(f"{path} has {counted(lines, 'line')}; OpenAI takes no fewer than {openai.FEWEST_LINES}")
    return Summary(f"export {to}", counters, parts, parts, path)


def _review_sheet(config: ExportConfig) -> Summary:
    start, parts = time.monotonic(), part_count(config.run, "judge")
    path = out_path(config, (".csv",))
    with whole(path, overwrite=config.overwrite) as file, file.open("w", encoding="utf-8-sig", newline="") as stream:
        rows = write_csv(config.run, stream)
    counters = Counters(rows_in=rows, rows_out=rows, seconds=time.monotonic() - start)
    return Summary(f"export {REVIEW}", counters, parts, parts, path)


def out_path(config: ExportConfig, suffixes: Sequence[str]) -> Path:
    """Where the export goes. Raises ConfigError for a suffix that the target does not have."""
    if config.out is None:
        return stage_dir(config.run, "export") / f"{config.to}{suffixes[0]}"
    if config.out.suffix not in suffixes:
        raise ConfigError(f"OUT is {str(config.out)!r}; --to {config.to} writes {' or '.join(suffixes)}")
    return config.out


def _reasons(counters: Counters) -> str:
    """Why every turn was dropped."""
    return ", ".join(f"{reason} {n:,}" for reason, n in counters.dropped.most_common()) or "it has no turns"
