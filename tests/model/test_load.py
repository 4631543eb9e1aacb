"""Tests of opdkit/model/load.py: what it loads, and what it refuses."""

import json
import math
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, GenerationConfig

from opdkit.errors import ConfigError, OpdkitError
from opdkit.model.load import (
    check_same_tokenizer,
    context_length,
    load_model,
    load_skeleton,
    load_template,
    load_tokenizer,
    resolve_device,
    resolve_dtype,
)


def test_a_folder_loads_in_evaluation_mode(tiny_model_dir, tiny_tokenizer):
    model = load_model(str(tiny_model_dir), device="cpu", dtype="auto")
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert context_length(model) == 2048
    tokenizer = load_tokenizer(str(tiny_model_dir))
    check_same_tokenizer(tokenizer, tiny_tokenizer)
    assert tokenizer.chat_template == tiny_tokenizer.chat_template


def test_the_scales_of_quantized_weights_are_not_lost(tmp_path, tiny_model_dir, monkeypatch):
    """A folder's own quantization is kept; scales that nothing reads would leave weights of a wrong magnitude."""
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("up_proj.weight"))
    save_file(weights | {f"{name}_scale_inv": torch.ones(1)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(OpdkitError, match=r"scales of its quantized weights were not read.*unquantized"):
        load_model(str(folder), device="cpu", dtype="auto")
    given, load = [], transformers.AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr("opdkit.model.load.AutoModelForCausalLM.from_pretrained",
                        lambda *names, **options: given.append(options) or load(*names, **options))  # fmt: skip
    load_model(str(tiny_model_dir), device="cpu", dtype="auto")
    assert "quantization_config" not in given[0], "None would hide that of the folder"


def test_a_quantization_that_cannot_be_read_is_no_incomplete_copy(tmp_path, tiny_model_dir) -> None:
    folder = Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "vptq", "config_for_layers": {}, "shared_layer_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(OpdkitError, match=r"or pass the unquantized model") as caught:
        load_model(str(folder), device="cpu", dtype="auto")
    assert "complete" not in str(caught.value)


def test_a_missing_package_is_no_incomplete_copy(tiny_model_dir, monkeypatch) -> None:
    """Gemma 3n needs timm, which the second line of the error names."""

    def fail(*args, **options):
        raise ImportError("\nThis model requires the timm library. You can install it with pip:\n`pip install timm`.\n")

    monkeypatch.setattr("opdkit.model.load.AutoModelForCausalLM.from_pretrained", fail)
    with pytest.raises(OpdkitError, match=r"`pip install timm`$"):
        load_model(str(tiny_model_dir), device="cpu", dtype="auto")


def test_the_dtype_is_the_one_asked_for(tiny_model_dir):
    model = load_model(str(tiny_model_dir), device="cpu", dtype="bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("present", "words"),
    [
        ([], r"config\.json"),
        (["config.json"], r"\*.safetensors"),
        (["config.json", "pytorch_model.bin"], r"\*.safetensors"),
    ],
)
def test_a_folder_that_is_no_model_says_what_is_missing(tmp_path, tiny_model_dir, present, words):
    for name in present:
        source = tiny_model_dir / name
        (tmp_path / name).write_bytes(source.read_bytes() if source.exists() else b"")
    with pytest.raises(OpdkitError, match=words):
        load_model(str(tmp_path), device="cpu", dtype="auto")
    with pytest.raises(OpdkitError, match=r"tokenizer\.json"):
        load_tokenizer(str(tmp_path))


def test_a_path_that_is_not_there_or_a_file(tmp_path):
    for load in (load_tokenizer, lambda name: load_model(name, device="cpu", dtype="auto")):
        with pytest.raises(OpdkitError, match="nothing"):
            load(str(tmp_path / "nothing"))
        (tmp_path / "file").write_text("x")
        with pytest.raises(OpdkitError, match="file"):
            load(str(tmp_path / "file"))


def test_a_damaged_model_is_one_message(tmp_path, tiny_model_dir):
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(OpdkitError, match="cannot be loaded"):
        load_model(str(folder), device="cpu", dtype="auto")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(OpdkitError, match="cannot be loaded"):
        load_tokenizer(str(folder))


@pytest.mark.parametrize("name", ["Mistral3Config", "Qwen3VLConfig", "T5Config"])
def test_a_model_of_text_and_images_alone_or_with_an_encoder_is_no_damaged_one(tmp_path, name):
    getattr(transformers, name)().save_pretrained(tmp_path)
    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    for load in (load_skeleton, partial(load_model, device="cpu", dtype="auto")):
        with pytest.raises(OpdkitError, match="need images, audio or an encoder: pass a text model"):
            load(str(tmp_path))


def test_a_model_that_only_classifies_is_no_incomplete_one(tmp_path, plain_model_dir):
    transformers.AutoModelForSequenceClassification.from_pretrained(plain_model_dir).save_pretrained(tmp_path)
    with pytest.raises(OpdkitError, match=r"random.*pass a language model.*ForSequenceClassification") as caught:
        load_model(str(tmp_path), device="cpu", dtype="auto")
    assert "download" not in str(caught.value)


def test_code_in_a_model_folder_is_not_run(tmp_path, tiny_model_dir):
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "other", "auto_map": {"AutoConfig": "own.C", "AutoModelForCausalLM": "own.M"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(OpdkitError):
        load_model(str(folder), device="cpu", dtype="auto")
    assert not (tmp_path / "ran").exists()


def test_auto_is_the_first_of_cuda_mps_and_cpu(monkeypatch):
    here = {"cuda": True, "mps": True}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: here["cuda"])
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: here["mps"])
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert resolve_device("auto") == torch.device("cuda:3")
    here["cuda"] = False
    assert resolve_device("auto") == torch.device("mps")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert resolve_device("auto") == torch.device("cpu"), "two processes cannot exchange gradients of one Mac's GPU"
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    here["mps"] = False
    assert resolve_device("auto") == torch.device("cpu")


@pytest.mark.parametrize(("device", "mac_os", "dtype"), [
    ("cpu", 14, torch.float32), ("cuda:0", 0, torch.bfloat16), ("mps", 14, torch.bfloat16), ("mps", 13, torch.float32),
])  # fmt: skip
def test_auto_is_a_dtype_that_the_device_has(monkeypatch, device, mac_os, dtype):
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda major, minor: (mac_os, 0) >= (major, minor))
    assert resolve_dtype("auto", torch.device(device)) == dtype
    assert resolve_dtype("float16", torch.device(device)) == torch.float16


def test_a_device_that_is_not_there(tiny_model_dir):
    for device in ("nonsense", "cuda:99"):
        with pytest.raises(ConfigError, match=f"--device {device}"):
            load_model(str(tiny_model_dir), device=device, dtype="auto")


@pytest.mark.parametrize(
    ("name", "sizes", "length"),
    [
        ("MambaConfig", {"hidden_size": 8, "state_size": 4, "num_hidden_layers": 1}, math.inf),
        ("Mamba2Config", {"hidden_size": 8, "state_size": 4, "num_heads": 2, "head_dim": 8}, math.inf),
        ("BloomConfig", {"hidden_size": 8, "n_layer": 1, "n_head": 1}, math.inf),
        ("RwkvConfig", {"hidden_size": 8, "num_hidden_layers": 1, "context_length": 50}, 50),
        ("MptConfig", {"d_model": 8, "n_heads": 1, "n_layers": 1, "max_seq_len": 60}, 60),
        ("GPT2Config", {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 70}, 70),
    ],
)
def test_the_context_is_what_the_configuration_names_or_unlimited(name, sizes, length):
    config = getattr(transformers, name)(vocab_size=9, **sizes)
    assert context_length(SimpleNamespace(config=config)) == length


def test_tokenizers_of_one_size_and_other_ids_are_refused():
    """Two tokens are swapped, and only the map from tokens to ids shows it."""
    a = build_tokenizer("x", CHATML_TOKENS, CHATML_WORDS)
    b = build_tokenizer("x", (CHATML_TOKENS[0], CHATML_TOKENS[2], CHATML_TOKENS[1]), CHATML_WORDS)
    assert len(a) == len(b)
    check_same_tokenizer(a, build_tokenizer("other template", CHATML_TOKENS, CHATML_WORDS))
    with pytest.raises(ConfigError, match="2 tokens") as caught:
        check_same_tokenizer(a, b)
    assert "'<|im_start|>' 321 and 322" in str(caught.value)


def test_a_token_that_only_one_has_is_refused():
    """A single added token is enough for a refusal."""
    a = build_tokenizer("x", CHATML_TOKENS, CHATML_WORDS)
    with pytest.raises(ConfigError, match="<more>"):
        check_same_tokenizer(a, build_tokenizer("x", CHATML_TOKENS, (*CHATML_WORDS, "<more>")))


def test_a_reply_ends_with_each_token_of_the_generation_configuration(tmp_path, tiny_model_dir, tiny_tokenizer):
    """Without generation_config.json, the tokens of config.json count; a tokenizer alone has its own."""
    folder, own = Path(shutil.copytree(tiny_model_dir, tmp_path / "model")), tiny_tokenizer.eos_token_id
    GenerationConfig(eos_token_id=[own, 7]).save_pretrained(folder)
    assert load_template(str(folder), ()).stop_ids == {own, 7}
    (folder / "generation_config.json").unlink()
    AutoConfig.from_pretrained(folder, eos_token_id=[own, 8]).save_pretrained(folder)
    assert load_template(str(folder), ()).stop_ids == {own, 8}
    (folder / "config.json").unlink()
    assert load_template(str(folder), ()).stop_ids == {own}


def test_a_skeleton_has_the_limits_of_the_model_and_no_weights(tmp_path, tiny_model_dir):
    """This includes the stop tokens of generation_config.json, which decide where a reply ends."""
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 7]}))
    whole, skeleton = load_model(str(folder), device="cpu", dtype="auto"), load_skeleton(str(folder))
    assert {parameter.device.type for parameter in skeleton.parameters()} == {"meta"}
    shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (whole, skeleton)]
    assert shapes[0] == shapes[1]
    assert context_length(skeleton) == context_length(whole) == 2048
    assert skeleton.generation_config.eos_token_id == whole.generation_config.eos_token_id == [5, 7]
    (folder / "generation_config.json").unlink()
    assert load_skeleton(str(folder)).generation_config.eos_token_id == skeleton.config.eos_token_id
    (folder / "model.safetensors").unlink()
    with pytest.raises(OpdkitError, match="no weights"):
        load_skeleton(str(folder))
