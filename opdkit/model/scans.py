"""Selective scans (Mamba, Jamba, Falcon-Mamba) that continue from a cached state with several tokens.

transformers 5.23 and the kernels of `mamba-ssm` start such a scan from zero. It is linear in its state, so the share of
the cached state can be added afterwards. Shapes: r rows, D channels, n tokens, N state size per channel.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus
from transformers import DynamicCache

_SCAN = "mamba_selective_scan"  # name of the scan function in all modules of transformers that have one


class WatchedCache(DynamicCache):
    """Cache that remembers which state it returned last: that of the layer whose scan comes next."""

    last_state: Tensor | None = None  # [r, D, N]; None: the layer has none yet

    def get_recurrent_state(self, *args: Any, **kwargs: Any) -> Tensor | None:
        self.last_state = super().get_recurrent_state(*args, **kwargs)
        return self.last_state


def scan_modules(model: nn.Module) -> list[ModuleType]:
    """Return the Python modules of a model's layers that define a scan from a zero state; most models have none."""
    modules = {type(module).__module__ for module in model.modules()}
    return [sys.modules[name] for name in sorted(modules) if hasattr(sys.modules[name], _SCAN)]


@contextmanager
def scans_continued(modules: Sequence[ModuleType], cache: Any) -> Iterator[None]:
    """Let the scans of these modules continue from the states of a WatchedCache within the `with` block."""
    scans = [getattr(module, _SCAN) for module in modules]
    try:
        for module, scan in zip(modules, scans, strict=True):
            setattr(module, _SCAN, partial(_continue_scan, scan, cache))
        yield
    finally:
        for module, scan in zip(modules, scans, strict=True):
            setattr(module, _SCAN, scan)


def _continue_scan(
    scan: Callable[..., Any],
    cache: WatchedCache,
    u: Tensor,
    dt_rDn: Tensor,
    A_DN: Tensor,
    B_rNn: Tensor,
    C_rNn: Tensor,
    **options: Any,
) -> Any:
    """Call `scan` with its arguments, but start from the cache's last state. Return the output and the last state."""
    result, state_rDN = scan(u, dt_rDn, A_DN, B_rNn, C_rNn, **options), cache.last_state
    if state_rDN is None:
        return result
    bias, z_rDn = options.get("delta_bias"), options.get("z")
    dt_rDn = dt_rDn.float() if bias is None else dt_rDn.float() + bias[:, None].float()
    dt_rDn = softplus(dt_rDn) if options.get("delta_softplus") else dt_rDn
    carried_rDnN = torch.exp(A_DN[:, None] * dt_rDn.cumsum(-1)[..., None]) * state_rDN[:, :, None]
    added_rDn = torch.einsum("rdtn,rnt->rdt", carried_rDnN, C_rNn.float())
    output, last_rDN = result
    added_rDn = added_rDn if z_rDn is None else added_rDn * silu(z_rDn.float())
    return output + added_rDn.to(output.dtype), last_rDN + carried_rDnN[:, :, -1].to(last_rDN.dtype)
