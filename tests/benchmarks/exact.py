"""Scores of whole sessions compared with scores turn by turn, on all of tau-bench and real models' chat templates.

Turn by turn means one forward pass per prompt alone: no padding, no cache, no mask of our own.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import AddedToken
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opdkit.chat.template import Chat
from opdkit.model.scoring import Mixture
from opdkit.teacher.scores import ReplyReadings, ScoreOptions, score_session

from . import usual
from .models import build
from .pairs import RESULTS, save_rows
from .sessions import LOGS, Log, evenly_spaced, read, tokenized, tokenizer_of

OURS = "ChatML"
# Templates that TRL ships. Some strip thinking from earlier turns, some write a date, some open a think block.
TEMPLATES = ("qwen2_5", "qwen3", "qwen3_5_think", "llama3_1", "gemma3", "phi3_5", "gptoss", "deepseekv3")
_SPECIAL = re.compile(r"<\|[^|<>'\"]+\|>|<｜[^｜<>'\"]+｜>|<(?:start|end)_of_turn>|<bos>")
_WORD = re.compile(r"</?[a-z_]+>")
SAMPLE = 200  # turns per template of TRL
BATCH_TOKENS = 16384


@dataclass
class Found:
    """Result of one template."""

    template: str
    turns: int = 0
    readings: int = 0
    tokens: int = 0  # scored
    largest: float = 0.0  # difference, in nats
    dropped: dict[str, int] = field(default_factory=dict)

    def line(self) -> str:
        drops = "".join(f", {count} dropped: {reason}" for reason, count in self.dropped.items())
        return (
            f"{self.template}: {self.turns} turns, {self.readings} readings, {self.tokens:,} tokens scored, "
            f"largest difference {self.largest:.2g} nats{drops}"
        )


def chat_of(log_tokenizer: PreTrainedTokenizerBase, template: str) -> Chat:
    """Return a Chat of the log's tokenizer, a template of TRL, and the control tokens that the template writes."""
    text = files("trl").joinpath(f"chat_templates/{template}.jinja").read_text(encoding="utf-8")
    backend = log_tokenizer.backend_tokenizer.__class__.from_str(log_tokenizer.backend_tokenizer.to_str())
    tokenizer = type(log_tokenizer)(tokenizer_object=backend)
    special = dict.fromkeys(["<|begin|>", "<|finish|>", *_SPECIAL.findall(text)])
    words = dict.fromkeys(_WORD.findall(text))
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in words])
    tokenizer.bos_token, tokenizer.eos_token, tokenizer.chat_template = "<|begin|>", "<|finish|>", text
    return Chat(tokenizer, {})


@torch.no_grad()
def alone(model: PreTrainedModel, targets: Sequence[ReplyReadings]) -> list[Tensor]:
    """Return the log-probs [R] of each reading, in the order of `usual.samples`."""
    found = []
    for s in usual.samples(targets):
        ids = torch.tensor([s.prompt_ids + s.response_ids])
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(s.response_ids) + 1).logits[0, :-1].float()
        found.append(logits.log_softmax(-1).gather(-1, ids[0, -len(s.response_ids) :, None]).squeeze(-1))
    return found


def compared(
    template: str, model: PreTrainedModel, sessions: Sequence[list[ReplyReadings]], dropped: Counter[str]
) -> Found:
    """Compare the scores of each session in one call, as in `opdkit teacher`, with those of each reading alone."""
    found = Found(template, dropped=dict(dropped.most_common()))
    for targets in filter(None, sessions):
        scores = score_session(model, Mixture((model,)), targets, ScoreOptions(), batch_tokens=BATCH_TOKENS)
        ours = [x for s in scores for x in (s.old, s.teacher) if x is not None]
        for a, b in zip(ours, alone(model, targets), strict=True):
            if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
                raise ValueError(f"{template}: log-probs that are not finite")
            found.largest = max(found.largest, float((a - b).abs().max()))
            found.tokens += len(a)
        found.turns, found.readings = found.turns + len(targets), found.readings + len(ours)
    return found


def some_sessions(log: Log, turns: int | None) -> Log:
    """Return evenly spaced whole sessions with about `turns` turns in all; every session for None."""
    total = sum(map(len, log.turns))
    if turns is None or turns >= total:
        return log
    count = max(1, round(len(log.turns) * turns / total))
    chosen = evenly_spaced(range(len(log.turns)), count)
    return Log([log.sessions[i] for i in chosen], [log.turns[i] for i in chosen])


def measure(log: Log, tokenizer: PreTrainedTokenizerBase, template: str, turns: int | None) -> Found:
    """Measure one template on a log. The model is small and far from uniform, so that a wrong prefix shows."""
    chat = Chat(tokenizer, {}) if template == OURS else chat_of(tokenizer, template)
    said = tokenized(some_sessions(log, turns), chat)
    model = build("1m", len(chat.tokenizer), spread=0.1)
    return compared(template, model, said.sessions, said.dropped)


def main(turns: int | None, folder: Path = RESULTS) -> None:
    """Measure all turns with our template, and `SAMPLE` with each of TRL's; at most `turns` per template if given."""
    log = read(LOGS / "taubench")
    tokenizer = tokenizer_of(log)
    asked = {OURS: turns, **dict.fromkeys(TEMPLATES, min(turns or SAMPLE, SAMPLE))}
    found = []
    for template, most in asked.items():
        found.append(measure(log, tokenizer, template, most))
        print(found[-1].line(), flush=True)
    save_rows("exact", [asdict(f) for f in found], folder)
    print(f"largest difference of all: {max(f.largest for f in found):.2g} nats")
