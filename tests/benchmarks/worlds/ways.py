"""Alternatives to opdkit's default, on the same logs and models, each at its own best value.

    everything  TRL's SFT on all logged replies
    praised     TRL's SFT on the replies with reward +1
    kto         TRL's KTO on the replies with reward +1 and -1
    dpo         TRL's DPO: a reply of the hinted teacher against the logged reply, for each hint
    reaction    opdkit's default objective; each reaction itself is the hint (`--judge reaction`)
    rules       no training: the hints, merged, in the system prompt (`export --to rules`)

The learning rate is tuned; for `rules`, which has none, the number of rules. The trainings take as many epochs as one
cycle of opdkit's default, in batches of 16; those of `reaction`, as many cycles as its validation calls for. Batches of
SFT and DPO hold rows of similar lengths, which takes less time; all other options are the trainer's defaults. Nothing
is tuned for opdkit's default.
"""

import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from transformers import GenerationConfig

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat
from opdkit.commands.export.command import choose_schema, write_parquet
from opdkit.commands.export.command import run as export
from opdkit.commands.export.messages import (
    NotExportedError,
    TurnToExport,
    read_judged_turns,
)
from opdkit.commands.export.targets import TARGETS, trl_sft
from opdkit.config.export import ExportConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig, fit_epochs
from opdkit.judge.stage import run as judge
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.counters import Counters
from opdkit.store.reading import read_all
from opdkit.teacher.stage import run as teach

from ..learning.cells import Cell
from ..learning.runs import branch
from . import Built, built_in
from .measure import measure_model
from .trainings import training_cell

BATCH = 16
RATES = (3.2e-4, 1e-3, 3.2e-3)  # lower and higher rates were not the best on other builds
RATES_OF_PRAISED = (1e-3, 3.2e-3, 1e-2)  # the best on other builds was 3.2e-3 in every world
RULES = (1, 3, 6)  # as many values as there are rates
TRL = ("everything", "praised", "kto", "dpo")
REACTION = "reaction"
TEXTS = ("prompt", "completion", "chosen", "rejected")  # columns of TRL's rows
# way -> values to try
WAYS: dict[str, tuple[float, ...]] = dict.fromkeys((*TRL, REACTION), RATES) | {
    "praised": RATES_OF_PRAISED,
    "rules": RULES,
}


# -- what the ways start from ---------------------------------------------------------------------------------------


def prepare_reaction(built: Built, run: Path) -> None:
    """Write, beside `run`, the run whose hints are the reactions themselves."""
    reaction = shared(run) / REACTION
    if not reaction.exists():
        branch(run, reaction, ("extract",))
    judge(JudgeConfig(run=reaction, judge="reaction"))
    teach(TeacherConfig(run=reaction, model=str(built.model)))


def prepare_trl(run: Path) -> None:
    """Write what TRL trains on, beside `run`, which is judged and scored; exports that exist stay."""
    home = shared(run)
    for name, target in (("praised", "trl-sft"), ("kto", "trl-kto"), ("dpo", "trl-dpo")):
        if not (home / f"{name}.parquet").exists():
            export(ExportConfig(run=run, to=target, out=home / f"{name}.parquet"))
    schema = choose_schema(TARGETS["trl-sft"].columns, everything_rows(run))
    write_parquet(home / "everything.parquet", everything_rows(run), schema)


def shared(run: Path) -> Path:
    """Return the folder beside a run that holds what the trainings of its ways share."""
    return run.with_name(f"{run.name}-ways")


def _chat(built: Built) -> Chat:
    folder = str(built.model)
    return Chat(load_tokenizer(folder), {}, GenerationConfig.from_pretrained(folder).eos_token_id)


def _turns(run: Path) -> Iterator[TurnToExport]:
    return chain.from_iterable(read_judged_turns(run, None, Counters()))


def everything_rows(run: Path) -> Iterator[JSON]:
    """Yield a row of SFT for each judged reply, regardless of its reward."""
    for turn in _turns(run):
        with suppress(NotExportedError):
            yield trl_sft(replace(turn, verdict=turn.verdict | {"reward": 0}), (0,), 0)


# -- the ways -------------------------------------------------------------------------------------------------------


def measure_way(work: Path, world: str, way: str, value: float, seed: int) -> JSON:
    """Measure a way in a world: return its shares, lengths of requests, and tokens that models read and wrote.

    `tokens` are those that models read in training steps ("trained"), without a gradient ("scored": by a teacher or a
    reference), and wrote ("written", by the teacher).
    """
    built = built_in(work, world)
    run, here = built.folder / "run", work / "ways" / f"{built.folder.name}-{way}-{value:g}-{seed}"
    rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    if way == "rules":
        out = export(ExportConfig(run=run, to="rules", out=here / "rules.md", max_rules=int(value))).where
        found = measure_model(built, built.model, seed, out.read_text(encoding="utf-8").strip()) | {"tokens": {}}
    else:
        tokens = train_trl(built, run, way, value, seed, here)
        found = measure_model(built, here / "model", seed) | {"tokens": dict(tokens)}
    rmtree(here)
    return found


def train_trl(built: Built, run: Path, way: str, rate: float, seed: int, work: Path) -> Counter[str]:
    """Train with a trainer of TRL on the rows of a way; write `work`/model, and return the tokens."""
    os.environ["TQDM_DISABLE"] = "1"
    import datasets
    import trl

    file = shared(run) / f"{way}.parquet"
    rows = datasets.load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(work / "cache"))
    epochs = fit_epochs(math.ceil(sum(1 for _ in read_all(run, "targets")) / BATCH))
    name = {"kto": "KTO", "dpo": "DPO"}.get(way, "SFT")
    options = {} if name == "SFT" else {"precompute_ref_log_probs": True}  # the reference reads each reply once
    if name != "KTO":  # KTO's rows are in the order of their pairs
        rows = rows.map(lambda row: {"length": sum(len(str(row[name])) for name in TEXTS if name in row)})
        options |= {"train_sampling_strategy": "group_by_length", "remove_unused_columns": False}
    args = getattr(trl, f"{name}Config")(
        output_dir=str(work / "out"), learning_rate=rate, num_train_epochs=epochs, per_device_train_batch_size=BATCH,
        seed=seed, max_length=None, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    model, tokens = load_model(str(built.model), device="cpu", dtype="float32"), Counter[str]()
    trainer = getattr(trl, f"{name}Trainer")(
        model=model, args=args, train_dataset=rows, processing_class=load_tokenizer(str(built.model))
    )
    for each in {id(m): m for m in (trainer.model, getattr(trainer, "ref_model", None)) if m is not None}.values():
        each.register_forward_pre_hook(lambda _, args, named: _count_tokens(named, tokens), with_kwargs=True)
    trainer.train()
    if way == "dpo":
        tokens += tokens_of_teacher(run, _chat(built))
    model.save_pretrained(work / "model")
    load_tokenizer(str(built.model)).save_pretrained(work / "model")
    return tokens


def _count_tokens(named: dict[str, Any], tokens: Counter[str]) -> None:
    mask = named.get("attention_mask")
    read = named["input_ids"].numel() if mask is None else int(mask.sum())
    tokens["trained" if torch.is_grad_enabled() else "scored"] += read


def tokens_of_teacher(run: Path, chat: Chat) -> Counter[str]:
    """Return the tokens that the hinted teacher read and wrote for its replies."""
    lengths = {r["turn_id"]: len(r["response_ids"]) for r in read_all(run, "targets") if r["written"] is not None}
    tokens = Counter(written=sum(lengths.values()))
    for turn in _turns(run):
        if turn.turn_id in lengths:
            hinted = with_hint(turn.session["messages"][: turn.index], turn.verdict["hint"], "last-user")
            tokens["scored"] += len(chat.prompt_ids(hinted, turn.session["tools"]))
    return tokens


def way_cell(world: str, way: str, value: float, seed: int) -> Cell:
    """Return the cell of a way; for raw reactions, that of a training of opdkit."""
    if way == REACTION:
        return training_cell(world, seed, TrainConfig.objective, value, f"{shared(Path('run'))}/reaction")
    settings = {"world": world, "way": way, "value": value, "seed": seed}
    return Cell(f"way-{world}-{way}-{value:g}-{seed}", measure_way, settings)
