"""`opdkit init`: a TOML file with every option of every stage, its meaning and its default, ready to be edited."""

import json
import textwrap
from pathlib import Path

from opdkit.config.command_line import quote
from opdkit.config.commands import COMMANDS, TOML_TABLES
from opdkit.config.fields import JSON, fields_of
from opdkit.config.init import InitConfig
from opdkit.config.presets import PRESETS, THINKING_TOKENS
from opdkit.console import say
from opdkit.store.atomic import replaced_file

_WIDTH = 100
_TITLE = """\
opdkit: every option with its default. Remove the # from what you change; flags win over this file.

  opdkit run RUN LOGS... --config {file}      all stages (needs model and judge below)
  opdkit train RUN --config {file}            one of them
"""


def run(config: InitConfig) -> None:
    """Write the file, or print the text if FILE is `-`. Raises what `replaced_file` raises."""
    text = write_document(config)
    if str(config.file) == "-":
        print(text, end="")
        return
    with replaced_file(config.file, replace=config.overwrite) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # it holds the file's name
    say(f"{config.file}: edit it, then: opdkit run RUN LOGS... --config {quote(config.file)}")


def write_document(config: InitConfig) -> str:
    """Return the TOML text: one table per stage; each option is a comment unless `config` sets it."""
    values = choose_values(config)
    lines = _wrap(_TITLE.format(file=quote(config.file) if str(config.file) != "-" else "FILE"))
    for stage in TOML_TABLES:
        lines += ["", *_wrap(f"opdkit {stage}: {COMMANDS[stage].help}")]
        if config.preset and stage == "teacher":
            preset = PRESETS[config.preset]
            lines += _wrap(f"Preset {config.preset}: {'; '.join(filter(None, (preset.models, preset.note)))}.")
        lines.append(f"[{stage}]")
        for field in fields_of(COMMANDS[stage].config):
            if field.name in ("run", "home", "config"):
                continue
            bounds = [("at least", field.low), ("at most", field.high)]
            notes = [field.kind, *(f"{word} {bound:g}" for word, bound in bounds if bound is not None)]
            notes += ["required"] if field.required else []
            lines += _wrap(f"{field.text} ({'; '.join(notes)})")
            if field.name in values[stage]:
                lines.append(f"{field.name} = {toml(values[stage][field.name])}")
            else:
                lines.append(f"#{field.name} = {'' if field.default is None else toml(field.default)}".rstrip())
    return "\n".join([*lines, ""])


def choose_values(config: InitConfig) -> dict[str, JSON]:
    """Return stage -> option -> value, for the options that the flags and the preset of `opdkit init` set."""
    values: dict[str, JSON] = {stage: {} for stage in TOML_TABLES}
    if config.model:
        for stage in ("teacher", "train", "rollout", "night"):
            values[stage]["model"] = config.model
    judge_model = config.judge_model or (config.model if config.judge == "local" else None)
    judge = ("judge", config.judge), ("judge_model", judge_model), ("judge_url", config.judge_url)
    values["judge"] = {key: value for key, value in judge if value}
    if config.judge and config.judge != "batch":  # nights refuse it; the rest they take from the table of judge
        values["night"]["judge"] = config.judge
    if config.preset:
        preset = PRESETS[config.preset]
        arguments: JSON = {"template_arg": list(preset.template_arg)} if preset.template_arg else {}
        values["teacher"] |= arguments
        if config.judge == "local" and not config.judge_model:  # the student judges itself
            values["judge"] |= arguments | ({"max_new_tokens": THINKING_TOKENS} if preset.thinks else {})
    return values


def _wrap(text: str) -> list[str]:
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, _WIDTH) or [""]]
    return [f"# {line}".rstrip() for line in lines]


def toml(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a basic string of TOML
    return repr(value)
