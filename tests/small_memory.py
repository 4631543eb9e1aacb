"""A simulated GPU of little memory: a forward with more tokens than fit raises the error that a GPU would raise."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn


class Room:
    """Number of tokens that fit, and how often a forward had more."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.refused = tokens, 0


@contextmanager
def room_for(tokens: int) -> Iterator[Room]:
    """Make each forward of more than `tokens` tokens run out of memory, within the block."""
    room, forward = Room(tokens), nn.Embedding.forward

    def limited(self: nn.Embedding, ids: Tensor) -> Tensor:
        if ids.numel() > room.tokens:
            room.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return forward(self, ids)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nn.Embedding, "forward", limited)
        yield room
