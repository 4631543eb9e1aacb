"""What a user would do instead of opdkit's default, on the same logs and models, each at its own best value.

    everything  TRL's SFT on all logged replies
    praised     TRL's SFT on those with reward +1
    kto         TRL's KTO on those with reward +1 and -1
    dpo         TRL's DPO: a reply of the hinted teacher against the logged one, for each hint
    reaction    opdkit's default objective; each reaction itself is the hint (`--judge reaction`)
    rules       no training: the hints, merged, in the system prompt (`export --to rules`)
    default     opdkit's default, with a learning rate as all others
    unrated     opdkit's default as it is, without a learning rate

What is tuned is the learning rate; of `rules`, which has none, the number of rules. All trainings take two epochs in
batches of 16; what else a trainer decides is its own default.
"""

import argparse
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from shutil import rmtree
from typing import Any

import pyarrow as pa
import torch
from transformers import GenerationConfig

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.messages import message
from opdkit.chat.template import Chat
from opdkit.commands.export.command import message_type, write_rows
from opdkit.commands.export.command import run as export
from opdkit.commands.export.messages import (
    JudgedTurn,
    NotExportedError,
    completion_of,
    prompt_of,
    read_judged_turns,
    tools_of,
)
from opdkit.commands.export.targets import MESSAGES, TARGETS, trl_sft
from opdkit.config.export import ExportConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED, HeldOutPrompt, read_prompts
from opdkit.judge.stage import run as judge
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.counters import Counters
from opdkit.store.reading import part_count, read_all, summary_of
from opdkit.teacher.stage import run as teach
from opdkit.train.stage import run as train

from ..learning.cells import Cell, measured
from ..learning.runs import branch, final_model, first_replies
from ..pairs import one_row_per_line
from . import WORLDS
from .build import Built, build
from .measure import prepared

RESULTS = Path(__file__).parent.parent / "results" / "ways.json"
EPOCHS, BATCH = 2, 16
RATES = (1e-5, 3.2e-5, 1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2)
RULES = (1, 2, 3, 5, 8, 13, 20)  # as many values as there are rates
TUNING_SEEDS, SEEDS = (100, 101), (0, 1, 2)
FINALISTS = 3  # values that are tried with all tuning seeds
RATED = ("everything", "praised", "kto", "dpo", "reaction", "default")
# way -> values to try
WAYS: dict[str, tuple[float, ...]] = dict.fromkeys(RATED, RATES) | {"rules": RULES, "unrated": (0.0,)}
BASE = "base"  # the model before training
_ROWS = {
    "everything": TARGETS["trl-sft"].columns,
    "dpo": {"prompt": MESSAGES, "chosen": MESSAGES, "rejected": MESSAGES, "tools": pa.string()},
}


@dataclass(frozen=True)
class Outcome:
    """What a way gives its user: a model, with a system prompt or none, and the tokens that models read for it.

    `tokens`: read in training steps ("trained"), read without a gradient ("scored": by a teacher or a reference), in
    validation ("validated"), and "written" by the teacher.
    """

    model: Path
    system: str | None = None
    tokens: Counter[str] = field(default_factory=Counter)


# -- what the ways begin from ---------------------------------------------------------------------------------------


def prepare_ways(built: Built, run: Path) -> None:
    """Write what all trainings of a way share, beside `run`, which is judged and scored; what is there stays."""
    home = _shared(run)
    reaction = home / "reaction"
    if not reaction.exists():
        branch(run, reaction, ("extract",))
    judge(JudgeConfig(run=reaction, judge="reaction"))
    teach(TeacherConfig(run=reaction, model=str(built.model)))
    written = home / "written"
    if not written.exists():
        branch(run, written, ("extract", "judge"))
    teach(TeacherConfig(run=written, model=str(built.model), teacher_samples=1, top_k=0,
                        max_new_tokens=built.world.max_new_tokens))  # fmt: skip
    for name, target in (("praised", "trl-sft"), ("kto", "trl-kto")):
        if not (home / f"{name}.parquet").exists():
            export(ExportConfig(run=run, to=target, out=home / f"{name}.parquet"))
    chat = _chat(built)
    for name, rows in (("everything", everything_rows(run)), ("dpo", dpo_rows(written, chat))):
        messages = pa.list_(message_type(run, part_count(run, "extract")))
        schema = pa.schema([(column, messages if kind == MESSAGES else kind) for column, kind in _ROWS[name].items()])
        write_rows(home / f"{name}.parquet", rows, schema, jsonl=False)


def _shared(run: Path) -> Path:
    return run.with_name(f"{run.name}-ways")


def _chat(built: Built) -> Chat:
    folder = str(built.model)
    return Chat(load_tokenizer(folder), {}, GenerationConfig.from_pretrained(folder).eos_token_id)


def _turns(run: Path) -> Iterator[JudgedTurn]:
    return chain.from_iterable(read_judged_turns(run, None, Counters()))


def everything_rows(run: Path) -> Iterator[JSON]:
    """Yield a row of SFT for each judged reply, whatever its reward."""
    for turn in _turns(run):
        with suppress(NotExportedError):
            yield trl_sft(replace(turn, verdict=turn.verdict | {"reward": 0}), (0,), 0)


def dpo_rows(run: Path, chat: Chat) -> Iterator[JSON]:
    """Yield a row of DPO per hint: a reply of the hinted teacher, where it ended, is chosen over the logged one."""
    ids = {row["turn_id"]: list(row["response_ids"]) for row in read_all(run, "targets") if row["written"] is not None}
    for turn in _turns(run):
        reply = ids.get(turn.turn_id)
        if reply is None or reply[-1] not in chat.stop_ids:
            continue
        with suppress(NotExportedError):
            chosen = [{"role": "assistant", "content": chat.text(reply[:-1])}]
            yield {"prompt": prompt_of(turn), "chosen": chosen, "rejected": completion_of(turn),
                   "tools": tools_of(turn)}  # fmt: skip


# -- the ways -------------------------------------------------------------------------------------------------------


def run_way(built: Built, run: Path, way: str, value: float, seed: int, work: Path) -> Outcome:
    """Do as a way does in the folder `work`, with a learning rate, or with a number of rules, of `value`."""
    if way == BASE:
        return Outcome(built.model)
    if way == "rules":
        out = export(ExportConfig(run=run, to="rules", out=work / "rules.md", max_rules=int(value))).where
        return Outcome(built.model, out.read_text(encoding="utf-8").strip())
    if way in ("default", "unrated", "reaction"):
        return train_opdkit(built, _shared(run) / way if way == "reaction" else run, value or None, seed, work)
    return train_trl(built, run, way, value, seed, work)


def train_opdkit(built: Built, source: Path, rate: float | None, seed: int, work: Path) -> Outcome:
    """Train with opdkit's defaults. A training that hands out no model leaves the user the one before."""
    run = branch(source, work / "run")
    tokens = Counter(scored=summary_of(source, "teacher").counters.total("tokens read"))
    try:
        train(TrainConfig(run=run, model=str(built.model), seed=seed, epochs=EPOCHS, learning_rate=rate))
    except OpdkitError as error:
        print(f"no model: {error}")
        return Outcome(built.model, tokens=tokens)
    for name, table in (("trained", "metrics"), ("validated", "validations")):
        tokens[name] = sum(row["tokens_read"] for row in read_all(run, table))
    return Outcome(final_model(run), tokens=tokens)


def train_trl(built: Built, run: Path, way: str, rate: float, seed: int, work: Path) -> Outcome:
    """Train with a trainer of TRL on the rows of a way."""
    os.environ["TQDM_DISABLE"] = "1"
    import datasets
    import trl

    file = _shared(run) / f"{way}.parquet"
    rows = datasets.load_dataset("parquet", data_files=str(file), split="train", cache_dir=str(work / "cache"))
    name = {"kto": "KTO", "dpo": "DPO"}.get(way, "SFT")
    once = {} if name == "SFT" else {"precompute_ref_log_probs": True}  # the reference reads each reply once
    args = getattr(trl, f"{name}Config")(
        output_dir=str(work / "out"), learning_rate=rate, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH,
        seed=seed, max_length=None, use_cpu=True, bf16=False, gradient_checkpointing=False, report_to="none",
        save_strategy="no", logging_strategy="no", disable_tqdm=True, **once,
    )  # fmt: skip
    model, tokens = load_model(str(built.model), device="cpu", dtype="float32"), Counter[str]()
    trainer = getattr(trl, f"{name}Trainer")(
        model=model, args=args, train_dataset=rows, processing_class=load_tokenizer(str(built.model))
    )
    for each in {id(m): m for m in (trainer.model, getattr(trainer, "ref_model", None)) if m is not None}.values():
        each.register_forward_pre_hook(lambda _, args, named: _count_tokens(named, tokens), with_kwargs=True)
    trainer.train()
    if way == "dpo":
        tokens += tokens_of_teacher(_shared(run) / "written", _chat(built))
    model.save_pretrained(work / "model")
    load_tokenizer(str(built.model)).save_pretrained(work / "model")
    return Outcome(work / "model", tokens=tokens)


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


# -- what comes of them ---------------------------------------------------------------------------------------------


def with_system(prompt: HeldOutPrompt, system: str | None) -> HeldOutPrompt:
    """Return a held-out prompt with a text at the end of its system prompt, which is made where there is none."""
    first, *rest = prompt.messages
    if system is None:
        return prompt
    if first["role"] == "system":
        return replace(prompt, messages=[first | {"content": f"{first['content']}\n\n{system}"}, *rest])
    return replace(prompt, messages=[message("system", system), first, *rest])


def measure_outcome(built: Built, outcome: Outcome, seed: int) -> JSON:
    """Return the shares of held-out replies that pass, corrected and not, and the tokens of a request."""
    weights = load_model(str(outcome.model), device="cpu", dtype="float32").parameters()
    if not all(bool(weight.isfinite().all()) for weight in weights):
        return {CORRECTED: 0.0, UNCORRECTED: 0.0, "prompt_tokens": None, "reply_tokens": None}  # it writes nothing
    world, passed = built.world, {True: list[bool](), False: list[bool]()}
    lengths = list[tuple[int, int]]()
    prompts = [with_system(prompt, outcome.system) for prompt in read_prompts(built.prompts)]
    for reply in first_replies(outcome.model, prompts, seed, world.samples, world.max_new_tokens):
        passed[bool(reply.prompt.corrected)].append(bool(reply.passed))
        lengths.append((len(reply.sequence.prompt_ids), len(reply.sequence.response_ids)))
    shares = {name: sum(passed[kind]) / len(passed[kind]) for name, kind in ((CORRECTED, True), (UNCORRECTED, False))}
    read, written = (sum(numbers) / len(numbers) for numbers in zip(*lengths, strict=True))
    return shares | {"prompt_tokens": read, "reply_tokens": written}


def measure_way(work: Path, world: str, folder: str, way: str, value: float, seed: int) -> JSON:
    """Return the numbers of a way in a world that was built in `folder`, and its run prepared."""
    built = Built(WORLDS[world], Path(folder))
    here = work / "ways" / f"{built.folder.name}-{way}-{value:g}-{seed}"
    rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    outcome = run_way(built, built.folder / "run", way, value, seed, here)
    numbers = measure_outcome(built, outcome, seed) | {"tokens": dict(outcome.tokens)}
    rmtree(here)
    return numbers


# -- cells ----------------------------------------------------------------------------------------------------------


def cell(built: Built, way: str, value: float, seed: int) -> Cell:
    settings = {"world": built.world.name, "folder": str(built.folder), "way": way, "value": value, "seed": seed}
    return Cell(f"way-{built.folder.name}-{way}-{value:g}-{seed}", measure_way, settings)


def best_values(built: Built, way: str, tried: dict[str, JSON], seeds: Sequence[int]) -> list[float]:
    """Return the values that were tried with all of `seeds`, the best first: both shares count alike."""

    def end(value: float) -> float:
        return sum(tried[name][CORRECTED] + tried[name][UNCORRECTED] for name in names(value))

    def names(value: float) -> list[str]:
        return [cell(built, way, value, seed).name for seed in seeds]

    return sorted((value for value in WAYS[way] if tried.keys() >= set(names(value))), key=end, reverse=True)


def measure_world(built: Built, ways: Sequence[str], work: Path, workers: int) -> list[JSON]:
    """Return a row per way in a world: values are chosen first, with seeds that nothing else uses.

    All values are tried with one of these seeds, the best of them with the others, too.
    """
    prepare_ways(built, prepared(built, built.folder / "run"))
    first, *others = TUNING_SEEDS
    tried = measured([cell(built, way, value, first) for way in ways for value in WAYS[way]], work, workers, {})
    finalists = {way: best_values(built, way, tried, [first])[:FINALISTS] for way in ways}
    cells = [cell(built, way, value, seed) for way in ways for value in finalists[way] for seed in others]
    tried |= measured(cells, work, workers, {})
    best = {way: best_values(built, way, tried, TUNING_SEEDS)[0] for way in ways}
    cells = [cell(built, way, value, seed) for way, value in {BASE: 0.0, **best}.items() for seed in SEEDS]
    numbers = measured(cells, work, workers, {})
    return [row_of(built, way, value, numbers) for way, value in best.items()]


def row_of(built: Built, way: str, value: float, numbers: dict[str, JSON]) -> JSON:
    """Return what a way reached with a value: per reported seed, with the differences to the model before training.

    Its tokens are those of one training, and those of a request.
    """
    after, before = ([numbers[cell(built, name, used, seed).name] for seed in SEEDS]
                     for name, used in ((way, value), (BASE, 0.0)))  # fmt: skip
    requests = [each["prompt_tokens"] + each["reply_tokens"] for each in after if each["prompt_tokens"] is not None]
    return {
        "world": built.folder.name, "way": way, "value": value,
        **{name: [each[name] for each in after] for name in (CORRECTED, UNCORRECTED)},
        "gain": [a[CORRECTED] - b[CORRECTED] for a, b in zip(after, before, strict=True)],
        "forgetting": [b[UNCORRECTED] - a[UNCORRECTED] for a, b in zip(after, before, strict=True)],
        "tokens": after[0]["tokens"], "request_tokens": sum(requests) / len(requests) if requests else None,
    }  # fmt: skip


def main() -> None:
    own = [name for name, world in WORLDS.items() if not world.aside]
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.worlds.ways", description=__doc__)
    parser.add_argument("worlds", nargs="*", default=own, help="default: all that are not kept aside")
    parser.add_argument("--ways", nargs="*", choices=WAYS, default=list(WAYS))
    parser.add_argument("--irrelevant", type=float, default=0.0, help="share of irrelevant reactions in the logs")
    parser.add_argument("--work", type=Path, default=Path("runs/worlds"), help="worlds, their runs, and the cells")
    parser.add_argument("--workers", type=int, default=1, help="trainings side by side, a core each")
    options = parser.parse_args()
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["ways"] if RESULTS.exists() else []
    rows = {(row["world"], row["way"]): row for row in found}
    for name in options.worlds:
        folder = options.work / (name + (f"-{options.irrelevant:g}" if options.irrelevant else ""))
        built = build(WORLDS[name], folder, irrelevant=options.irrelevant)
        measured_rows = measure_world(built, options.ways, options.work, options.workers)
        rows |= {(row["world"], row["way"]): row for row in measured_rows}
        RESULTS.write_text(one_row_per_line({"ways": list(rows.values())}), encoding="utf-8")


if __name__ == "__main__":
    main()
