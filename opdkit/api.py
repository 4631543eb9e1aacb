"""Python interface: a run as an object, stages as its methods, tables as Arrow, pandas or `datasets`.

    import opdkit
    run = opdkit.Run("runs/try")
    run.extract("sample_data/logs")
    run.table("turns").pandas()

A method takes the options of its command as keyword arguments: the usual ones are named, docs/commands.md has all. They
are checked as on the command line and raise the same errors. None stands for the default. Nothing heavy is imported
before something is done with it.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opdkit.config.commands import COMMANDS, STAGES, configure, load_function
from opdkit.config.fields import Field, convert, fields_of, find_option

if TYPE_CHECKING:
    from opdkit.store.counters import Summary
    from opdkit.store.reviews import Reviews
    from opdkit.store.run_table import RunTable

MaybePath = str | Path | None
MaybePaths = MaybePath | Sequence[str | Path]


class Run:
    """Run directory; it need not exist yet.

    The methods of the stages return a summary: `print` it for the closing line, `.counters` has the numbers. Parts that
    are done are not computed again. Every method raises opdkit.ConfigError for wrong options, opdkit.OpdkitError when
    it fails.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def extract(
        self,
        logs: MaybePaths = None,
        *,
        format: str | None = None,  # noqa: A002 - named as the option is
        filter: MaybePaths = None,  # noqa: A002
        limit: int | None = None,
        **options: Any,
    ) -> "Summary":
        """Read conversation logs into sessions and turns."""
        return self._run("extract", logs=logs, format=format, filter=filter, limit=limit, **options)

    def judge(
        self,
        *,
        judge: str | None = None,
        judge_model: MaybePath = None,
        judge_url: str | None = None,
        votes: int | None = None,
        limit: int | None = None,
        **options: Any,
    ) -> "Summary":
        """Have a judge vote on every turn: a reward, and a hint at what was wanted."""
        options |= {"judge_model": judge_model, "judge_url": judge_url}
        return self._run("judge", judge=judge, votes=votes, limit=limit, **options)

    def teacher(
        self,
        *,
        model: MaybePath = None,
        teacher: MaybePaths = None,
        top_k: int | None = None,
        limit: int | None = None,
        **options: Any,
    ) -> "Summary":
        """Score every judged reply, with and without the hint."""
        return self._run("teacher", model=model, teacher=teacher, top_k=top_k, limit=limit, **options)

    def train(
        self,
        *,
        model: MaybePath = None,
        objective: str | None = None,
        epochs: int | None = None,
        learning_rate: float | None = None,
        batch_turns: int | None = None,
        lora_rank: int | None = None,
        **options: Any,
    ) -> "Summary":
        """Train the student on the teacher's and the judge's signal."""
        options |= {"learning_rate": learning_rate, "batch_turns": batch_turns, "lora_rank": lora_rank}
        return self._run("train", model=model, objective=objective, epochs=epochs, **options)

    def evaluate(
        self, *, prompts: MaybePath = None, max_prompts: int | None = None, samples: int | None = None, **options: Any
    ) -> "Summary":
        """Compare the model before and after on held-out prompts, as `opdkit eval`."""
        return self._run("eval", prompts=prompts, max_prompts=max_prompts, samples=samples, **options)

    def rollout(
        self,
        *,
        from_run: MaybePath = None,
        model: MaybePath = None,
        samples: int | None = None,
        limit: int | None = None,
        **options: Any,
    ) -> "Summary":
        """Have the student answer the hinted turns of another run again, into this run."""
        return self._run("rollout", from_run=from_run, model=model, samples=samples, limit=limit, **options)

    def pipeline(
        self,
        logs: MaybePaths = None,
        *,
        model: MaybePath = None,
        judge: str | None = None,
        objective: str | None = None,
        limit: int | None = None,
        **options: Any,
    ) -> "Summary":
        """Extract, judge, teach and train with one configuration, as `opdkit run`."""
        return self._run("run", logs=logs, model=model, judge=judge, objective=objective, limit=limit, **options)

    def slurm(self, logs: MaybePaths = None, *, submit: bool | None = None, **options: Any) -> Any:
        """Write the batch scripts of the pipeline on a Slurm cluster, and submit them if asked."""
        return self._run("slurm", logs=logs, submit=submit, **options)

    def export(self, out: MaybePath = None, *, to: str | None = None, **options: Any) -> Any:
        """Write the judged turns as other trainers read them."""
        return self._run("export", out=out, to=to, **options)

    def forecast(self, *, model: MaybePath = None, hints: int | None = None, **options: Any) -> Any:
        """Return what a training would bring and cost, which the command prints."""
        return self._run("forecast", "opdkit.commands.forecast:predict", model=model, hints=hints, **options)

    def calibrate(self, labels: MaybePath = None, **options: Any) -> Any:
        """Measure the judge against labels of people; return the measures, which the command prints."""
        return self._run("calibrate", "opdkit.commands.calibrate.command:measure", labels=labels, **options)

    def report(self, *, out: MaybePath = None, **options: Any) -> Any:
        """Write the run as one HTML file that opens offline."""
        return self._run("report", out=out, **options)

    def show(self, turn_id: str | None = None, **options: Any) -> None:
        """Print turns: a list, or one whole, with its votes, hints and the advantage of every token."""
        self._run("show", turn_id=turn_id, **options)

    def status(self) -> None:
        """Print how far each stage is."""
        self._run("status")

    def check(self, **options: Any) -> bool:
        """Verify the whole run, and print what is damaged; return False when something is."""
        return bool(self._run("check", **options))

    def table(self, name: str) -> "RunTable":
        """Return one table of the run: sessions, turns, verdicts, targets, ... Raises ConfigError for another name."""
        from opdkit.store.run_table import RunTable  # imported here, as every import of the store: it brings pyarrow

        return RunTable(self.path, name)

    def decisions(self) -> "Reviews":
        """Return the decisions of `opdkit review`, by turn_id. They win over the verdicts, whose table stays."""
        from opdkit.store.reviews import reviews_in_force

        return reviews_in_force(self.path)

    def __repr__(self) -> str:
        """Return one line per stage, from the footers of its parts; cheap for a run of any size."""
        started = [stage for stage in STAGES if (self.path / stage / "manifest.json").exists()]
        if not started:
            return f"Run({str(self.path)!r})\n  nothing is done yet"
        from opdkit.store.reading import summary_of

        lines = [f"  {summary_of(self.path, stage).line()}" for stage in started]
        return "\n".join([f"Run({str(self.path)!r})", *lines])

    def _run(self, command: str, target: str | None = None, /, **options: Any) -> Any:
        """Run a command, or `target` in its place. Raises ConfigError for wrong options, as the command line does."""
        printed = ("run",) if target is None else ("run", "json")  # what is returned is not printed
        fields = [field for field in fields_of(COMMANDS[command].config) if field.name not in printed]
        flags: dict[str, Any] = {"run": self.path}
        file = None
        for name, value in options.items():
            if command in STAGES and name == "config":  # run and slurm hand the file on: it is an option of theirs
                file = None if value is None else Path(value)
            else:
                field = find_option(command, name, fields, command)
                flags[field.name] = None if value is None else _convert(field, value)
        config = configure(command, flags, file)
        config.check_inputs()
        if command in STAGES:
            from opdkit.store.run_stage import run_stage

            return run_stage(command, config)
        return load_function(target or COMMANDS[command].target)(config)


def _convert(field: Field, value: Any) -> Any:
    """Return a Python value as the field's type: a path may be text and the reverse, NAME=VALUE options a dict."""
    if field.is_list and isinstance(value, Mapping):
        value = [f"{name}={v if isinstance(v, str | Path) else json.dumps(v)}" for name, v in value.items()]
    if field.is_list and isinstance(value, list | tuple):
        value = [str(item) if isinstance(item, Path) else item for item in value]
    return convert(field, str(value) if isinstance(value, Path) else value, field.name)
