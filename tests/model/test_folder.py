"""Tests of paths that are not a model: the error says what is there and what to do, before a plan is pinned."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from http_server import unused_address
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
)
from judged_runs import three_parts, write_run
from runs import talk, write_extract
from typer.testing import CliRunner

from opdkit.cli import app
from opdkit.errors import OpdkitError
from opdkit.model.folder import check_model_folder
from opdkit.model.load import load_model


def empty(path: Path, _model: Path) -> None:
    path.mkdir()


def file(path: Path, _model: Path) -> None:
    path.write_text("x")


def config_is(text: str) -> Callable[[Path, Path], None]:
    def make(path: Path, model: Path) -> None:
        shutil.copytree(model, path)
        (path / "config.json").write_text(text)

    return make


def gguf(path: Path, _model: Path) -> None:
    path.mkdir()
    (path / "model-q4.gguf").write_bytes(b"GGUF")


def adapter(path: Path, model: Path) -> None:
    shutil.copytree(model, path)
    (path / "config.json").unlink()
    (path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "org/base"}))


def parent(path: Path, model: Path) -> None:
    shutil.copytree(model, path / "checkpoint-9")


def cut(path: Path, model: Path) -> None:
    shutil.copytree(model, path)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])


NO_MODEL = [
    (empty, "is empty"),
    (file, "is a file"),
    (config_is('{"model_type": '), r"config\.json"),
    (config_is("[]"), "model_type"),
    (config_is('{"model_type": "no_such"}'), "no_such"),
    (gguf, "GGUF"),
    (adapter, "org/base"),
    (parent, "checkpoint-9"),
    (cut, "cannot be loaded"),
]


def opdkit(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*arguments, "--device", "cpu"])
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize(("make", "words"), NO_MODEL, ids=lambda x: getattr(x, "__name__", ""))
def test_a_judge_that_is_no_model(tmp_path, tiny_model_dir, make, words) -> None:
    run, path = write_extract(tmp_path / "run", {"a": talk("Hi", "Hello", "thanks")}), tmp_path / "given"
    make(path, tiny_model_dir)
    code, said = opdkit("judge", str(run), "--judge", "local", "--judge-model", str(path))
    assert code == 1
    assert str(path) in said
    with pytest.raises(OpdkitError, match=words):
        load_model(str(path), device="cpu", dtype="auto")
    assert not list((run / "judge").glob("verdicts/*"))


def test_the_adapter_of_a_training_names_the_model_beside_it(tmp_path, tiny_model_dir) -> None:
    """`opdkit train --lora-rank` writes both."""
    adapter(tmp_path / "adapter", tiny_model_dir)
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    with pytest.raises(OpdkitError, match=re.escape(f"adapter of org/base; {tmp_path / 'model'} ")):
        load_model(str(tmp_path / "adapter"), device="cpu", dtype="auto")


def test_what_is_no_model_pins_no_plan(tmp_path, tiny_model_dir) -> None:
    """Otherwise the corrected command would need --overwrite."""
    run, path = write_run(tmp_path / "run", three_parts()), tmp_path / "given"
    path.mkdir()
    for option in ("--model", "--teacher"):
        more = () if option == "--model" else ("--model", str(tiny_model_dir))
        code, said = opdkit("teacher", str(run), option, str(path), *more)
        assert (code, str(path) in said) == (1, True)
    assert not (run / "teacher").exists()
    assert opdkit("teacher", str(run), "--model", str(tiny_model_dir))[0] == 0
    code, said = opdkit("train", str(run), "--model", str(path))
    assert (code, str(path) in said) == (1, True)
    assert not (run / "train").exists()


def test_a_tokenizer_that_changed_between_stages_is_named(tmp_path, tiny_model_dir) -> None:
    """This holds between teacher and train, and between two starts of teacher."""
    run, model = write_run(tmp_path / "run", three_parts()), tmp_path / "model"
    shutil.copytree(tiny_model_dir, model)
    assert opdkit("teacher", str(run), "--model", str(model))[0] == 0
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    a, b = list(vocabulary)[60:62]
    vocabulary[a], vocabulary[b] = vocabulary[b], vocabulary[a]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    code, said = opdkit("train", str(run), "--model", str(model))
    assert code == 2
    assert "tokenizer.json" in said
    code, said = opdkit("teacher", str(run), "--model", str(model))
    assert code == 2
    assert "inputs.model.files.tokenizer.json" in said


def test_a_model_and_a_name_on_the_hub_are_let_through(tiny_model_dir) -> None:
    check_model_folder(str(tiny_model_dir))
    check_model_folder("org/name", asks_hub=False)


def test_a_name_is_looked_for_once_where_there_is_no_network(tmp_path, tiny_model_dir, monkeypatch) -> None:
    pauses: list[float] = []
    address = unused_address().removesuffix("v1") + "{repo_id}/{revision}/{filename}"
    monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", address)
    monkeypatch.setattr("time.sleep", pauses.append)
    run, prompts = write_run(tmp_path / "run", three_parts()), tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hi", "check": {"match": ["x"]}}')
    for command in (
        ["teacher", str(run)],
        ["eval", str(run), "--trained", str(tiny_model_dir), "--prompts", str(prompts)],
    ):
        code, said = opdkit(*command, "--model", "tini/model")
        assert (code, "tini/model is neither a folder" in said, pauses) == (1, True, [])
        assert not (run / command[0]).exists()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (RepositoryNotFoundError, "none of that name"),
        (GatedRepoError, "must have access"),
        (RemoteEntryNotFoundError, ""),  # a repository with only a tokenizer
        (HfHubHTTPError, ""),  # the server is busy
        (OfflineModeIsEnabled, "offline"),
        (ValueError, "no name"),
    ],
)
def test_a_name_that_the_hub_lacks_is_told_from_a_busy_hub(answer, words, monkeypatch) -> None:
    def fail(_url: str) -> None:
        response = SimpleNamespace(headers={}, request=None)
        raise answer(words, **{"response": response} if issubclass(answer, HfHubHTTPError) else {})

    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", fail)
    with pytest.raises(OpdkitError, match=words) if words else contextlib.nullcontext():
        check_model_folder("org/name")
