"""A machine with little memory: every model that is given more tokens at once than fit says what a GPU would say."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn


class Room:
    """How many tokens fit, and how often they did not."""

    def __init__(self, tokens: int) -> None:
        self.tokens, self.refused = tokens, 0


@contextmanager
def room_for(tokens: int) -> Iterator[Room]:
    """Within it a forward of more than `tokens` runs out of memory."""
    room, forward = Room(tokens), nn.Embedding.forward

    def limited(self: nn.Embedding, ids: Tensor) -> Tensor:
        if ids.numel() > room.tokens:
            room.refused += 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
        return forward(self, ids)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(nn.Embedding, "forward", limited)
        yield room
