"""Tensor parallelism: several processes each hold a share of every layer, and all read the same sequences.

They score the same parts in the same order and get the same numbers; the first one to write a part commits it. They
must not diverge: when one process alone stops, or makes a batch smaller, the others wait for it until the timeout.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed

from opdkit.config.shard import read_array_task
from opdkit.config.shared import check_launcher
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError
from opdkit.model.load import resolve_device
from opdkit.store import stopping

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # for one process to wait for the others: a large model takes long to load


@dataclass(frozen=True)
class ProcessGroup:
    """Processes that score together; without --tensor-parallel, this process alone."""

    size: int = 1
    rank: int = 0

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """Let the main process run the `with` block first, then the others."""
        if self.rank > 0:
            distributed.barrier()
        yield
        if self.size > 1:
            if self.rank == 0:
                distributed.barrier()
            distributed.barrier()

    def broadcast(self, value: T) -> T:
        """Return the value of the main process."""
        values = [value]
        if self.size > 1:
            distributed.broadcast_object_list(values)
        return values[0]

    def stop_if_asked(self) -> None:
        """Raise stopping.Stopped in all processes when one of them was asked to stop. They leave the group first.

        A thread of gloo that frees a tensor while Python exits would end the process with SIGABRT.
        """
        if self.size > 1:
            gpu = distributed.get_backend() == "nccl"  # it only transfers between GPUs
            device = torch.device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if gpu else "cpu")
            asked = torch.tensor(int(stopping.is_requested()), device=device)
            distributed.all_reduce(asked)
            if asked.item():
                self.leave()
                raise stopping.Stopped

    def leave(self) -> None:
        """Close the connections to the other processes."""
        if self.size > 1:
            distributed.destroy_process_group()


def join(config: TeacherConfig) -> tuple[ProcessGroup, TeacherConfig]:
    """Return the group of this process, and the options: with --tensor-parallel all processes score the same parts.

    Raises ConfigError for --tensor-parallel with a single process, or without a launcher.
    """
    if not config.tensor_parallel:
        return ProcessGroup(), config
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if size == 1:
        raise ConfigError(
            "--tensor-parallel needs several processes: torchrun --nproc-per-node N -m opdkit teacher ..."
        )
    if not distributed.is_initialized():
        check_launcher()
        on_cpu = (device := resolve_device(config.device)).type == "cpu"
        if device.type == "cuda":  # objects are sent from the current device, which is the first one in all processes
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        distributed.init_process_group("gloo" if on_cpu else "nccl", timeout=TIMEOUT)
    if config.shard == "auto":  # the task of the array, not the rank of a launcher's process within it
        config = replace(config, shard="/".join(map(str, read_array_task())))
    return ProcessGroup(size, rank), config
