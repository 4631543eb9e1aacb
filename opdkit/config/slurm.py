"""Options of `opdkit slurm`."""

import re
from dataclasses import dataclass

from opdkit.config.fields import option
from opdkit.config.run import ORDER, RunConfig
from opdkit.errors import ConfigError

_WORD = re.compile(r"[\w.,:+/-]+", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(RunConfig):
    """`opdkit slurm`: the pipeline as batch jobs. A value written STAGE=VALUE is for that stage, others are for all."""

    shards: int = option(4, "tasks of extract, judge and teacher each; every one does each N-th part", unit="tasks",
                         low=1)  # fmt: skip
    max_running: int | None = option(None, "tasks of one stage that run at once (default: all)", unit="tasks", low=1)
    nodes: int = option(1, "nodes of the training", unit="nodes", low=1)
    processes: int | None = option(None, "training processes a node (default: its GPUs, or 1)", low=1)
    partition: tuple[str, ...] = option((), "partition, as NAME or STAGE=NAME; may be given repeatedly")
    account: tuple[str, ...] = option((), "account, as NAME or STAGE=NAME; may be given repeatedly")
    time: tuple[str, ...] = option((), "time limit of a task, as Slurm writes it or STAGE=TIME (teacher=4:00:00); may "
                                   "be given repeatedly (default: the partition's)")  # fmt: skip
    gpus: tuple[str, ...] = option((), "GPUs of a task, or of a node of the training: COUNT, TYPE:COUNT or "
                                   "STAGE=...; may be given repeatedly")  # fmt: skip
    cpus: tuple[str, ...] = option((), "CPU cores of a task, as N or STAGE=N; may be given repeatedly")
    mem: tuple[str, ...] = option((), "memory of a node, as SIZE (64G) or STAGE=SIZE; may be given repeatedly")
    sbatch: tuple[str, ...] = option((), "another option of sbatch, as --constraint=a100 or STAGE=--exclusive; may be "
                                     "given repeatedly")  # fmt: skip
    setup: tuple[str, ...] = option((), "shell line before the command, such as `module load cuda`; may be given "
                                    "repeatedly")  # fmt: skip
    notice: int = option(120, "a stage is asked to stop this long before the time limit; Slurm may ask a minute "
                         "earlier", unit="seconds", low=10)  # fmt: skip
    max_requeues: int = option(100, "how often a task that ran out of time is queued again", low=0)
    submit: bool = option(False, "submit the jobs, too")

    def __post_init__(self) -> None:
        if self.shard != "auto" or self.overwrite:
            raise ConfigError("--shard and --overwrite are for the stages: --shards says how many tasks there are, and "
                              "a task that is queued again must not throw away what it has done")  # fmt: skip
        super().__post_init__()
        if "-" in self.logs:
            raise ConfigError("LOGS is -: a batch job has no standard input; name a file")
        for name in ("partition", "account", "time", "gpus", "cpus", "mem"):
            for value in map(_without_stage, getattr(self, name)):
                if not _WORD.fullmatch(value):
                    raise ConfigError(f"--{name} is {value!r}; write it as VALUE or STAGE=VALUE, where STAGE is one "
                                      f"of: {', '.join(ORDER)}")  # fmt: skip
        for line in map(_without_stage, self.sbatch):
            if not line.startswith("-") or not line.isprintable():
                raise ConfigError(f"--sbatch is {line!r}; write it as sbatch's own options are, --constraint=a100")

    def of_stage(self, name: str, stage: str) -> list[str]:
        """The values of a repeatable option that hold for a stage: those for all, then its own."""
        values: tuple[str, ...] = getattr(self, name)
        own = [_without_stage(v) for v in values if v.startswith(f"{stage}=")]
        return [v for v in values if not v.startswith(_STAGE_PREFIXES)] + own


_STAGE_PREFIXES = tuple(f"{stage}=" for stage in ORDER)


def _without_stage(value: str) -> str:
    """VALUE of STAGE=VALUE, and of VALUE itself."""
    return value.partition("=")[2] if value.startswith(_STAGE_PREFIXES) else value
