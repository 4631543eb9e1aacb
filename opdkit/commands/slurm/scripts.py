"""Text of the batch scripts, as functions of the configurations. A task is an ordinary opdkit command line.

Everything that comes from a user is quoted for the shell. Only plain words (checked at construction) get into `#SBATCH`
lines, which have no quoting. Scripts hold no key: `--api-key-env` names an environment variable.
"""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from opdkit.config.command_line import command_line
from opdkit.config.fields import StageConfig
from opdkit.config.slurm import SlurmConfig
from opdkit.store.plans import checkpoints_dir

Place = tuple[Path, Path]  # working directory of a script, and folder of the `opdkit` that it calls


def write_array_script(slurm: SlurmConfig, stage: str, config: StageConfig, shards: Sequence[int], place: Place) -> str:
    """Return the script of a stage that works part by part: one array task per shard."""
    limit = f"%{slurm.max_running}" if slurm.max_running else ""
    _, *words = command_line(stage, type(config), config.run, config.effective())
    at = words.index("--") if "--" in words else len(words)
    shard = ["--shard", f'"$SLURM_ARRAY_TASK_ID"/{slurm.shards}']
    options = [*map(shlex.quote, words[:at]), *shard, *map(shlex.quote, words[at:])]
    command = " ".join([find_program("opdkit", place), *options])
    grace = max(slurm.notice - 30, slurm.notice // 2)  # seconds to finish the current part; the rest is to drop it
    return "\n".join([
        *_write_head(slurm, stage, f"one task per shard of the {stage} stage", "%A_%a",
               [f"--array={ranges(shards)}{limit}"], place),
        f"# Slurm sends USR1 {slurm.notice} s before the time limit: opdkit finishes the part under way. If that",
        f"# takes over {grace} s it drops the part. Then the task is queued again and resumes.",
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
        *_write_wait('"$status" -gt 1', "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID", slurm.max_requeues),
    ])  # fmt: skip


def write_train_script(slurm: SlurmConfig, config: StageConfig, place: Place) -> str:
    """Return the script of the training: `accelerate launch` on each node, or one process by itself."""
    _, *words = command_line("train", type(config), config.run, config.effective())
    command = " ".join(map(shlex.quote, words))
    total = count_processes(slurm)
    # All of these, because accelerate takes what is missing from the configuration file in the user's home.
    launch = (f"{find_program('accelerate', place)} launch --multi_gpu --num_machines {slurm.nodes} --num_processes "
              f"{total} --gpu_ids all --mixed_precision no --dynamo_backend no")  # fmt: skip
    # `ask` sends USR1 to the training processes, not to the launcher, which would die of the signal.
    checkpoints = shlex.quote(str(checkpoints_dir(config.run)))
    if total == 1:
        ask = """ask() { kill -USR1 "$task"; }"""
        start = [f"(trap '' USR1; exec {find_program('opdkit', place)} {command}) &"]
    elif slurm.nodes == 1:
        ask = """ask() { pkill -USR1 -P "$task"; }  # torchrun's agent and its children do not share a process group"""
        start = [f"(trap '' USR1; exec {launch} --main_process_port 0 \\", f"    -m opdkit {command}) &"]
    else:
        ask = """ask() { kill -USR1 "$task"; }  # srun hands it to the processes on all nodes"""
        each = (f"""trap "" USR1; exec {launch} --machine_rank "$SLURM_NODEID" --main_process_ip "$HEAD" """
                """--main_process_port "$PORT" -m opdkit "$@\"""")  # fmt: skip
        start = [
            'export HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"',
            "export PORT=$((20000 + SLURM_JOB_ID % 20000))",
            # Without the first, the processes of a node share all CPUs of the job there; without the second, a job with
            # --export=NONE passes on no HEAD and PORT.
            'srun --kill-on-bad-exit=1 ${SLURM_CPUS_PER_TASK:+--cpus-per-task="$SLURM_CPUS_PER_TASK"} --export=ALL \\',
            f"    bash -c {shlex.quote(each)} \\",
            f"    opdkit {command} &",
        ]
    return "\n".join([
        *_write_head(slurm, "train", "the training, on all its nodes", "%j",
               [f"--nodes={slurm.nodes}", "--ntasks-per-node=1"], place),
        f"# Slurm sends USR1 {slurm.notice} s before the time limit, TERM when it preempts or cancels the job. Then",
        "# the training is asked to stop: its processes finish the same step and write a checkpoint. Launchers would",
        "# die of USR1, so they ignore it, and opdkit ignores it until it listens: the signal is sent until it works.",
        "# Out of time, the job is queued again if it got any further.",
        "task= stopping=",
        ask,
        """ask_again() { [ -z "$task" ] || while ask 2>/dev/null; do sleep 10; done & }""",
        "trap 'stopping=yes; ask_again' USR1",
        "trap ask_again TERM",
        f"before=$(ls {checkpoints} 2>/dev/null)",
        "set -m",
        *start,
        "task=$!",
        *_write_wait(f'"$status" -ne 0 ] && [ "$(ls {checkpoints} 2>/dev/null)" != "$before"', "$SLURM_JOB_ID",
                  slurm.max_requeues),
    ])  # fmt: skip


def write_submit_script(stages: Mapping[str, Sequence[int]]) -> str:
    """Return the script that submits the stages in order, each after the tasks of the stage before.

    `stages`: stage -> its shards, empty for a single job. Every task is named as a dependency: if a task were killed
    and queued again by hand, a dependency on the whole array would never be satisfied.
    """
    lines = [
        "#!/bin/bash",
        "# Written by `opdkit slurm`. Submits every stage that is not done; prints each job and its dependency.",
        "set -euo pipefail",
        'cd -- "$(dirname -- "${BASH_SOURCE[0]}")"',
        "",
    ]
    before: str | None = None
    for stage, shards in stages.items():
        waits = f' --dependency="{before}"' if before else ""
        lines.append(f"{stage}=$(sbatch --parsable{waits} {stage}.sbatch)")
        lines.append(f"{stage}=${{{stage}%%;*}}")  # in a federation, the name of the cluster follows the id
        lines.append(f'echo "{stage} ${stage}{" " + before if before else ""}"')
        tasks = [f"${{{stage}}}_{k}" for k in shards] or [f"${stage}"]
        before = "afterok:" + ":".join(tasks)
    return "\n".join([*lines, ""])


def _write_head(slurm: SlurmConfig, stage: str, what: str, log: str, shape: Sequence[str], place: Place) -> list[str]:
    """Return the first lines of a script. `shape`: the options of sbatch for its number of tasks or nodes.

    If an option has several values for a stage, the last counts.
    """
    folder, programs = place
    flags = {"partition": "--partition={}", "account": "--account={}", "time": "--time={}", "gpus": "--gres=gpu:{}",
             "cpus": "--cpus-per-task={}", "mem": "--mem={}"}  # fmt: skip
    resources = [flag.format(values[-1]) for name, flag in flags.items() if (values := slurm.of_stage(name, stage))]
    return [
        "#!/bin/bash",
        f"# Written by `opdkit slurm`: {what}. Submit with submit.sh, from any folder.",
        f"#SBATCH --job-name=opdkit-{stage}",
        f"#SBATCH --output=logs/%x-{log}.out",
        "#SBATCH --open-mode=append",
        "#SBATCH --requeue",
        f"#SBATCH --signal=B:USR1@{slurm.notice}",
        *(f"#SBATCH {line}" for line in [*shape, *resources, *slurm.of_stage("sbatch", stage)]),
        "",
        f"cd -- {shlex.quote(str(folder))} || exit 1",
        f'export PATH={shlex.quote(str(programs))}:"$PATH"',
        *slurm.setup,
        "",
    ]


def _write_wait(condition: str, job: str, most: int) -> list[str]:
    """Return the lines that wait for the task, and queue the job again if it ran out of time."""
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


def count_processes(slurm: SlurmConfig) -> int:
    """Return the number of processes of the training, on all its nodes."""
    return (slurm.processes or count_gpus(slurm)) * slurm.nodes


def count_gpus(slurm: SlurmConfig) -> int:
    """Return the number of GPUs per node of the training, from COUNT or TYPE:COUNT; 1 without a count."""
    values = slurm.of_stage("gpus", "train")
    count = values[-1].rpartition(":")[2] if values else "1"
    return max(1, int(count)) if count.isdecimal() else 1


def find_program(name: str, place: Place) -> str:
    """Return the path of a program, quoted, since `setup` may put another one first; its name if it is elsewhere."""
    path = place[1] / name
    return shlex.quote(str(path) if path.exists() else name)


def ranges(numbers: Sequence[int]) -> str:
    """Return "0-2,5" for [0, 1, 2, 5]."""
    spans: list[list[int]] = []
    for n in sorted(numbers):
        if spans and n == spans[-1][1] + 1:
            spans[-1][1] = n
        else:
            spans.append([n, n])
    return ",".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans)
