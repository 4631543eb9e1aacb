"""`opdkit slurm`: check everything, find what is missing, write the scripts, submit them if asked."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from opdkit.commands.run import check_plan
from opdkit.commands.slurm.scripts import count_processes, write_array_script, write_submit_script, write_train_script
from opdkit.config.command_line import quote
from opdkit.config.extract import ExtractConfig
from opdkit.config.fields import StageConfig
from opdkit.config.pipeline import make_configurations
from opdkit.config.run import ORDER
from opdkit.config.slurm import SlurmConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import AnotherPlanError, ConfigError, OpdkitError
from opdkit.extract.stage import check_logs, choose_format
from opdkit.model.folder import check_stages
from opdkit.store.plans import has_stage, stage_dir
from opdkit.store.reading import count_parts, part_path
from opdkit.store.reviews import find_outdated_targets
from opdkit.store.tables import PRIMARY


@dataclass
class Launch:
    """Result of `opdkit slurm`."""

    folder: Path
    tasks: dict[str, int]  # stage -> number of tasks, for the stages that are not done
    submitted: str | None  # the output of submit.sh

    def text(self) -> str:
        if not self.tasks:
            return f"slurm: nothing to do, all of {', '.join(ORDER)} are done"
        tasks = ", ".join(f"{stage} {count}" for stage, count in self.tasks.items())
        if self.submitted is None:
            return f"slurm: tasks: {tasks}; submit them with: bash {quote(self.folder / 'submit.sh')}"
        return f"{self.submitted}slurm: submitted: {tasks}; logs in {self.folder / 'logs'}"


def run(config: SlurmConfig) -> Launch:
    """Write RUN/slurm/{extract,judge,teacher,train}.sbatch and submit.sh for the stages that are not done.

    Raises ConfigError, before anything is written, for errors that would otherwise appear only when a task starts. They
    are a wrong option of any stage, missing logs, and a stage begun under another plan. Raises OpdkitError for a
    missing model, and if sbatch is missing or refuses.
    """
    stages = make_configurations(config)
    if discarding := next((name for name, stage in stages.items() if stage.overwrite), None):
        place = quote(stage_dir(stages[discarding].run, discarding))
        raise ConfigError(f"{discarding}.overwrite: a task that is queued again must not discard what it has done; "
                          f"leave it out, and remove {place} first")  # fmt: skip
    check_processes(cast(TrainConfig, stages["train"]), count_processes(config))
    if stages["judge"].effective()["out"]:
        raise ConfigError("--judge batch with --out waits for answers, and no job does: judge first, then submit the "
                          "other stages")  # fmt: skip
    extract = cast(ExtractConfig, stages["extract"])
    for log in extract.logs:
        if not log.startswith("hf:") and not Path(log).exists():
            raise ConfigError(f"{log} does not exist; name log files, folders of them, or hf:NAME")
    choose_format(extract)  # checks the options
    check_stages(stages.values(), asks_hub=False)  # this machine may have no network
    for name, stage in stages.items():
        try:
            check_plan(name, stage)
        except AnotherPlanError as error:  # its remedy, --overwrite, is not for jobs
            place = quote(stage_dir(stage.run, name))
            raise ConfigError(f"{error.what}\nChoose another run directory, or remove {place} first") from error
    check_logs(extract)
    if config.submit and shutil.which("sbatch") is None:
        raise OpdkitError("--submit: sbatch is not here; run this on a node of the cluster that may submit jobs")
    missing = {name: shards for name in ORDER if (shards := find_missing_shards(stages[name].run, name, config.shards))}
    folder = config.run / "slurm"
    write_scripts(config, stages, missing, folder)
    submitted = None
    if config.submit and missing:
        done = subprocess.run(["bash", folder / "submit.sh"], capture_output=True, text=True, check=False)
        if done.returncode:
            before = f"\nalready submitted, cancel with scancel:\n{done.stdout}" if done.stdout else ""
            raise OpdkitError(f"sbatch refused: {done.stderr.strip()}{before}")
        submitted = done.stdout  # one line per job
    return Launch(folder, {name: len(shards) for name, shards in missing.items()}, submitted)


def check_processes(train: TrainConfig, total: int) -> None:
    """Raise ConfigError for options of the training that do not fit its `total` processes."""
    if train.shard != "auto":
        raise ConfigError(f"train.shard is {train.shard}: training is not cut into parts; leave it out")
    if total == 1 and train.sharding != "none":
        raise ConfigError(f"train.sharding {train.sharding} needs several processes, and here the training is one: "
                          "pass --gpus train=N, or --processes N")  # fmt: skip
    if total > 1 and train.device not in ("auto", "cpu"):
        raise ConfigError(f"train.device is {train.device}: with several processes the launcher gives each its device")


def find_missing_shards(run: Path, stage: str, shards: int) -> list[int]:
    """Return the shards of a stage that have parts to do; [0] or [] for training, which is one part.

    A stage that has not begun has as many parts as the last begun stage before it; if there is none, return all shards.
    """
    if stage == "train":
        shards = 1
    begun = [s for s in ORDER[: ORDER.index(stage) + 1] if has_stage(run, s)]
    if not begun:
        return list(range(shards))
    parts = 1 if stage == "train" else count_parts(run, begun[-1])
    undone = [k for k in range(parts) if not part_path(run, PRIMARY[stage].name, k).exists()]
    undone += find_outdated_targets(run) if stage == "teacher" else []
    return sorted({k % shards for k in undone})


def write_scripts(
    config: SlurmConfig, stages: Mapping[str, StageConfig], missing: Mapping[str, list[int]], folder: Path
) -> None:
    """Write the scripts; remove those of stages that are done."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    place = Path.cwd(), Path(sys.executable).parent
    texts = dict[str, str]()
    for name, shards in missing.items():
        texts[f"{name}.sbatch"] = (write_train_script(config, stages[name], place) if name == "train"
                                   else write_array_script(config, name, stages[name], shards, place))  # fmt: skip
    if missing:
        texts["submit.sh"] = write_submit_script({n: [] if n == "train" else shards for n, shards in missing.items()})
    for old in [*(f"{name}.sbatch" for name in ORDER), "submit.sh"]:
        (folder / old).unlink(missing_ok=True)
    for name, text in texts.items():
        (folder / name).write_bytes(os.fsencode(text))  # a path need not be UTF-8
