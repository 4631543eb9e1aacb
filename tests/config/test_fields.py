"""Tests of options: declared once, checked at construction, the same in flags, TOML and manifest."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from opdkit.config.commands import COMMANDS, configure
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig, fields_of, from_saved, option, parse_pairs
from opdkit.config.judge import JudgeConfig
from opdkit.config.pipeline import make_configurations
from opdkit.config.run import RunConfig
from opdkit.config.shard import parse_shard
from opdkit.config.train import TrainConfig
from opdkit.errors import ConfigError

RUN = Path("run")
SCHEDULERS = ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX",
              "RANK", "WORLD_SIZE")  # fmt: skip


@pytest.fixture(autouse=True)
def no_scheduler(monkeypatch):
    for name in SCHEDULERS:
        monkeypatch.delenv(name, raising=False)


def toml(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, encoding="utf-8")
    return path


# -- what a declaration holds ---------------------------------------------------------------------------------------


def test_every_option_has_help_and_a_type_the_command_line_knows():
    for command in COMMANDS.values():
        for field in fields_of(command.config):
            assert field.help
            assert field.is_list or field.type in (int, float, bool, str, Path), field.name
            name = field.name.rstrip("_").replace("_", "-")
            assert field.flag == (field.name.upper() if field.positional else f"--{name}")


def test_plan_and_effective_configuration_are_json_values():
    config = ExtractConfig(run=RUN, logs=("a.jsonl",), limit=3)
    assert config.plan() == {"limit": 3, "format": "auto", "part_mb": None, "max_line_mb": 64, "filter": [],
                             "redact": False, "redact_names": None, "redact_pattern": [], "side": False}  # fmt: skip
    assert config.effective()["logs"] == ["a.jsonl"]
    assert "run" not in config.effective()


# -- checked at construction ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "message"), [
    ({"limit": 0}, r"--limit is 0.* 1"),
    ({"format": "opnai"}, r"--format is 'opnai'.*'openai'.*auto"),
    ({"logs": None}, r"LOGS"),
    ({"shard": "4/4"}, r"--shard is '4/4'"),
])  # fmt: skip
def test_extract_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=message):
        ExtractConfig(**({"run": RUN, "logs": ("a",)} | options))


@pytest.mark.parametrize(("options", "message"), [
    ({"holdout": 0.95}, "--holdout is 0.95.* 0.9"),
    ({"learning_rate": float("nan")}, "--learning-rate is nan"),
    ({"model": None}, "--model"),
    ({"template_arg": ("enable_thinking",)}, "--template-arg"),
])  # fmt: skip
def test_train_options_out_of_range(options, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**({"run": RUN, "model": "m"} | options))


# -- TOML ------------------------------------------------------------------------------------------------------------


def test_flags_win_over_toml_and_toml_over_defaults(tmp_path):
    file = toml(tmp_path, '[judge]\nvotes = 7\ntemperature = 1\nmax-new-tokens = 9\ntemplate_arg = ["a=1"]\n')
    config = configure("judge", {"run": RUN, "judge": "rules", "votes": 3, "timeout": None, "template_arg": ()}, file)
    assert (config.votes, config.temperature, config.max_new_tokens) == (3, 1.0, 9)
    assert config.template_arg == ("a=1",)
    assert config.timeout == JudgeConfig.timeout


@pytest.mark.parametrize(("text", "message"), [
    ("[judge]\nvote = 3\n", r"\[judge\].*'vote'.*'votes'"),
    ("[juge]\nvotes = 3\n", r"\[juge\].*'judge'"),
    ("[judge]\nvotes = 'many'\n", r"\[judge\] votes = 'many'.*integer"),
    ("[judge]\nvotes = true\n", "votes = .*integer"),
    ("[judge]\nvotes = 1.5\n", "votes = .*integer"),
    ("[judge]\nvotes = 0\n", "--votes is 0"),
    ("[judge]\nmax-new-tokens = 9\nmax_new_tokens = 8\n", r"\[judge\] has max_new_tokens twice"),
    ("[judge]\njudge_model = ''\n", r"\[judge\] judge_model is empty"),
    ("[judge]\ngood = ['a=1', '']\n", r"\[judge\] good is empty"),
    ("[judge]\nrun = 'elsewhere'\n", r"\[judge\].*'run'"),
    ("judge = 3\n", r"table.*\[judge\]"),
    ("[judge\n", "config.toml.*TOML"),
])  # fmt: skip
def test_toml_errors_say_where_and_what(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        configure("judge", {"run": RUN, "judge": "rules"}, toml(tmp_path, text))


@pytest.mark.parametrize(("command", "place"), [("night", "home"), ("slurm", "run")])
def test_a_file_names_no_other_file_of_options(tmp_path, command, place):
    """The options in the other file used to be ignored silently."""
    with pytest.raises(ConfigError, match="has no option 'config'"):
        configure(command, {place: RUN}, toml(tmp_path, f"[{command}]\nconfig = 'other.toml'\n"))


def test_one_of_a_list_needs_no_brackets(tmp_path):
    for text in ("teacher = 'big=models/72b'", "teacher = ['big=models/72b']"):
        file = toml(tmp_path, f"[teacher]\nmodel = 'm'\n{text}\n")
        assert configure("teacher", {"run": RUN}, file).teacher == ("big=models/72b",)


def test_what_was_saved_is_the_configuration_again():
    """Saved options that this version does not know are left out, and values that the caller passes win."""
    config = ExtractConfig(run=RUN, logs=("a.jsonl", "b.jsonl"), limit=3, part_mb=0.5)
    saved = json.loads(json.dumps(config.effective())) | {"gone": 1}
    assert from_saved(ExtractConfig, saved, run=RUN) == config
    assert from_saved(ExtractConfig, saved, run=RUN, limit=None).limit is None


def test_a_missing_file_and_another_stage_s_table(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml"):
        configure("judge", {"run": RUN, "judge": "rules"}, tmp_path / "none.toml")
    assert configure("judge", {"run": RUN, "judge": "rules"}, toml(tmp_path, "[train]\nepochs = 2\n")).votes == 5


def test_a_file_that_is_no_text(tmp_path):
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xff\xfe[")
    with pytest.raises(ConfigError, match=r"config\.toml.*UTF-8"):
        configure("judge", {"run": RUN, "judge": "rules"}, path)


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    """Windows editors write a byte-order mark."""
    path = tmp_path / "config.toml"
    path.write_bytes(b"\xef\xbb\xbf[judge]\nvotes = 7\n")
    assert configure("judge", {"run": RUN, "judge": "rules"}, path).votes == 7


def test_pairs_are_json_where_they_parse():
    pairs = ["a=1", "b=true", "c=text", 'd="1"', "e=x=y"]
    assert parse_pairs(pairs, "--template-arg") == {"a": 1, "b": True, "c": "text", "d": "1", "e": "x=y"}
    for text in ("9" * 5000, "[" * 100_000):
        assert parse_pairs([f"a={text}"], "--set") == {"a": text}


# -- shards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "1", "1/", "/2", "2/2", "-1/2", "a/b", "1/2/3", "0/0"])
def test_a_shard_that_is_none(text):
    with pytest.raises(ConfigError, match="--shard"):
        parse_shard(text)


@pytest.mark.parametrize(("environment", "shard"), [
    ({}, (0, 1)),
    ({"RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
    ({"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "0",
      "SLURM_ARRAY_TASK_MAX": "3", "RANK": "0", "WORLD_SIZE": "1"}, (2, 4)),
    ({"SLURM_ARRAY_TASK_ID": "30", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "10",
      "SLURM_ARRAY_TASK_MAX": "40"}, (2, 4)),
    # two processes in each of three tasks
    ({"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "0",
      "SLURM_ARRAY_TASK_MAX": "2", "RANK": "1", "WORLD_SIZE": "2"}, (5, 6)),
    ({"SLURM_ARRAY_TASK_ID": "5", "SLURM_ARRAY_TASK_COUNT": "1", "SLURM_ARRAY_TASK_MIN": "5",
      "SLURM_ARRAY_TASK_MAX": "5"}, (0, 1)),
])  # fmt: skip
def test_auto_takes_the_scheduler_s_word(monkeypatch, environment, shard):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert parse_shard("auto") == shard
    assert parse_shard("1/2") == (1, 2)


@pytest.mark.parametrize("environment", [
    {"RANK": "4", "WORLD_SIZE": "4"},
    {"RANK": "one", "WORLD_SIZE": "4"},
    # --array=1,3,7: two of these three tasks would get the same number
    {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1",
     "SLURM_ARRAY_TASK_MAX": "7"},
])  # fmt: skip
def test_a_scheduler_that_makes_no_sense_is_refused(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="pass --shard I/N"):
        parse_shard("auto")


def test_optional_fields_may_be_absent():
    @dataclass(frozen=True, kw_only=True)
    class Config(StageConfig):
        maybe: float | None = option(None, "may be absent", low=0.0)

    (field,) = [f for f in fields_of(Config) if f.name == "maybe"]
    assert field.type is float
    assert Config(run=RUN).maybe is None


def test_an_option_that_may_be_given_repeatedly_keeps_all_that_is_set(tmp_path):
    given = ("extract.filter=model=a*", "extract.filter=metadata.b=1", "judge.votes=3", "judge.votes=7",
             'judge.good=["metadata.c=1", "metadata.d=1"]', "judge.good=metadata.e=1")  # fmt: skip
    stages = make_configurations(RunConfig(run=tmp_path, logs=("x",), model="m", judge="rules", set=given))
    assert stages["extract"].filter == ("model=a*", "metadata.b=1")
    assert stages["judge"].good == ("metadata.c=1", "metadata.d=1", "metadata.e=1")
    assert stages["judge"].votes == 7


def test_a_text_that_is_set_stays_as_it_is_written(tmp_path):
    """A text option keeps its text even if that looks like a number or another JSON value."""
    given = ("train.name=1.10", "teacher.served_as=2", 'teacher.served_as=["a", "b"]', "teacher.wording=007",
             'train.reference="null"', "train.kl_coef=1", "extract.redact_names=true")  # fmt: skip
    stages = make_configurations(RunConfig(run=tmp_path, logs=("x",), model="m", judge="rules", set=given))
    assert stages["train"].run.name == "1.10.training"
    assert stages["train"].reference == "null"
    assert stages["teacher"].served_as == ("2", "a", "b")
    assert stages["teacher"].wording == Path("007")
    assert stages["extract"].redact_names == "true"


def test_set_takes_numbers_as_flags_do(tmp_path: Path) -> None:
    given = ("train.holdout=.25", "train.learning_rate=+1e-4", "judge.votes=1_0")
    stages = make_configurations(RunConfig(run=tmp_path, logs=("x",), model="m", judge="rules", set=given))
    assert (stages["train"].holdout, stages["train"].learning_rate, stages["judge"].votes) == (0.25, 1e-4, 10)
    with pytest.raises(ConfigError, match="votes"):
        make_configurations(RunConfig(run=tmp_path, logs=("x",), model="m", judge="rules", set=("judge.votes=.5",)))


def test_a_judge_of_the_file_is_not_replaced_by_the_model_that_is_trained(tmp_path):
    file = toml(tmp_path, '[judge]\njudge_model = "large"\n')
    named, plain = (make_configurations(RunConfig(run=tmp_path, logs=("x",), model="m", judge="local", config=path))
                    for path in (file, None))  # fmt: skip
    assert (named["judge"].judge_model, plain["judge"].judge_model) == ("large", "m")
