"""`opdkit train`: targets -> a better model.

Training is off-policy: the replies come from the log, and the old policy is the student as the teacher stage scored it.
It runs in one process, or in several that share every optimizer step (`torchrun`, `accelerate launch`). However a step
is split, its loss and gradient are the same up to rounding.
"""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from opdkit.chat.template import Chat
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON
from opdkit.config.train import MOST_CYCLES, TrainConfig
from opdkit.console import counted, is_main_process, say, tally, verb, warn
from opdkit.errors import NothingLearnedError
from opdkit.model.load import load_template, resolve_device
from opdkit.store import stopping
from opdkit.store.counters import Counters, Summary
from opdkit.store.part_writer import PartWriter
from opdkit.store.plans import check_options, checkpoints_dir
from opdkit.store.reading import is_complete
from opdkit.store.template_args import choose_template_args
from opdkit.train import checkpoints
from opdkit.train.batches import Step, draw_steps
from opdkit.train.best_state import (
    MUCH_LEFT,
    check_better,
    describe_state,
    find_best,
    has_stalled,
    has_two_broken,
    trace_steps,
)
from opdkit.train.data_summary import check_signal, count_written, print_composition
from opdkit.train.launch import check_launch, check_same_step, leave, open_part_writer, open_stage, start_accelerator
from opdkit.train.metrics import check_first_step, format_metrics, make_metrics_row, report_movement
from opdkit.train.model_card import make_model_card
from opdkit.train.policy import Policy
from opdkit.train.reference import add_reference, check_reference
from opdkit.train.schedule import choose_objective, find_position, make_objectives
from opdkit.train.sharding import shard
from opdkit.train.step import STOP_REQUESTS, take_optimizer_step
from opdkit.train.student import choose_compute_dtype, load_student, make_optimizer
from opdkit.train.targets import Prompts, check_student, load_prompts
from opdkit.train.training import Training
from opdkit.train.training_set import TrainingSet, list_batch_sessions, load_training_set
from opdkit.train.trust_region import make_trust_region
from opdkit.train.validation import Validation, choose_validation_steps
from opdkit.train.validation_models import has_room_for_base, open_validation
from opdkit.train.validation_turns import choose_hints, estimate_tokens_to_train

FEW_REPLIES = 10
LINES = 20  # progress lines per training
CHECKPOINT_SECONDS = 600.0  # longest time between checkpoints, unless --checkpoint-every is 0
ROLLBACK_RATE = 0.25  # factor on the learning rate after a rollback


def run(config: TrainConfig) -> Summary:
    """Train `--model` on the targets of the run; resume from its newest checkpoint."""
    check_launch(config)
    objectives = make_objectives(config)
    models = {"model": check_student(config.run, config.model, load_in_4bit=config.load_in_4bit)}
    check_options(config, "train")  # before the messages of `check_signal`, since this can refuse the training
    chat = load_template(config.model, choose_template_args(config.run, "teacher", config.template_arg))
    models |= check_reference(config, chat)

    data, prompts = load_training_set(config, objectives, chat)
    replies, sessions = data.replies, list_batch_sessions(data.replies, config)
    # Only validation on prompts with a hint can tell whether another cycle is needed.
    is_measured = any(reply.is_hinted for reply in data.validation)
    cycles = [
        draw_steps(data.phases, data.strengths, sessions, config.batch_turns,
                   range(n * data.epochs, (n + 1) * data.epochs), config.seed, config.order)
        for n in range(MOST_CYCLES if config.epochs is None and is_measured else 1)
    ]  # fmt: skip
    check_signal(data, cycles[0], config, objectives)
    counters = Counters(rows_in=data.scored, rows_out=len(replies), dropped=data.dropped)
    for by, number in count_written(replies).items():
        counters.count(by, number)
    if config.dry_run:
        counters.count("steps", len(cycles[0]))
        if is_main_process():
            print_composition(data, cycles)
            if is_complete(config.run, "train") and not config.overwrite:
                say("the training is finished: nothing is left to do")
        return Summary("train --dry-run", counters, 0, 1, where=None)

    accelerator = start_accelerator(config)
    main = accelerator.is_main_process
    stage = open_stage(config, accelerator, models)
    if not stage.todo():
        if main:
            checkpoints.clear(checkpoints_dir(config.run))  # a training that was killed at its very end leaves them
        leave(accelerator)
        return stage.summary()
    with stopping.stop_after_step(), open_part_writer(stage, accelerator) as out:
        prompts = prompts or load_prompts(config.run, replies, chat)
        training = start_training(config, data, prompts, cycles, chat, accelerator)
        validate_if_due(training)  # a training that was stopped left this out
        for number, done in iterate_steps(training):
            is_asked_to_stop = take_step(training, number, done / len(replies))[STOP_REQUESTS] > 0
            if config.keep_epochs and done % len(replies) == 0:
                epoch = done // len(replies)
                epoch_dir = stage.folder / "epochs" / f"{epoch:03d}"
                save_with_card(training, data, chat, epoch_dir, epoch=epoch, step=number, continues=True)
            if is_asked_to_stop and (number in training.validation_steps or number < len(training.steps)):
                save_checkpoint(training, number, stop=True)  # now, since a validation can take minutes
            validate_if_due(training)
            if not training.is_ended:
                save_checkpoint(training, number, stop=False)
        out.counters = counters
        kept = write_result(training, data, chat, stage.folder, out)
    if main:
        checkpoints.clear(training.folder)
    measured = training.measurements
    report_movement([training.rows[n - 1] for n in trace_steps(measured, kept)], config.run, validated=bool(measured),
                    rolled_back=any(row["went_back_to"] is not None for row in measured))  # fmt: skip
    say(f"the trained model is in {stage.folder / 'model'}")
    if len(replies) < FEW_REPLIES:
        warn(f"{counted(len(replies), 'reply')} {verb(len(replies), 'teaches', 'teach')} little: `opdkit report "
             f"{quote(config.run)}` shows where turns were dropped")  # fmt: skip
    leave(accelerator, training.model)
    return stage.summary()


def start_training(
    config: TrainConfig,
    data: TrainingSet,
    prompts: Prompts,
    cycles: list[list[Step]],
    chat: Chat,
    accelerator: Accelerator,
) -> Training:
    """Load the student, its optimizer and the validation; resume from the newest checkpoint if there is one."""
    folder = checkpoints_dir(config.run)
    replies = add_reference(data.replies, prompts, config, accelerator)  # before the student takes up memory
    student = load_student(config, on_cpu=config.sharding == "fsdp")
    trust = make_trust_region(config, student)
    model: Any = Policy(student)  # reads a few made-up sequences, which must happen before sharding
    if config.sharding == "fsdp":
        shard(model, resolve_device(config.device), choose_compute_dtype(config))
    optimizer = make_optimizer(student, config)
    state = checkpoints.read_newest(folder)
    rows: list[JSON] = state["rows"] if state else []
    check_same_step(len(rows))  # before the first measurement that all processes share
    if accelerator.is_main_process:
        checkpoints.remove_later_best(folder, len(rows))
    validation: Validation | None = None
    validation_steps: set[int] = set()
    if data.validation and (config.sharding == "none" or has_room_for_base(config, accelerator)):
        validation = open_validation(data.validation, chat, config, accelerator,
                                     hints=choose_hints([*data.replies, *data.validation]),
                                     rows=state["validations"] if state else (),
                                     sharded=None if config.sharding == "none" else model)  # fmt: skip
        tokens, first = estimate_tokens_to_train(replies, data.epochs), 0
        for cycle in cycles:
            validation_steps |= {first + n for n in choose_validation_steps(len(cycle), tokens, validation.cost)}
            first += len(cycle)
        if not validation.rows:
            track(accelerator, before := validation.measure(student, 0), "validation_")
            say(f"validation before training: replies {describe_state(before)}")
            validation.save_if_best(student)
    elif data.validation:
        warn("no validation: the whole model before training does not fit into memory beside this process's share of "
             "the training. A model that became worse is written, too")  # fmt: skip
    if state:
        checkpoints.restore(state, student, optimizer)
        trust.factor = state["factor"]
    if config.sharding == "none":
        model = accelerator.prepare_model(model)  # with several processes, it returns a DistributedDataParallel
    training = Training(config, make_objectives(config), replies, prompts, cycles, accelerator, folder, student, model,
                        optimizer, trust, rows, validation, validation_steps)  # fmt: skip
    training.plan_steps()
    if state:
        say(f"resuming after step {len(rows)} of {len(training.steps)}")
    return training


def iterate_steps(training: Training) -> Iterator[tuple[int, int]]:
    """Yield each remaining step as (its number from 1, the number of replies in all steps up to and including it).

    The caller may end the training, or add a cycle of steps, after any step.
    """
    replies = sum(len(step.replies) for step in training.steps[: len(training.rows)])
    while not training.is_ended and len(training.rows) < len(training.steps):
        first, total = len(training.rows) + 1, len(training.steps)
        with tally("train", total, "steps") as advance:
            advance(first - 1)
            for number in range(first, total + 1):
                replies += len(training.steps[number - 1].replies)
                yield number, replies
                if training.is_ended:
                    break
                advance(1)


def save_with_card(
    training: Training, data: TrainingSet, chat: Chat, folder: Path, *, epoch: int, step: int, continues: bool = False
) -> None:
    """Save the student, with its weights after `step` steps, and its model card in `folder`."""
    config, main = training.config, training.accelerator.is_main_process
    card = make_model_card(config, data, epoch, len(trace_steps(training.measurements, step)))
    checkpoints.save_student(training.student, chat, config, folder, card, main=main, continues=continues)


def write_result(training: Training, data: TrainingSet, chat: Chat, folder: Path, out: PartWriter) -> int:
    """Save the best state of the student in the stage's `folder`, and write the tables and counters of the training.

    Return the step after which it was reached. Raises NothingLearnedError if validation finds no state that is better
    than the student before training.
    """
    rows, validation, kept = training.rows, training.validation, len(training.rows)
    if validation:
        try:
            check_better(validation.rows, rows)
        except NothingLearnedError:
            # The weights of the best state are only of use with a checkpoint to resume from.
            if training.accelerator.is_main_process and not any(training.folder.glob("step-*.pt")):
                checkpoints.clear(training.folder)
            raise
        best = find_best(validation.rows)
        if best["step"] < len(rows):
            kept = validation.restore_best(training.student)
            say(f"the state after step {kept} of {len(rows)} is the best: that one is written")
        if (share := (best["hint_kl"] or 0.0) / (validation.rows[0]["hint_kl"] or math.inf)) > MUCH_LEFT:
            far = sorted(best["hint_kls"], key=lambda reply: reply["kl"], reverse=True)[:3]
            warn(f"{share:.0%} of the distance from the hinted teacher is left, most of it at turns "
                 f"{', '.join(reply['turn_id'] for reply in far)}: the model has not learned all that the hints ask "
                 "for. Look at their hints first: no training learns those that contradict each other or that the "
                 "teacher cannot follow. For others, more --epochs or more logs may help")  # fmt: skip
    out.add_rows("metrics", rows)
    out.add_rows("validations", training.measurements)
    out.counters.count("steps", len(training.steps))
    if len(rows) < len(training.steps):
        out.counters.count("steps left out", len(training.steps) - len(rows))
    out.counters.count("steps without a gradient", sum(row["skipped"] for row in rows))
    save_with_card(training, data, chat, folder, epoch=math.ceil(rows[kept - 1]["epoch"]), step=kept)
    return kept


def take_step(training: Training, number: int, epoch: float) -> dict[str, float]:
    """Do step `number` (from 1), and append its row to `training.rows`. Return its metrics."""
    config, steps = training.config, training.steps
    start = time.monotonic()
    torch.manual_seed(config.seed + number)  # depends only on the step: a resumed step draws the same numbers
    step = steps[number - 1]
    replies = [training.replies[i] for i in step.replies]
    step_in_cycle, cycle_steps = number - training.cycle_start, len(steps) - training.cycle_start
    objective = choose_objective(training.objectives[step.phase], config, step_in_cycle, cycle_steps)
    metrics = take_optimizer_step(training, replies, objective, find_position(config, step_in_cycle, cycle_steps))
    row = {"step": number, "epoch": epoch} | make_metrics_row(metrics, objective, replies, time.monotonic() - start)
    training.rows.append(row)
    if number == 1 and training.accelerator.is_main_process:
        check_first_step(row)
    track(training.accelerator, row)
    if number % math.ceil(len(steps) / LINES) == 0 or number == len(steps):
        say(format_metrics(row, len(steps)))
    return metrics


def validate_if_due(training: Training) -> None:
    """Measure the student if that is due after its last step, and act on the result.

    `plan_steps` adds a cycle if the last left something to learn. If it adds none, the training ends if replies no
    longer improve. If it does not end, it goes back to the best state after two broken ones in a row. The last state is
    not saved: `write_result` has it.
    """
    number, validation = len(training.rows), training.validation
    if not validation or number not in training.validation_steps or validation.rows[-1]["step"] == number:
        return
    row = validation.measure(training.student, number)
    track(training.accelerator, row, "validation_")
    say(f"validation after step {number}: replies {describe_state(row)}")
    planned = len(training.steps)
    training.plan_steps()
    if number == len(training.steps):
        training.is_ended = True
        return
    validation.save_if_best(training.student)
    if len(training.steps) > planned:
        distance = training.distance
        left = find_best(validation.rows, any_gain=True, distance=distance)[distance] / validation.rows[0][distance]
        say(f"{left:.0%} of the distance before training is left: "
            f"{counted(len(training.steps) - planned, 'more step')}")  # fmt: skip
    elif has_stalled(validation.rows, training.cycle_start, training.distance):
        say(f"training ends after step {number} of {planned}: the replies no longer improve")
        training.is_ended = True
    if not training.is_ended and has_two_broken(validation.rows):
        roll_back(training, validation)


def track(accelerator: Accelerator, row: JSON, prefix: str = "") -> None:
    """Send the numbers of a row of metrics or validations to the tracker, but not its turn ids."""
    numbers = {f"{prefix}{name}": value for name, value in row.items() if isinstance(value, (int, float))}
    accelerator.log(numbers, step=row["step"])


def roll_back(training: Training, validation: Validation) -> None:
    """Continue from the best state so far, with a new optimizer and a lower learning rate.

    The new optimizer keeps the old epsilon, because the gradients are as small and as noisy as before.
    """
    step, epsilon = validation.restore_best(training.student), training.optimizer.param_groups[0]["eps"]
    validation.rows[-1]["went_back_to"] = step
    training.optimizer = make_optimizer(training.student, training.config)
    for parameters in training.optimizer.param_groups:
        parameters["eps"] = epsilon
    training.trust.factor *= ROLLBACK_RATE
    say(f"two bad measurements in a row: back to the state of step {step}, at {ROLLBACK_RATE:g} of the learning rate")


def save_checkpoint(training: Training, number: int, *, stop: bool) -> None:
    """Write a checkpoint after step `number` if one is due. With `stop`, write it in any case, then raise Stopped."""
    config: TrainConfig = training.config
    accelerator, every, seconds = training.accelerator, config.checkpoint_every, time.monotonic() - training.saved
    # Only the main process reads the clock, so that all processes agree.
    if stop or (every and (number % every == 0 or broadcast_object_list([seconds > CHECKPOINT_SECONDS])[0])):
        training.saved = time.monotonic()
        more = {"validations": training.measurements, "factor": training.trust.factor}
        checkpoints.save(training.folder, training.student, training.optimizer, training.rows, more,
                         main=accelerator.is_main_process)  # fmt: skip
    if stop:
        accelerator.wait_for_everyone()  # until it is written: a launcher kills all processes when one exits
        stopping.count_finished()
        say(f"stopping after step {number} of {len(training.steps)}")
        leave(accelerator, training.model)
        raise stopping.Stopped
