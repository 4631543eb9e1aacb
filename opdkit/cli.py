"""Command line: parse, build the configuration, run the command, turn errors into exit codes."""

import contextlib
import gc
import inspect
import io
import os
import select
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, Optional

import typer
from rich.markup import escape
from typer.core import TyperCommand

from opdkit.config.commands import COMMANDS, CONFIGURED, STAGES, configure, load_function
from opdkit.config.fields import HOW, MEMORY, SPEED, WHERE, Field, fields_of
from opdkit.config.renamed import RENAMED
from opdkit.config.run import ORDER
from opdkit.console import counted, is_main_process, printable, say, stderr, verb
from opdkit.errors import OpdkitError
from opdkit.store.announce import announce_models
from opdkit.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Turn the conversation logs of an assistant into a better assistant, offline.",
    epilog="Start with: opdkit demo",
)
_SIGPIPE_CODE = 141  # exit without a message if the reader of stdout, such as `head`, closed it
_RESUMABLE = {*STAGES, "run", "demo", "compare", "night", "forget"}  # these keep what they have finished
_METAVARS = {int: "N", float: "X", Path: "PATH", bool: ""}


def main() -> None:
    """Run the command line, as `opdkit` and `python -m opdkit` do."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as for stderr: a terminal may be unable to encode a log
    try:
        app()
    finally:
        gc.freeze()  # skip the last garbage collection: it takes a second, and the process ends anyway
        # Flush here rather than at exit, where a failure to write could not be caught.
        if sys.stdout is not None:
            try:
                sys.stdout.flush()
            except BrokenPipeError:
                _leave_closed_stdout(_SIGPIPE_CODE)
            except OSError as error:
                say(f"error: stdout: {error.strerror}")
                _leave_closed_stdout(1)


def _leave_closed_stdout(code: int) -> NoReturn:
    """Exit with stdout at /dev/null: otherwise Python writes the buffer again at exit and reports an error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code) from None


def _is_stdout_closed() -> bool:
    """Return True if stdout is a pipe that nobody reads. Any other broken pipe is a failure."""
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):  # stdout has no file
        return False
    return bool(poll.poll(0))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"opdkit {__version__}")
        raise typer.Exit


@contextlib.contextmanager
def errors_as_exit_codes(debug: bool, command: str, overwrite: bool = False) -> Iterator[None]:
    """Turn each failure of a command into one clear message and an exit code; with `debug`, show the traceback.

    `overwrite`: the command removes what is there, so it resumes nothing.
    """
    try:
        yield
    except KeyboardInterrupt as error:  # Ctrl-C, or stopping.Stopped, which has its own exit code
        code = getattr(error, "exit_code", 130)
        cause = "interrupted" if code == 130 else "stopped as asked"
        again = "the same command without --overwrite resumes" if overwrite else "the same command resumes"
        if overwrite and command == "run":  # each stage is removed when it begins, so the later ones are still there
            again += ", with --set STAGE.overwrite=true for each stage that did not begin"
        say(f"{cause}; finished parts are kept, and {again}" if command in _RESUMABLE else cause)
        raise typer.Exit(code) from None
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_stdout_closed():
            _leave_closed_stdout(_SIGPIPE_CODE)
        if debug or isinstance(error, typer.Exit):
            raise
        message = str(error) if isinstance(error, OpdkitError) else _describe(error, command)
        if overwrite and "the same command" in message:
            message += " (without --overwrite, which begins again)"
        _fail(message, getattr(error, "exit_code", 1))


def _describe(error: Exception, command: str) -> str:
    """Return the message for an error in a command that is not an OpdkitError."""
    from opdkit.store.disk import explain_disk_error  # imported here: `opdkit --help` needs no store

    if message := explain_disk_error(error):
        return message
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or ''}".rstrip(": ")
    memory = sys.modules.get("opdkit.model.memory")  # if this is not loaded, the error is not torch's
    if memory is not None and memory.is_out_of_memory(error):
        remedies = ("a lower --batch-tokens", "a lower --micro-batch-tokens", "--dtype bfloat16", "--device cpu",
                    "--set teacher.batch_tokens=4096 or train.micro_batch_tokens=2048")  # fmt: skip
        known = [way for way in remedies for field in fields_of(COMMANDS[command].config) if field.flag in way.split()]
        return f"memory ran out: choose {', '.join([*known, 'a smaller model'])} or a machine with more memory"
    return f"{type(error).__name__}: {error} (this is a bug in opdkit; --debug shows where)"


def _fail(message: str, code: int) -> NoReturn:
    if is_main_process() or code == 1:
        stderr.print(f"[red]error:[/] {escape(printable(message))}", soft_wrap=True)  # the message may quote a log
    raise typer.Exit(code) from None


class OptionsCommand(TyperCommand):
    """Command whose -h has panels and leaves out expert options, and which reports renamed options."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse as click does, but report a renamed option, or one of a stage, with what to write instead."""
        renamed = RENAMED.get(str(self.name), {})
        for word in args[: args.index("--") if "--" in args else len(args)]:
            flag = word.partition("=")[0]
            if flag.startswith("--") and (new := renamed.get(flag[2:].replace("-", "_"))):
                _fail(f"opdkit {self.name} has no option {flag} any more; it is now --{new.replace('_', '-')}", 2)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            self._name_stages(getattr(error, "option_name", ""))  # of click's NoSuchOption, or of typer's own
            raise

    def _name_stages(self, flag: str) -> None:
        """Exit with code 2 if `flag` is an option of stages that this command passes options on to with --set."""
        owners = [f"--set {stage}.{flag[2:].replace('-', '_')}={'true' if field.type is bool else 'VALUE'}"
                  for stage in ORDER for field in fields_of(COMMANDS[stage].config) if field.flag == flag]  # fmt: skip
        if owners and "set" in {field.name for field in fields_of(COMMANDS[str(self.name)].config)}:
            _fail(f"opdkit {self.name} has no option {flag}; pass it on: {', '.join(owners)}", 2)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section per panel, and say how many options are left out."""
        fields = fields_of(COMMANDS[str(self.name)].config)
        shown = [field for field in fields if not field.expert]
        order: dict[str, int] = {panel: n for n, panel in enumerate((HOW, SPEED, MEMORY, WHERE), 1)}  # others first
        for panel in sorted(dict.fromkeys(field.panel for field in shown), key=lambda panel: order.get(panel, 0)):
            rows = [_make_help_row(field) for field in shown if field.panel == panel]
            if panel == WHERE and self.name in STAGES:
                rows.append(("--config PATH", "TOML file with one table per stage"))  # as for RunConfig.config
            with formatter.section(panel):
                formatter.write_dl(rows)
        hidden = len(fields) - len(shown)
        more = f"{counted(hidden, 'more option')} {verb(hidden, 'is', 'are')}" if hidden else "All options are"
        init = ", and in the file that `opdkit init` writes" if self.name in CONFIGURED else ""
        formatter.write_paragraph()
        formatter.write_text(f"{more} in docs/commands.md{init}. --debug shows tracebacks.")


def _make_help_row(field: Field) -> tuple[str, str]:
    """Return the two columns that -h shows for an option."""
    notes = [" | ".join(field.choices)] if field.choices else []
    if field.required and not field.positional:
        notes.append("required")
    elif field.default not in (None, (), False) and not (field.type is int and field.default == 0):
        notes.append(f"default {field.default}{f' {field.unit}' if field.unit and field.default != 1 else ''}")
    metavar = "" if field.positional else _METAVARS.get(field.type, "NAME" if field.choices else "TEXT")
    return f"{field.flag} {metavar}".strip(), field.help + (f" ({'; '.join(notes)})" if notes else "")


def _parse_text(kind: type, text: str) -> Any:
    """Return a text or path from the command line. Raises BadParameter if it is empty, as from an unset variable."""
    if not text:
        raise typer.BadParameter("it is empty; is a variable not set?")
    return kind(text)


def _make_parameter(field: Field, has_file: bool) -> inspect.Parameter:
    """Return the typer parameter of one field. Flags default to None, so that a flag that was given wins over TOML.

    `has_file`: a TOML file can turn a switch on, so a flag must turn it off; it can hold LOGS, but not RUN or HOME.
    """
    kind = list[str] if field.is_list else field.type
    if field.positional:
        argument = typer.Argument(metavar=field.flag, show_default=False, parser=partial(_parse_text, field.type))
        required = field.required and not (has_file and field.name not in ("run", "home"))
        default = inspect.Parameter.empty if required else None
        annotation: Any = Annotated[kind if required else Optional[kind], argument]  # noqa: UP045
    else:
        name = f"{field.flag}/--no-{field.flag[2:]}" if field.type is bool and has_file else field.flag
        choices = field.choices

        def complete(incomplete: str) -> Sequence[str]:
            return [choice for choice in choices if choice.startswith(incomplete)]

        # For an option with a default, an empty text may mean "none", such as no key for a server.
        is_text = field.type in (str, Path) and not choices and not field.default
        parser = partial(_parse_text, field.type) if is_text else None
        option = typer.Option(name, show_default=False, autocompletion=complete if choices else None, parser=parser)
        annotation, default = Annotated[Optional[kind], option], None  # noqa: UP045
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _register(name: str) -> None:
    """Add a command to the app, with the options of its configuration."""
    known = COMMANDS[name]

    def command(**flags: Any) -> None:
        debug = flags.pop("debug")
        # run and slurm pass the file on to the stages, so their configuration has it as a field.
        file = flags.pop("config") if name in STAGES else flags.get("config")
        flags = {option: tuple(value) if isinstance(value, list) else value for option, value in flags.items()}
        with errors_as_exit_codes(debug, name, bool(flags.get("overwrite"))):
            config = configure(name, flags, file)  # before importing torch, so that wrong options fail at once
            config.check_inputs()
            if name in STAGES:
                from opdkit.store.run_stage import run_stage  # imported here: it imports pyarrow

                result = run_stage(name, config)
            else:
                announce_models(name, config)
                result = load_function(known.target)(config)
            if hasattr(result, "text"):
                say(result.text())
            if result is False:
                raise typer.Exit(1)

    keyword = inspect.Parameter.KEYWORD_ONLY
    file_type, debug_type = Annotated[Path | None, typer.Option("--config")], Annotated[bool, typer.Option("--debug")]
    parameters = [_make_parameter(field, name in CONFIGURED) for field in fields_of(known.config)]
    if name in STAGES:
        parameters.append(inspect.Parameter("config", keyword, default=None, annotation=file_type))
    parameters.append(inspect.Parameter("debug", keyword, default=False, annotation=debug_type))
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    # Without a short help, click cuts the help in mid-sentence.
    short = known.help.partition(". ")[0].rstrip(".") + "."
    epilog = f"\b\nExample:\n  {known.example}"
    app.command(name, cls=OptionsCommand, help=known.help, short_help=short, epilog=epilog)(command)


for _name in COMMANDS:
    _register(_name)
