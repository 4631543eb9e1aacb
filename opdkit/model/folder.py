"""Checks and names of model folders. No heavy imports."""

import contextlib
import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path

from opdkit.config.fields import JSON, StageConfig
from opdkit.errors import OpdkitError
from opdkit.store.announce import list_models
from opdkit.store.plans import check_model_path, identify_model

_FORMAT = "a model is a folder in Hugging Face format: config.json, tokenizer.json, *.safetensors"
MERGE = "merge it into its model first (peft: merge_and_unload, then save_pretrained with the tokenizer)"


def check_exists(name: str, *, asks_hub: bool = True) -> None:
    """Raise OpdkitError if `name` is a file, a path that does not exist, or a name that the hub does not have.

    The hub gets one request, none for a cached model: without a network, the hub's library retries for a minute.
    """
    path = Path(name)
    if path.is_file():
        kind = "GGUF file (llama.cpp's format)" if path.suffix.lower() == ".gguf" else "file"
        raise OpdkitError(f"{name} is a {kind}; {_FORMAT}")
    check_model_path(name)
    if path.is_dir() or not asks_hub or find_file(name, "config.json"):
        return
    from huggingface_hub import get_hf_file_metadata, hf_hub_url  # imported here: a folder needs no hub
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    try:
        get_hf_file_metadata(hf_hub_url(name, "config.json"))
    except Exception as error:  # the HTTP client has errors of its own
        if isinstance(error, HfHubHTTPError) and not isinstance(error, RepositoryNotFoundError):
            return  # only a tokenizer there, or the hub is busy: loading will report the former and wait for the latter
        why = " ".join(str(error).split("\n\n")[-1].split())  # the paragraph before holds the request's id
        raise OpdkitError(f"{name} is neither a folder here, nor can it be fetched from the hub: {why}") from error


def check_model_folder(name: str, *, asks_hub: bool = True) -> None:
    """Raise OpdkitError unless `name` is a model folder; the message says what it holds and what to pass instead.

    A name on the hub passes if `check_exists` accepts it. Without `asks_hub`, every such name passes.
    """
    check_exists(name, asks_hub=asks_hub)
    if not (path := Path(name)).is_dir():
        return
    if not (path / "config.json").is_file():
        raise OpdkitError(f"{name} is not a model folder: {_describe(path)}")
    read_config(path)
    weights = [file.name for file in path.glob("*.safetensors")]
    for index in path.glob("*.safetensors.index.json"):
        named = _read_object(index).get("weight_map")
        weights += map(str, named.values()) if isinstance(named, dict) else ["no file"]
    if not weights or any(not file.endswith(".safetensors") for file in weights):
        raise OpdkitError(f"{name} holds no weights as *.safetensors{_advise_on_pickle(path)}")


def find_file(model: str, name: str) -> Path | None:
    """Return the path of a model's file, in its folder or in the hub's cache; None if it is in neither."""
    if Path(model).is_dir():
        return path if (path := Path(model) / name).is_file() else None
    from huggingface_hub import try_to_load_from_cache  # imported here: a folder needs no hub

    with contextlib.suppress(ValueError):  # not a valid name on the hub either
        cached = try_to_load_from_cache(model, name)
        return Path(cached) if isinstance(cached, str) else None
    return None


def check_stages(stages: Collection[StageConfig], *, asks_hub: bool = True) -> None:
    """Raise OpdkitError if a model of these stages is missing, and the errors of their `check_inputs`.

    A command that runs several stages calls this before the first. With `asks_hub` False, names on the hub pass.
    """
    models = dict.fromkeys(model for stage in stages for model in list_models(stage))
    for model in models:
        check_model_folder(model, asks_hub=False)
    for stage in stages:
        stage.check_inputs()
    for model in models if asks_hub else ():  # last, since requests take longer
        check_exists(model)


def pin_model(name: str) -> JSON:
    """Return the identity of a model, for a plan. Raises OpdkitError unless `name` is a model folder or on the hub."""
    check_model_folder(name)
    return identify_model(name)


def read_config(folder: Path) -> JSON:
    """Return the config.json of a model folder. Raises OpdkitError if it cannot be read or has no model_type."""
    path = folder / "config.json"
    config = _read_object(path)
    if not isinstance(config.get("model_type"), str):
        raise OpdkitError(
            f"{path} has no model_type, so it does not configure a model: copy or download the model again"
        )
    return config


def _read_object(path: Path) -> JSON:
    """Return the JSON object in a file; {} for other JSON. Raises OpdkitError if it cannot be read."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OpdkitError(f"{path} cannot be read ({error}): copy or download the model again") from error
    return document if isinstance(document, dict) else {}


def _advise_on_pickle(folder: Path) -> str:
    """Return what to do about the pickled weights of a folder; "" if it has none."""
    pickles = sorted(file.name for file in folder.iterdir() if file.suffix in (".bin", ".pt", ".pth", ".ckpt"))
    advice = "can run code when it is read: where you trust its source, convert it to safetensors (save_pretrained)"
    return f"; {pickles[0]} is a pickle, which {advice}" if pickles else ""


def name_weights(model: str, files: Mapping[str, str]) -> str:
    """Return the name under which rollouts record a model: folder name and digest, such as "model@3fa9c2d1e07b".

    Every training run names its folder `model`; the digest of the weights tells the rounds apart. `files` (file name ->
    digest) comes from `identify_model`. A model on the hub keeps its name.
    """
    digest = digest_weights(files)
    return f"{Path(model).resolve().name}@{digest}" if digest else model


def digest_weights(files: Mapping[str, str]) -> str | None:
    """Return one digest of config.json and the weights, the files that determine log-probs; None without them."""
    decisive = {name: f for name, f in files.items() if name == "config.json" or name.endswith(".safetensors")}
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:12] if decisive else None


def _describe(folder: Path) -> str:
    """Return a description of a folder without a config.json, and what to pass instead."""
    if (adapter := folder / "adapter_config.json").is_file():
        try:
            base = str(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
        except (OSError, ValueError, LookupError, TypeError):
            base = "another model"
        if (folder.parent / "model" / "config.json").is_file():  # as `opdkit train --lora-rank` writes them
            return f"it is an adapter of {base}; {folder.parent / 'model'} is that model with the adapter"
        return f"it is an adapter of {base}; {MERGE} and pass the merged folder{_advise_on_pickle(folder)}"
    if any(path.suffix.lower() == ".gguf" for path in folder.iterdir()):
        return (
            "it holds GGUF (llama.cpp's format), which gives neither log-probs nor gradients here; pass the folder "
            "that it was converted from. As a judge it can be served: --judge endpoint"
        )
    inner = sorted(p.parent.name for p in folder.glob("*/config.json"))
    if inner:
        return f"it has no config.json; is it {' or '.join(str(folder / name) for name in inner[:3])}?"
    what = "it has no config.json" if any(folder.iterdir()) else "it is empty, and has no config.json"
    return f"{what}; {_FORMAT}"
