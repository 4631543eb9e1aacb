"""Options of `opdkit slurm`."""

import re
from dataclasses import dataclass

from opdkit.config.fields import WHERE, expert, option
from opdkit.config.run import ORDER, RunConfig
from opdkit.config.shared import REPEAT
from opdkit.errors import ConfigError

JOBS = "Jobs"
_WORD = re.compile(r"[\w.,:+/-]+", re.ASCII)
_STAGE_PREFIXES = tuple(f"{stage}=" for stage in ORDER)


def _resource(text: str, more: str = "", *, hidden: bool = False) -> tuple[str, ...]:
    details = f"{more}; {REPEAT}" if more else REPEAT
    values: tuple[str, ...] = option((), f"{text}, [STAGE=]VALUE", details, panel=JOBS, expert=hidden)
    return values


@dataclass(frozen=True, kw_only=True)
class SlurmConfig(RunConfig):
    """`opdkit slurm`: the pipeline as batch jobs. A value written STAGE=VALUE is for that stage, others are for all."""

    shards: int = option(
        4, "tasks of extract, judge and teacher each", "task k does every N-th part", unit="tasks", low=1, panel=JOBS
    )
    max_running: int | None = expert(
        None, "tasks of one stage that run at once", "default: all", unit="tasks", low=1, panel=JOBS
    )
    nodes: int = option(1, "nodes of the training", unit="nodes", low=1, panel=JOBS)
    processes: int | None = expert(None, "training processes per node", "default: its GPUs, or 1", low=1, panel=JOBS)
    partition: tuple[str, ...] = _resource("partition")
    account: tuple[str, ...] = _resource("account")
    time: tuple[str, ...] = _resource("time limit", "teacher=4:00:00; default: the partition's")
    gpus: tuple[str, ...] = _resource("GPUs", "of a task, or of a node of the training: COUNT or TYPE:COUNT")
    cpus: tuple[str, ...] = _resource("CPU cores of a task", hidden=True)
    mem: tuple[str, ...] = _resource("memory of a node", "64G", hidden=True)
    sbatch: tuple[str, ...] = expert(
        (), "another option of sbatch", f"--constraint=a100 or STAGE=--exclusive; {REPEAT}", panel=JOBS
    )
    setup: tuple[str, ...] = option(
        (), "shell line before the command", f"such as `module load cuda`; {REPEAT}", panel=JOBS
    )
    notice: int = expert(
        120,
        "ask a stage to stop before the time limit",
        "this long before it; Slurm may ask a minute earlier",
        unit="seconds",
        low=10,
        panel=JOBS,
    )
    max_requeues: int = expert(100, "requeue a task that ran out of time N times", low=0, panel=JOBS)
    submit: bool = option(False, "also submit the jobs", panel=WHERE)

    def __post_init__(self) -> None:
        if self.shard != "auto" or self.overwrite:
            raise ConfigError("--shard and --overwrite are for the stages: --shards says how many tasks there are, and "
                              "a task that is queued again must not discard what it has done")  # fmt: skip
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
        """Return the values of a repeatable option that hold for a stage: those for all stages, then its own."""
        values: tuple[str, ...] = getattr(self, name)
        own = [_without_stage(v) for v in values if v.startswith(f"{stage}=")]
        return [v for v in values if not v.startswith(_STAGE_PREFIXES)] + own


def _without_stage(value: str) -> str:
    """Return VALUE of STAGE=VALUE, and of VALUE itself."""
    return value.partition("=")[2] if value.startswith(_STAGE_PREFIXES) else value
