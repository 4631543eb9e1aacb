"""`opdkit demo`: run the real stages on sample_data, and print the conclusion and a table of what changed."""

import json
import shutil
from pathlib import Path

from rich.table import Column
from rich.table import Table as RichTable

from opdkit.config.command_line import quote
from opdkit.config.demo import DemoConfig
from opdkit.config.evaluate import EvalConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.console import counted, say, stdout
from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED
from opdkit.evaluate.conclusion import print_conclusion, read_conclusion
from opdkit.store.atomic import replaced_folder
from opdkit.store.counters import read_counters
from opdkit.store.reading import part_path, read_part
from opdkit.store.run_stage import run_stage

OWN_LOGS = "opdkit run runs/mine my-logs.jsonl --model PATH --judge local"


def sample_data() -> Path:
    """Return the sample_data folder: beside the package in a checkout, inside it in an installed wheel."""
    package = Path(__file__).parents[1]
    for folder in (package.parent / "sample_data", package / "sample_data"):
        if (folder / "model" / "config.json").exists():
            return folder
    raise OpdkitError("sample_data does not exist: run `python sample_data/build.py` in a checkout of opdkit")


def configure_stages(directory: Path) -> list[tuple[str, str, StageConfig]]:
    """Return (stage, what it does in a newcomer's words, its configuration) for each stage, in order.

    This process does all parts, also in a task of a Slurm array.
    """
    data = sample_data()
    model = str(data / "model")
    train = TrainConfig(run=directory, model=model, epochs=2)  # the default would train three times as long
    evaluation = EvalConfig(run=directory, prompts=str(data / "prompts.jsonl"), max_new_tokens=64)
    return [
        ("extract", "read the logs of a tiny assistant",
         ExtractConfig(run=directory, shard="0/1", logs=(str(data / "logs"),))),
        ("judge", "let the same tiny model judge every reply by what the user or the tool said next, 5 votes each",
         JudgeConfig(run=directory, shard="0/1", judge="local", judge_model=model, max_new_tokens=64)),
        ("teacher", "score every judged reply twice: as it was, and knowing the hint",
         TeacherConfig(run=directory, shard="0/1", model=model)),
        ("train", "train on the difference, token by token", train),
        ("eval", "ask both models things that the logs never mention", evaluation),
    ]  # fmt: skip


def run(config: DemoConfig) -> None:
    """Run every stage (finished parts are kept) and print the outcome. With `--samples`, only copy the sample data."""
    if config.samples is not None:
        with replaced_folder(config.samples) as folder:
            shutil.copytree(sample_data(), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        say(f"the sample data are in {config.samples}; its README.md describes them")
        return
    steps = configure_stages(config.run)
    for number, (stage, what, options) in enumerate(steps, start=1):
        say(f"[{number}/{len(steps)}] {stage}: {what} ...")
        with stdout.capture():  # hides eval's output, which `show` repeats
            summary = run_stage(stage, options)
        say(f"      {summary.line()}")
    show(config.run, sample_data() / "prompts.jsonl")


def show(directory: Path, prompts: Path) -> None:
    """Print the conclusion, a table of right replies per topic, and the closing text."""
    if conclusion := read_conclusion(directory):
        print_conclusion(conclusion)
        stdout.print()
    asked = {row["id"]: row for row in map(json.loads, prompts.read_text(encoding="utf-8").splitlines())}
    shares = {row["domain"]: [f"{row[model]:.2f}" for model in ("before", "after")]
              for row in read_part(directory, "scores", 0) if row["metric"] == "passed_sampled"}  # fmt: skip
    domains = {row["domain"]: row for row in asked.values()}
    table = RichTable("topic", "the user wants", Column("before", justify="right"), Column("after", justify="right"),
                      title="Right replies to new requests: what the user wants", title_justify="left")  # fmt: skip
    for title, kind in (("they complained about", CORRECTED), ("they were content with", UNCORRECTED)):
        for name, row in domains.items():
            if row["corrected"] == (kind == CORRECTED):
                table.add_row(name, row["about"], *shares.get(name, "--"))
        table.add_row(f"all that {title}", "", *shares.get(kind, "--"), style="bold", end_section=True)
    stdout.print(table)
    counters = read_counters(part_path(directory, "metrics", 0))
    written = counters.total("written by the teacher")
    closing = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").rstrip()
    facts = {"asked": counted(len(asked), "held-out request"), "logged": counters.rows_out - written}
    facts |= {"written": written, "run": directory, "quoted": quote(directory), "own": OWN_LOGS}
    stdout.print(closing.format(**facts), soft_wrap=True, markup=False)
