"""The text of the batch scripts: pure functions of the configurations. A task is an ordinary opdkit command line.

Whatever comes from a user is quoted for the shell, and only plain words (checked at construction) get into `#SBATCH`
lines, which have no quoting to rely on. Scripts hold no key: `--api-key-env` names a variable of the environment.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opdkit.config.command_line import command_line
from opdkit.config.fields import StageConfig
from opdkit.config.slurm import SlurmConfig
from opdkit.store.plans import stage_dir


def array_script(slurm: SlurmConfig, stage: str, config: StageConfig, shards: Sequence[int], world: "Place") -> str:
    """An array task a shard: a stage that works part by part."""
    limit = f"%{slurm.max_running}" if slurm.max_running else ""
    words = command_line(stage, type(config), config.run, config.effective())
    at = words.index("--") if "--" in words else len(words)
    shard = ["--shard", f'"$SLURM_ARRAY_TASK_ID"/{slurm.shards}']
    command = " ".join([*map(shlex.quote, words[:at]), *shard, *map(shlex.quote, words[at:])])
    grace = grace_of(slurm.notice)
    return "\n".join([
        *_head(slurm, stage, f"one task a shard of the {stage} stage", "%A_%a"),
        f"#SBATCH --array={ranges(shards)}{limit}",
        *_resources(slurm, stage),
        "",
        *_setting(slurm, world),
        "",
        f"# Slurm sends USR1 {slurm.notice} s before the time limit: opdkit finishes the part under way. If that",
        f"# takes over {grace} s it drops the part. Then the task is queued again and goes on.",
        "task= stopping=",
        "stop() {",
        "    stopping=yes",
        '    [ -n "$task" ] || return',
        '    kill -USR1 "$task"',
        f'    {{ sleep {grace}; kill "$task"; }} 2>/dev/null &',
        "}",
        "trap stop USR1",
        """trap '[ -z "$task" ] || kill "$task"' TERM  # cancelled, or preempted: drop the part""",
        "set -m",
        f"{command} &",
        "task=$!",
        *_waiting('"$status" -gt 1', "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID", slurm.max_requeues),
    ])  # fmt: skip


def train_script(slurm: SlurmConfig, config: StageConfig, world: "Place") -> str:
    """One job on all nodes: `accelerate launch` on each of them, or the one process by itself."""
    command = " ".join(map(shlex.quote, command_line("train", type(config), config.run, config.effective())))
    a_node = slurm.processes or gpus_of(slurm)
    total = a_node * slurm.nodes
    launch = (f"accelerate launch --multi_gpu --num_machines {slurm.nodes} --num_processes {total} "
              "--mixed_precision no --dynamo_backend no")  # fmt: skip
    checkpoints = shlex.quote(str(stage_dir(config.run, "train") / "checkpoints"))
    if total == 1:
        ask, start = ALONE, [f"(trap '' USR1; exec {command}) &"]
    elif slurm.nodes == 1:
        ask, start = CHILDREN, [f"(trap '' USR1; exec {launch} --main_process_port 0 \\", f"    -m {command}) &"]
    else:
        ask, start = EVERYWHERE, _on_all_nodes(launch, command)
    return "\n".join([
        *_head(slurm, "train", "the training, on all its nodes", "%j"),
        f"#SBATCH --nodes={slurm.nodes}",
        "#SBATCH --ntasks-per-node=1",
        *_resources(slurm, "train"),
        "",
        *_setting(slurm, world),
        "",
        f"# Slurm sends USR1 {slurm.notice} s before the time limit, TERM when it preempts or cancels the job. Then",
        "# the training is asked to stop: its processes finish the step under way, all the same one, and keep a",
        "# checkpoint. Launchers would die of USR1, so they are started deaf to it, and so is opdkit until it listens:",
        "# hence the asking again and again. Out of time, the job is queued again where it got any further.",
        "task= stopping=",
        *ask,
        """ask_again() { [ -z "$task" ] || while ask 2>/dev/null; do sleep 10; done & }""",
        "trap 'stopping=yes; ask_again' USR1",
        "trap ask_again TERM",
        f"before=$(ls {checkpoints} 2>/dev/null)",
        "set -m",
        *start,
        "task=$!",
        *_waiting(f'"$status" -ne 0 ] && [ "$(ls {checkpoints} 2>/dev/null)" != "$before"', "$SLURM_JOB_ID",
                  slurm.max_requeues),
    ])  # fmt: skip


# How USR1 reaches the processes of a training, and no launcher between them and the script that would die of it.
ALONE = ["""ask() { kill -USR1 "$task"; }"""]
CHILDREN = ["""ask() { pkill -USR1 -P "$task"; }  # torchrun's agent and its children do not share a process group"""]
EVERYWHERE = ["""ask() { kill -USR1 "$task"; }  # srun hands it to the processes on all nodes"""]


def _on_all_nodes(launch: str, command: str) -> list[str]:
    """The inner shell takes the command as its arguments, so nothing is quoted twice."""
    inner = (
        f'trap "" USR1; exec {launch} --machine_rank "$SLURM_NODEID" --main_process_ip "$0" --main_process_port "$@"'
    )
    return [
        'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        'srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \\',  # which srun does not inherit
        f"    bash -c '{inner}' \\",
        '    "$head" "$((20000 + SLURM_JOB_ID % 20000))" \\',
        f"    -m {command} &",
    ]


def submit_script(stages: Mapping[str, Sequence[int]]) -> str:
    """Submit the stages in order, each after the tasks of the one before. Stage -> its shards, () for one job.

    Each task is named by itself: where one was killed and queued again by hand, Slurm would not forgive its array.
    """
    lines = [
        "#!/bin/bash",
        "# Written by `opdkit slurm`. Submits every stage that is not done; says each job and what it waits for.",
        "set -euo pipefail",
        'cd -- "$(dirname -- "${BASH_SOURCE[0]}")"',
        "",
    ]
    before: str | None = None
    for stage, shards in stages.items():
        waits = f' --dependency="{before}"' if before else ""
        lines.append(f"{stage}=$(sbatch --parsable{waits} {stage}.sbatch)")
        lines.append(f"{stage}=${{{stage}%%;*}}")  # on a federation the name of the cluster follows
        lines.append(f'echo "{stage} ${stage}{" " + before if before else ""}"')
        tasks = [f"${{{stage}}}_{k}" for k in shards] or [f"${stage}"]
        before = "afterok:" + ":".join(tasks)
    return "\n".join([*lines, ""])


# -- pieces ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where the commands run."""

    folder: Path  # where relative paths start from
    programs: Path  # where this `opdkit` is


def _head(slurm: SlurmConfig, stage: str, what: str, log: str) -> list[str]:
    return [
        "#!/bin/bash",
        f"# Written by `opdkit slurm`: {what}. Submit with submit.sh, from any folder.",
        f"#SBATCH --job-name=opdkit-{stage}",
        f"#SBATCH --output=logs/%x-{log}.out",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:USR1@{slurm.notice}",
    ]


def _resources(slurm: SlurmConfig, stage: str) -> list[str]:
    """What the options ask for; of several values for one stage the last holds."""
    flags = {"partition": "--partition={}", "account": "--account={}", "time": "--time={}", "gpus": "--gres=gpu:{}",
             "cpus": "--cpus-per-task={}", "mem": "--mem={}"}  # fmt: skip
    wanted = [(flag, slurm.of_stage(name, stage)) for name, flag in flags.items()]
    lines = [flag.format(values[-1]) for flag, values in wanted if values]
    return [f"#SBATCH {line}" for line in [*lines, *slurm.of_stage("sbatch", stage)]]


def _setting(slurm: SlurmConfig, world: Place) -> list[str]:
    return [
        f"cd -- {shlex.quote(str(world.folder))} || exit 1",
        f'export PATH={shlex.quote(str(world.programs))}:"$PATH"',
        *slurm.setup,
    ]


def _waiting(condition: str, job: str, most: int) -> list[str]:
    """Wait for the task, whatever signals break in; queue the job again when it was stopped for its time."""
    return [
        "",
        'wait "$task"; status=$?',
        'while kill -0 "$task" 2>/dev/null; do wait "$task"; status=$?; done  # a signal ends a wait',
        f'if [ -n "$stopping" ] && [ {condition} ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {most} ]; then',
        f'    scontrol requeue "{job}"',
        "fi",
        'exit "$status"',
        "",
    ]


def grace_of(notice: int) -> int:
    """Seconds that a part under way has to finish: what is left of the notice is for dropping it."""
    return max(notice - 30, notice // 2)


def gpus_of(slurm: SlurmConfig) -> int:
    """GPUs of a node of the training, from COUNT or TYPE:COUNT; 1 where that says none."""
    values = slurm.of_stage("gpus", "train")
    count = values[-1].rpartition(":")[2] if values else "1"
    return max(1, int(count)) if count.isdecimal() else 1


def ranges(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 5] -> "0-2,5"."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans)
