"""Tests of all options: each is read, a flag means the same in all commands, -h is short, old names are refused."""

import ast
import dataclasses
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import opdkit
from opdkit.cli import app
from opdkit.config.commands import COMMANDS, TOML_TABLES, configure
from opdkit.config.fields import Field, fields_of
from opdkit.config.pipeline import make_configurations
from opdkit.config.renamed import RENAMED
from opdkit.config.run import ORDER, RunConfig
from opdkit.errors import ConfigError
from opdkit.train.objective.terms import TERMS, Objective

PACKAGE = Path(opdkit.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
EVERY_OPTION = [(name, field) for name, known in COMMANDS.items() for field in fields_of(known.config)]


# -- every option is read ----------------------------------------------------------------------------------------------


def config_names(annotation: ast.expr | None) -> set[str]:
    """Return the names of configuration classes in an annotation: "EvalConfig | RolloutConfig" has two."""
    text = "" if annotation is None else ast.unparse(annotation)
    return set(re.findall(r"\b(?:[A-Z]\w*Config|ModelOptions)\b", text))


def reads_of_function(function: ast.FunctionDef | ast.AsyncFunctionDef, fields: dict[str, set[str]]) -> Iterator[tuple]:
    """Yield (class, attribute) for every read of a parameter, or of an attribute `fields`, of a configuration type."""
    names = {arg.arg: config_names(arg.annotation) for arg in [*function.args.args, *function.args.kwonlyargs]}
    names |= {
        node.target.id: config_names(node.annotation)
        for node in ast.walk(function)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    by_name = any(names.values()) and reads_by_name(function)
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute):
            owner = node.value
            found = names.get(owner.id, set()) if isinstance(owner, ast.Name) else set()
            if isinstance(owner, ast.Attribute):
                found = fields.get(owner.attr, set())
            yield from ((name, node.attr) for name in found)
        # getattr(config, "gpus") and slurm.of_stage("gpus", stage), also from a table of such names
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and by_name:
            yield from ((name, node.value) for found in names.values() for name in found)


def reads_by_name(function: ast.AST) -> bool:
    calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
    return any(
        (isinstance(call, ast.Attribute) and call.attr == "of_stage")
        or (isinstance(call, ast.Name) and call.id == "getattr")
        for call in calls
    )


@cache
def reads() -> dict[str, set[str]]:
    """Return class -> its attributes that are read by code outside opdkit/config, or by config/pipeline.py."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        if path.parent == PACKAGE / "config" and path.name != "pipeline.py":  # pipeline.py passes options to the stages
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        # self.config = config, and fields of dataclasses
        fields: dict[str, set[str]] = defaultdict(set)
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                fields[node.target.id] |= config_names(node.annotation)
            if isinstance(node, ast.FunctionDef) and node.name == "__init__":
                for arg in [*node.args.args, *node.args.kwonlyargs]:
                    fields[arg.arg] |= config_names(arg.annotation)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for name, attribute in reads_of_function(node, fields):
                    found[name].add(attribute)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_read(command: str) -> None:
    """An option that nothing reads makes the help wrong. A read counts if the value has the type that declares the
    option. A read of a property counts for the fields that the property is computed from."""
    own = COMMANDS[command].config
    known = {cls.__name__ for cls in own.__mro__}
    read = set().union(*(attributes for name, attributes in reads().items() if name in known))
    if command == "train":  # train/schedule.py builds the objective from fields of the same names; its tests prove it
        read |= {field.name for field in dataclasses.fields(Objective)} | {f"{term}_weight" for term in TERMS}
    if command in ("train", "eval"):  # it becomes part of `run` in the configuration: see tests/store
        read |= {"name"}
    computed = [value for name in read if isinstance(value := getattr(own, name, None), property)]
    read |= {name for each in computed for name in re.findall(r"self\.(\w+)", inspect.getsource(each.fget))}
    assert {field.name for field in fields_of(own)} - read == set()


# -- a flag means the same in all commands -----------------------------------------------------------------------------

# A default of None leaves the value to the stage.
DEFAULTS_DIFFER = {
    "--batch-tokens": {16384, 65536},  # a judge's prompts are shorter than a policy's
    "--holdout": {0.0, 0.2},  # a night decides on held-out sessions
    "--max-new-tokens": {256, 512},
    "--objective": {None, "blend"},
    "--samples": {1, 4},
    "--seed": {None, 0},
    "--temperature": {0.6, 1.0},
    "--timeout": {30.0, 120.0},
}
OWN_MEANING = {("demo", "--samples")}  # the folder for the sample data; `demo` has no replies to count
HELP_DIFFERS = {
    "--out": {"the file to write", "batch: the file of requests to write"},
    "--overwrite": {"replace the file if it exists", "first discard what the stage has written"},
}


def shared_flags() -> dict[str, list[Field]]:
    """Return flag -> its declarations, for flags of more than one command."""
    found: dict[str, list[Field]] = defaultdict(list)
    for command, field in EVERY_OPTION:
        if not field.positional and (command, field.flag) not in OWN_MEANING:
            found[field.flag].append(field)
    return {flag: fields for flag, fields in found.items() if len(fields) > 1}


@pytest.mark.parametrize(("flag", "fields"), shared_flags().items())
def test_a_flag_has_one_meaning_wherever_it_is_declared(flag: str, fields: list[Field]) -> None:
    assert len({(field.type, field.choices, field.unit) for field in fields}) == 1
    assert {field.help for field in fields} == HELP_DIFFERS.get(flag, {fields[0].help})
    defaults = {field.default for field in fields if not field.required}
    assert defaults <= DEFAULTS_DIFFER.get(flag, {fields[0].default, None})


def test_the_judge_is_named_alike_everywhere() -> None:
    for command in ("judge", "run", "slurm", "init", "doctor", "eval", "rollout"):
        assert {"judge_model", "judge_url"} <= {field.name for field in fields_of(COMMANDS[command].config)}
    assert all(field.unit == "sessions" for _, field in EVERY_OPTION if field.name == "limit")


# -- -h ----------------------------------------------------------------------------------------------------------------


def shown_by_help(command: str) -> str:
    return CliRunner().invoke(app, [command, "-h"], env={"COLUMNS": "80"}).stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_at_most_twenty_options_in_panels(command: str) -> None:
    """Expert options are not shown, but the help says how many there are."""
    text = shown_by_help(command)
    shown = re.findall(r"^  (--[a-z0-9-]+)", text, re.MULTILINE)
    assert len(shown) <= 20
    assert len(text.splitlines()) <= 50
    fields = [field for field in fields_of(COMMANDS[command].config) if not field.positional]
    assert set(shown) - {"--config"} == {f.flag for f in fields if not f.expert} - {"--config"}
    experts = [field for field in fields if field.expert]
    more = "1 more option is in" if len(experts) == 1 else f"{len(experts)} more options are in"
    assert not experts or more in text
    assert {f.panel for f in fields if not f.expert} <= set(re.findall(r"^(\S.*):$", text, re.MULTILINE))
    example = text.index("Example:")
    assert all(len(line) <= 80 for line in text[:example].splitlines())


def test_the_help_of_train_fits_a_screen() -> None:
    assert len(shown_by_help("train").splitlines()) <= 45


@pytest.mark.parametrize(("command", "field"), [(c, f) for c, f in EVERY_OPTION if f.expert])
def test_an_expert_option_is_a_flag_and_is_documented(command: str, field: Field) -> None:
    section = documented()[command]
    assert f"`{field.flag}`" in section
    word = field.flag if field.type is bool else f"{field.flag}="
    done = CliRunner().invoke(app, [command, "nowhere", word, "--no-such-option"])
    assert done.exit_code == 2
    assert "--no-such-option" in done.stderr


@cache
def documented() -> dict[str, str]:
    """Return command -> its section of docs/commands.md."""
    pages = re.split(r"^## opdkit (\w+)$", (DOCS / "commands.md").read_text(encoding="utf-8"), flags=re.M)
    return dict(zip(pages[1::2], pages[2::2], strict=True))


# -- renamed options ---------------------------------------------------------------------------------------------------

RENAMES = [(command, old, new) for command, names in RENAMED.items() for old, new in names.items()]


@pytest.mark.parametrize(("command", "old", "new"), RENAMES)
def test_an_old_name_is_refused_with_the_new_one(command: str, old: str, new: str, tmp_path: Path) -> None:
    names = {field.name for field in fields_of(COMMANDS[command].config)}
    assert new in names
    assert old not in names
    flag = f"--{old.replace('_', '-')}"
    for words in ([flag, "1"], [f"{flag}=1"]):
        done = CliRunner().invoke(app, [command, "nowhere", *words])
        assert done.exit_code == 2
        assert new.replace("_", "-") in done.stderr
    if command in TOML_TABLES:
        file = tmp_path / "opdkit.toml"
        file.write_text(f"[{command}]\n{old} = 1\n", encoding="utf-8")
        with pytest.raises(ConfigError, match=new):
            configure(command, {"run": Path("run")}, file)
    if command in ORDER:
        with pytest.raises(ConfigError, match=new):
            make_configurations(
                RunConfig(run=tmp_path, logs=("x",), model="m", judge="rules", set=(f"{command}.{old}=1",))
            )
    names_differ = {"eval": "evaluate", "run": "pipeline", "show": "turns"}
    method = getattr(opdkit.Run(tmp_path), names_differ.get(command, command), None)
    for name in (old, f"{old}_") if method is not None else ():
        with pytest.raises(ConfigError, match=new):
            method(**{name: 1})
