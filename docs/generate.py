"""Write commands.md, tables.md, wording.md, tutorial.ipynb and opdkit/options.pyi: `python docs/generate.py`.

A test checks that they are up to date.
"""

import json
import re
from pathlib import Path

from opdkit.api import list_options
from opdkit.config.commands import COMMANDS, STAGES
from opdkit.config.fields import Field, fields_of
from opdkit.config.renamed import RENAMED
from opdkit.store.tables import APPENDED, TABLES, Table

HERE = Path(__file__).parent
NOTE = "<!-- written by docs/generate.py; edit the code, not this file -->\n\n"


def commands() -> str:
    """Return commands.md: every option of every command, from its declaration."""
    parts = [
        NOTE + "# Commands\n\nOptions of the stages, and of `run`, `slurm` and `night`, can also come "
        "from a TOML file (`--config FILE`, one table per stage, flags win) that `opdkit init` writes. `--no-NAME` "
        "turns off a switch that the file turns on. Every command has `--debug`, which shows the traceback of a "
        "failure. "
        "`-h` shows the usual options; the others, in a second table here, work the same way.\n"
    ]
    for name, known in COMMANDS.items():
        parts.append(f"## opdkit {name}\n\n{known.help}\n\n```bash\n{known.example}\n```\n")
        fields = fields_of(known.config)
        for title, is_expert in (("", False), ("Not shown by `-h`:\n\n", True)):
            rows = [_option(field) for field in fields if field.expert == is_expert]
            if rows:
                head = "| option | type | default | meaning |\n|---|---|---|---|\n"
                parts.append(title + head + "\n".join(rows) + "\n")
    parts.append("## Renamed options\n\nAn old name is refused, and the message has the new one.\n")
    rows = [
        f"| {command} | `--{old.replace('_', '-')}` | `--{new.replace('_', '-')}` |"
        for command, names in RENAMED.items()
        for old, new in names.items()
    ]
    parts.append("| command | old | new |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _option(field: Field) -> str:
    default = "required" if field.required else "" if field.default in (None, ()) else f"`{field.default}`"
    kind, text = (words.replace("|", "\\|") for words in (field.kind, field.text))
    return f"| `{field.flag}` | {kind} | {default} | {text} |"


def tables() -> str:
    """Return tables.md: every column of every table, from its schema."""
    parts = [
        NOTE
        + "# Tables\n\nEach folder `RUN/STAGE/TABLE` holds Parquet parts and nothing else. A missing value is null, "
        "never 0 and never an empty string.\n"
    ]
    for table in sorted((*TABLES.values(), *APPENDED.values()), key=_place):
        parts.append(f"## {table.stage}/{table.name} (version {table.version})\n")
        if table.name in APPENDED:
            parts.append("People's decisions: not Parquet, but JSON lines, append-only, in `decisions.jsonl`. "
                         "Each line ends in a `checksum`.\n")  # fmt: skip
        if table.option:
            parts.append(f"Written only with `{table.option}`.\n")
        rows = [
            f"| `{f.name}` | `{_arrow(f.type)}`{' or null' if f.nullable else ''} | {f.metadata[b'meaning'].decode()} |"
            for f in table.schema
        ]
        parts.append("| column | type | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _place(table: Table) -> int:
    """Return the position of a table's stage; by the stable sort, what people append stays after the stage's tables."""
    return [known.stage for known in TABLES.values()].index(table.stage)


def _arrow(kind: object) -> str:
    return str(kind).replace(" not null", "").replace("item: ", "").replace("|", "\\|")


WORDING = """# Your own words

`--wording FILE` replaces texts that opdkit writes into prompts: the judge's two questions (`judge`), the criterion for
replies that nobody has reacted to (`eval`, `rollout`, `teacher --check-hints`), what a user says in the probes of
`eval`, and the words around a hint in the teacher's prompt (`teacher`).
`opdkit run` passes the file to its judge and its teacher. In a file for `--config`, a stage's table can name it:
`wording = "own.toml"`. For the judge's question about the reward alone, `--criterion FILE` takes plain text: see
[calibrate.md](calibrate.md).

```toml
# own.toml: another question about the reward, and shorter words around the hint
[judge]
reward = '''
Could a nurse on night duty work with this reply?
\\boxed{1}: yes. \\boxed{-1}: no.
'''

[teacher]
hint = '(Note to the assistant: {hint})'
```

Texts of a stage that are not the defaults are in its `manifest.json`. So a changed text is another plan; the same text
at another path is not. The commands after `teacher` use the teacher's texts: `eval` looks for them in replies (if they
have two words or more), `export --to trl-sdft` writes them around the hint, and `rollout` passes them on to the teacher
of the new run. opdkit refuses a text that lacks a required part, and an unknown name, and says which file and name it
was. Nothing in a text becomes a control token. How answers are read (`\\boxed{...}`, `[HINT_START]`) does not change.

These are the defaults, from `opdkit/config/wording.toml`:

```toml
"""


def wording() -> str:
    """Return wording.md: the texts that a file can replace, with the file of the defaults as the example."""
    defaults = HERE.parent / "opdkit" / "config" / "wording.toml"
    return NOTE + WORDING + defaults.read_text(encoding="utf-8") + "```\n"


OPTIONS = '''"""Options of the methods of `opdkit.Run`, by command. None stands for the default.

Written by docs/generate.py from opdkit/config: edit that, not this file.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

JSON = dict[str, Any]
Text = str | PathLike[str]  # a path, or a run
Texts = Text | Sequence[Text] | Mapping[str, object]  # one, several, or NAME=VALUE as a dict

# (prompt, reply, next state) -> reward (1, 0, -1; None: cannot tell) and hint. Messages are dicts
# such as {"role": "user", "content": "..."}; tool calls are under "tool_calls".
Judge = Callable[[list[JSON], JSON, list[JSON]], tuple[int | None, str | None]]
# A record of the log -> the record that the format `openai` has: {"messages": [...]}.
Reader = Callable[[JSON], JSON]
# (reply, row of its prompt) -> whether it passes.
Check = Callable[[str, JSON], bool]
'''


def options() -> str:
    """Return options.pyi: the typed options of every method of the Python interface."""
    methods = ("extract", "judge", "teacher", "train", "eval", "rollout", "run", "slurm", "export", "forecast",
               "calibrate", "compare", "gate", "blame", "report", "show", "check")  # fmt: skip
    parts = [OPTIONS]
    for name in methods:
        lines = [f"\n\nclass {name.capitalize()}Options(TypedDict, total=False):"]
        for field in list_options(name):
            if not field.positional:
                lines += [f"    {field.name}: {_annotation(field)} | None", f'    """{field.text}"""']
        if name in STAGES:
            lines += ["    config: Text | None", '    """TOML file with one table per stage; keyword arguments win"""']
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


def _annotation(field: Field) -> str:
    """Return the type that the Python interface accepts for a field."""
    if field.choices:
        kind = f"Literal[{', '.join(map(json.dumps, field.choices))}]"
    else:
        kind = "Texts" if field.is_list else {str: "Text", Path: "Text"}.get(field.type, field.type.__name__)
    return f"{kind} | {field.function}" if field.function else kind


def notebook() -> str:
    """Return the tutorial as a notebook: its text, and a cell per block of commands."""
    cells: list[dict[str, object]] = []
    for n, part in enumerate(re.split(r"```(bash|python)\n(.*?)```\n", _text_of("tutorial.md"), flags=re.DOTALL)):
        if n % 3 == 0 and part.strip():
            cells.append({"cell_type": "markdown", "metadata": {}, "source": part.strip()})
        elif n % 3 == 2:
            before = "%%bash -e\n" if cells[-1].pop("language") == "bash" else ""
            cells[-1] |= {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [],
                          "source": before + part.strip()}  # fmt: skip
        elif n % 3 == 1:
            cells.append({"language": part})
    for k, cell in enumerate(cells):
        cell["id"] = f"cell-{k}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _text_of(page: str) -> str:
    return (HERE / page).read_text(encoding="utf-8")


PAGES = {
    "commands.md": commands, "tables.md": tables, "wording.md": wording, "tutorial.ipynb": notebook,
    "../opdkit/options.pyi": options,
}  # fmt: skip

if __name__ == "__main__":
    for page, write in PAGES.items():
        (HERE / page).write_text(write(), encoding="utf-8")
