"""Tests every known finish reason in every stage, on the rows that extract writes from a log with that reason."""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from chat_templates import CHATML
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer

from opdkit.chat.finish_reasons import CUT_OFF, INTERRUPTED, is_cut_off, is_incomplete
from opdkit.chat.template import Chat
from opdkit.commands.export.messages import NotExportedError, TurnToExport, convert_completion
from opdkit.commands.export.targets import openai
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.extract import stage as extract
from opdkit.judge import stage as judge
from opdkit.judge.flags import find_flags
from opdkit.judge.parse import parse_reward
from opdkit.judge.reply_in_context import reply_in_context
from opdkit.judge.votes import Answer
from opdkit.store.counters import Counters
from opdkit.store.reading import read_all
from opdkit.teacher.examples import encode_reply
from opdkit.train.data_summary import find_degenerate_replies

# Other known finish reasons. Content filters, aborts and errors end a reply early, but not at a token limit.
NOT_CUT_OFF = (
    "stop",  # OpenAI chat, vLLM, SGLang, Ollama, Mistral, Gemini as STOP
    "end_turn",  # Anthropic
    "stop_sequence",  # Anthropic, TGI
    "stop_str",
    "eos",  # llama.cpp: stop_type
    "word",  # llama.cpp: stop_type
    "eos_token",  # TGI
    "stopped_eos",  # llama.cpp before stop_type
    "stopped_word",  # llama.cpp before stop_type
    "complete",  # Cohere
    "completed",  # OpenAI responses: status
    "finished",
    "reason_stop",  # xAI
    "tool_calls",  # OpenAI chat, Vercel AI SDK as tool-calls
    "function_call",  # OpenAI chat, old
    "tool_use",  # Anthropic, pi as toolUse
    "tool_call",  # Cohere
    "pause_turn",  # Anthropic
    "content_filter",  # OpenAI
    "content_filtered",  # Bedrock
    "guardrail_intervened",  # Bedrock
    "refusal",  # Anthropic
    "safety",  # Gemini
    "recitation",  # Gemini
    "language",  # Gemini
    "blocklist",  # Gemini
    "prohibited_content",  # Gemini
    "spii",  # Gemini
    "malformed_function_call",  # Gemini
    "abort",  # vLLM, SGLang
    "aborted",  # pi
    "cancelled",  # OpenAI responses, watsonx
    "user_cancel",  # Cohere
    "error_toxic",  # Cohere
    "time_limit",  # watsonx
    "insufficient_system_resource",  # DeepSeek
    "error",
    "load",  # Ollama: done_reason of a request that only loads the model
    "unload",  # Ollama
    "incomplete",  # OpenAI responses: status; the reason stands beside it
    "other",  # Gemini
    "unknown",  # Vercel AI SDK
    "finish_reason_unspecified",  # Gemini
)
# Spellings in logs: capitals (Gemini, Cohere, Java clients), hyphens (Vercel's SDK), camelCase (pi, Gemini's client).
SPELLINGS = ("MAX_TOKENS", "FinishReason.MAX_TOKENS", "max-tokens", "maxTokens", "LENGTH", "REASON_MAX_LEN",
             "ERROR_LIMIT")  # fmt: skip
OTHER_SPELLINGS = ("STOP", "FinishReason.STOP", "tool-calls", "toolUse", "SAFETY", "content-filter",
                   "content_filter: RECITATION", "a new reason", "")  # fmt: skip
VALUES = {**dict.fromkeys((*CUT_OFF, *SPELLINGS), True), **dict.fromkeys((*NOT_CUT_OFF, *OTHER_SPELLINGS), False)}


@dataclass(frozen=True)
class Logged:
    """Run with one session per finish reason: its turns by finish reason, and the judge's counters."""

    run: Path
    turns: dict[str, TurnToExport]
    counters: Counters


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Logged:
    folder = tmp_path_factory.mktemp("finish_reasons")
    with (folder / "log.jsonl").open("w", encoding="utf-8") as log:
        for reason in VALUES:
            reply = {"role": "assistant", "content": "The answer.", "finish_reason": reason}
            asked, reaction = {"role": "user", "content": "hello"}, {"role": "user", "content": "No, shorter."}
            log.write(json.dumps({"messages": [asked, reply, reaction]}) + "\n")
    run = folder / "run"
    extract.run(ExtractConfig(run=run, logs=(str(folder / "log.jsonl"),), shard="0/1"))
    summary = judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    sessions = {row["session_id"]: row for row in read_all(run, "sessions")}
    turns = [TurnToExport(sessions[row["session_id"]], row, {"reward": 1}) for row in read_all(run, "turns")]
    return Logged(run, dict(zip(VALUES, turns, strict=True)), summary.counters)


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(build_tokenizer(CHATML, CHATML_TOKENS, CHATML_WORDS), {})


@pytest.mark.parametrize(("reason", "cut_off"), VALUES.items())
def test_every_stage_agrees_on_a_logged_reason(reason: str, cut_off: bool, logged: Logged, chat: Chat) -> None:
    turn = logged.turns[reason]
    assert is_cut_off(reason) is cut_off
    # extract
    assert turn.turn["finish_reason"] == (reason or None)
    assert (turn.turn["trainable"], turn.turn["skip_reason"]) == ((False, "truncated") if cut_off else (True, None))
    # judge: the flag on a turn, and the vote of a judge whose own answer ended for this reason
    shown = find_flags(reply_in_context(turn.session["messages"], turn.turn), turn.turn["finish_reason"], False)
    assert shown == (["truncation"] if cut_off else [])
    vote = parse_reward(Answer(r"\boxed{1}", turn.turn["finish_reason"]))
    assert vote.score == (None if is_incomplete(reason) else 1)
    assert (vote.error == "cut off by the token limit") is cut_off
    # teacher: no stop token that was never sampled
    reply, _ = encode_reply(chat, turn.session, turn.turn, Counters())
    assert (reply.ids[-1] in chat.stop_ids) is not is_incomplete(reason)
    # export: incomplete replies are left out, since every trainer would add a stop token
    counters = Counters()
    lines = list(openai([turn], (1,), counters))
    if is_incomplete(reason):
        problem = "reply cut off" if cut_off else "reply interrupted"
        with pytest.raises(NotExportedError) as caught:
            convert_completion(turn)
        assert (str(caught.value), lines, counters.dropped) == (problem, [], {problem: 1})
    else:
        assert convert_completion(turn)[0]["content"] == "The answer."
        assert (len(lines), counters.dropped) == (1, {})


def test_judge_drops_what_extract_found_truncated(logged: Logged) -> None:
    kinds = Counter(VALUES.values())
    assert logged.counters.dropped == {"truncated": kinds[True]}
    assert logged.counters.rows_out == kinds[False]


def test_train_warns_of_exactly_the_truncated_replies(logged: Logged) -> None:
    ids = np.arange(5, dtype=np.int32)
    whole: dict[str, Any] = {"response_ids": ids, "sampled": ids >= 0, "written": None, "reward": 0}
    for reason, cut_off in VALUES.items():
        turn = SimpleNamespace(turn_id=logged.turns[reason].turn_id, **whole)
        warnings = find_degenerate_replies(SimpleNamespace(replies=[turn]), logged.run)  # type: ignore[arg-type]
        assert len(warnings) == cut_off


def test_no_reason_is_no_cut() -> None:
    assert not is_cut_off(None)
    assert not is_incomplete(None)
    assert not set(CUT_OFF) & {*NOT_CUT_OFF, *INTERRUPTED}


def test_replies_that_were_cut_off_or_interrupted_are_incomplete() -> None:
    incomplete = (*CUT_OFF, *INTERRUPTED, *SPELLINGS, "SAFETY", "FinishReason.SAFETY", "ERROR_TOXIC")
    assert all(map(is_incomplete, incomplete))
    assert not any(map(is_incomplete, ("stop", "end_turn", "eos", "tool_calls", "pause_turn", "a new reason", "")))
