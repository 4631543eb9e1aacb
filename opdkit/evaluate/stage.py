"""`opdkit eval`: the model before and after training, side by side, on prompts that were held out.

Three questions: do its replies do better (share of checks passed), did the training take (log-probs of logged replies
that were judged good and bad), and what did it cost (reply length, replies that speak of a hint nobody gave, and how
far the model moved on its own replies and on text that nothing pushes on).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from opdkit.chat.template import Chat
from opdkit.config.command_line import quote
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON, parse_pairs
from opdkit.console import counted, is_main_process, say
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.checks import Criterion, HeldOutPrompt, read_prompts
from opdkit.evaluate.drift import (
    MAX_TURNS,
    Shift,
    few,
    kl_shifts,
    neutral_passages,
    passage_sequences,
    reply_shifts,
)
from opdkit.evaluate.replies import Reply, checked, generate, measured, prompt_ids, with_echoes
from opdkit.evaluate.scores import MODELS, logprob_score, neutral_kl_score, reply_kl_scores, reply_scores
from opdkit.evaluate.screen import show
from opdkit.model.folder import check_model_folder
from opdkit.model.load import check_same_tokenizer, context_length, load_model, load_tokenizer
from opdkit.model.scoring import PromptResponse as ScoredSequence
from opdkit.store import (
    Stage,
    Summary,
    manifest,
    model_identity,
    part_count,
    part_path,
    read_arrow,
    read_part,
)
from opdkit.store.digests import file_digest
from opdkit.store.plans import stage_dir
from opdkit.store.reviews import check_targets_current, decided_in, plan_inputs, reviews_in_force
from opdkit.store.tables import REPLIES, SCORES
from opdkit.store.template_args import template_args_of
from opdkit.train.targets import Turn, is_held_out, load_prompts, load_turns


def run(config: EvalConfig) -> Summary:
    """Compare `--model` (before) with `--trained` (after); prints the scores as a table on stdout."""
    prompts = read_prompts(Path(config.prompts), config.max_prompts)
    _refuse(config, prompts)
    check_targets_current(config.run)
    names = _names(config)
    passages = (
        neutral_passages(config.run, config.neutral_text) if config.neutral_text or _has(config, "extract") else []
    )
    hints = run_hints(config.run) if _has(config, "judge") else set()
    # Before the plan is pinned, as long as nothing is: what fails here must not bind the next attempt.
    loaded = None if _has(config, "eval") else _load(config, names, prompts)
    stage = _open(config, names)
    if stage.todo():
        with stage.writing(0) as out:
            models, chat, asked = loaded or _load(config, names, prompts)
            replies = [r for label in MODELS for r in generate(label, models[label], chat, asked, config)]
            drift = own_reply_shifts(models, replies, config)
            drift += judged_shifts(models, config) if _has(config, "teacher") else []
            drift += neutral_shifts(models, chat, passages, config)
            models.clear()  # a local judge may need the room
            replies = with_echoes(checked(replies, config), hints)
            out.rows("replies", [reply.row() for reply in replies])
            out.rows("scores", reply_scores(replies, config.seed) + drift)
            out.counters.rows_in, out.counters.rows_out = len(prompts), len(replies)
            out.counters.count("replies", len(replies))
    if is_main_process() and stage.done(0):
        show(read_part(config.run, "scores", 0), read_part(config.run, "replies", 0))
    return stage.summary()


# -- drift ----------------------------------------------------------------------------------------------------------


def judged_shifts(models: dict[str, Any], config: EvalConfig) -> list[JSON]:
    """How the log-probs of logged replies moved that were judged good (+1) and bad (-1)."""
    turns = [t for t in load_turns(config.run, config.max_prompts) if t.reward and t.sampled.any()]
    share = manifest(config.run, "train")["plan"]["config"]["holdout"] if _has(config, "train") else 0.0
    if share:
        turns = [t for t in turns if is_held_out(t.session_id, share)]
        say(f"log-probs of {counted(len(turns), 'judged reply')} in sessions held out of training")
    else:
        say(f"log-probs of {counted(len(turns), 'judged reply')}; "
            "none were held out of training (`opdkit train --holdout`)")  # fmt: skip
    groups = {"logprob_good": 1, "logprob_bad": -1}
    chosen = {m: few((t for t in turns if t.reward == r), lambda t: t.turn_id, MAX_TURNS) for m, r in groups.items()}
    # The prompts as the teacher stage rendered them, whatever the replies above were sampled with.
    tokenizer = load_tokenizer(models["before"].name_or_path)
    chat = Chat(tokenizer, parse_pairs(template_args_of(config.run, "teacher"), "--template-arg"))
    return [
        logprob_score(m, _turn_shifts(models, some, chat, config), config.seed) for m, some in chosen.items() if some
    ]


def _turn_shifts(models: dict[str, Any], turns: Sequence[Turn], chat: Chat, config: EvalConfig) -> list[Shift]:
    prompts = load_prompts(config.run, turns, chat)
    sequences = [ScoredSequence(prompts[t.turn_id].tolist(), t.response_ids.tolist()) for t in turns]
    masks = [torch.from_numpy(t.sampled) for t in turns]
    return reply_shifts(models["before"], models["after"], sequences, masks, config.batch_tokens)


def neutral_shifts(models: dict[str, Any], chat: Chat, passages: Sequence[str], config: EvalConfig) -> list[JSON]:
    """Forgetting: what the training did to text that it had no reason to touch."""
    sequences = passage_sequences(chat.tokenizer, passages)
    if not sequences:
        return []
    say(f"drift on {counted(len(sequences), 'passage')} of neutral text")
    shifts = kl_shifts(models["before"], models["after"], sequences, config.batch_tokens)
    return [logprob_score("logprob_neutral", shifts, config.seed), neutral_kl_score(shifts, config.seed)]


def own_reply_shifts(models: dict[str, Any], replies: Sequence[Reply], config: EvalConfig) -> list[JSON]:
    """Forgetting, domain by domain: how far the model has moved on what it used to say."""
    own = measured([r for r in replies if r.model == "before"])
    say(f"drift on {counted(len(own), 'reply')} of the model before")
    shifts = kl_shifts(models["before"], models["after"], [r.sequence for r in own], config.batch_tokens)
    return reply_kl_scores(own, shifts, config.seed)


# -- setting up -----------------------------------------------------------------------------------------------------


def _refuse(config: EvalConfig, prompts: Sequence[HeldOutPrompt]) -> None:
    judged = next((p for p in prompts if isinstance(p.check, Criterion)), None)
    if judged and not config.judge_model:
        raise ConfigError(f"the check of held-out prompt {judged.id} is a judge's: pass --judge-model PATH, or with "
                          "--judge-url the model's name on the server")  # fmt: skip


def _has(config: EvalConfig, stage: str) -> bool:
    return (stage_dir(config.run, stage) / "manifest.json").exists()


def run_hints(run: Path) -> set[str]:
    """Every accepted hint of the run, and every one that people wrote."""
    parts = (read_arrow(run, "verdicts", part, ["hints"]) for part in range(part_count(run, "judge")))
    decided = {review.hint for review in reviews_in_force(run).values() if review.hint is not None}
    return decided | {hint for part in parts for hints in part["hints"].to_pylist() for hint in hints}


def _names(config: EvalConfig) -> dict[str, str]:
    """The two models. Raises OpdkitError when they are to come from a training that has not finished."""
    trained = config.trained or str(stage_dir(config.run, "train") / "model")
    if not config.trained and not part_path(config.run, "metrics", 0).exists():
        raise OpdkitError(f"{config.run} has no finished training: run `opdkit train {quote(config.run)} ...` first, "
                          "or pass --model and --trained")  # fmt: skip
    return {"before": config.model or manifest(config.run, "train")["plan"]["config"]["model"], "after": trained}


def _open(config: EvalConfig, names: dict[str, str]) -> Stage:
    for name in (*names.values(), *([config.judge_model] if config.judge_model and not config.judge_url else [])):
        check_model_folder(name)
    inputs: JSON = {label: model_identity(name) for label, name in names.items()}
    inputs["prompts"] = file_digest(Path(config.prompts))
    if config.neutral_text:
        inputs["neutral"] = file_digest(Path(config.neutral_text))
    if config.judge_model and not config.judge_url:
        inputs["judge"] = model_identity(config.judge_model)
    if _has(config, "teacher"):
        inputs |= plan_inputs(decided_in(config.run, "targets"))
    upstream = [stage for stage in ("extract", "judge", "teacher", "train") if _has(config, stage)]
    return Stage.open(config, "eval", [REPLIES, SCORES], parts=1, inputs=inputs, upstream=upstream)


def _load(
    config: EvalConfig, names: dict[str, str], prompts: Sequence[HeldOutPrompt]
) -> tuple[dict[str, Any], Chat, list[tuple[HeldOutPrompt, list[int]]]]:
    """Both models, one chat template for both, and the prompts as token ids."""
    tokenizers = {label: load_tokenizer(name) for label, name in names.items()}
    check_same_tokenizer(tokenizers["before"], tokenizers["after"])
    models: dict[str, Any] = {
        label: load_model(name, device=config.device, dtype=config.dtype) for label, name in names.items()
    }
    template_args = template_args_of(config.run, "teacher", config.template_arg, binding=False)
    chat = Chat(
        tokenizers["before"],
        parse_pairs(template_args, "--template-arg"),
        models["before"].generation_config.eos_token_id,
    )
    longest = min(context_length(model) for model in models.values())
    return models, chat, [(p, prompt_ids(chat, p, config.max_new_tokens, longest)) for p in prompts]
