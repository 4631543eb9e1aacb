"""Tests that a step has the gradient of its turns read one by one, on real conversations and real templates."""

from pathlib import Path

import chat_templates
import pytest
import torch

from opdkit.chat.template import Chat, ChatError
from opdkit.config.extract import ExtractConfig
from opdkit.extract import stage as extract
from opdkit.model.load import load_model, load_tokenizer
from opdkit.model.scoring import PromptResponse, response_logits, token_logprobs
from opdkit.store.reading import read_all
from opdkit.train.forwards import plan_forwards
from opdkit.train.policy import Policy

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LOGS = {"sample": ROOT / "sample_data" / "logs" / "openai.jsonl",
        "tau-bench": ROOT.parent / "shared" / "data" / "taubench"}  # fmt: skip
MODEL = str(ROOT / "sample_data" / "model")
LONGEST = 4000  # tokens of a turn, so that the test is quick


@pytest.fixture(scope="module", params=LOGS)
def log(request, tmp_path_factory) -> tuple[list[dict], list[dict]]:
    """Return sessions and trainable turns."""
    if not LOGS[request.param].exists():
        pytest.skip("the logs are not there")
    run = tmp_path_factory.mktemp("log") / "run"
    extract.run(ExtractConfig(run=run, logs=(str(LOGS[request.param]),), limit=12))
    return list(read_all(run, "sessions")), [t for t in read_all(run, "turns") if t["trainable"]]


def some_turns(log, chat: Chat, at_least: int) -> tuple[list[PromptResponse], list[str]]:
    """Return `at_least` this many turns of the first sessions, and their sessions, without turns that are too long."""
    found, names = [], []
    rows, turns = log
    for session in rows:
        mine = []
        for turn in turns:
            if turn["session_id"] == session["session_id"]:
                before = session["messages"][: turn["message_index"]]
                try:
                    prompt = chat.prompt_ids(before, session["tools"])
                    reply = chat.reply(session["messages"], turn["message_index"], session["tools"]).ids
                except ChatError:
                    continue
                mine.append(PromptResponse(prompt, reply))
        mine = [turn for turn in mine if len(turn) <= LONGEST]
        if len(mine) > 1:
            found, names = found + mine, names + [session["session_id"]] * len(mine)
        if len(found) >= at_least:
            break
    return found, names


def gradient(model, logprobs: list[torch.Tensor]) -> torch.Tensor:
    """Return the gradient of a loss that weighs the tokens of a turn differently. `logprobs`: one tensor per turn."""
    model.zero_grad()
    sum((x * torch.linspace(-1, 1 + n % 3, len(x))).sum() for n, x in enumerate(logprobs)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


@pytest.mark.parametrize("template", ["CHATML", "QWEN"])
def test_a_step_has_the_gradient_of_its_turns(log, template) -> None:
    """This holds with shared prefixes, also if the template removes the thinking from earlier replies."""
    tokenizer = load_tokenizer(MODEL)
    tokenizer.chat_template = getattr(chat_templates, template)
    model = load_model(MODEL, device="cpu", dtype="float32")
    turns, sessions = some_turns(log, Chat(tokenizer, {}), at_least=4)
    assert len(turns) >= 4
    alone = [token_logprobs(response_logits(model, [t]), torch.tensor(t.response_ids)) for t in turns]
    expected = gradient(model, alone)
    policy = Policy(model)
    forwards, tokens_read = plan_forwards(turns, sessions, 4096, 0, 1, packed=policy.packed)
    found: dict[int, torch.Tensor] = {}
    for trees in forwards:
        order = [i for tree in trees for i in tree.replies]
        ids_N1 = torch.tensor([[t] for i in order for t in turns[i].response_ids])
        logprobs_NK, _ = policy([[turns[i] for i in tree.replies] for tree in trees], ids_N1)
        parts = logprobs_NK[:, 0].split([len(turns[i].response_ids) for i in order])
        found |= zip(order, parts, strict=True)
    assert tokens_read < 0.9 * sum(map(len, turns))
    here = [found[i] for i in range(len(turns))]
    assert max(float((a - b).detach().abs().max()) for a, b in zip(here, alone, strict=True)) <= 1e-4
    assert float((gradient(model, here) - expected).norm() / expected.norm()) <= 1e-5
