"""The command line: parse, build the configuration, call the stage. Options derive from opdkit/stages.py."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from opdkit import __version__, stopping
from opdkit.config import Field, StageConfig, fields_of
from opdkit.console import is_main_process, printable, say, stderr
from opdkit.disk import in_words
from opdkit.errors import OpdkitError
from opdkit.stages import COMMANDS, STAGES, configure, imported

# One pasteable example a command; together, in this order, they are a whole run on sample_data. A test runs them.
EXAMPLES = {
    "extract": "opdkit extract runs/try sample_data/logs",
    "judge": "opdkit judge runs/try --judge local --model sample_data/model --limit 40",
    "teacher": "opdkit teacher runs/try --model sample_data/model",
    "train": "opdkit train runs/try --model sample_data/model --learning-rate 1e-3 --batch-turns 8",
    "eval": "opdkit eval runs/try --prompts sample_data/prompts.jsonl --max-new-tokens 48",
    "rollout": "opdkit rollout runs/next --from runs/try --model runs/try/train/model --limit 10 --max-new-tokens 48",
    "run": "opdkit run runs/all sample_data/logs --model sample_data/model --judge local --limit 40",
    "slurm": "opdkit slurm runs/cluster sample_data/logs --model sample_data/model --judge local --time 4:00:00",
    "status": "opdkit status runs/try",
    "check": "opdkit check runs/try",
    "demo": "opdkit demo",
}
HELP = {
    "extract": "Read conversation logs into sessions and turns.",
    "judge": "Have a judge vote on every turn: a reward, and a hint where the reaction shows what was wanted.",
    "teacher": "Score every judged reply with the student and with the teacher that has read the hint.",
    "train": "Train the student on the teacher's and the judge's signal.",
    "eval": "Compare the model before and after, on prompts that were held out.",
    "rollout": "Let the student as it is now answer the hinted turns of a run afresh: the on-policy round.",
    "run": "Extract, judge, teacher and train in one go, with one configuration.",
    "slurm": "Write the batch scripts that extract, judge, teach and train on a Slurm cluster, and submit them.",
    "status": "Show how far each stage is: parts done, running and failed, rows, rate, time left, last errors.",
    "check": "Verify a whole run: digests, schemas, keys between tables, ranges, finite values. Exit code 1: damage.",
    "demo": "The whole loop on sample_data on a CPU: a model improved by its own logs.",
}

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Turn the conversation logs of an assistant into a better assistant, offline.",
    epilog="Start with: opdkit demo",
)


def main() -> None:
    """Entry point of `opdkit` and `python -m opdkit`."""
    app()


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"opdkit {__version__}")
        raise typer.Exit


def guarded(action: Callable[[], Any], debug: bool) -> None:
    """Run a command's body; every failure becomes one clear message and an exit code, a traceback only on --debug."""
    try:
        action()
    except stopping.Stopped:
        stderr.print("stopped as asked; finished parts are kept, the same command goes on from there", soft_wrap=True)
        raise typer.Exit(stopping.TRY_AGAIN) from None
    except KeyboardInterrupt:
        stderr.print("interrupted; finished parts are kept, the same command goes on from there", soft_wrap=True)
        raise typer.Exit(130) from None
    except OpdkitError as error:
        if debug:
            raise
        _fail(str(error), error.exit_code)
    except OSError as error:
        if debug:
            raise
        _fail(in_words(error) or f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    except Exception as error:
        if debug:
            raise
        _fail(in_words(error) or f"{type(error).__name__}: {error} (this is a bug in opdkit; --debug shows where)", 1)


def finished(name: str, target: str, config: StageConfig) -> str:
    """Run a command; its closing lines."""
    if name in STAGES:
        from opdkit.pipeline import run_stage  # imported here: it brings pyarrow

        return run_stage(name, config).text()
    return str(imported(target)(config).text())


def _fail(message: str, code: int) -> None:
    if is_main_process() or code == 1:
        stderr.print("error:", style="red", end=" ")
        stderr.print(printable(message), markup=False, soft_wrap=True)  # it may quote a log
    raise typer.Exit(code) from None


def _parameter(field: Field) -> inspect.Parameter:
    """A typer parameter for one field. Flags default to None, so that TOML can tell what was given."""
    kind = list[str] if field.is_list else field.type
    text = _help(field)
    annotation: Any
    if field.meta.positional:
        annotation = Annotated[kind, typer.Argument(help=text, metavar=field.name.upper(), show_default=False)]
        return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation)
    names = [f"{field.flag}/--no-{field.flag[2:]}"] if field.type is bool else [field.flag]
    annotation = Annotated[Optional[kind], typer.Option(*names, help=text, show_default=False)]  # noqa: UP045
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def _help(field: Field) -> str:
    notes = []
    if field.meta.choices:
        notes.append(" | ".join(field.meta.choices))
    if field.meta.unit:
        notes.append(field.meta.unit)
    if field.meta.required and not field.meta.positional:
        notes.append("required")
    elif field.default not in (None, ()) and not isinstance(field.default, bool):
        notes.append(f"default {field.default}")
    return field.meta.help + (f" ({'; '.join(notes)})" if notes else "")


_CONFIG = inspect.Parameter(
    "config",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        Path | None, typer.Option("--config", help="TOML file, one table a stage; flags win", show_default=False)
    ],
)
_DEBUG = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[
    bool, typer.Option("--debug", help="show the traceback of a failure")])  # fmt: skip


def _register(name: str, cls: type[StageConfig], target: str) -> None:
    fields = fields_of(cls)
    own_config = any(field.name == "config" for field in fields)  # run and slurm hand the file on to the stages

    def command(**flags: Any) -> None:
        debug = flags.pop("debug")
        file = flags["config"] if own_config else flags.pop("config")
        flags = {option: tuple(value) if isinstance(value, list) else value for option, value in flags.items()}

        def body() -> None:
            config = configure(name, flags, file)  # before the import: a wrong option should not wait for torch
            say(finished(name, target, config))

        guarded(body, debug)

    parameters = [*map(_parameter, fields), *([] if own_config else [_CONFIG]), _DEBUG]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    app.command(name, help=HELP[name], epilog=f"\b\nExample:\n  {EXAMPLES[name]}")(command)


for _name, (_cls, _target) in COMMANDS.items():
    _register(_name, _cls, _target)


@app.command("status", help=HELP["status"], epilog=f"\b\nExample:\n  {EXAMPLES['status']}")
def status(
    run: Annotated[Path, typer.Argument(help="the run directory", metavar="RUN")],
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of a failure")] = False,
) -> None:
    guarded(lambda: imported("opdkit.status:run")(run), debug)


@app.command("check", help=HELP["check"], epilog=f"\b\nExample:\n  {EXAMPLES['check']}")
def check(
    run: Annotated[Path, typer.Argument(help="the run directory", metavar="RUN")],
    as_json: Annotated[bool, typer.Option("--json", help="JSON on stdout instead of a table")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="also read all weights of the trained model")] = False,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="remove damaged parts, and those computed from them, to be done again")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of a failure")] = False,
) -> None:
    healthy = True

    def body() -> None:
        nonlocal healthy
        healthy = imported("opdkit.check:run")(run, as_json=as_json, deep=deep, recompute=recompute)

    guarded(body, debug)
    if not healthy:
        raise typer.Exit(1)


@app.command("demo", help=HELP["demo"], epilog=f"\b\nExample:\n  {EXAMPLES['demo']}")
def demo(
    run: Annotated[Path, typer.Argument(help="the run directory", metavar="RUN")] = Path("opdkit-demo"),
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of a failure")] = False,
) -> None:
    guarded(lambda: imported("opdkit.demo:run")(run), debug)
