"""Findings about the logs: there, readable, their format. `opdkit extract --dry-run` shows their contents."""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from opdkit.chat.conversation import Unreadable
from opdkit.commands.doctor.finding import NOTE, OK, PROBLEM, Finding
from opdkit.errors import OpdkitError
from opdkit.extract.formats.detect import detect
from opdkit.extract.inputs.files import Input, expand, is_damage, lines, open_plain

_LINE = 64 << 20  # bytes of the longest line that is looked at, as `extract --max-line-mb` has it


def examine(logs: Sequence[str]) -> Iterator[Finding]:
    """Yield one finding per input."""
    remote = [log for log in logs if log == "-" or log.startswith("hf:")]
    for log in remote:
        yield Finding("logs", NOTE, f"{log} is not looked into", "opdkit extract reads it once")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            inputs = expand([log for log in logs if log not in remote], Path(scratch))
        except OpdkitError as error:
            yield Finding("logs", PROBLEM, str(error), "name JSONL files, or folders that hold some")
            return
        yield from map(_input, inputs)


def _input(found: Input) -> Finding:
    try:
        with open_plain(found.path) as handle:
            name = detect(found.source, (line for _, line in lines(handle, found.source, _LINE)))
    except Unreadable as why:
        return Finding("logs", PROBLEM, f"{found.source}: {why.reason} ({why.detail})", "--format names the format; "
                       "docs/logs.md says which are read")  # fmt: skip
    except OpdkitError as error:
        return Finding("logs", PROBLEM, str(error), "--format names the format")
    except Exception as error:
        if not isinstance(error, OSError) and not is_damage(error):
            raise
        return Finding("logs", PROBLEM, f"{found.source} cannot be read: {error}", "a damaged or protected file: copy "
                       "it again, or make it readable")  # fmt: skip
    return Finding("logs", OK, f"{found.source}: {name}")
