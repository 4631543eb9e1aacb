"""`opdkit train`: targets -> a better model.

One pass over the targets, off-policy: the replies are those of the log, the old policy is the student as the teacher
stage scored it. Runs in one process, or in several that share every optimizer step (`torchrun`, `accelerate launch`);
a step's loss and gradient are the same to rounding, however it is split.
"""

import copy
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedTokenizerBase

from opdkit.chat.template import Chat
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.console import is_main_process, progress, say, warn
from opdkit.model.load import load_tokenizer, resolve_device
from opdkit.store import Counters, Summary, stopping
from opdkit.train import checkpoints
from opdkit.train.batches import Step, optimizer_steps
from opdkit.train.launch import accelerator_of, committing, open_stage, refuse, refuse_another_position
from opdkit.train.metrics import line, metrics_row
from opdkit.train.objective import SUPPORTED, Objective
from opdkit.train.plan import at_step, objectives
from opdkit.train.policy import Policy
from opdkit.train.sharding import shard, unsharded
from opdkit.train.signal import TrainingSet, check_signal, describe, shaped, training_set
from opdkit.train.step import ASKED, Prompts, optimizer_step
from opdkit.train.student import (
    compute_dtype,
    epoch_home,
    learning_rate,
    load_student,
    make_optimizer,
    save_student,
)
from opdkit.train.targets import (
    Turn,
    capped,
    load_prompts,
    load_turns,
    refuse_another_student,
    scored_template_args,
    select,
)

_FEW_TURNS = 10
LINES = 20  # lines of progress in a whole run


def run(config: TrainConfig) -> Summary:
    """Train `--model` on the targets of the run; resumes from its newest checkpoint."""
    refuse(config)
    phases = objectives(config)
    identity = refuse_another_student(config.run, config.model)
    chat = Chat(load_tokenizer(config.model), scored_template_args(config.run, config.template_arg))
    data, prompts = _load(config, phases, chat)
    steps = _steps(config, data)
    check_signal(data, steps, config, phases)
    if config.dry_run:
        return _dry_run(config, data, steps)
    accelerator = accelerator_of(config)
    stage = open_stage(config, accelerator, identity)
    if stage.todo():
        with stopping.in_steps(), committing(stage, accelerator) as out:
            prompts = prompts or load_prompts(config.run, data.turns, chat)
            student = load_student(config, on_cpu=config.sharding == "fsdp")
            save = partial(_save, tokenizer=chat.tokenizer, config=config, accelerator=accelerator)
            rows = _train(student, data.turns, steps, phases, prompts, config, accelerator, stage.home, save)
            out.rows("metrics", rows)
            save(student, home=stage.home)
            _count(out.counters, data, len(rows))
        if accelerator.is_main_process:
            checkpoints.clear(stage.home / "checkpoints")
        say(f"the trained model is in {stage.home / 'model'}")
        if len(data.turns) < _FEW_TURNS:
            warn(
                f"{len(data.turns)} turns teach little: `opdkit report {quote(config.run)}` shows where others were "
                "lost"
            )
    accelerator.end_training()
    return stage.summary()


def _load(config: TrainConfig, phases: Sequence[Objective], chat: Chat) -> tuple[TrainingSet, Prompts]:
    """The training set; and the prompts, where the rewards could not be shaped without them."""
    terms = {name for phase in phases for name in phase.weights}
    scored = load_turns(config.run, config.limit, supports=not terms.isdisjoint(SUPPORTED))
    turns, dropped = select(scored, terms, config.holdout)
    turns, over = capped(turns, config.max_turns_per_session, config.seed)
    prompts = {} if config.group_normalise == "off" else load_prompts(config.run, turns, chat)
    return training_set(shaped(turns, config, prompts), phases, len(scored), dropped + over), prompts


def _steps(config: TrainConfig, data: TrainingSet) -> list[Step]:
    sessions = [turn.session_id for turn in data.turns] if config.batch_by == "session" else None
    return optimizer_steps(
        data.phases, data.strengths, sessions, config.batch_turns, config.epochs, config.seed, config.order
    )


def _dry_run(config: TrainConfig, data: TrainingSet, steps: Sequence[Step]) -> Summary:
    if is_main_process():
        describe(data, steps)
    counters = Counters()
    _count(counters, data, len(steps))
    return Summary("train --dry-run", counters, 0, 1, where=None)


def _count(counters: Counters, data: TrainingSet, steps: int) -> None:
    counters.rows_in, counters.rows_out, counters.dropped = data.scored, len(data.turns), data.dropped
    counters.count("steps", steps)


# -- the loop -------------------------------------------------------------------------------------------------------


def _train(
    student: nn.Module,
    turns: Sequence[Turn],
    steps: Sequence[Step],
    phases: Sequence[Objective],
    prompts: Prompts,
    config: TrainConfig,
    accelerator: Accelerator,
    folder: Path,
    save: Callable[..., None],
) -> list[JSON]:
    """Train `student` in place; one metrics row a step. Raises stopping.Stopped after a step when asked to."""
    model: nn.Module = Policy(student)  # tries itself on a few sequences, so before it is wrapped
    if config.sharding == "fsdp":
        shard(model, resolve_device(config.device), compute_dtype(config))
    optimizer = make_optimizer(student, config)
    state = checkpoints.newest(folder / "checkpoints")
    rows: list[JSON] = state["rows"] if state else []
    refuse_another_position(len(rows))
    if state:
        checkpoints.restore(state, student, optimizer)
        say(f"going on after step {len(rows)} of {len(steps)}")
    if config.sharding == "none":
        model = accelerator.prepare_model(model)  # several processes: DistributedDataParallel
    done = sum(len(step.turns) for step in steps[: len(rows)])
    for number in progress(range(len(rows) + 1, len(steps) + 1), "train", len(steps) - len(rows), "steps"):
        start = time.monotonic()
        torch.manual_seed(config.seed + number)  # no stream to remember: a resumed step draws what it would have drawn
        step = steps[number - 1]
        batch = [turns[i] for i in step.turns]
        objective = at_step(phases[step.phase], config, number, len(steps))
        rate = learning_rate(config, number, len(steps))
        metrics = optimizer_step(model, optimizer, batch, prompts, objective, config, accelerator, rate)
        done += len(batch)
        seconds = time.monotonic() - start
        rows.append(metrics_row(number, done / len(turns), metrics, objective, rate, batch, seconds))
        accelerator.log({k: v for k, v in rows[-1].items() if v is not None}, step=number)
        if number % math.ceil(len(steps) / LINES) == 0 or number == len(steps):
            say(line(rows[-1], len(steps)))
        if config.keep_epochs and done % len(turns) == 0:
            save(student, home=epoch_home(folder, done // len(turns)), goes_on=True)
        stop = metrics[ASKED] > 0 and number < len(steps)
        if stop or (config.checkpoint_every and number % config.checkpoint_every == 0):
            main = accelerator.is_main_process
            checkpoints.save(folder / "checkpoints", student, optimizer, rows, main=main)
        if stop:
            _stop_here(number, len(steps), accelerator)
    return rows


def _stop_here(number: int, steps: int, accelerator: Accelerator) -> None:
    """End all processes after the same step, once its checkpoint is there: who ends first has the others killed."""
    accelerator.wait_for_everyone()
    stopping.after_part()
    say(f"stopping after step {number} of {steps}")
    accelerator.end_training()
    raise stopping.Stopped


def _save(
    student: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    config: TrainConfig,
    accelerator: Accelerator,
    home: Path,
    *,
    goes_on: bool = False,
) -> None:
    """Write the model to `home`, where the main process is; the student is spent unless it `goes_on`."""
    main = accelerator.is_main_process
    if config.sharding == "fsdp":
        found = unsharded(student, partial(load_student, config, on_cpu=True), main)
    else:
        found = copy.deepcopy(student) if goes_on and main else student
    if main and found is not None:
        save_student(found, tokenizer, config, home)
