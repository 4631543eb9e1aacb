"""Tests of `opdkit gate` on what `opdkit eval` stored, with its exit code, and on a missing or outdated evaluation."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from checked_runs import recommit
from named_trainings import PROMPTS, train_named, two_trainings
from typer.testing import CliRunner

import opdkit
from opdkit.cli import app
from opdkit.commands.gate import gate
from opdkit.config.gate import GateConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store.reading import read_all
from opdkit.store.tables import TABLES


@pytest.fixture(scope="module")
def made(tmp_path_factory, plain_model_dir) -> Path:
    """Return an evaluated training `a`; the tiny model drifts far in a few steps."""
    return two_trainings(tmp_path_factory.mktemp("gated"), plain_model_dir) / "a.training"


def test_the_values_are_those_of_eval(made) -> None:
    decision = gate(GateConfig(run=made))
    stored = {(row["metric"], row["domain"]): row for row in read_all(made, "scores")}
    assert [row["domain"] for row in decision.domains] == ["all", "uncorrected", "even", "odd"]
    for row in decision.domains:
        known = stored["passed_sampled", row["domain"]]
        assert [row[name] for name in ("before", "after", "difference", "low", "high")] == pytest.approx(
            [known[name] for name in ("before", "after", "difference", "low", "high")])  # fmt: skip
        assert row["prompts"] == known["count"] == (PROMPTS if row["domain"] == "all" else PROMPTS // 2)
    checks = {row["check"]: row for row in decision.checks}
    for check, metric, domain in (("drift", "kl_replies", "uncorrected"), ("length", "reply_tokens", "uncorrected"),
                                  ("cut_off", "cut_off", "all")):  # fmt: skip
        assert checks[check]["after"] == pytest.approx(stored[metric, domain]["after"])


def test_the_exit_code_is_the_decision(made) -> None:
    allowed = [word for name in ("drift", "length", "cut_off", "loop") for word in ("--allow", name)]
    shipped = CliRunner().invoke(app, ["gate", str(made), *allowed])
    assert (shipped.exit_code, shipped.stdout.partition(":")[0]) == (0, "**Ship")
    strict = CliRunner().invoke(app, ["gate", str(made), *allowed, "--max-loss", "0.05", "--json"])
    decision = json.loads(strict.stdout)
    assert (strict.exit_code, decision["ship"]) == (1, False)
    assert all("a loss of 0.05 could go unseen" in reason for reason in decision["reasons"])
    assert decision["sentence"] == opdkit.Run(made).gate(max_loss=0.05, allow=allowed[1::2]).sentence


def test_without_an_evaluation_it_says_what_to_run(made, tmp_path, plain_model_dir) -> None:
    run = Path(shutil.copytree(made.parent, tmp_path / "run"))
    with pytest.raises(OpdkitError, match=r"opdkit eval \S*run --prompts"):
        gate(GateConfig(run=run))
    train_named(run, plain_model_dir, "a", "combine", overwrite=True)
    with pytest.raises(OpdkitError, match=r"older train stage(.|\n)*opdkit eval"):
        gate(GateConfig(run=run / "a.training"))
    with pytest.raises(ConfigError, match="--allow"):
        GateConfig(run=run, allow=("lenght",))


@pytest.mark.parametrize("table", ["replies", "scores"])
@pytest.mark.parametrize("command", ["gate", "compare", "report", "check"])
def test_an_evaluation_of_another_version_is_refused(command: str, table: str, made, tmp_path) -> None:
    run = Path(shutil.copytree(made.parent, tmp_path / "run"))
    recommit(run / "a.training", table, 0, spec=replace(TABLES[table], version=TABLES[table].version - 1))
    words = [str(run), "a", "b"] if command == "compare" else [str(run / "a.training")]
    result = CliRunner().invoke(app, [command, *words])
    assert result.exit_code == 1
    if command == "check":
        assert f"schema version {TABLES[table].version - 1}; this opdkit reads" in result.stdout
    else:
        assert f"{table}/part-00000.parquet was written by another version of opdkit" in result.stderr
        assert "run `opdkit eval" in result.stderr
