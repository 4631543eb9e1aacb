"""A configuration back into the words of the command that makes it: for batch scripts, and for "run this again"."""

import shlex
from pathlib import Path

from opdkit.config.fields import JSON, CommandConfig, fields_of


def quote(path: Path) -> str:
    """A path as it is typed in a shell: in quotation marks where it holds a space, say."""
    return shlex.quote(str(path))


def command_line(
    command: str, cls: type[CommandConfig], run: Path, options: JSON, without: tuple[str, ...] = ()
) -> list[str]:
    """The words of `opdkit COMMAND RUN ...` with every option that is not its default.

    `options` is what `StageConfig.effective()` gives and a manifest keeps; those named in `without` are left out.
    """
    places, flags = [str(run)], list[str]()
    for field in fields_of(cls):
        value = options.get(field.name)
        if field.name == "run" or field.name in without or value is None:
            continue
        words = _words(value)
        if field.meta.positional:
            places += words
        elif words == _words(field.default):
            continue
        elif field.type is bool:
            flags.append(field.flag if value else f"--no-{field.flag[2:]}")
        else:
            for word in words:
                flags += [f"{field.flag}={word}"] if word.startswith("-") else [field.flag, word]
    if any(place.startswith("-") for place in places):
        return ["opdkit", command, *flags, "--", *places]
    return ["opdkit", command, *places, *flags]


def _words(value: object) -> list[str]:
    return list(map(str, value)) if isinstance(value, list | tuple) else [str(value)]
