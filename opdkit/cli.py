"""The command line: parse, build the configuration, call the command. Options derive from the configurations."""

import inspect
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional, cast

import typer

from opdkit.config.commands import COMMANDS, CONFIGURED, STAGES, Command, configure, load_function
from opdkit.config.fields import CommandConfig, Field, StageConfig, fields_of
from opdkit.console import is_main_process, printable, say, stderr
from opdkit.errors import OpdkitError
from opdkit.store import stopping
from opdkit.store.disk import disk_error_message
from opdkit.version import __version__

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
    try:
        app()
    finally:
        _flush()


def _flush() -> None:
    """Write what is buffered for stdout: here, and not when Python ends, it can be caught that it cannot be written."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _leave_closed_pipe()
    except OSError as error:
        _drop_the_rest()
        say(f"error: stdout: {error.strerror}")
        raise SystemExit(1) from None


def _leave_closed_pipe() -> NoReturn:
    """Whoever read stdout, such as `head`, has gone: no failure, and nobody to tell. The exit code is SIGPIPE's."""
    _drop_the_rest()
    raise SystemExit(141) from None


def _drop_the_rest() -> None:
    """Python would try to write what is buffered once more when it ends, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_has_gone() -> bool:
    """Whether stdout is a pipe that nobody reads; other pipes break too, and theirs is a failure."""
    watched = select.poll()
    try:
        watched.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # no file behind it
        return False
    return bool(watched.poll(0))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"opdkit {__version__}")
        raise typer.Exit


def guarded(action: Callable[[], bool], debug: bool) -> bool:
    """Run a command's body; every failure becomes one clear message and an exit code, a traceback only on --debug."""
    try:
        return action()
    except stopping.Stopped:
        say("stopped as asked; finished parts are kept, the same command goes on from there")
        raise typer.Exit(stopping.TRY_AGAIN) from None
    except KeyboardInterrupt:
        say("interrupted; finished parts are kept, the same command goes on from there")
        raise typer.Exit(130) from None
    except OpdkitError as error:
        if debug:
            raise
        _fail(str(error), error.exit_code)
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _reader_has_gone():
            _leave_closed_pipe()
        if debug:
            raise
        _fail(disk_error_message(error) or f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    except Exception as error:
        if debug:
            raise
        bug = f"{type(error).__name__}: {error} (this is a bug in opdkit; --debug shows where)"
        _fail(disk_error_message(error) or _no_memory(error) or bug, 1)


def _no_memory(error: Exception) -> str | None:
    """What to do about memory that ran out where no batch could be halved; None when the error is of another kind."""
    memory = sys.modules.get(
        "opdkit.model.memory"
    )  # not imported for this: where torch is not loaded, it is not torch's
    if memory is None or not memory.is_out_of_memory(error):
        return None
    return "memory ran out: lower --batch-tokens, or choose --dtype bfloat16, a smaller model or --device cpu"


def carry_out(name: str, config: CommandConfig) -> bool:
    """Run a command and say its closing line; False where its answer is no."""
    if name in STAGES:
        from opdkit.store.running import run_stage  # imported here: it brings pyarrow

        answer = run_stage(name, cast(StageConfig, config))
    else:
        config.check_inputs()
        answer = load_function(COMMANDS[name].target)(config)
    if hasattr(answer, "text"):
        say(answer.text())
    return answer is not False


def _fail(message: str, code: int) -> NoReturn:
    if is_main_process() or code == 1:
        stderr.print("error:", style="red", end=" ")
        stderr.print(printable(message), markup=False, soft_wrap=True)  # it may quote a log
    raise typer.Exit(code) from None


def _parameter(field: Field, with_file: bool) -> inspect.Parameter:
    """A typer parameter for one field. Flags default to None, so that TOML can tell what was given.

    Where a file can turn a switch on (`with_file`), a flag can turn it off.
    """
    kind = list[str] if field.is_list else field.type
    text = _help(field)
    annotation: Any
    if field.meta.positional:
        wanted = kind if field.meta.required else Optional[kind]  # noqa: UP045
        annotation = Annotated[wanted, typer.Argument(help=text, metavar=field.name.upper(), show_default=False)]
        default = inspect.Parameter.empty if field.meta.required else None
        return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    names = [f"{field.flag}/--no-{field.flag[2:]}"] if field.type is bool and with_file else [field.flag]
    option = typer.Option(*names, help=text, show_default=False, autocompletion=_completion(field))
    annotation = Annotated[Optional[kind], option]  # noqa: UP045
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def _completion(field: Field) -> Callable[[str], list[str]] | None:
    """What the shell offers after the flag; None: names of files."""
    choices = field.meta.choices
    return (lambda incomplete: [c for c in map(str, choices) if c.startswith(incomplete)]) if choices else None


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


def _register(name: str, known: Command) -> None:
    fields = fields_of(known.config)
    own_config = any(field.name == "config" for field in fields)  # run and slurm hand the file on to the stages
    with_file = name in CONFIGURED and not own_config

    def command(**flags: Any) -> None:
        debug = flags.pop("debug")
        file = flags.pop("config") if with_file else flags.get("config")
        flags = {option: tuple(value) if isinstance(value, list) else value for option, value in flags.items()}
        # Configured before the import: a wrong option should not wait for torch.
        if not guarded(lambda: carry_out(name, configure(name, flags, file)), debug):
            raise typer.Exit(1)

    parameters = [
        *(_parameter(field, name in CONFIGURED) for field in fields),
        *([_CONFIG] if with_file else []),
        _DEBUG,
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    # Without a short help, click cuts the help after half a line.
    short = known.help.partition(". ")[0].rstrip(".") + "."
    app.command(name, help=known.help, short_help=short, epilog=f"\b\nExample:\n  {known.example}")(command)


for _name, _known in COMMANDS.items():
    _register(_name, _known)
