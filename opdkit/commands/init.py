"""`opdkit init`: a TOML file with every option of every stage, its meaning and its default, ready to be edited."""

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path

from opdkit.config.commands import COMMANDS, TOML_TABLES
from opdkit.config.fields import JSON, Field, fields_of, type_name
from opdkit.config.init import InitConfig
from opdkit.config.presets import PRESETS, THINKING_TOKENS
from opdkit.console import say
from opdkit.errors import ConfigError
from opdkit.store.disk import disk_errors_explained, replace_text

_WIDTH = 100
_TITLE = """\
opdkit: every option with its default. Take the # away from what you change; flags win over this file.

  opdkit run RUN LOGS... --config {file}      all stages
  opdkit train RUN --config {file}            one of them
"""


def run(config: InitConfig) -> None:
    """Write the file, or to standard output for `-`. Raises ConfigError where it is there already."""
    text = document(config)
    if str(config.file) == "-":
        print(text, end="")
        return
    if config.file.exists() and not config.overwrite:
        raise ConfigError(f"{config.file} is there already; name another file, or pass --overwrite")
    with disk_errors_explained(config.file):
        config.file.parent.mkdir(parents=True, exist_ok=True)
        replace_text(config.file, text)
    say(f"{config.file}: edit it, then: opdkit run RUN LOGS... --config {config.file}")


def document(config: InitConfig) -> str:
    """The TOML text: a table a stage, each option a comment unless `config` says what it is."""
    given = chosen(config)
    title = _TITLE.format(file=config.file if str(config.file) != "-" else "FILE")
    return "\n".join([*_comment(title), "", *(line for stage in TOML_TABLES for line in _table(stage, given, config))])


def chosen(config: InitConfig) -> dict[str, JSON]:
    """stage -> option -> value: what the flags and the preset of `opdkit init` say."""
    values: dict[str, JSON] = {stage: {} for stage in TOML_TABLES}
    if config.model:
        for stage in ("teacher", "train", "rollout"):
            values[stage]["model"] = config.model
    if config.judge:
        values["judge"]["judge"] = config.judge
        judge_model = config.judge_model or (config.model if config.judge == "local" else None)
        values["judge"] |= {k: v for k, v in (("judge_model", judge_model), ("judge_url", config.judge_url)) if v}
    if config.preset:
        preset = PRESETS[config.preset]
        values["teacher"] |= {"template_arg": list(preset.template_arg)} if preset.template_arg else {}
        if config.judge == "local" and not config.judge_model:  # the student judges itself
            values["judge"] |= {"template_arg": list(preset.template_arg)} if preset.template_arg else {}
            values["judge"] |= {"max_new_tokens": THINKING_TOKENS} if preset.thinks else {}
    return values


def _table(stage: str, given: dict[str, JSON], config: InitConfig) -> Iterator[str]:
    yield from _comment((COMMANDS[stage].config.__doc__ or "").splitlines()[0])
    if config.preset and stage == "teacher":
        preset = PRESETS[config.preset]
        yield from _comment(f"Preset {config.preset}: {preset.models}" + (f"; {preset.note}." if preset.note else "."))
    yield f"[{stage}]"
    for field in fields_of(COMMANDS[stage].config):
        if field.name not in ("run", "config"):
            yield from _option(field, given[stage])
    yield ""


def _option(field: Field, given: JSON) -> Iterator[str]:
    yield from _comment(field.meta.help + _notes(field))
    if field.name in given:
        yield f"{field.name} = {toml(given[field.name])}"
    else:
        default = () if field.is_list and field.default is None else field.default
        yield f"#{field.name} = {'' if default is None else toml(default)}".rstrip()


def _notes(field: Field) -> str:
    kind = " | ".join(field.meta.choices) or type_name(field) + (f", {field.meta.unit}" if field.meta.unit else "")
    bounds = [f"{word} {bound:g}" for word, bound in (("at least", field.meta.low), ("at most", field.meta.high))
              if bound is not None]  # fmt: skip
    return f" ({'; '.join([kind, *bounds, *['required'] * field.meta.required])})"


def _comment(text: str) -> list[str]:
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, _WIDTH) or [""]]
    return [f"# {line}".rstrip() for line in lines]


def toml(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a basic string of TOML
    return repr(value)
