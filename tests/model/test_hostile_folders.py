"""Tests of model folders and hub repositories of strangers: their code never runs, and pickled weights are not read."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import load_file, save_file

from opdkit.errors import OpdkitError
from opdkit.model.load import load_model, load_skeleton, load_tokenizer

COMMIT = "a" * 40


class RunsCode:
    """Object whose pickle touches `marker` when it is read without care."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return the path of the file that hostile code would write."""
    return tmp_path / "ran"


@pytest.fixture
def folder(tmp_path: Path, tiny_model_dir: Path) -> Path:
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


@pytest.fixture(params=["folder", "hub"])
def name(request, folder, tmp_path, monkeypatch) -> Callable[[], str]:
    """Return a function that returns the folder's path, or moves it to a hub cache and returns its name there."""

    def publish() -> str:
        repository = tmp_path / "hub" / "models--org--model"
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text(COMMIT)
        folder.rename(folder.with_name("published")).rename(repository / "snapshot")
        (repository / "snapshots").mkdir()
        (repository / "snapshot").rename(repository / "snapshots" / COMMIT)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        return "org/model"

    return publish if request.param == "hub" else lambda: str(folder)


def edit(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def load(name: str) -> Any:
    return load_model(name, device="cpu", dtype="float32")


def add_code(folder: Path, marker: Path) -> None:
    classes = "class Config(Qwen3Config): pass\nclass Model(Qwen3ForCausalLM): pass\n"
    (folder / "own.py").write_text(f"open({str(marker)!r}, 'w')\nfrom transformers import *\n{classes}")
    edit(folder / "config.json", auto_map={"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"})
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Model", "own.Model"]})


def test_code_beside_a_known_model_is_not_run(folder, name, marker) -> None:
    """The library's own class is used."""
    add_code(folder, marker)
    path = name()
    assert type(load(path)).__module__.startswith("transformers.")
    assert type(load_skeleton(path)).__module__.startswith("transformers.")
    load_tokenizer(path)
    assert not marker.exists()


def test_a_model_that_needs_its_code_is_refused(folder, name, marker) -> None:
    add_code(folder, marker)
    edit(folder / "config.json", model_type="unheard_of")
    path = name()
    for loading in (load, load_skeleton):
        with pytest.raises(OpdkitError, match=r"'unheard_of'.* code") as caught:
            loading(path)
        assert path in str(caught.value)
    assert not marker.exists()


def pickle_weights(folder: Path, file: str = "pytorch_model.bin") -> dict[str, torch.Tensor]:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / file)
    return weights


def test_pickled_weights_are_refused_even_harmless_ones(folder, name) -> None:
    pickle_weights(folder)
    path = name()
    with pytest.raises(OpdkitError, match="safetensors"):
        load(path)


def test_a_safetensors_file_beside_them_does_not_let_them_in(folder, name) -> None:
    pickle_weights(folder)
    save_file({"spare": torch.zeros(1)}, folder / "spare.safetensors")
    path = name()
    with pytest.raises(OpdkitError, match="safetensors"):
        load(path)


def test_the_message_names_the_file_and_says_convert(folder) -> None:
    pickle_weights(folder)
    with pytest.raises(OpdkitError, match=r"pytorch_model\.bin.*convert it to safetensors"):
        load(str(folder))


def test_an_index_of_safetensors_that_names_a_pickle(folder, name, marker) -> None:
    weights = pickle_weights(folder, "shard.bin")
    torch.save(RunsCode(marker), folder / "shard.bin")
    save_file({"spare": torch.zeros(1)}, folder / "spare.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "shard.bin")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    path = name()
    with pytest.raises(OpdkitError, match=path):
        load(path)
    assert not marker.exists()


@pytest.mark.parametrize("weight_map", [[1], None, {"a": 1}])
def test_a_damaged_index_is_one_message(folder, weight_map) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(OpdkitError, match="safetensors"):
        load(str(folder))


def test_a_pickle_by_the_name_of_safetensors_is_not_read_as_one(folder, name, marker) -> None:
    torch.save(RunsCode(marker), folder / "model.safetensors")
    path = name()
    with pytest.raises(OpdkitError, match=path):
        load(path)
    assert not marker.exists()


def add_adapter(folder: Path, marker: Path) -> None:
    adapter = {"base_model_name_or_path": "org/base", "peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(adapter | {"task_type": "CAUSAL_LM"}))
    torch.save(RunsCode(marker), folder / "adapter_model.bin")


def test_an_adapter_beside_a_model_is_refused(folder, name, marker) -> None:
    """The library would read it where peft is installed, and ignore it where peft is not."""
    add_adapter(folder, marker)
    path = name()
    with pytest.raises(OpdkitError, match="adapter"):
        load(path)
    assert not marker.exists()


def test_an_adapter_alone_says_what_to_merge_and_convert(folder, marker) -> None:
    add_adapter(folder, marker)
    (folder / "config.json").unlink()
    with pytest.raises(OpdkitError, match=r"org/base.*merge.*adapter_model\.bin.*convert it to safetensors"):
        load(str(folder))
    assert not marker.exists()


def test_weights_that_are_missing_are_not_made_up(folder, name) -> None:
    """The library would fill them with random numbers, and every log-prob would be wrong."""
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.self_attn.q_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    path = name()
    with pytest.raises(OpdkitError, match=r"model\.layers\.1\.self_attn\.q_proj\.weight.*again"):
        load(path)


def test_the_hostile_pickle_is_hostile(tmp_path, marker) -> None:
    torch.save(RunsCode(marker), tmp_path / "x.bin")
    torch.load(tmp_path / "x.bin", weights_only=False)
    assert marker.exists()
