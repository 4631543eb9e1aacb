"""`opdkit eval`: the model before and after training, side by side, on held-out prompts.

It measures whether replies improve: the share of checks passed. It measures whether the training took effect: log-probs
of logged replies that were judged good or bad. And it measures what that cost: reply length, replies that mention a
hint that nobody gave, and drift on replies of the model before and on text that no objective trains on.
"""

import contextlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from opdkit.chat.template import Chat
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON, PythonFunction
from opdkit.config.wording import make_wording_inputs, read_wording
from opdkit.console import counted, is_main_process, say, stdout, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.checks import Criterion, HeldOutPrompt, read_prompts
from opdkit.evaluate.conclusion import conclude, print_conclusion
from opdkit.evaluate.drift import MAX_TURNS, choose_by_hash, encode_passages, measure_shifts, read_passages
from opdkit.evaluate.from_log import read_held_out_share, write_log_prompts
from opdkit.evaluate.generation import EncodedPrompt, generate, prompt_ids
from opdkit.evaluate.models import load_models, model_names
from opdkit.evaluate.probes import make_probes
from opdkit.evaluate.replies import Reply, check_replies, choose_measured, find_right_replies, mark_echoes
from opdkit.evaluate.scores import MODELS, format_scores, make_kl_scores, make_reply_scores, print_scores, score_shifts
from opdkit.evaluate.streak import MOST_SESSIONS, LoggedSession, read_logged_sessions, score_streaks
from opdkit.judge.criterion import read_judge_options, try_criterion_judge
from opdkit.model.comparison import measure_kl_shifts
from opdkit.model.folder import pin_model
from opdkit.model.load import context_length, load_template
from opdkit.store.counters import Summary
from opdkit.store.digests import digest_file
from opdkit.store.part_writer import PartWriter, Stage
from opdkit.store.plans import has_stage, read_hint_text
from opdkit.store.reading import is_written, read_all, read_part
from opdkit.store.reviews import check_targets_current, plan_inputs, read_decisions_in_targets, read_reviews_in_force
from opdkit.store.tables import REPLIES, SCORES
from opdkit.store.template_args import choose_template_args
from opdkit.store.turn_ids import conversation_id, is_held_out, session_of
from opdkit.train.model_card import add_scores
from opdkit.train.targets import load_prompts, load_targets, make_sequence


def run(config: EvalConfig, check: PythonFunction | None = None) -> Summary:
    """Compare `--model` (before) with `--trained` (after). Print the conclusion and the scores on stdout.

    `check` is used for prompts without a check of their own.
    Raises ConfigError or OpdkitError for prompts, models or a judge that cannot be used, before the plan is pinned.
    """
    run_dir = config.run
    check_targets_current(run_dir)
    names = model_names(config)
    if config.from_log:
        config = replace(config, from_log=False, prompts=str(write_log_prompts(config, names)))
    prompts = read_prompts(Path(str(config.prompts)), config.max_prompts, check)
    if not config.trained:
        warn_of_trained(run_dir, prompts)
    judged = [prompt for prompt in prompts if isinstance(prompt.check, Criterion)]
    if judged and not config.judge_model:
        config = replace(config, **read_judge_options(run_dir))
    if judged and not config.judge_model:
        what = f"{counted(len(judged), 'held-out prompt')}, such as {judged[0].id}"
        raise ConfigError(f"the checks of {what}, need a judge: pass --judge-model PATH, or with --judge-url the "
                          "model's name on the server")  # fmt: skip
    has_logs = has_stage(run_dir, "extract")
    passages = read_passages(run_dir, config.neutral_text) if config.neutral_text or has_logs else []
    hints = set[str]()
    if has_stage(run_dir, "judge"):
        hints.update(review.hint for review in read_reviews_in_force(run_dir).values() if review.hint is not None)
        hints.update(hint for row in read_all(run_dir, "verdicts", ["hints"]) for hint in row["hints"])
    if config.overwrite or not is_written(run_dir, "scores", 0):  # else its failure would show only after sampling
        try_criterion_judge(config)
    # The first time, models load before the plan is pinned: a failure must not tie the next attempt to this plan.
    loaded = None if has_stage(run_dir, "eval") else load_models(config, names, prompts)
    stage = open_stage(config, names, check)
    if stage.todo():
        with stage.writing(0) as out:
            models, chat, prompts_with_ids = loaded or load_models(config, names, prompts)
            compare_models(config, models, chat, prompts_with_ids, passages, hints, out)
    summary = stage.summary()
    if is_main_process() and stage.is_done(0):
        scores = read_part(run_dir, "scores", 0)
        conclusion = conclude(scores, run_dir)
        if config.json:
            stdout.out(json.dumps({"conclusion": asdict(conclusion), "scores": scores}, indent=2))
        else:
            print_conclusion(conclusion, and_next=False)  # printed last, with the summary
            print_scores(scores, read_part(run_dir, "replies", 0))
        if not config.trained:
            add_scores(Path(names["after"]), format_scores(scores))
        summary.next = conclusion.next
    return summary


def warn_of_trained(run: Path, prompts: Sequence[HeldOutPrompt]) -> None:
    """Warn if prompts are from conversations that the run's training has read.

    The prompt's last message must be in the conversation, too: in another log, its id may be that of another one.
    """
    read = {conversation_id(session_of(turn)) for row in read_all(run, "metrics", ["turn_ids"])
            for turn in row["turn_ids"]}  # fmt: skip
    named = read & {prompt.session for prompt in prompts}
    has_log = named and has_stage(run, "extract")
    sessions = read_all(run, "sessions", ["session_id", "messages"]) if has_log else ()
    said = {(name, message["content"]) for row in sessions if (name := conversation_id(row["session_id"])) in named
            for message in row["messages"]}  # fmt: skip
    if seen := [prompt.id for prompt in prompts if (prompt.session, prompt.messages[-1]["content"]) in said]:
        warn(f"{len(seen):,} of {counted(len(prompts), 'prompt')}, such as {seen[0]}, are from conversations that the "
             "model was trained on, and show what it remembers: train with --holdout, or write others")  # fmt: skip


def compare_models(
    config: EvalConfig,
    models: dict[str, Any],
    chat: Chat,
    prompts: Sequence[EncodedPrompt],
    passages: Sequence[str],
    hints: set[str],
    out: PartWriter,
) -> None:
    """Write the replies of both models, and the scores. Empties `models`, since a local judge may need the memory."""
    replies = [r for label in MODELS for r in generate(label, models[label], chat, prompts, config)]
    before, texts = [r for r in replies if r.model == "before"], read_wording(config.wording)
    probes = make_probes(find_right_replies(before, tags_calls=chat.tags_calls), len(before), texts["probe"])
    one_each = replace(config, samples=min(1, config.samples))
    probed = generate_further("probes", probes, models, chat, one_each, greedy=not config.samples)
    drift, kl_of = measure_drift(models, chat, before, passages, config)
    sessions, answers = answer_sessions(models, chat, prompts, texts["criterion"], config)
    models.clear()
    count = len(replies) + len(probed)
    checked = check_replies([*replies, *probed, *answers], config)
    replies = mark_echoes(checked[:count], hints, read_hint_text(config.run))
    scores = make_reply_scores(replies, config.seed) + drift + score_streaks(sessions, checked[count:])
    out.add_rows("replies", [r.row() | {"kl": kl_of.get((r.model, r.prompt.id, r.sample))} for r in replies])
    out.add_rows("scores", scores)
    out.counters.rows_in, out.counters.rows_out = len(prompts), len(replies)
    out.counters.count("replies", len(replies))


def answer_sessions(
    models: dict[str, Any], chat: Chat, prompts: Sequence[EncodedPrompt], texts: dict[str, str], config: EvalConfig
) -> tuple[list[LoggedSession], list[Reply]]:
    """Return the sessions of the judged log, and both models' greedy replies to the first hinted turn of each.

    At most MOST_SESSIONS get replies: those held out of training, if any were; without a judge, none. `texts` are those
    of the criterion.
    """
    if not has_stage(config.run, "judge"):
        return [], []
    share = read_held_out_share(config.run)
    sessions = list(read_logged_sessions(config.run, config.max_prompts, share, texts))
    hinted = [session.prompt for session in sessions if session.prompt and config.judge_model]
    # The judge is asked once per prompt id and reply. The file of prompts may hold an edited prompt under a turn's id.
    known = {prompt.id: (prompt.messages, prompt.check) for prompt, _ in prompts}
    hinted = [p if known.get(p.id) in (None, (p.messages, p.check)) else replace(p, id=f"{p.id}:log") for p in hinted]
    greedy = replace(config, samples=0)
    return sessions, generate_further("hinted turns of the log", hinted, models, chat, greedy, most=MOST_SESSIONS)


def generate_further(
    name: str,
    prompts: Sequence[HeldOutPrompt],
    models: dict[str, Any],
    chat: Chat,
    config: EvalConfig,
    *,
    greedy: bool = True,
    most: int | None = None,
) -> list[Reply]:
    """Return the replies of both models (see `generate`) to the first `most` prompts that render and fit the context.

    `name` says in messages what the prompts are.
    """
    asked, longest = list[EncodedPrompt](), min(map(context_length, models.values()))
    for prompt in prompts:
        if len(asked) == most:
            break
        with contextlib.suppress(OpdkitError):
            asked.append((prompt, prompt_ids(chat, prompt, config.max_new_tokens, longest)))
    if asked:
        say(f"replies to {len(asked):,} {name}")
    return [r for label in MODELS if asked for r in generate(label, models[label], chat, asked, config, greedy)]


def measure_drift(
    models: dict[str, Any], chat: Chat, before: Sequence[Reply], passages: Sequence[str], config: EvalConfig
) -> tuple[list[JSON], dict[tuple[str, str, int], float]]:
    """Return the scores on replies of the model before, on logged replies and on neutral text, and the KL of replies.

    The second result maps (model, prompt id, sample) to the KL of a reply (nats per token), if it is finite.
    """
    measured = choose_measured(before)
    say(f"drift on {counted(len(measured), 'reply')} of the model before")
    sequences = [sequence for r in measured if (sequence := r.sequence)]
    shifts = measure_kl_shifts(models["before"], models["after"], sequences, config.batch_tokens)
    kl_of = {(r.model, r.prompt.id, r.sample): s.kl / s.tokens for r, s in zip(measured, shifts, strict=True)
             if math.isfinite(s.kl)}  # fmt: skip
    scores = make_kl_scores(measured, shifts, config.seed)
    if has_stage(config.run, "teacher"):
        scores += score_judged_replies(models, config)
    if sequences := encode_passages(chat.tokenizer, passages):
        say(f"drift on {counted(len(sequences), 'passage')} of neutral text")
        shifts = measure_kl_shifts(models["before"], models["after"], sequences, config.batch_tokens)
        scores += [score_shifts(metric, shifts, config.seed) for metric in ("logprob_neutral", "kl_neutral")]
    return scores, kl_of


def score_judged_replies(models: dict[str, Any], config: EvalConfig) -> list[JSON]:
    """Return the log-prob scores of logged replies that were judged good (+1) and bad (-1)."""
    turns = [t for t in load_targets(config.run, config.max_prompts) if t.reward and t.sampled.any()]
    which = "; none were held out of training (`opdkit train --holdout`)"
    if share := read_held_out_share(config.run):
        turns, which = [t for t in turns if is_held_out(t.session_id, share)], " in sessions held out of training"
    say(f"log-probs of {counted(len(turns), 'judged reply')}{which}")
    # Render prompts with the template arguments of the teacher stage; the sampled replies may use others.
    chat = load_template(models["before"].name_or_path, choose_template_args(config.run, "teacher"))
    scores = []
    for metric, reward in (("logprob_good", 1), ("logprob_bad", -1)):
        chosen = choose_by_hash((t for t in turns if t.reward == reward), lambda t: t.turn_id, MAX_TURNS)
        if chosen:
            prompts = load_prompts(config.run, chosen, chat)
            sequences = [make_sequence(t, prompts) for t in chosen]
            masks = [torch.from_numpy(t.sampled) for t in chosen]
            shifts = measure_shifts(models["before"], models["after"], sequences, masks, config.batch_tokens)
            sessions = [conversation_id(t.session_id) for t in chosen]
            scores.append(score_shifts(metric, shifts, config.seed, sessions))
    return scores


def open_stage(config: EvalConfig, names: dict[str, str], check: PythonFunction | None) -> Stage:
    """Pin the plan: both models, wording, prompts, check, neutral text, judge, review decisions and upstream stages."""
    inputs: JSON = {label: pin_model(name) for label, name in names.items()}
    texts = read_wording(config.wording)
    inputs |= make_wording_inputs({table: texts[table] for table in ("criterion", "probe")})
    inputs |= {"prompts": digest_file(Path(str(config.prompts)))} | ({"check": check} if check else {})
    if config.neutral_text:
        inputs["neutral"] = digest_file(Path(config.neutral_text))
    if config.judge_model and not config.judge_url:
        inputs["judge"] = pin_model(config.judge_model)
    if has_stage(config.run, "teacher"):
        inputs |= plan_inputs(read_decisions_in_targets(config.run))
    upstream = [stage for stage in ("extract", "judge", "teacher", "train") if has_stage(config.run, stage)]
    return Stage.open(config, "eval", [REPLIES, SCORES], parts=1, inputs=inputs, upstream=upstream)
