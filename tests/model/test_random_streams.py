"""Tests of opdkit/model/random_streams.py: a stream depends only on its seed and its parts."""

import torch

from opdkit.model.random_streams import make_random_stream


def test_draws_depend_on_seed_and_parts_alone():
    def draw(seed, *parts):
        return torch.rand(3, generator=make_random_stream(seed, *parts)).tolist()

    first = draw(0, "s:1", 0)
    torch.rand(5)
    assert draw(0, "s:1", 0) == first
    others = [draw(1, "s:1", 0), draw(0, "s:2", 0), draw(0, "s:1", 1), draw(0, "s:1"), draw(0, "s:1", "0")]
    assert all(other != first for other in others)
    assert len({tuple(draw(0, "s:1", vote)) for vote in range(1000)}) == 1000
    assert make_random_stream(0, "a").device.type == "cpu"
