"""`opdkit train`: targets -> a better model.

Off-policy: the replies are those of the log, and the old policy is the student as the teacher stage scored it. Training
runs in one process, or in several that share every optimizer step (`torchrun`, `accelerate launch`). The loss and the
gradient of a step are the same to rounding, however it is split.
"""

import math
import time

import torch
from torch import nn

from opdkit.chat.template import Chat
from opdkit.config.command_line import quote
from opdkit.config.fields import JSON, parse_pairs
from opdkit.config.train import TrainConfig
from opdkit.console import is_main_process, progress, say, warn
from opdkit.model.load import load_tokenizer, resolve_device
from opdkit.store import stopping
from opdkit.store.counters import Counters, Summary
from opdkit.store.plans import check_options
from opdkit.store.template_args import template_args_of
from opdkit.store.turn_ids import first_branch
from opdkit.train import checkpoints
from opdkit.train.batches import optimizer_steps
from opdkit.train.best_state import best, check_better, describe_state, is_over, is_worse
from opdkit.train.data_summary import check_signal, describe
from opdkit.train.launch import check_launch, check_same_step, leave, open_stage, part_writer, start_accelerator
from opdkit.train.metrics import metrics_line, metrics_row, report_movement
from opdkit.train.model_card import model_card
from opdkit.train.policy import Policy
from opdkit.train.reference import check_reference, with_reference
from opdkit.train.schedule import objective_at, objectives, position_at
from opdkit.train.sharding import shard
from opdkit.train.step import STOP_REQUESTS, optimizer_step
from opdkit.train.student import compute_dtype, load_student, make_optimizer
from opdkit.train.targets import check_student, load_prompts
from opdkit.train.training_set import load_training_set
from opdkit.train.trust_region import TrustRegion, make_trust_region
from opdkit.train.validation import Validations, open_validation, steps_to_check, tokens_to_train

FEW_TURNS = 10
LINES = 20  # lines of progress in a run
BACK_RATE = 0.25  # of the learning rate, with which a training goes on from an earlier state


def run(config: TrainConfig) -> Summary:
    """Train `--model` on the targets of the run; resume from its newest checkpoint."""
    check_launch(config)
    phases = objectives(config)
    models = {"model": check_student(config.run, config.model, load_in_4bit=config.load_in_4bit)}
    check_options(config, "train")  # before anything is said of a training that is refused
    template_args = template_args_of(config.run, "teacher", config.template_arg)
    chat = Chat(load_tokenizer(config.model), parse_pairs(template_args, "--template-arg"))
    models |= check_reference(config, chat)

    # Training set and steps.
    data, prompts = load_training_set(config, phases, chat)
    turns = data.turns
    sessions = [first_branch(turn.session_id) for turn in turns] if config.batch_by == "session" else None
    steps = optimizer_steps(
        data.phases, data.strengths, sessions, config.batch_turns, data.epochs, config.seed, config.order
    )
    check_signal(data, steps, config, phases)
    counters = Counters(rows_in=data.scored, rows_out=len(turns), dropped=data.dropped)
    counters.count("steps", len(steps))
    counters.count("written by the teacher", sum(turn.written is not None for turn in turns))
    if config.dry_run:
        if is_main_process():
            describe(data, steps)
        return Summary("train --dry-run", counters, 0, 1, where=None)

    accelerator = start_accelerator(config)
    main = accelerator.is_main_process
    stage = open_stage(config, accelerator, models)
    folder = stage.home / "checkpoints"
    if not stage.todo():
        if main:
            checkpoints.clear(folder)  # a training that is killed at its very end leaves one
        leave(accelerator)
        return stage.summary()
    with stopping.stop_after_step(), part_writer(stage, accelerator) as out:
        # Student and optimizer, from the newest checkpoint if there is one.
        prompts = prompts or load_prompts(config.run, turns, chat)
        turns = with_reference(turns, prompts, config, accelerator)  # before the student takes its memory
        student = load_student(config, on_cpu=config.sharding == "fsdp")
        trust = make_trust_region(config, student)
        model: nn.Module = Policy(student)  # tries a few sequences, so it comes before sharding
        if config.sharding == "fsdp":
            shard(model, resolve_device(config.device), compute_dtype(config))
        optimizer = make_optimizer(student, config)
        state = checkpoints.read_newest(folder)
        rows: list[JSON] = state["rows"] if state else []
        validations = None
        if data.validation and config.sharding == "none":
            validation = open_validation(data.validation, chat, config, accelerator)
            checked = steps_to_check(len(steps), tokens_to_train(turns, data.epochs), validation.cost)
            validations = Validations(validation, len(steps), folder, state["validations"] if state else [])
            if not validations.rows:
                validations.measure(student, 0)
        check_same_step(len(rows))
        if state:
            checkpoints.restore(state, student, optimizer)
            trust.factor = state["factor"]
            say(f"resuming after step {len(rows)} of {len(steps)}")
        if config.sharding == "none":
            model = accelerator.prepare_model(model)  # several processes: DistributedDataParallel

        # The loop. `done` counts turns, over all epochs.
        done = sum(len(step.turns) for step in steps[: len(rows)])
        for number in progress(range(len(rows) + 1, len(steps) + 1), "train", len(steps) - len(rows), "steps"):
            start = time.monotonic()
            torch.manual_seed(config.seed + number)  # a function of the step: a resumed step draws the same numbers
            step = steps[number - 1]
            batch = [turns[i] for i in step.turns]
            objective = objective_at(phases[step.phase], config, number, len(steps))
            position = position_at(config, number, len(steps))
            metrics = optimizer_step(model, optimizer, batch, prompts, objective, config, accelerator, position, trust)
            done += len(batch)
            seconds = time.monotonic() - start
            rows.append({"step": number, "epoch": done / len(turns)} | metrics_row(metrics, objective, batch, seconds))
            accelerator.log({k: v for k, v in rows[-1].items() if v is not None}, step=number)
            if number % math.ceil(len(steps) / LINES) == 0 or number == len(steps):
                say(metrics_line(rows[-1], len(steps)))
            if config.keep_epochs and done % len(turns) == 0:
                epoch_dir = checkpoints.epoch_dir(stage.home, done // len(turns))
                card = model_card(config, data, done // len(turns), number)
                checkpoints.save_student(student, chat, config, epoch_dir, card, main=main, continues=True)
            if validations and number in checked:
                row = validations.measure(student, number)
                accelerator.log({f"validation_{k}": v for k, v in row.items() if v is not None}, step=number)
                say(f"validation after step {number}: replies {describe_state(row)}")
                if is_over(validations.rows) and number < len(steps):
                    say(f"training ends after step {number} of {len(steps)}: the replies no longer improve")
                    counters.count("steps left out", len(steps) - number)
                    break
                if is_worse(validations.rows) and number < len(steps):
                    optimizer = go_back(validations, student, optimizer, trust, config)
            stop = metrics[STOP_REQUESTS] > 0 and number < len(steps)
            if stop or (config.checkpoint_every and number % config.checkpoint_every == 0):
                more = {"validations": validations.rows if validations else [], "factor": trust.factor}
                checkpoints.save(folder, student, optimizer, rows, more, main=main)
            if stop:
                accelerator.wait_for_everyone()  # until the checkpoint is written: a launcher kills all when one ends
                stopping.count_finished()
                say(f"stopping after step {number} of {len(steps)}")
                leave(accelerator, model)
                raise stopping.Stopped

        kept = len(rows)
        if validations:
            check_better(validations.rows, rows)
            if best(validations.rows)["step"] < len(rows):
                kept = validations.restore_best(student)
                say(f"the state after step {kept} of {len(rows)} is the best: it is the one that is handed out")
        out.rows("metrics", rows)
        out.rows("validations", validations.rows if validations else [])
        counters.count("steps without a gradient", sum(row["skipped"] for row in rows))
        out.counters = counters
        card = model_card(config, data, math.ceil(rows[kept - 1]["epoch"]), kept)
        checkpoints.save_student(student, chat, config, stage.home, card, main=main)
    if main:
        checkpoints.clear(folder)
    report_movement(rows, config.run, validated=validations is not None)
    say(f"the trained model is in {stage.home / 'model'}")
    if len(turns) < FEW_TURNS:
        warn(f"{len(turns)} replies teach little: `opdkit report {quote(config.run)}` shows where turns were dropped")
    leave(accelerator, model)
    return stage.summary()


def go_back(
    validations: Validations,
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    trust: TrustRegion,
    config: TrainConfig,
) -> torch.optim.Optimizer:
    """Load the best state so far into the student, lower the rate, and return a new optimizer.

    Its epsilon stays: gradients are as small as before, and as noisy.
    """
    step, epsilon = validations.restore_best(student), optimizer.param_groups[0]["eps"]
    optimizer = make_optimizer(student, config)
    for parameters in optimizer.param_groups:
        parameters["eps"] = epsilon
    trust.factor *= BACK_RATE
    say(f"two broken states in a row: on from step {step}, at {BACK_RATE:g} of the rate")
    return optimizer
