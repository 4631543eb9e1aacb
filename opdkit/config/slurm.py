"""Options of `opdkit slurm`."""

import re
from dataclasses import dataclass

from opdkit.config.fields import WHERE, Panel, PythonFunction
from opdkit.config.run import ORDER, PipelineConfig
from opdkit.config.shared import REPEAT
from opdkit.errors import ConfigError

JOBS = Panel("Jobs")
_VALUE = f"[STAGE=]VALUE; {REPEAT}"
_WORD = re.compile(r"[\w.,:@+/-]+", re.ASCII)
_STAGE_PREFIXES = tuple(f"{stage}=" for stage in ORDER)


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(PipelineConfig):
    """Write the batch scripts of a run on a Slurm cluster, and submit them."""

    shards: int = JOBS.option(4, "tasks of extract, judge and teacher each", unit="tasks", low=1)
    max_running: int | None = JOBS.expert(None, "tasks of a stage that run at once; default: all", unit="tasks", low=1)
    nodes: int = JOBS.option(1, "nodes of the training", unit="nodes", low=1)
    processes: int | None = JOBS.expert(None, "training processes per node; default: its GPUs, or 1", low=1)
    partition: tuple[str, ...] = JOBS.option((), f"partition, {_VALUE}")
    account: tuple[str, ...] = JOBS.option((), f"account, {_VALUE}")
    time: tuple[str, ...] = JOBS.option((), f"time limit, {_VALUE}; such as teacher=4:00:00; default: the partition's")
    gpus: tuple[str, ...] = JOBS.option(
        (), f"GPUs, {_VALUE}; COUNT or TYPE:COUNT of a task, or of a node of the training"
    )
    cpus: tuple[str, ...] = JOBS.expert((), f"CPU cores of a task, {_VALUE}")
    mem: tuple[str, ...] = JOBS.expert((), f"memory of a node, {_VALUE}; such as 64G")
    sbatch: tuple[str, ...] = JOBS.expert(
        (), f"another option of sbatch; --constraint=a100, STAGE=--exclusive; {REPEAT}"
    )
    setup: tuple[str, ...] = JOBS.option((), f"shell line before the command; such as `module load cuda`; {REPEAT}")
    notice: int = JOBS.expert(
        120, "ask a stage to stop this long before its limit; Slurm may be a minute early", unit="seconds", low=10
    )
    max_requeues: int = JOBS.expert(100, "requeue a task that ran out of time N times", low=0)
    submit: bool = WHERE.option(False, "also submit the jobs")

    def __post_init__(self) -> None:
        if self.shard != "auto" or self.overwrite:
            raise ConfigError("--shard and --overwrite are for the stages: --shards says how many tasks there are, and "
                              "a task that is queued again must not discard what it has done")  # fmt: skip
        super().__post_init__()
        if isinstance(self.judge, PythonFunction):
            raise ConfigError(f"--judge is {str(self.judge)!r}: a batch job cannot call a function of this process")
        if "-" in self.logs:
            raise ConfigError("LOGS is -: a batch job has no standard input; name a file")
        for name in ("partition", "account", "time", "gpus", "cpus", "mem"):
            for value in map(_drop_stage, getattr(self, name)):
                if not _WORD.fullmatch(value):
                    raise ConfigError(f"--{name} is {value!r}; write it as VALUE or STAGE=VALUE, where VALUE is as "
                                      f"sbatch takes it, without blanks; STAGE: {', '.join(ORDER)}")  # fmt: skip
        for line in map(_drop_stage, self.sbatch):
            if not line.startswith("-") or not line.isprintable():
                raise ConfigError(f"--sbatch is {line!r}; write it as sbatch's own options are, --constraint=a100")

    def of_stage(self, name: str, stage: str) -> list[str]:
        """Return the values of a repeatable option for a stage: first the values for all stages, then its own."""
        values: tuple[str, ...] = getattr(self, name)
        own = [_drop_stage(v) for v in values if v.startswith(f"{stage}=")]
        return [v for v in values if not v.startswith(_STAGE_PREFIXES)] + own


def _drop_stage(value: str) -> str:
    """Return VALUE, given STAGE=VALUE or VALUE."""
    return value.partition("=")[2] if value.startswith(_STAGE_PREFIXES) else value
