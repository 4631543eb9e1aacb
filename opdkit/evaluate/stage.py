"""`opdkit eval`: the model before and after training, side by side, on prompts that were held out.

Three questions: do its replies do better (share of checks passed), did the training take (log-probs of logged replies
that were judged good and bad), and what did it cost (reply length, and drift on text that nothing pushes on).
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.table import Table as RichTable

from opdkit.chat import Chat
from opdkit.config import JSON, parse_pairs
from opdkit.console import is_main_process, printable, say, stdout, warn
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.bootstrap import interval
from opdkit.evaluate.checks import Criterion, HeldOutPrompt, read_prompts
from opdkit.evaluate.drift import (
    MAX_TURNS,
    Shift,
    few,
    neutral_passages,
    passage_sequences,
    passage_shifts,
    reply_shifts,
)
from opdkit.evaluate.replies import Reply, checked, generate, prompt_ids
from opdkit.models import context_length, load_model, load_tokenizer, same_tokenizer
from opdkit.scoring import Sequence as ScoredSequence
from opdkit.stages import EvalConfig, home
from opdkit.store import Stage, Summary, file_digest, manifest, model_identity, part_path, read_part
from opdkit.tables import REPLIES, SCORES
from opdkit.train.targets import Turn, held_out, load_prompts, load_turns, scored_template_args

MODELS = ("before", "after")
METRICS = {
    "passed_sampled": "share passed, sampled",
    "passed_greedy": "share passed, greedy",
    "reply_tokens": "reply length (tokens)",
    "cut_off": "share cut off by the limit",
    "logprob_good": "log-prob of +1 replies (nats/token)",
    "logprob_bad": "log-prob of -1 replies (nats/token)",
    "logprob_neutral": "log-prob of neutral text (nats/token)",
    "kl_neutral": "KL(before || after), neutral text (nats/token)",
}


def run(config: EvalConfig) -> Summary:
    """Compare `--model` (before) with `--trained` (after); prints the scores as a table on stdout."""
    prompts = read_prompts(Path(config.prompts), config.limit)
    _refuse(config, prompts)
    names = _names(config)
    passages = neutral_passages(config.run, config.neutral) if config.neutral or _has(config, "extract") else []
    # Before the plan is pinned, as long as nothing is: what fails here must not bind the next attempt.
    loaded = None if _has(config, "eval") else _load(config, names, prompts)
    stage = _open(config, names)
    if stage.todo():
        with stage.writing(0) as out:
            models, chat, asked = loaded or _load(config, names, prompts)
            replies = [r for label in MODELS for r in generate(label, models[label], chat, asked, config)]
            drift = judged_shifts(models, config) if _has(config, "teacher") else []
            drift += neutral_shifts(models, chat, passages, config)
            models.clear()  # a local judge may need the room
            replies = checked(replies, config)
            out.rows("replies", [reply.row() for reply in replies])
            out.rows("scores", reply_scores(replies, config.seed) + drift)
            out.counters.rows_in, out.counters.rows_out = 2 * len(prompts), 2 * len(prompts)
            out.counters.extra["replies"] = len(replies)
    if is_main_process() and stage.done(0):
        show(read_part(config.run, "scores", 0))
    return stage.summary()


# -- scores ---------------------------------------------------------------------------------------------------------


def reply_scores(replies: Sequence[Reply], seed: int) -> list[JSON]:
    """The rows of `scores` on replies, over all prompts and for each domain."""
    domains = sorted({reply.prompt.domain for reply in replies})
    rows = []
    for domain in ("all", *domains):
        mine = [r for r in replies if domain in ("all", r.prompt.domain)]
        sampled, greedy = [r for r in mine if r.sample], [r for r in mine if not r.sample]
        for metric, some, value in (
            ("passed_sampled", sampled, lambda r: r.passed),
            ("passed_greedy", greedy, lambda r: r.passed),
            ("reply_tokens", sampled or greedy, lambda r: r.tokens),
            ("cut_off", sampled or greedy, lambda r: r.finish_reason == "length"),
        ):
            if some:
                rows.append(_comparison(metric, domain, _per_prompt(some, value), seed))
    return rows


def _per_prompt(replies: Sequence[Reply], value: Callable[[Reply], Any]) -> list[tuple[float, float]]:
    """(before, after) of each prompt: means over its replies with a value. Prompts that lack one side are left out."""
    found: dict[str, dict[str, list[float]]] = {}
    for reply in replies:
        sides = found.setdefault(reply.prompt.id, {model: [] for model in MODELS})
        if value(reply) is not None:
            sides[reply.model].append(float(value(reply)))
    return [(_mean(s["before"]), _mean(s["after"])) for s in found.values() if s["before"] and s["after"]]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _comparison(metric: str, domain: str, pairs: Sequence[tuple[float, float]], seed: int) -> JSON:
    if not pairs:
        return _score(metric, domain, None, None, None, 0)
    before, after = _mean([b for b, _ in pairs]), _mean([a for _, a in pairs])
    return _score(metric, domain, before, after, interval([a - b for b, a in pairs], seed=seed), len(pairs))


def _score(
    metric: str,
    domain: str,
    before: float | None,
    after: float | None,
    bounds: tuple[float, float] | None,
    count: int,
    difference: float | None = None,
) -> JSON:
    if before is not None and after is not None:
        difference = after - before
    low, high = bounds or (None, None)
    return {"metric": metric, "domain": domain, "before": before, "after": after, "difference": difference,
            "low": low, "high": high, "count": count}  # fmt: skip


# -- drift ----------------------------------------------------------------------------------------------------------


def judged_shifts(models: dict[str, Any], config: EvalConfig) -> list[JSON]:
    """How the log-probs of logged replies moved that were judged good (+1) and bad (-1)."""
    turns = [t for t in load_turns(config.run, config.limit) if t.reward and t.sampled.any()]
    share = manifest(config.run, "train")["plan"]["config"]["holdout"] if _has(config, "train") else 0.0
    if share:
        turns = [t for t in turns if held_out(t.session_id, share)]
        say(f"log-probs of {len(turns)} judged replies in sessions held out of training")
    else:
        say(f"log-probs of {len(turns)} judged replies; none were held out of training (`opdkit train --holdout`)")
    groups = {"logprob_good": 1, "logprob_bad": -1}
    chosen = {m: few((t for t in turns if t.reward == r), lambda t: t.turn_id, MAX_TURNS) for m, r in groups.items()}
    # The prompts as the teacher stage rendered them, whatever the replies above were sampled with.
    tokenizer = load_tokenizer(models["before"].name_or_path)
    chat = Chat(tokenizer, scored_template_args(config.run, ()))
    return [
        _shift_score(m, _turn_shifts(models, some, chat, config), config.seed) for m, some in chosen.items() if some
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
    say(f"drift on {len(sequences)} passages of neutral text")
    shifts = passage_shifts(models["before"], models["after"], sequences, config.batch_tokens)
    tokens = [s.tokens for s in shifts]
    kl = sum(s.kl for s in shifts) / sum(tokens)
    bounds = interval([s.kl / s.tokens for s in shifts], tokens, seed=config.seed)
    return [
        _shift_score("logprob_neutral", shifts, config.seed),
        _score("kl_neutral", "all", 0.0, kl, bounds, len(shifts)),  # a model does not differ from itself
    ]


def _shift_score(metric: str, shifts: Sequence[Shift], seed: int) -> JSON:
    """Mean log-prob a token; turns are drawn as wholes for the interval, as their tokens move together."""
    finite = [s for s in shifts if s.finite]
    if len(finite) < len(shifts):
        warn(f"{METRICS[metric]}: {len(shifts) - len(finite)} of {len(shifts)} are not finite and left out")
    total = sum(s.tokens for s in finite)
    if not total:
        return _score(metric, "all", None, None, None, 0)
    bounds = interval([(s.after - s.before) / s.tokens for s in finite], [s.tokens for s in finite], seed=seed)
    before, after = sum(s.before for s in finite) / total, sum(s.after for s in finite) / total
    return _score(metric, "all", before, after, bounds, len(finite))


# -- the table ------------------------------------------------------------------------------------------------------


def show(scores: Sequence[JSON]) -> None:
    """The scores for people, on stdout."""
    table = RichTable(title="Before and after training, on held-out prompts", title_justify="left")
    table.add_column("domain")
    for name in ("before", "after", "change", "95% interval", "n"):
        table.add_column(name, justify="right")
    for metric, words in METRICS.items():
        rows = [row for row in scores if row["metric"] == metric]
        rows = [row for row in rows if len(rows) != 2 or row["domain"] == "all"]  # one domain is everything
        if metric == "cut_off":  # mostly never happens, and then says nothing
            rows = [row for row in rows if row["before"] or row["after"]]
        if rows:
            table.add_row(words, style="bold")
        for n, row in enumerate(rows):
            table.add_row(*_cells(row), end_section=n == len(rows) - 1)
    stdout.print(table)


def _cells(row: JSON) -> tuple[str, ...]:
    bounds = "-" if row["low"] is None else f"{row['low']:+.3f} to {row['high']:+.3f}"
    change = "-" if row["difference"] is None else f"{row['difference']:+.3f}"
    numbers = ("-" if row[side] is None else f"{row[side]:.3f}" for side in MODELS)
    return (f"  {printable(row['domain'])}", *numbers, change, bounds, f"{row['count']:,}")


# -- setting up -----------------------------------------------------------------------------------------------------


def _refuse(config: EvalConfig, prompts: Sequence[HeldOutPrompt]) -> None:
    if config.judge_url and not config.judge_model:
        raise ConfigError("--judge-url needs --judge-model, the model's name on that server")
    judged = next((p for p in prompts if isinstance(p.check, Criterion)), None)
    if judged and not config.judge_model:
        raise ConfigError(f"the check of held-out prompt {judged.id} is a judge's: pass --judge-model PATH, or with "
                          "--judge-url the model's name on the server")  # fmt: skip


def _has(config: EvalConfig, stage: str) -> bool:
    return (home(config.run, stage) / "manifest.json").exists()


def _names(config: EvalConfig) -> dict[str, str]:
    """The two models. Raises OpdkitError when they are to come from a training that has not finished."""
    trained = config.trained or str(home(config.run, "train") / "model")
    if not config.trained and not part_path(config.run, "metrics", 0).exists():
        raise OpdkitError(f"{config.run} has no finished training: run `opdkit train {config.run} ...` first, or pass "
                          "--model and --trained")  # fmt: skip
    return {"before": config.model or manifest(config.run, "train")["plan"]["config"]["model"], "after": trained}


def _open(config: EvalConfig, names: dict[str, str]) -> Stage:
    inputs: JSON = {label: model_identity(name) for label, name in names.items()}
    inputs["prompts"] = file_digest(Path(config.prompts))
    if config.neutral:
        inputs["neutral"] = file_digest(Path(config.neutral))
    if config.judge_model and not config.judge_url:
        inputs["judge"] = model_identity(config.judge_model)
    upstream = [stage for stage in ("extract", "teacher", "train") if _has(config, stage)]
    return Stage.open(config, "eval", [REPLIES, SCORES], parts=1, inputs=inputs, upstream=upstream)


def _load(
    config: EvalConfig, names: dict[str, str], prompts: Sequence[HeldOutPrompt]
) -> tuple[dict[str, Any], Chat, list[tuple[HeldOutPrompt, list[int]]]]:
    """Both models, one chat template for both, and the prompts as token ids."""
    tokenizers = {label: load_tokenizer(name) for label, name in names.items()}
    same_tokenizer(tokenizers["before"], tokenizers["after"])
    models: dict[str, Any] = {
        label: load_model(name, device=config.device, dtype=config.dtype) for label, name in names.items()
    }
    given = parse_pairs(config.template_arg, "--template-arg")
    args = given or (scored_template_args(config.run, ()) if _has(config, "teacher") else {})
    chat = Chat(tokenizers["before"], args, models["before"].generation_config.eos_token_id)
    longest = min(context_length(model) for model in models.values())
    return models, chat, [(p, prompt_ids(chat, p, config.max_new_tokens, longest)) for p in prompts]
