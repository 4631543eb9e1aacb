"""Fusion, with torch.compile, of the small operations between the matrix products of a model's layers."""

import sys
from typing import Any

import torch
from torch import nn


def compile_small_operations(model: nn.Module) -> None:
    """Let torch.compile fuse norms, MLPs and rotary position embeddings; the first forwards then take longer.

    Attention and whole layers stay uncompiled: their arguments differ in each forward, so each would compile again.
    """
    modules = set[str]()
    for module in model.modules():
        modules.add(type(module).__module__)
        if type(module).__name__.endswith(("RMSNorm", "MLP")):
            module.compile(dynamic=True)
    for name in modules:
        code: Any = sys.modules[name]
        rotate = getattr(code, "apply_rotary_pos_emb", None)
        if rotate is not None and not hasattr(rotate, "_torchdynamo_orig_callable"):
            code.apply_rotary_pos_emb = torch.compile(rotate, dynamic=True)
