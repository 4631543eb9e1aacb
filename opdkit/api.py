"""The Python interface: a run as an object, stages as its methods, tables as Arrow, pandas or `datasets`.

    import opdkit
    run = opdkit.Run("runs/try")
    run.extract("sample_data/logs")
    run.table("turns").pandas()

A method takes the options of its command as keyword arguments, checks them as the command line does and raises the
same errors. Nothing heavy is imported before something is done with it.
"""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from opdkit.config.commands import COMMANDS, CONFIGURED, STAGES, configure, load_function
from opdkit.config.fields import JSON, CommandConfig, Field, StageConfig, convert, did_you_mean, fields_of, type_name
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store.plans import stage_dir

if TYPE_CHECKING:
    import datasets
    import pandas as pd
    import pyarrow as pa

    from opdkit.store.reviews import Reviews


def _method(command: str, target: str | None = None) -> Callable[..., Any]:
    """A method of Run that does what a command does; `target` where another function returns more than it prints."""
    known = COMMANDS[command]
    left_out = ("run",) if target is None else ("run", "json")  # what is returned is not printed
    fields = [field for field in fields_of(known.config) if field.name not in left_out]

    def call(self: "Run", *places: Any, **options: Any) -> Any:
        return _carry_out(command, target, _configured(command, fields, self.path, places, options))

    call.__name__ = call.__qualname__ = {"eval": "evaluate", "run": "pipeline"}.get(command, command)
    call.__doc__ = _documentation(command, fields)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *map(_parameter, fields)]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _configured(
    command: str, fields: Sequence[Field], run: Path, places: Sequence[Any], options: JSON
) -> CommandConfig:
    """The configuration of a call. Raises ConfigError, as the command line would."""
    known = {field.name: field for field in fields}
    positional = [field.name for field in fields if field.meta.positional]
    if len(places) > len(positional):
        raise ConfigError(f"{command} takes {len(positional)} positional arguments; name the options: {_names(fields)}")
    own = "config" in known  # run and slurm hand the file on to their stages
    file = options.pop("config", None) if command in CONFIGURED and not own else None
    given = dict(zip(positional, places, strict=False)) | options
    for name in given:
        if name not in known:
            raise ConfigError(f"{command} has no option {name!r}; {did_you_mean(name, list(known))}")
    flags = {name: _converted(known[name], value) for name, value in given.items() if value is not None}
    return configure(command, {"run": run} | flags, Path(file) if file is not None else None)


def _converted(field: Field, value: Any) -> Any:
    """A Python value as the field's type: paths may be text and the reverse, NAME=VALUE options a dict."""
    if field.is_list and isinstance(value, Mapping):
        value = [f"{name}={v if isinstance(v, str | Path) else json.dumps(v)}" for name, v in value.items()]
    if field.is_list and isinstance(value, list | tuple):
        value = [str(item) if isinstance(item, Path) else item for item in value]
    return convert(field, str(value) if isinstance(value, Path) else value, field.name)


def _carry_out(command: str, target: str | None, config: CommandConfig) -> Any:
    if command in STAGES:
        from opdkit.store.running import run_stage  # imported here: it brings pyarrow

        return run_stage(command, cast(StageConfig, config))
    config.check_inputs()
    return load_function(target or COMMANDS[command].target)(config)


def _names(fields: Sequence[Field]) -> str:
    return ", ".join(field.name for field in fields)


def _parameter(field: Field) -> inspect.Parameter:
    """An option as help() and editors show it."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if field.meta.positional else inspect.Parameter.KEYWORD_ONLY
    default = inspect.Parameter.empty if field.meta.required else field.default
    annotation = str | Sequence[str] if field.is_list else field.type | None if field.optional else field.type
    return inspect.Parameter(field.name, kind, default=default, annotation=annotation)


def _documentation(command: str, fields: Sequence[Field]) -> str:
    lines = [COMMANDS[command].help, "", f"What `opdkit {command}` does, with the same options:", ""]
    for field in fields:
        choices = f" ({' | '.join(field.meta.choices)})" if field.meta.choices else ""
        unit = f", {field.meta.unit}" if field.meta.unit else ""
        lines.append(f"    {field.name}: {type_name(field)}{unit}. {field.meta.help}{choices}")
    return "\n".join([*lines, "", "Raises opdkit.ConfigError for wrong options, opdkit.OpdkitError when it fails."])


class Run:
    """A run directory; it need not exist yet.

    The methods of the stages return a summary: `print` it for the closing line, `.counters` has the numbers. What is
    done already is not done again.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    extract = _method("extract")
    judge = _method("judge")
    teacher = _method("teacher")
    train = _method("train")
    evaluate = _method("eval")
    rollout = _method("rollout")
    pipeline = _method("run")
    slurm = _method("slurm")
    export = _method("export")
    calibrate = _method("calibrate", "opdkit.commands.calibrate:measure")
    report = _method("report")
    show = _method("show")
    status = _method("status")
    check = _method("check")

    def table(self, name: str) -> "RunTable":
        """One table of the run: sessions, turns, verdicts, targets, ... Raises ConfigError where there is no such."""
        return RunTable(self.path, name)

    def decisions(self) -> "Reviews":
        """What people decided in `opdkit review`, by turn_id. It wins over the verdicts, whose table stays."""
        from opdkit.store.reviews import in_force

        return in_force(self.path)

    def __repr__(self) -> str:
        """What is done, from the footers of the parts; cheap, whatever the size of the run."""
        return "\n".join([f"Run({str(self.path)!r})", *(f"  {line}" for line in _progress(self.path))])


def _progress(run: Path) -> Iterator[str]:
    started = [stage for stage in STAGES if (stage_dir(run, stage) / "manifest.json").exists()]
    if not started:
        yield "nothing is done yet"
        return
    from opdkit.store import part_count, summary_of
    from opdkit.store.tables import TABLES

    for stage in started:
        primary = next(table for table in TABLES.values() if table.stage == stage)
        yield summary_of(run, stage, primary, part_count(run, stage)).line()


class RunTable:
    """One table of a run, as it is on the disk: every call reads anew."""

    def __init__(self, run: Path, name: str) -> None:
        from opdkit.store.tables import TABLES  # imported here, as everywhere in this file: it brings pyarrow

        if name not in TABLES:
            raise ConfigError(f"there is no table {name!r}; {did_you_mean(name, list(TABLES))}")
        self.run, self.name, self.schema = run, name, TABLES[name].schema

    def arrow(self, columns: Sequence[str] | None = None) -> "pa.Table":
        """The whole table, or some columns of it, as Arrow. Raises OpdkitError where parts are missing or damaged."""
        import pyarrow as pa

        from opdkit.store import read_arrow

        for column in columns or ():
            if column not in self.schema.names:
                raise ConfigError(f"{self.name} has no column {column!r}; {did_you_mean(column, self.schema.names)}")
        parts = [read_arrow(self.run, self.name, k, columns) for k in range(self._parts())]
        return pa.concat_tables([part.replace_schema_metadata(None) for part in parts])

    def pandas(self, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """The same as a pandas data frame; whole numbers that may be missing are `Int64` there, not rounded floats."""
        try:
            import pandas as pd
        except ImportError as error:
            raise OpdkitError("pandas is not installed: `pip install pandas`") from error
        import pyarrow as pa

        nullable = {pa.int8(): pd.Int8Dtype(), pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}
        return self.arrow(columns).to_pandas(types_mapper=nullable.get)

    def dataset(self) -> "datasets.Dataset":
        """The same as a `datasets.Dataset`, in memory-mapped files: for tables larger than the memory."""
        import datasets

        from opdkit.store import part_path

        paths = [part_path(self.run, self.name, k) for k in range(self._parts())]
        for missing in (path for path in paths if not path.exists()):
            raise OpdkitError(f"{missing} is not there: the stage has not finished; call its method again")
        found = datasets.Dataset.from_parquet([str(path) for path in paths])
        return cast("datasets.Dataset", found)

    def rows(self) -> Iterator[JSON]:
        """The rows as dicts, one after the other, a part in memory at a time."""
        from opdkit.store import read_all

        return read_all(self.run, self.name)

    __iter__ = rows

    def __len__(self) -> int:
        import pyarrow.parquet as pq

        from opdkit.store import part_path

        paths = [part_path(self.run, self.name, k) for k in range(self._parts())]
        return sum(pq.read_metadata(path).num_rows for path in paths if path.exists())

    def _parts(self) -> int:
        from opdkit.store import part_count
        from opdkit.store.tables import TABLES

        return part_count(self.run, TABLES[self.name].stage)

    def __repr__(self) -> str:
        """Rows, and every column with its type and meaning."""
        try:
            count = f"{len(self):,} rows"
        except OpdkitError:
            count = "not there yet"
        columns = [f"  {f.name}: {f.type} - {f.metadata[b'meaning'].decode()}" for f in self.schema]
        return "\n".join([f"{self.name} of {self.run}: {count}", *columns])
