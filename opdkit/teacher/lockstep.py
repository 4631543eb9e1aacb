"""Several processes as one: each holds a share of every layer (tensor parallelism), and all read the same sequences.

They take the same parts in the same order, and each has the same numbers in the end; the first to write a part has
written it. They must not diverge: where one process decides alone to stop, or to make a batch smaller, the others wait
for it until the timeout of the group.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from opdkit.config.shard import array_shard
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError
from opdkit.model.load import resolve_device
from opdkit.store import stopping

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # of one process for the others: a large model takes long to load


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that work as one; in an ordinary stage, this process alone."""

    size: int = 1
    rank: int = 0

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process run the `with` block before the others do."""
        if self.size > 1 and self.rank > 0:
            distributed.barrier()
        yield
        if self.size > 1 and self.rank == 0:
            distributed.barrier()
        if self.size > 1:
            distributed.barrier()

    def broadcast(self, value: T) -> T:
        """Return the value of the main process."""
        if self.size == 1:
            return value
        values = [value]
        distributed.broadcast_object_list(values)
        return values[0]

    def stop_if_asked(self) -> None:
        """Raise stopping.Stopped in all processes when one of them was asked to stop."""
        if self.size > 1:
            gpu = distributed.get_backend() == "nccl"  # which sends from GPUs only
            device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpu else "cpu")
            asked = torch.tensor(int(stopping.is_requested()), device=device)
            distributed.all_reduce(asked)
            if asked.item():
                raise stopping.Stopped

    def leave(self) -> None:
        """Close the connections, when the work is done."""
        if self.size > 1:
            distributed.destroy_process_group()


def join(config: TeacherConfig) -> tuple[ProcessGroup, TeacherConfig]:
    """Return the group of this process and its options: with --tensor-parallel all processes score the same parts.

    Raises ConfigError where --tensor-parallel has a single process.
    """
    if not config.tensor_parallel:
        return ProcessGroup(), config
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if size == 1:
        raise ConfigError(
            "--tensor-parallel needs several processes: torchrun --nproc-per-node N -m opdkit teacher ..."
        )
    if not distributed.is_initialized():
        on_cpu = resolve_device(config.device).type == "cpu"
        distributed.init_process_group("gloo" if on_cpu else "nccl", timeout=TIMEOUT)
    return ProcessGroup(size, rank), replace(config, shard=array_shard()) if config.shard == "auto" else config
