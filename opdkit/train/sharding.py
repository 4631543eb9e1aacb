"""Student sharded over processes (FSDP2): each holds a share of the weights, gradients and optimizer state.

A layer's weights are whole only while it computes. Sharded tensors are DTensors. For a checkpoint or the final model
they are gathered one by one, so the files do not depend on the number of processes.
"""

import torch
import torch.distributed
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from opdkit.errors import ConfigError
from opdkit.model.memory import find_state
from opdkit.train.policy import Policy


def shard(policy: Policy, device: torch.device, dtype: torch.dtype) -> None:
    """Shard `policy` in place over all processes: each decoder layer separately, the rest with the root.

    The root's weights stay gathered from its forward to its backward, so that the output layer can process chunks of
    rows and recompute them. Forwards compute in `dtype`; trained weights and gradient sums stay float32. Every process
    must run the same number of forwards. Weights on the CPU move to `device`, layer by layer. Raises ConfigError for a
    model that does not name its layers.
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
    register_fsdp_forward_method(policy, "run")
    find_state(policy.model).lockstep = True


def release_weights(policy: nn.Module) -> None:
    """Free gathered weights after a forward without a backward: the next one would use them, not the updated shards.

    Without sharding, do nothing.
    """
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def find_trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that get a gradient, by name."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def gather(tensor: Tensor) -> Tensor:
    """Return a tensor detached and, if it is sharded, gathered: then all processes must call it."""
    tensor = tensor.detach()
    whole: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole


def gather_on_cpu(tensor: Tensor, *, keep: bool) -> Tensor | None:
    """Gather a sharded tensor on the CPU; without `keep`, free it and return None. Other tensors are only detached."""
    whole = gather(tensor)
    if not isinstance(tensor, DTensor):
        return whole
    return whole.cpu() if keep else None


def copy_like(full: Tensor, like: Tensor) -> Tensor:
    """Return a copy of a whole tensor, sharded if `like` is: then all processes must call it, with rank 0's values."""
    if not isinstance(like, DTensor):
        return full.clone()
    return distribute_tensor(full.to(like.device), like.device_mesh, like.placements)
