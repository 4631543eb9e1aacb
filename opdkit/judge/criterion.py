"""Questions about a reply on its own, before anybody reacts to it: does it meet a criterion, or follow a hint."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from opdkit.chat.markup import final_answer
from opdkit.chat.messages import message
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.config.judge import JudgeConfig
from opdkit.config.rollout import RolloutConfig
from opdkit.config.wording import DEFAULTS, Texts
from opdkit.judge.prompts import defuse, quote, turn_text
from opdkit.judge.votes import Ask

_SECTION_CHARS = 6000


def visible(reply: str, thinking: bool) -> str:
    """Return the part of a reply that its reader sees: what follows the thinking, nothing where that never ends.

    `thinking`: the prompt itself opened the thinking block.
    """
    body, is_open = final_answer(reply, thinking)
    return "" if is_open else body.strip()


def question_id(prompt_id: str, reply: str) -> str:
    """Return the name of a question to the judge: equal replies, of whichever model, get the same verdict."""
    return f"{prompt_id}:{hashlib.sha256(reply.encode()).hexdigest()[:16]}"


def criterion_messages(
    messages: Sequence[JSON], criterion: str, reply: str, hint: str | None = None, texts: Texts = DEFAULTS["criterion"]
) -> list[JSON]:
    """Return the chat that asks a judge whether `reply` to `messages` meets the criterion, which may mention `hint`.

    A model wrote the hint over a log: it is quoted like the rest.
    """
    common = turn_text([*messages, message("assistant", reply)], len(messages), 0, _SECTION_CHARS)
    common = common.rpartition("\n\n## What came next\n")[0]  # nothing did
    if hint is not None:
        common += f"\n\n## Hint\n{quote(defuse(hint))}"
    ask = texts["question"].replace("{criterion}", criterion)
    user = f"{common}\n\n## Question\n{ask}"
    return [{"role": "system", "content": texts["system"]}, {"role": "user", "content": user}]


def open_criterion_judge(config: EvalConfig | RolloutConfig, folder: Path | None = None) -> Ask:
    """Return the judge that `--judge-model` names: a local model, or with `--judge-url` one on a server.

    `folder`: of the stage that the votes are for, where they are given by more than one process.
    """
    judge = JudgeConfig(run=config.run, judge="endpoint" if config.judge_url else "local",
                        judge_model=config.judge_model, judge_url=config.judge_url, api_key_env=config.api_key_env,
                        device=config.device, dtype=config.dtype, seed=config.seed,
                        batch_tokens=config.batch_tokens)  # fmt: skip
    if config.judge_url:
        from opdkit.judge.endpoint import Endpoint  # imported here: it brings the OpenAI client

        return Endpoint(judge, folder).ask
    from opdkit.judge.local import LocalJudge  # imported here: it brings torch

    return LocalJudge(judge).ask
