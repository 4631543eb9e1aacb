"""Several processes as one: each holds a share of every layer (tensor parallelism), and all read the same sequences.

They take the same parts in the same order, and each has the same numbers in the end; whoever writes a part first has
written it. They must not part ways: what one decides by itself (to stop, to make a batch smaller) the others would wait
for until the patience of the group is over.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from opdkit.config.shard import array_shard
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError
from opdkit.model import memory
from opdkit.model.load import resolve_device
from opdkit.store import stopping

T = TypeVar("T")
PATIENCE = timedelta(minutes=30)  # of one process for the others: a large model takes long to load


@dataclass(frozen=True)
class ProcessGroup:
    """The processes that work as one; of an ordinary stage, this process alone."""

    size: int = 1
    rank: int = 0

    def in_turn(self, work: Callable[[bool], T]) -> T:
        """What `work` returns, called with True in the main process first, and then with False in the others."""
        for main in (True, False):
            if main == (self.rank == 0):
                found = work(main)
            if self.size > 1:
                distributed.barrier()
        return found

    def agreed(self, mine: T) -> T:
        """What the main process says."""
        if self.size == 1:
            return mine
        told = [mine]
        distributed.broadcast_object_list(told)
        return told[0]

    def stop_if_asked(self) -> None:
        """Raise stopping.Stopped in all processes when one of them was asked to stop."""
        if self.size > 1:
            asked = torch.tensor(int(stopping.requested()), device=_where())
            distributed.all_reduce(asked)
            if asked.item():
                raise stopping.Stopped

    def leave(self) -> None:
        """The work is done: let go of the connections."""
        if self.size > 1:
            distributed.destroy_process_group()


def join(config: TeacherConfig) -> tuple[ProcessGroup, TeacherConfig]:
    """The crew of this process, and the stage as it does it: with --tensor-parallel all of them the same parts.

    Raises ConfigError where there is one process only.
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
        distributed.init_process_group("gloo" if on_cpu else "nccl", timeout=PATIENCE)
    memory.in_lockstep()
    return ProcessGroup(size, rank), replace(config, shard=array_shard()) if config.shard == "auto" else config


def _where() -> torch.device:
    """A device that the group's backend can send from."""
    gpu = distributed.get_backend() == "nccl"
    return torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpu else "cpu")
