"""What a path must be to be a model, and what it is instead. Light: known before a stage begins and pins its plan."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from opdkit.config.fields import JSON
from opdkit.errors import OpdkitError
from opdkit.store.plans import check_model_path

_FORMAT = "a model is a folder in Hugging Face format: config.json, tokenizer.json, *.safetensors"


def refuse_no_model(name: str) -> None:
    """Raise OpdkitError, saying what is there and what to do, for a path that is no model folder.

    A name on the hub is let through: what it is, the download shows.
    """
    path = Path(name)
    if path.is_file():
        raise OpdkitError(f"{name} is a {_of_llama(path) or 'file'}; {_FORMAT}")
    check_model_path(name)
    if not path.is_dir():
        return
    if not (path / "config.json").is_file():
        raise OpdkitError(f"{name} is no model folder: {_instead(path)}")
    read_config(path)
    if not any(path.glob("*.safetensors")):
        raise OpdkitError(f"{name} holds no weights: no *.safetensors there (other weight formats can run code)")


def read_config(folder: Path) -> JSON:
    """The config.json of a model folder. Raises OpdkitError when it is damaged."""
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OpdkitError(f"{path} cannot be read ({error}): copy or download the model again") from error
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise OpdkitError(f"{path} names no model_type, so it configures no model: copy or download the model again")
    return config


def weights_name(model: str, files: Mapping[str, str]) -> str:
    """Return the name that a rollout records for the model that it sampled from, such as "model@3fa9c2d1e07b".

    It is the folder's name with a digest of the weights: every training calls its folder `model`, so that the name
    alone does not tell two rounds apart. `files` are the digests of `model_identity`. A hub model keeps its name.
    """
    digest = weights_digest(files)
    return f"{Path(model).resolve().name}@{digest}" if digest else model


def weights_digest(files: Mapping[str, str]) -> str | None:
    """Return a digest of the files that decide a model's log-probs (config.json, weights); None without `files`."""
    decisive = {name: f for name, f in files.items() if name == "config.json" or name.endswith(".safetensors")}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12] if decisive else None


def _of_llama(path: Path) -> str:
    return "GGUF file (llama.cpp's format)" if path.suffix.lower() == ".gguf" else ""


def _instead(folder: Path) -> str:
    """What a folder without a config.json is, and what to pass."""
    if (folder / "adapter_config.json").is_file():
        return (
            f"it is an adapter of {_base(folder / 'adapter_config.json')}; merge it into that model first (peft: "
            "merge_and_unload, then save_pretrained with the tokenizer) and pass the merged folder"
        )
    if any(map(_of_llama, folder.iterdir())):
        return (
            "it holds GGUF (llama.cpp's format), whose log-probs and gradients cannot be had here; pass the folder "
            "that it was converted from. As a judge it can be served: --judge endpoint"
        )
    inner = sorted(p.parent.name for p in folder.glob("*/config.json"))
    if inner:
        return f"it has no config.json; is it {' or '.join(str(folder / name) for name in inner[:3])}?"
    what = "it has no config.json" if any(folder.iterdir()) else "it is empty, and has no config.json"
    return f"{what}; {_FORMAT}"


def _base(path: Path) -> str:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, LookupError, TypeError):
        return "another model"
