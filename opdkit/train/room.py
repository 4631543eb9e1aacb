"""Measure room on a GPU for a second model beside a training."""

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from transformers import PreTrainedModel

from opdkit.config.train import TrainConfig
from opdkit.model.load import load_skeleton, resolve_device, resolve_dtype


def has_room_for_base(config: TrainConfig, accelerator: Accelerator) -> bool:
    """Return True where every process has room for the whole student before training. All processes must call it."""
    skeleton = load_skeleton(config.model)
    return all(gather_object([has_room(skeleton, skeleton.num_parameters(), config, accelerator.num_processes)]))


def has_room(base: PreTrainedModel, size: int, config: TrainConfig, processes: int = 1) -> bool:
    """Return True where the device, if it is a GPU, has room for a model of `size` parameters beside the training.

    The training still needs gradients and AdamW's state, 12 bytes per trained parameter, which `processes` share; or
    with adapters about as much as the weights of `base`, for activations.
    """
    place = resolve_device(config.device)
    if place.type != "cuda":
        return True
    torch.cuda.empty_cache()  # what torch keeps for itself counts as taken
    parameters, bytes_each = base.num_parameters(), resolve_dtype(config.dtype, place).itemsize
    if config.load_in_4bit:
        bytes_each = sum(weights.numel() * weights.element_size() for weights in base.parameters()) / parameters
    training = parameters * bytes_each if config.lora_rank else 12 * parameters / processes
    return bool(torch.cuda.mem_get_info(place)[0] > size * bytes_each + training)
