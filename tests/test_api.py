"""The Python interface: light to import, the same options, checks and errors as the command line; docs/python.md."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pytest
from labelled_runs import labelled_run

import opdkit
from opdkit.api import Run
from opdkit.config.commands import COMMANDS
from opdkit.config.fields import fields_of
from opdkit.config.judge import JudgeConfig
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review, append

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(labelled_run(tmp_path_factory.mktemp("python") / "run", part_mb=0.05))


def test_import_is_light() -> None:
    """`import opdkit` is fast: neither the package nor the class brings the heavy libraries."""
    code = (
        "import sys, opdkit; assert 'opdkit.api' not in sys.modules; run = opdkit.Run('x'); repr(run)\n"
        "print([m for m in ('torch', 'transformers', 'pyarrow', 'datasets', 'numpy', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_modules_of_the_package_stay_what_they_are() -> None:
    import opdkit.extract.stage
    import opdkit.judge

    assert inspect.ismodule(opdkit.extract.stage)
    assert inspect.ismodule(opdkit.judge)
    assert {"Run", "OpdkitError", "ConfigError"} <= set(dir(opdkit))
    with pytest.raises(AttributeError, match="no attribute 'Runn'"):
        opdkit.Runn  # noqa: B018


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("init", "doctor", "review", "demo")])
def test_the_named_arguments_of_a_method_are_options_of_its_command(command: str) -> None:
    method = getattr(Run, {"eval": "evaluate", "run": "pipeline"}.get(command, command))
    fields = {field.name: field for field in fields_of(COMMANDS[command].config)}
    positional = [name for name, field in fields.items() if field.positional and name != "run"]
    parameters = [p for p in inspect.signature(method).parameters.values() if p.name != "self"]
    named = [p for p in parameters if p.kind is not inspect.Parameter.VAR_KEYWORD]
    assert [p.name for p in named if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD] == positional
    assert {p.name for p in named} <= set(fields)
    assert all(p.default is None for p in named), "None is the command's own default"
    assert len(parameters) > len(named) or {p.name for p in named} == set(fields) - {"run"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"judge": "lokal"}, "--judge is 'lokal'"),
        ({"judge": "local"}, "--judge-model"),
        ({"votes": 0}, "--votes is 0"),
        ({"votes": "many"}, "votes = 'many'"),
        ({"vote": 3}, "'vote'; did you mean 'votes'"),
        ({"base_url": "http://h/v1"}, "'judge_url'"),
        ({"config": "missing.toml"}, "missing.toml"),
    ],
)
def test_wrong_options_are_the_errors_of_the_command_line(options: dict, words: str, tmp_path: Path) -> None:
    with pytest.raises(opdkit.ConfigError, match=re.escape(words)):
        Run(tmp_path / "run").judge(**{"judge": "rules"} | options)
    assert not any(tmp_path.iterdir())


def test_what_was_not_done_before_is_an_error_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(opdkit.OpdkitError, match="opdkit extract"):
        Run(tmp_path / "run").judge(judge="rules")
    with pytest.raises(TypeError):
        Run(tmp_path / "run").extract("a", "b")
    with pytest.raises(opdkit.ConfigError, match="LOGS is missing"):
        Run(tmp_path / "run").extract()


def test_python_values_become_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths for text, one for several, whole numbers for numbers, a dict for NAME=VALUE, a TOML file underneath."""
    seen = []
    monkeypatch.setattr("opdkit.store.run_stage.run_stage", lambda name, config: seen.append(config))
    monkeypatch.setattr("opdkit.api.load_function", lambda target: seen.append)
    (tmp_path / "opdkit.toml").write_text("[judge]\nvotes = 9\nseed = 4\n")
    made = Run(str(tmp_path / "run"))
    made.extract(tmp_path / "logs", part_mb=2)
    made.extract(["a", tmp_path / "b"])
    arguments = {"enable_thinking": False, "x": "y"}
    made.judge(judge="local", judge_model=tmp_path, temperature=1, template_arg=arguments, seed=5,
               config=tmp_path / "opdkit.toml")  # fmt: skip
    made.pipeline("logs", model=tmp_path, set=["judge.votes=7"], config=tmp_path / "opdkit.toml")
    one, several, judge, every = seen
    assert (every.logs, every.set, every.config) == (("logs",), ("judge.votes=7",), tmp_path / "opdkit.toml")
    assert (one.logs, one.part_mb, type(one.part_mb)) == ((str(tmp_path / "logs"),), 2.0, float)
    assert several.logs == ("a", str(tmp_path / "b"))
    assert judge == JudgeConfig(
        run=tmp_path / "run", judge="local", judge_model=str(tmp_path), temperature=1.0, votes=9, seed=5,
        template_arg=("enable_thinking=false", "x=y"),
    )  # fmt: skip


def test_tables_in_every_form_are_the_same_rows(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    table = run.table("turns")
    rows = list(read_all(run.path, "turns"))
    assert list(table) == list(table.rows()) == rows
    assert len(table) == len(rows) > 600
    arrow = table.arrow()
    assert isinstance(arrow, pa.Table)
    assert arrow.to_pylist() == rows
    assert list(table.dataset()) == rows
    frame = table.pandas(["turn_id", "message_index"])
    assert list(frame.columns) == ["turn_id", "message_index"]
    assert list(frame.turn_id) == [row["turn_id"] for row in rows]


def test_a_missing_reward_is_missing_in_pandas_too(run: Run) -> None:
    frame = run.table("verdicts").pandas()
    assert frame.reward.dtype == pd.Int8Dtype()
    assert set(frame.reward.dropna()) == {-1, 0, 1}


def test_what_it_shows(run: Run, tmp_path: Path) -> None:
    shown = repr(run)
    assert shown.startswith(
        f"Run({str(run.path)!r})\n  extract: 241 log sessions in, 240 sessions out, 1 line or session dropped (not "
        "JSON 1)"
    )
    assert "  judge: " in shown
    assert repr(Run(tmp_path)).endswith("nothing is done yet")
    assert "turn_id: string - session_id:message_index" in repr(run.table("turns"))
    assert "not there yet" in repr(run.table("targets"))
    with pytest.raises(opdkit.ConfigError, match="'turns'"):
        run.table("turn")
    with pytest.raises(opdkit.ConfigError, match="'reward'"):
        run.table("verdicts").arrow(["rewards"])
    with pytest.raises(opdkit.OpdkitError, match="opdkit teacher"):
        run.table("targets").arrow()


def test_decisions_of_people(tmp_path: Path) -> None:
    made = Run(labelled_run(tmp_path / "run"))
    assert made.decisions() == {}
    append(made.path, [Review("openai:1:1", reward_decided=True, reward=1)])
    assert made.decisions()["openai:1:1"].reward == 1
    assert next(made.table("verdicts").rows())["reward"] == -1


def test_commands_beside_the_stages(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ROOT / "sample_data" / "labels.jsonl"
    assert run.calibrate(labels).accuracy == 1.0
    assert run.export(tmp_path / "sft.parquet", to="trl-sft").counters.rows_out == 292
    assert run.check() is not False
    run.status()
    assert "judge" in capsys.readouterr().out


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "sample_data").symlink_to(ROOT / "sample_data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
    shown = capsys.readouterr().out
    for words in (
        "extract: 241 log sessions in",
        "judge: ",
        "mean advantage ",
        "accuracy 1.000",
        "train: ",
        "did you mean 'local'",
    ):
        assert words in shown, words
    assert names["curve"]
    assert (tmp_path / "runs" / "try" / "kto.parquet").exists()
