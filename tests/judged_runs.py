"""Runs whose extract and judge stages are written directly, as the input of the teacher stage."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.errors import OpdkitError
from opdkit.judge import stage as judge
from opdkit.judge.votes import choose_reward
from opdkit.model.load import load_tokenizer
from opdkit.store.counters import Summary
from opdkit.store.part_writer import Stage
from opdkit.store.reading import read_all, summary_of
from opdkit.store.tables import REJECTED, SESSIONS, TURNS, VERDICTS

HINT = "Answer in one short sentence."


def message(role: str, content: str | None, **fields) -> dict:
    empty = {"reasoning": None, "name": None, "tool_call_id": None, "tool_calls": []}
    return {"role": role, "content": content} | empty | fields


def session(session_id: str, *messages: dict, tools: str | None = None) -> dict:
    return {"session_id": session_id, "source": "log", "line": 1, "format": "openai", "model": None,
            "messages": list(messages), "tools": tools, "metadata": None, "tree": None}  # fmt: skip


def turn(turn_id: str, **fields) -> dict:
    session_id, _, index = turn_id.rpartition(":")
    return {"turn_id": turn_id, "session_id": session_id, "message_index": int(index), "next_count": 1,
            "next_role": "user", "kind": "main", "trainable": True, "skip_reason": None, "finish_reason": None,
            "response_token_ids": None, "behavior_logprobs": None, "decision": None} | fields  # fmt: skip


def verdict(turn_id: str, hint: str | None = None, reward: int | None = None) -> dict:
    return {"turn_id": turn_id, "hint_votes": [], "reward_votes": [], "reward": reward,
            "reward_status": "ok" if reward is not None else "no_quorum", "reward_agreement": None,
            "hints": [hint] if hint else [], "hint": hint, "hint_status": "ok" if hint else "none"}  # fmt: skip


def write_run(run: Path, parts: list[tuple[list[dict], list[dict], list[dict]]]) -> Path:
    """Write a run with the extract and judge stages done: (sessions, turns, verdicts) of each part."""
    extract = Stage.open(
        ExtractConfig(run=run, logs=("log",)), "extract", [SESSIONS, TURNS, REJECTED], parts=len(parts)
    )
    for part, (sessions, turns, _) in enumerate(parts):
        with extract.writing(part) as out:
            out.add_rows("sessions", sessions)
            out.add_rows("turns", turns)
    judge = Stage.open(JudgeConfig(run=run, judge="rules"), "judge", [VERDICTS], parts=len(parts), upstream=["extract"])
    for part, (_, _, verdicts) in enumerate(parts):
        with judge.writing(part) as out:
            out.add_rows("verdicts", verdicts)
    return run


def judge_in_vain(config: JudgeConfig) -> Summary:
    """Run a judge all of whose votes fail (a model of random weights); return the summary of what it still wrote."""
    with pytest.raises(OpdkitError, match=r"all \d+ votes failed"):
        judge.run(config)
    return summary_of(config.run, "judge")


def judged_run(
    path: Path, votes: Mapping[str, Sequence[int | None]], confidences: Mapping[str, Sequence[float | None]] = {}
) -> Path:
    """Write a run with one turn per turn_id, judged with these votes."""
    names = list(dict.fromkeys(turn_id.rpartition(":")[0] for turn_id in votes))
    sessions = [session(name, message("user", "hi"), message("assistant", "ho")) for name in names]
    return write_run(
        path,
        [
            (
                sessions,
                [turn(i) for i in votes],
                [verdict_of(i, v, confidences.get(i, [None] * len(v))) for i, v in votes.items()],
            )
        ],
    )


def verdict_of(turn_id: str, scores: Sequence[int | None], confidences: Sequence[float | None]) -> dict:
    reward = choose_reward(scores)
    votes = [{"score": s, "raw": "", "error": None if s is not None else "failed", "confidence": c}
             for s, c in zip(scores, confidences, strict=True)]  # fmt: skip
    return verdict(turn_id) | {
        "reward_votes": votes,
        "reward": reward.reward, "reward_status": reward.status, "reward_agreement": reward.agreement,
    }  # fmt: skip


def talk(name: str, replies: int = 2) -> dict:
    said = [message("system", f"You are {name}.")]
    for n in range(replies):
        said += [
            message("user", f"{name} question {n}?"),
            message("assistant", f"Answer {n} of {name}, at some length."),
        ]
    return session(name, *said, message("user", "No, shorter."))


def three_parts() -> list[tuple[list[dict], list[dict], list[dict]]]:
    """Return three parts of two sessions with two turns each: hints, rewards, both, none."""
    parts = []
    for k in range(3):
        names = [f"s{k}a", f"s{k}b"]
        ids = [f"{name}:{index}" for name in names for index in (2, 4)]
        verdicts = [
            verdict(ids[0], HINT),
            verdict(ids[1], None, 1),
            verdict(ids[2], HINT + f" ({k})", -1),
            verdict(ids[3]),
        ]
        parts.append(([talk(n) for n in names], [turn(i) for i in ids], verdicts))
    return parts


def one_part(sessions: list[dict], turns: list[dict], verdicts: list[dict]):
    return [(sessions, turns, verdicts)]


def targets(run: Path) -> list[dict]:
    return list(read_all(run, "targets"))


def prompts_of(run: Path, model_dir: Path, row: dict, placement: str) -> tuple[list[int], list[int]]:
    """Return the prompt ids without the hint and with it, through transformers' own rendering."""
    name, _, index = row["turn_id"].rpartition(":")
    said = next(s for s in read_all(run, "sessions") if s["session_id"] == name)["messages"][: int(index)]
    chat = Chat(load_tokenizer(str(model_dir)), {})
    return chat.prompt_ids(said), chat.prompt_ids(with_hint(said, row["hint"], placement))


@torch.no_grad()
def plain(model, prompt: list[int], response: list[int]) -> list[float]:
    """Return a response's log-probs from one forward over prompt and response, by log-softmax and gather."""
    logprobs = model(torch.tensor([prompt + response])).logits[0].float().log_softmax(-1)
    return [logprobs[len(prompt) + t - 1, token].item() for t, token in enumerate(response)]
