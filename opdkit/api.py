"""Python interface: a run as an object, stages as its methods, tables as Arrow, pandas or `datasets`.

    import opdkit
    run = opdkit.Run("runs/try")
    run.extract("sample_data/logs")
    run.table("turns").pandas()

A method takes the options of its command as keyword arguments, which are checked as on the command line and raise the
same errors. None stands for the default. Editors and type checkers read their types from options.pyi; `help` and
notebooks get them from `_name_options`. Nothing heavy is imported before a method is called.
"""

import inspect
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from opdkit.config.commands import COMMANDS, STAGES, configure, load_function
from opdkit.config.fields import JSON, WHERE, Field, PythonFunction, convert, fields_of, find_option
from opdkit.config.shared import TRAINING
from opdkit.console import stdout
from opdkit.errors import ConfigError

if TYPE_CHECKING:
    import opdkit.options as typed
    from opdkit.commands.blame import Blame
    from opdkit.commands.calibrate.agreement import Calibration
    from opdkit.commands.show.turn import Turn, Turns
    from opdkit.evaluate.comparison import Comparison
    from opdkit.evaluate.gate import Decision
    from opdkit.evaluate.scores import Scores
    from opdkit.store.counters import Summary
    from opdkit.store.reviews import Reviews
    from opdkit.store.run_table import RunTable

# Functions for methods that return what their command prints. Options about the printed form (_FORM) are left out.
_RETURNED = {
    "blame": "opdkit.commands.blame:blame",
    "calibrate": "opdkit.commands.calibrate.command:measure",
    "compare": "opdkit.commands.compare:compare",
    "forecast": "opdkit.commands.forecast:predict",
    "gate": "opdkit.commands.gate:gate",
    "show": "opdkit.commands.show.turn:load_turns",
}
_FORM = ("json", "lines", "replies", "whole", "one_line", "logprobs")


def list_options(command: str) -> list[Field]:
    """Return the options of a command that its method takes."""
    left_out = ("run", *_FORM) if command in (*_RETURNED, "eval") else ("run",)
    fields = [field for field in fields_of(COMMANDS[command].config) if field.name not in left_out]
    return sorted(fields, key=lambda field: field.panel == WHERE)  # options of WHERE last


class Run:
    """Run directory; it need not exist yet.

    The methods of the stages return a summary: `print` it for the closing line; `.counters` has the numbers. Finished
    parts are not computed again. Every method raises opdkit.ConfigError for wrong options and opdkit.OpdkitError when
    it fails.
    """

    def __init__(self, path: "typed.Text") -> None:
        if path == "":
            raise ConfigError("RUN is an empty text; name a folder, existing or new")
        self.path = Path(os.path.expanduser(path))  # noqa: PTH111  (Path.expanduser raises for an unknown user)

    def __fspath__(self) -> str:
        """Return the run directory, so that a Run can be passed as a path."""
        return str(self.path)

    def extract(self, logs: "typed.Texts | None" = None, **options: "Unpack[typed.ExtractOptions]") -> "Summary":
        """Read conversation logs into sessions and turns; `format` may be a function that reads a record."""
        return self._run_stage("extract", {"logs": logs, **options})

    def judge(self, **options: "Unpack[typed.JudgeOptions]") -> "Summary":
        """Have a judge vote on every turn: a reward, and a hint at what was wanted; `judge` may be a function."""
        return self._run_stage("judge", options)

    def teacher(self, **options: "Unpack[typed.TeacherOptions]") -> "Summary":
        """Score every judged reply, with and without the hint."""
        return self._run_stage("teacher", options)

    def train(self, **options: "Unpack[typed.TrainOptions]") -> "Summary":
        """Train the student on the teacher's and the judge's signal."""
        return self._run_stage("train", options)

    def training(self, name: str) -> "Run":
        """Return the run of a named training: `train(name=...)`, on the targets of this run."""
        return Run(self.path / f"{name}{TRAINING}")

    def evaluate(self, *, check: "typed.Check | None" = None, **options: "Unpack[typed.EvalOptions]") -> "Scores":
        """Compare the model before and after on held-out prompts, as `opdkit eval` does, and return the scores.

        `check(reply, row)` says whether a reply passes, for prompts whose row has no check.
        """
        with stdout.capture():  # the scores are returned
            summary = self._run_stage("eval", options, PythonFunction(check) if check else None)
        assert summary.where is not None  # not a dry run
        return Run(summary.where.parents[1]).scores()  # not `self`: `name`, here or in the file, may name a training

    def scores(self) -> "Scores":
        """Return the scores of the last evaluation. Raises OpdkitError if there is none."""
        scores: Scores = load_function("opdkit.evaluate.scores:Scores")(self.path)
        return scores

    def rollout(self, **options: "Unpack[typed.RolloutOptions]") -> "Summary":
        """Have the student answer the hinted turns of another run again; write the replies into this run."""
        return self._run_stage("rollout", options)

    def pipeline(self, logs: "typed.Texts | None" = None, **options: "Unpack[typed.RunOptions]") -> "Summary":
        """Extract, judge, teach and train with one configuration, as `opdkit run` does."""
        summary: Summary = self._run("run", {"logs": logs, **options})
        return summary

    def slurm(self, logs: "typed.Texts | None" = None, **options: "Unpack[typed.SlurmOptions]") -> Any:
        """Write the batch scripts of the pipeline for a Slurm cluster; with `submit=True`, submit them."""
        return self._run("slurm", {"logs": logs, **options})

    def export(self, out: "typed.Text | None" = None, **options: "Unpack[typed.ExportOptions]") -> Any:
        """Write the judged turns in the formats of other trainers, or the hints as a system prompt."""
        return self._run("export", {"out": out, **options})

    def forecast(self, **options: "Unpack[typed.ForecastOptions]") -> JSON:
        """Return the expected gain and cost of a training, as the command prints them."""
        found: JSON = self._run("forecast", options)
        return found

    def calibrate(
        self, labels: "typed.Text | None" = None, **options: "Unpack[typed.CalibrateOptions]"
    ) -> "Calibration":
        """Measure the judge against people's labels; return the measures, as the command prints them."""
        measured: Calibration = self._run("calibrate", {"labels": labels, **options})
        return measured

    def compare(self, *others: "typed.Text", **options: "Unpack[typed.CompareOptions]") -> "Comparison":
        """Say which training is better. `others`: names of trainings of this run, or other run directories."""
        compared: Comparison = self._run("compare", {"others": others or None, **options})
        return compared

    def gate(self, **options: "Unpack[typed.GateOptions]") -> "Decision":
        """Say whether the trained model may replace the one before it; `markdown()` is what the command prints."""
        decision: Decision = self._run("gate", options)
        return decision

    def blame(self, **options: "Unpack[typed.BlameOptions]") -> "Blame":
        """Say what taught the model what it now does worse; `markdown()` is what the command prints."""
        answer: Blame = self._run("blame", options)
        return answer

    def report(self, **options: "Unpack[typed.ReportOptions]") -> Any:
        """Write the run as one HTML file that opens offline."""
        return self._run("report", options)

    def turns(self, **options: "Unpack[typed.ShowOptions]") -> "Turns":
        """Return whole turns, such as `worst=3`; a notebook shows them with their tokens in colours."""
        turns: Turns = self._run("show", options)
        return turns

    def show(self, turn_id: str) -> "Turn":
        """Return one whole turn. `print` shows it as `opdkit show` does; a notebook shows its tokens in colours."""
        if turn_id is None:  # None is the default of the option and means all turns
            raise ConfigError("turn_id is None; name a turn, or choose some with `run.turns`")
        turns: Turns = self._run("show", {"turn_id": turn_id})
        return turns[0]

    def status(self) -> None:
        """Print how far each stage is."""
        self._run("status", {})

    def check(self, **options: "Unpack[typed.CheckOptions]") -> bool:
        """Verify the whole run and print what is damaged; return False if anything is."""
        return bool(self._run("check", options))

    def table(self, name: str) -> "RunTable":
        """Return one table of the run: sessions, turns, verdicts, targets, ... Raises ConfigError for another name."""
        from opdkit.store.run_table import RunTable  # imported here: every module of the store imports pyarrow

        return RunTable(self.path, name)

    def decisions(self) -> "Reviews":
        """Return the decisions of `opdkit review`, by turn_id. They override the verdicts, whose table is unchanged."""
        from opdkit.store.reviews import read_reviews_in_force

        return read_reviews_in_force(self.path)

    def __repr__(self) -> str:
        """Return one line per stage, from the footers of its parts: cheap for a run of any size."""
        from opdkit.store.plans import list_trainings

        runs = (self.path, *list_trainings(self.path).values())
        started = [(run, stage) for run in runs for stage in STAGES if (run / stage / "manifest.json").exists()]
        if not started:
            return f"Run({str(self.path)!r})\n  nothing is done yet"
        from opdkit.store.reading import summary_of

        lines = [f"  {summary_of(*one).line()}" for one in started]
        return "\n".join([f"Run({str(self.path)!r})", *lines])

    def _configure(self, command: str, options: Mapping[str, Any]) -> Any:
        """Return the configuration of a command. Raises ConfigError for wrong options, as the command line does."""
        fields = list_options(command)
        flags: dict[str, Any] = {"run": self.path}
        for name, value in options.items():
            if command in STAGES and name == "config":  # run and slurm have it as an option, for their stages
                continue
            field = find_option(command, name, fields, command)
            flags[field.name] = None if value is None else _convert(field, value)
        file = options.get("config")
        config = configure(command, flags, None if file is None else Path(file))
        config.check_inputs()
        return config

    def _run_stage(self, stage: str, options: Mapping[str, Any], *more: Any) -> "Summary":
        config = self._configure(stage, options)  # before the slow import, so that wrong options fail at once
        from opdkit.store.run_stage import run_stage

        return run_stage(stage, config, *more)

    def _run(self, command: str, options: Mapping[str, Any]) -> Any:
        return load_function(_RETURNED.get(command) or COMMANDS[command].target)(self._configure(command, options))


def _convert(field: Field, value: Any) -> Any:
    """Return a Python value as the field's type. A path may be text or a Run; NAME=VALUE options may be a dict."""
    if field.function and callable(value):
        return PythonFunction(value)
    if field.is_list and isinstance(value, Mapping):
        value = [f"{name}={v if isinstance(v, str | Path) else json.dumps(v)}" for name, v in value.items()]
    if field.is_list and isinstance(value, list | tuple):
        value = [os.fspath(item) if isinstance(item, os.PathLike) else item for item in value]
    return convert(field, os.fspath(value) if isinstance(value, os.PathLike) else value, field.name)


def _name_options(method: Callable[..., Any], command: str) -> None:
    """Add the options of a command to the signature and the docstring of its method."""
    fields = [field for field in list_options(command) if not field.positional]
    defaults = {field.name: field.default for field in fields} | ({"config": None} if command in STAGES else {})
    named = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    signature = inspect.signature(method)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
    method.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    lines = [f"    {field.name} ({field.kind}): {field.text}" for field in fields]
    method.__doc__ = "\n".join([f"{inspect.getdoc(method)}\n\nOptions:", *lines])


for _name, _method in inspect.getmembers(Run, inspect.isfunction):
    if "**options" in str(inspect.signature(_method)):
        _name_options(_method, {"evaluate": "eval", "pipeline": "run", "turns": "show"}.get(_name, _name))
