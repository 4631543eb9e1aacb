"""Configuration -> the words of its command line, for batch scripts and for "run this again" in messages."""

import shlex
from pathlib import Path

from opdkit.config.fields import JSON, CommandConfig, fields_of


def quote(path: Path | str) -> str:
    """Return a path quoted for the shell, where that is needed."""
    return shlex.quote(str(path))


def command_line(
    command: str, cls: type[CommandConfig], run: Path, options: JSON, without: tuple[str, ...] = ()
) -> list[str]:
    """Return the words of `opdkit COMMAND RUN ...` with every option that is not its default.

    `options` is what `CommandConfig.effective()` returns and a manifest stores. Those named in `without` are left out.
    """
    places, flags = [str(run)], list[str]()
    for field in fields_of(cls):
        value = options.get(field.name)
        if field.name in ("run", *without) or value is None:
            continue
        words, default = (
            list(map(str, v)) if isinstance(v, list | tuple) else [str(v)] for v in (value, field.default)
        )
        if field.positional:
            places += words
        elif field.type is bool and words != default:
            flags.append(field.flag if value else f"--no-{field.flag[2:]}")
        elif words != default:
            for word in words:
                flags += [f"{field.flag}={word}"] if word.startswith("-") else [field.flag, word]
    if any(place.startswith("-") for place in places):
        return ["opdkit", command, *flags, "--", *places]
    return ["opdkit", command, *places, *flags]
