"""Seeded random streams: the same numbers in any order, process or shard."""

import torch

from opdkit.store.stable_hash import stable_hash


def make_random_stream(seed: int, *parts: str | int) -> torch.Generator:
    """Return a CPU generator that depends only on the seed and the parts, such as (seed, turn_id, vote)."""
    return torch.Generator().manual_seed(stable_hash(seed, *parts, bits=63))
