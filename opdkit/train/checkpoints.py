"""Checkpoints and models of a training run on disk: each complete or absent.

A checkpoint holds the trained weights, the optimizer's state, the metrics of the steps so far, and the state of
validation and trust region. The number of the metrics is the position. Nothing else is needed. The order of the
replies, the schedule and the random streams are functions of the plan and the step, and the old policy is in the
targets. Only the newest file is kept, since it is larger than the model. Beside it are the weights of the best state so
far and of the best state at that checkpoint. A sharded student is written whole, so that any number of processes can
resume from it.
"""

import contextlib
import copy
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig

from opdkit.chat.template import Chat
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.console import warn
from opdkit.errors import OpdkitError
from opdkit.model.folder import find_file
from opdkit.model.load import load_model
from opdkit.store.atomic import move_into_place, replaced_folder, temporary_file, write_text
from opdkit.train.sharding import copy_like, find_trained_parameters, gather_on_cpu
from opdkit.train.student import choose_compute_dtype, load_student


def save(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, rows: list[JSON], more: JSON, *, main: bool
) -> None:
    """Write the state after `len(rows)` steps, then remove older files. All processes must call it; `main` writes.

    `more` holds further entries of the checkpoint.
    """
    weights = _gather_weights(model, keep=main)
    state = optimizer.state_dict()
    moments = {i: {name: gather_on_cpu(value, keep=main) for name, value in values.items()}
               for i, values in state["state"].items()}  # fmt: skip
    if main:
        content = {"weights": weights, "optimizer": state | {"state": moments}, "rows": rows, **more}
        _replace(folder, "step", len(rows), content)


def save_best(folder: Path, model: nn.Module, step: int, *, main: bool) -> None:
    """Write the trained weights after `step`, the best so far, then remove older ones.

    All processes must call it; `main` writes. The best weights as of the newest checkpoint are kept, because a training
    that resumes from that checkpoint may have to load them.
    """
    weights = _gather_weights(model, keep=main)
    if main:
        _replace(folder, "best", step, weights)


def remove_later_best(folder: Path, step: int) -> None:
    """Remove the best states after `step`, where a training resumes: it may not reach them again."""
    for path in folder.glob("best-*.pt"):
        if path.name > f"best-{step:08d}.pt":
            path.unlink(missing_ok=True)


def restore_best(folder: Path, model: nn.Module, step: int) -> None:
    """Load the weights that `save_best` wrote after `step`. All processes must call it."""
    path = folder / f"best-{step:08d}.pt"
    _load_weights(model, torch.load(path, map_location="cpu", weights_only=True, mmap=True))


def read_newest(folder: Path) -> JSON | None:
    """Return the newest checkpoint, memory-mapped, or None if there is none. Never run code from a file.

    A file that cannot be read is skipped with a warning: training resumes from an older file, or from the start. Raises
    OpdkitError for a complete file that holds more than tensors, numbers and text: opdkit did not write it.
    """
    for path in sorted(folder.glob("step-*.pt"), reverse=True):
        try:
            state: JSON = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            return state
        except Exception as error:  # a damaged pickle can raise anything
            if isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path):
                raise OpdkitError(
                    f"{path} is not a checkpoint of opdkit: it holds more than tensors, numbers and text, and was not "
                    "loaded. Remove it to resume without it"
                ) from error
            warn(f"{path} cannot be read ({type(error).__name__}: {error}); resuming without it")
    return None


def restore(state: JSON, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Load a checkpoint into model and optimizer. All processes of a sharded student must load the same checkpoint."""
    _load_weights(model, state["weights"])
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moments = {i: {name: copy_like(x, parameters[i]) if x.ndim else x.clone() for name, x in values.items()}
               for i, values in state["optimizer"]["state"].items()}  # fmt: skip
    optimizer.load_state_dict(state["optimizer"] | {"state": moments})


def _gather_weights(model: nn.Module, *, keep: bool) -> JSON:
    """Return the trained weights by name, as `gather_on_cpu` does."""
    return {name: gather_on_cpu(parameter, keep=keep) for name, parameter in find_trained_parameters(model).items()}


@torch.no_grad()
def _load_weights(model: nn.Module, weights: JSON) -> None:
    """Replace the trained parameters by `weights` (by name)."""
    for name, parameter in find_trained_parameters(model).items():
        parameter.copy_(copy_like(weights[name], parameter))


def clear(folder: Path) -> None:
    """Remove all checkpoints, including partial files, and then the folder if it is empty."""
    _remove(folder, "step")
    _remove(folder, "best")
    with contextlib.suppress(OSError):  # not empty, or already gone
        folder.rmdir()


def _replace(folder: Path, kind: str, step: int, content: JSON) -> None:
    """Write the file of a kind ("step" or "best") for `step`, then remove older files."""
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"{kind}-{step:08d}.pt"
    with temporary_file(final) as temporary:
        with temporary.open("wb") as handle:
            torch.save(content, handle)
        move_into_place(temporary, final)  # safely on disk before the older file is removed
    if kind == "step":
        _remove(folder, "step", final)
    # A training that resumes from the newest checkpoint needs the best state as of that checkpoint.
    newest = max((path.name.removeprefix("step") for path in folder.glob("step-*.pt")), default="")
    resumable = [path for path in folder.glob("best-*.pt") if path.name.removeprefix("best") <= newest]
    _remove(folder, "best", final, max(resumable, default=final))


def _remove(folder: Path, kind: str, *keep: Path) -> None:
    """Remove the files of a kind, including partial files, except those in `keep`."""
    for path in [*folder.glob(f"{kind}-*.pt"), *folder.glob(f".{kind}-*")]:
        if path not in keep:
            path.unlink(missing_ok=True)


def save_student(
    student: nn.Module, chat: Chat, config: TrainConfig, folder: Path, card: str, *, main: bool, continues: bool = False
) -> None:
    """Write `folder`/model, a folder that AutoModelForCausalLM loads, in the dtype of the student's original files.

    `card` becomes its README.md. All processes must call it; `main` writes. With LoRA, the adapters are merged into the
    base weights, and also written to `folder`/adapter. Base weights that were quantized or rounded for training are
    loaded again, unchanged, to merge into. The student is converted in place and cannot be trained further, unless its
    training `continues`.
    """
    model: Any = student
    described = AutoConfig.from_pretrained(config.model, trust_remote_code=False)
    dtype = described.dtype or described.get_text_config(decoder=True).dtype or torch.float32
    computed = choose_compute_dtype(config)
    is_rounded = config.load_in_4bit or (config.lora_rank > 0 and torch.promote_types(computed, dtype) != computed)
    if config.sharding == "fsdp":  # on the CPU, since the student may be too large for one device
        weights = _gather_weights(student, keep=main)
        if main:
            model = load_student(config, on_cpu=True)
            _load_weights(model, weights)
    elif continues and main and not is_rounded:
        model = copy.deepcopy(student)
    if not main:
        return
    if config.lora_rank:
        for described in model.peft_config.values():
            for name in ("target_modules", "exclude_modules"):  # sets, whose order differs between processes
                setattr(described, name, sorted(getattr(described, name) or ()) or None)
        with replaced_folder(folder / "adapter") as temporary:
            model.save_pretrained(temporary)
            write_text(temporary / "README.md", card.replace("library_name: transformers", "library_name: peft", 1))
        if is_rounded:
            from peft import PeftModel

            model = load_model(config.model, device="cpu", dtype=str(dtype).removeprefix("torch."))
            model = PeftModel.from_pretrained(model, folder / "adapter")
        model = model.merge_and_unload()
    exact = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not any(part in name for part in exact):
            tensor.data = tensor.data.to(dtype)
    with replaced_folder(folder / "model") as temporary:
        model.save_pretrained(temporary)
        chat.tokenizer.save_pretrained(temporary)
        for pattern in ("*processor*.json", "LICENSE*"):  # from a local folder: a server of the model may need them
            for path in filter(Path.is_file, Path(config.model).glob(pattern)):
                shutil.copy(path, temporary)
        if vocabulary := find_file(config.model, "tokenizer.model"):  # llama.cpp's converter needs Gemma's, for example
            shutil.copy(vocabulary, temporary)
        write_text(temporary / "README.md", card)
