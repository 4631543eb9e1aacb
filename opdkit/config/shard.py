"""Shards: with I/N, a process does the parts k for which k mod N = I."""

import os

from opdkit.errors import ConfigError


def check_shard(text: str, flag: str = "--shard") -> None:
    """Raise ConfigError unless `text` is "auto" or I/N with 0 <= I < N. Reads no environment."""
    index, slash, count = text.partition("/")
    if text != "auto" and not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise ConfigError(f"{flag} is {text!r}; write it as I/N with 0 <= I < N, for example 0/4")


def parse_shard(text: str) -> tuple[int, int]:
    """Return (I, N) for "I/N". "auto" combines the Slurm array's task and, within the task, the launcher's rank.

    4 array tasks of 8 processes are 32 shards. Without array and launcher, "auto" is (0, 1). Raises ConfigError.
    """
    check_shard(text)
    if text != "auto":
        index, _, count = text.partition("/")
        return int(index), int(count)
    (task, tasks), (rank, size) = read_array_task(), read_rank()
    return task * size + rank, tasks * size


def read_rank() -> tuple[int, int]:
    """Return (rank, number of processes) of the launcher; (0, 1) without one. Raises ConfigError."""
    if not ("RANK" in os.environ and "WORLD_SIZE" in os.environ):
        return 0, 1
    rank, size = _read_number("RANK"), _read_number("WORLD_SIZE")
    if not 0 <= rank < size:
        raise ConfigError(f"RANK={rank} does not fit WORLD_SIZE={size}; pass --shard I/N")
    return rank, size


def read_array_task() -> tuple[int, int]:
    """Return (task index, number of tasks) of the Slurm array; (0, 1) outside an array. Raises ConfigError."""
    env = os.environ
    if not ("SLURM_ARRAY_TASK_ID" in env and "SLURM_ARRAY_TASK_COUNT" in env):
        return 0, 1
    index, count = _read_number("SLURM_ARRAY_TASK_ID"), _read_number("SLURM_ARRAY_TASK_COUNT")
    # An array may start at any number and have steps: --array=10-40:10. Uneven gaps (1,3,7) cannot be numbered.
    low, high = _read_number("SLURM_ARRAY_TASK_MIN", 0), _read_number("SLURM_ARRAY_TASK_MAX", index)
    step = max(1, (high - low) // max(1, count - 1))
    index, gap = divmod(index - low, step)
    if gap or not 0 <= index < count:
        raise ConfigError(f"SLURM_ARRAY_TASK_ID={env['SLURM_ARRAY_TASK_ID']} is not a regular step of the array of "
                          f"{count} tasks from {low} to {high}; pass --shard I/N")  # fmt: skip
    return index, count


def _read_number(name: str, default: int = 0) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"the environment variable {name} is {text!r}, not a number; pass --shard I/N") from None
