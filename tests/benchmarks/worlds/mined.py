"""Prompts of `opdkit eval --from-log` compared with the truth: the model before training, and the models at the end of
trainings at several rates, answer these and the held-out prompts. A judge that knows the world answers the questions.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import rmtree

import torch

from opdkit.chat.template import Chat
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.config.train import TrainConfig
from opdkit.config.wording import DEFAULTS
from opdkit.errors import OpdkitError
from opdkit.evaluate.checks import CORRECTED, UNCORRECTED, Criterion, HeldOutPrompt, read_prompts
from opdkit.evaluate.generation import generate, prompt_ids
from opdkit.evaluate.log_prompts import count_reactions, make_prompts, read_reactions
from opdkit.model.behavior_policy import list_student_names
from opdkit.model.load import context_length, load_model, load_tokenizer
from opdkit.train.stage import run as train

from ..learning.cells import Cell
from ..learning.runs import ALONE, branch, final_model, replies_of
from . import Built, built_in
from .measure import measure_replies, writes
from .small_talk import small_talk_of
from .users import hint_of
from .world import Topic, passes

HOLDOUT = 0.3
TRUE_SAMPLES, SAMPLES = 16, 4  # replies to each held-out prompt, and to each prompt from the log as in `eval`
# The default, and trainings that nothing holds back: low rates learn too little, high rates break the model.
RATES = (1e-5, 3.2e-5, 1e-4, 3.2e-4, 1e-3, 3.2e-3, 1e-2)
TRAININGS: dict[str, JSON] = {"default": {}} | {f"{rate:g}": ALONE | {"learning_rate": rate} for rate in RATES}


def measure_mined(work: Path, world: str, seed: int) -> JSON:
    """Return each checkpoint's shares passed, mined and true, and how many mined prompts a right reply fails."""
    built, here = built_in(work, world), work / "mined" / f"{world}-{seed}"
    run = branch(built.folder / "run", here / "log", ("extract", "judge"))
    model = load_model(str(built.model), device="cpu", dtype="float32")
    chat = Chat(load_tokenizer(str(built.model)), {}, model.generation_config.eos_token_id)
    file = here / "mined.jsonl"
    reactions = list(read_reactions(run, HOLDOUT))
    counts = count_reactions(run, reactions)
    names = list_student_names(str(built.model), {})
    rows, _ = make_prompts(reactions, counts, chat, context_length(model), DEFAULTS["criterion"], names)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    mined, true = read_prompts(file), read_prompts(built.prompts)
    marks = list[JSON]()
    for name in ("before", *TRAININGS):
        folder = built.model if name == "before" else _trained(built, here / name, seed, TRAININGS[name])
        model = load_model(str(folder), device="cpu", dtype="float32") if folder is not None else None
        if model is not None and writes(model):
            shares = measure_replies(replies_of(model, chat, true, seed, TRUE_SAMPLES, built.world.max_new_tokens))
            found = dict(_mined_shares(built, model, chat, mined, seed))
            marks.append({"model": name, CORRECTED: shares[CORRECTED], UNCORRECTED: shares[UNCORRECTED],
                          "mined": found})  # fmt: skip
    failed = [prompt.id for prompt in mined if not is_passed(built, prompt, right_reply(built, prompt))]
    rmtree(here)
    return {"prompts": len(mined), "failed": len(failed), "marks": marks,
            "by_judge": sum(isinstance(prompt.check, Criterion) for prompt in mined)}  # fmt: skip


def _trained(built: Built, run: Path, seed: int, options: JSON) -> Path | None:
    """Return the folder of the model that a training writes; None if it writes no model."""
    branch(built.folder / "run", run)
    with suppress(OpdkitError):
        train(TrainConfig(run=run, model=str(built.model), seed=seed, holdout=HOLDOUT, device="cpu",
                          checkpoint_every=0, **options))  # fmt: skip
    return folder if (folder := final_model(run)).exists() else None


def _mined_shares(
    built: Built, model: torch.nn.Module, chat: Chat, prompts: list[HeldOutPrompt], seed: int
) -> Iterator[tuple[str, float]]:
    """Yield the shares of sampled replies that pass, to mined prompts with a complaint and to the others."""
    longest = built.world.max_new_tokens
    config = EvalConfig(run=Path("-"), prompts="-", samples=SAMPLES, max_new_tokens=longest, seed=seed)
    asked = [(p, prompt_ids(chat, p, longest, context_length(model))) for p in prompts]
    replies = [r for r in generate("after", model, chat, asked, config) if r.sample]
    for name, kind in ((CORRECTED, True), (UNCORRECTED, False)):
        verdicts = [is_passed(built, r.prompt, r.seen) for r in replies if r.prompt.corrected == kind]
        if verdicts:
            yield name, sum(verdicts) / len(verdicts)


def asked_for(built: Built, prompt: HeldOutPrompt) -> tuple[Topic, str, str]:
    """Return topic and item of the last request of a prompt, and the style that its user wants."""
    system = prompt.messages[0]["content"] if prompt.messages[0]["role"] == "system" else None
    wishes = next(group.wishes for group in built.world.groups if system in group.systems)
    for message in reversed(prompt.messages):
        for topic in (*built.world.topics, *small_talk_of(built.world)):
            for item in topic.items:
                if message["role"] == "user" and any(r.format(item) in message["content"] for r in topic.requests):
                    return topic, item, wishes.get(topic.name, topic.styles[0].name)
    raise ValueError(f"no request in {prompt.messages}")


def right_reply(built: Built, prompt: HeldOutPrompt) -> str:
    topic, item, wish = asked_for(built, prompt)
    return topic.style(wish).reply(item)


def is_passed(built: Built, prompt: HeldOutPrompt, reply: str) -> bool:
    """Return whether a reply passes a prompt's check; a judge that knows the world answers a check by question."""
    if not isinstance(prompt.check, Criterion):
        return bool(prompt.check.passes(reply))
    topic, item, wish = asked_for(built, prompt)
    if prompt.check.hint is None:  # the reply must be right, and in the style of the praised reply
        praised = str(prompt.check.praised)
        styles = [style.name for style in topic.styles if passes(topic, item, style.name, praised)]
    else:
        styles = [s.name for s in topic.styles if prompt.check.hint in {hint_of(words) for words in s.wordings()}]
    return any(passes(topic, item, style, reply) for style in styles or [wish])


def mined_cell(world: str, seed: int) -> Cell:
    return Cell(f"mined-{world}-{seed}", measure_mined, {"world": world, "seed": seed})
