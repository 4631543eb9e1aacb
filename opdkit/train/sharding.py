"""A student cut over the processes (FSDP2): each holds its share of weights, gradients and optimizer state.

Only while a layer computes are its weights whole. What is sharded are DTensors; for a checkpoint or the finished model
they are made whole again, one at a time, so that what is written is the same however many processes there were.
"""

from collections.abc import Callable

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from opdkit.errors import ConfigError
from opdkit.train.policy import Policy
from opdkit.train.student import trained


def shard(policy: Policy, device: torch.device, dtype: torch.dtype) -> None:
    """Cut `policy` in place over all processes: each decoder layer by itself, the rest with the root.

    The root stays whole from its forward to its backward, so its output layer may be used row by row, and again where
    log-probs are recomputed. The forward reads the weights in `dtype`; what is trained and summed stays float32. Every
    process must run the same number of forwards. Weights on the CPU move to `device`, a layer at a time. Raises
    ConfigError for a model whose layers cannot be told.
    """
    names = set(getattr(policy.model, "_no_split_modules", None) or ())
    layers = [module for module in policy.modules() if type(module).__name__ in names]
    if not layers:
        raise ConfigError(
            f"--sharding fsdp: {type(policy.model).__name__} does not name its layers; use --sharding none"
        )
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    half = dtype != torch.float32
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    for module in [*layers, policy]:
        fully_shard(module, mesh=mesh, mp_policy=precision)


def gathered(tensor: Tensor) -> Tensor:
    """A tensor in one piece. Where it is sharded all processes must ask for it."""
    tensor = tensor.detach()
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole


def kept(tensor: Tensor, keep: bool) -> Tensor | None:
    """As `gathered`, for files: what was sharded goes to the CPU, or is let go at once where it is not to `keep`."""
    whole = gathered(tensor)
    if not isinstance(tensor, DTensor):
        return whole
    return whole.cpu() if keep else None


def placed(full: Tensor, like: Tensor) -> Tensor:
    """A copy of a whole tensor, sharded where `like` is: then all processes must ask, and the first one's counts."""
    if not isinstance(like, DTensor):
        return full.clone()
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements)


def unsharded(student: nn.Module, load: Callable[[], nn.Module], keep: bool) -> nn.Module | None:
    """A copy of a sharded student in one piece, in what `load` makes; None where it is not to `keep`. For all to call.

    Through the CPU: a student is sharded where it is too large for one device.
    """
    weights = {name: kept(parameter, keep) for name, parameter in trained(student).items()}
    if not keep:
        return None
    copy = load()
    with torch.no_grad():
        for name, parameter in trained(copy).items():
            parameter.copy_(weights[name])
    return copy
