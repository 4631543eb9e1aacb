"""Tests of `opdkit init`: the file has every option once, with its default, and configures what the flags say."""

import os
import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.commands.init import run, toml, write_document
from opdkit.config.commands import COMMANDS, STAGES, TOML_TABLES, configure
from opdkit.config.fields import fields_of
from opdkit.config.init import InitConfig
from opdkit.config.presets import PRESETS

ROOT = Path(__file__).parents[2]
REQUIRED = {
    "logs": ("x.jsonl",),
    "model": "m",
    "prompts": "p.jsonl",
    "judge": "rules",
    "from_run": Path("other"),
    "run": Path("run"),
    "home": Path("home"),
}


def list_options(stage: str) -> list[str]:
    return [field.name for field in fields_of(COMMANDS[stage].config) if field.name not in ("run", "home", "config")]


def sections(text: str) -> dict[str, str]:
    parts = re.split(r"^\[(\w+)\]$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def required(stage: str) -> dict[str, object]:
    return {f.name: REQUIRED[f.name] for f in fields_of(COMMANDS[stage].config) if f.required}


def test_every_option_is_in_the_file_in_the_reference_and_in_the_manifest():
    """Each option is declared once. The three lists derive from that and hold the same options."""
    written = sections(write_document(InitConfig()))
    assert list(written) == list(TOML_TABLES)
    pages = re.split(r"^## opdkit (\w+)$", (ROOT / "docs" / "commands.md").read_text(encoding="utf-8"), flags=re.M)
    reference = dict(zip(pages[1::2], pages[2::2], strict=True))
    for stage, text in written.items():
        keys = re.findall(r"^#?([a-z]\w*) =", text, re.MULTILINE)
        assert keys == list_options(stage)
        rows = {
            name.lower().removeprefix("--").replace("-", "_")
            for name in re.findall(r"^\| `(\S+)`", reference[stage], re.M)
        }
        assert rows - {"run", "home", "config"} == {key.rstrip("_") for key in keys}  # `in_` is the flag --in
        if stage in STAGES:
            effective = configure(stage, required(stage), None).effective()
            assert set(effective) == set(keys)


@pytest.mark.parametrize("stage", TOML_TABLES)
def test_the_file_as_it_is_and_without_its_hashes_configures_the_defaults(stage, tmp_path):
    text = write_document(InitConfig())
    everything = re.sub(r"^#([a-z]\w* = .+)$", r"\1", text, flags=re.MULTILINE)
    assert len(tomllib.loads(everything)[stage]) > 3
    plain = configure(stage, required(stage), None)
    for variant in (text, everything):
        file = tmp_path / "opdkit.toml"
        file.write_text(variant, encoding="utf-8")
        assert configure(stage, required(stage), file) == plain


def test_flags_and_preset_are_written_where_they_belong():
    text = write_document(InitConfig(model="some/model", preset="qwen3-thinking", judge="local"))
    tables = tomllib.loads(text)
    assert tables["teacher"] == {"model": "some/model", "template_arg": ["enable_thinking=true"]}
    assert tables["judge"] == {"judge": "local", "judge_model": "some/model", "template_arg": ["enable_thinking=true"],
                               "max_new_tokens": 4096}  # fmt: skip
    assert tables["train"] == {"model": "some/model"}
    assert tables["night"] == {"model": "some/model", "judge": "local"}
    assert "thinking of earlier turns" in text
    served = tomllib.loads(write_document(InitConfig(judge="endpoint", judge_model="j", judge_url="http://h:1/v1")))
    assert served["judge"] == {"judge": "endpoint", "judge_model": "j", "judge_url": "http://h:1/v1"}
    unnamed = tomllib.loads(write_document(InitConfig(judge_model="j", judge_url="http://h:1/v1")))
    assert unnamed["judge"] == {"judge_model": "j", "judge_url": "http://h:1/v1"}
    assert tomllib.loads(write_document(InitConfig(judge="batch")))["night"] == {}, "nights refuse it"


def test_a_file_that_is_there_is_kept_unless_asked(tmp_path):
    file = tmp_path / "deep" / "opdkit.toml"
    run(InitConfig(file=file))
    file.write_text("mine", encoding="utf-8")
    refused = CliRunner().invoke(app, ["init", str(file)])
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    assert file.read_text(encoding="utf-8") == "mine"
    run(InitConfig(file=file, overwrite=True))
    assert tomllib.loads(file.read_text(encoding="utf-8"))


def test_a_link_stays_and_what_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    """Run as root, `--out /dev/null` once replaced the device of the whole machine with a file."""
    pipe, file, link = (tmp_path / name for name in ("pipe", "file.toml", "link.toml"))
    os.mkfifo(pipe)
    refused = CliRunner().invoke(app, ["init", str(pipe), "--overwrite"])
    assert refused.exit_code == 2
    assert str(pipe) in refused.stderr
    assert pipe.is_fifo()
    file.write_text("mine", encoding="utf-8")
    link.symlink_to(file)
    assert CliRunner().invoke(app, ["init", str(link)]).exit_code == 2
    run(InitConfig(file=link, overwrite=True))
    assert link.is_symlink()
    assert tomllib.loads(file.read_text(encoding="utf-8"))


def test_the_next_command_can_be_copied(tmp_path):
    shown = CliRunner().invoke(app, ["init", str(tmp_path / "my options.toml")])
    assert f"--config '{tmp_path}/my options.toml'" in shown.stderr


def test_standard_output_gets_the_file_and_nothing_else():
    shown = CliRunner().invoke(app, ["init", "-", "--model", "m"])
    assert shown.exit_code == 0
    assert tomllib.loads(shown.stdout)["train"] == {"model": "m"}


@pytest.mark.parametrize("value", ["plain", 'quo"ted\\', "line\nbreak", "Ω", True, 3, 0.05, 1e-6, ["a", "b"], []])
def test_values_read_back_as_they_were(value):
    assert tomllib.loads(f"x = {toml(value)}")["x"] == value


def test_an_unknown_preset_names_the_nearest():
    shown = CliRunner().invoke(app, ["init", "-", "--preset", "qwen33"])
    assert shown.exit_code == 2
    assert "'qwen3'" in shown.stderr
    assert set(PRESETS) >= {"qwen3", "llama3", "gpt-oss"}
