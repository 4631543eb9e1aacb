"""Judgement of replies that nobody has reacted to: whether they meet a criterion, such as to follow a hint."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opdkit.chat.messages import message
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.rollout import RolloutConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.wording import DEFAULTS, Texts
from opdkit.judge.parse import parse_reward
from opdkit.judge.prompts import defuse, judge_messages, quote, write_turn
from opdkit.judge.reply_in_context import ReplyInContext
from opdkit.judge.votes import TRIAL, Ask, Question, Reward, RewardVote, choose_reward
from opdkit.store.plans import has_stage, manifest

_SECTION_CHARS = 6000
_THINKING_TOKENS = 4096  # limit of an answer if nobody has set one: room for a judge that thinks first
# Judge options that eval, rollout and teacher have, too; judge options copied from the run if its judge is asked again.
_SHARED = ("run", "judge_model", "judge_url", "api_key_env", "concurrency", "device", "dtype", "load_in_4bit", "seed",
           "batch_tokens")  # fmt: skip
_AS_RECORDED = ("max_new_tokens", "temperature", "timeout", "retries")
# Of a reply without visible text. If such replies were rewarded or left out, the model would learn to say nothing.
EMPTY = Reward(-1, "empty", None)


@dataclass(frozen=True)
class FreshReply:
    """Reply that nobody has reacted to, as its reader sees it (`seen`), and the criterion to judge it by."""

    prompt_id: str
    messages: Sequence[JSON]  # before the reply
    seen: str
    criterion: str
    hint: str | None = None
    praised: str | None = None  # a reply to the same request that a user praised or accepted


def make_criterion_messages(reply: FreshReply, texts: Texts = DEFAULTS["criterion"]) -> list[JSON]:
    """Return the messages that ask a judge whether a reply meets its criterion, with hint or good reply, if any."""
    messages = [*reply.messages, message("assistant", reply.seen)]
    common = write_turn(ReplyInContext(messages, len(reply.messages), []), _SECTION_CHARS)
    common = common.rpartition("\n\n## What came next\n")[0]  # nobody has reacted
    for title, text in (("Hint", reply.hint), ("Good reply", reply.praised)):
        if text is not None:
            common += f"\n\n## {title}\n{quote(defuse(text[:_SECTION_CHARS]))}"
    question = texts["question"].replace("{criterion}", reply.criterion)
    return judge_messages(common, "question", {**texts, "question": question})


def judge_replies(ask: Ask, replies: Sequence[FreshReply], texts: Texts) -> list[tuple[list[RewardVote], Reward]]:
    """Return the votes on each reply and its reward: 1 if it meets the criterion, -1 if not, 0 or None if undecided.

    Equal replies to one prompt are one question. A reply without visible text gets -1 without a question.
    """
    names = [f"{r.prompt_id}:{hashlib.sha256(r.seen.encode()).hexdigest()[:16]}" for r in replies]
    questions = {name: Question(name, "criterion", make_criterion_messages(reply, texts))
                 for name, reply in zip(names, replies, strict=True) if reply.seen}  # fmt: skip
    judged: dict[str, tuple[list[RewardVote], Reward]] = {}
    for name, answers in zip(questions, ask(list(questions.values())) if questions else (), strict=True):
        votes = [parse_reward(answer, texts["question"]) for answer in answers]
        judged[name] = votes, choose_reward([vote.score for vote in votes])
    return [judged.get(name, ([], EMPTY)) for name in names]


def read_judge_options(run: Path) -> JSON:
    """Return the options that name the model that judged a run; {} if no model did, or if it cannot be asked now."""
    options = _read_options(run, has_model=True)
    model, url = options.get("judge_model"), options.get("judge_url")
    # The judge of a batch can be asked now only if it has a URL. A rollout's options have no `judge`.
    is_absent = options.get("judge") == "rules" or (options.get("judge") == "batch" and not url)
    return {"judge_model": model, "judge_url": url} if model and not is_absent else {}


def _read_options(run: Path, has_model: bool = False) -> JSON:
    """Return the options of the command that judged a run or, for a rollout, its source; {} if none did.

    `has_model`: those of a rollout count if they name a model.
    """
    options: JSON = manifest(run, "judge").get("configuration", {}) if has_stage(run, "judge") else {}
    source = options.get("from_run")
    if source and has_stage(Path(source), "judge") and not (has_model and options.get("judge_model")):
        return _read_options(Path(source), has_model)
    return options


def try_criterion_judge(config: EvalConfig | RolloutConfig | TeacherConfig) -> None:
    """Ask a judge on a server a trial question, or load a local one's template. Raises OpdkitError if that fails."""
    if config.judge_url:
        open_criterion_judge(config)([TRIAL])
    elif config.judge_model:
        from opdkit.model.load import load_template  # imported here: it brings torch

        load_template(config.judge_model, ())


def open_criterion_judge(
    config: EvalConfig | RolloutConfig | TeacherConfig, folder: Path | None = None, votes: int = 5, model: Any = None
) -> Ask:
    """Return the judge that `--judge-model` names: a local model, or with `--judge-url` one on a server.

    If it is the judge of the run, at any address, it is asked as it was for the run. So template arguments, token
    limit, temperature, timeout and retries are the same. The run's key is only sent to the recorded address. `folder`
    is the folder of the stage that the votes are for, if several processes ask; `model` the local model, if already
    loaded.
    """
    options, recorded = {name: getattr(config, name) for name in _SHARED}, _read_options(config.run)
    if "judge" in recorded and recorded["judge_model"] == options["judge_model"]:
        options |= {name: recorded[name] for name in _AS_RECORDED if name in recorded}
        options["template_arg"] = tuple(recorded.get("template_arg", ()))
        if config.api_key_env == JudgeConfig.api_key_env and recorded["judge_url"] == config.judge_url:
            options["api_key_env"] = recorded.get("api_key_env", JudgeConfig.api_key_env)
    elif config.judge_url:
        options["max_new_tokens"] = _THINKING_TOKENS
    elif config.judge_model == config.model:  # the student judges itself
        options["template_arg"] = config.template_arg
    judge = JudgeConfig(judge="endpoint" if config.judge_url else "local", votes=votes, **options)
    if config.judge_url:
        from opdkit.judge.endpoint import Endpoint  # imported here: it brings the OpenAI client

        return Endpoint(judge, folder, has_flags=False).ask
    from opdkit.judge.local import LocalJudge  # imported here: it brings torch

    return LocalJudge(judge, model=model).ask
