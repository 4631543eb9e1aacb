"""Real conversations as token ids, with an invented hint at every turn that answers a user."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat, ChatError
from opdkit.config.extract import ExtractConfig
from opdkit.extract import stage as extract
from opdkit.model.load import load_tokenizer
from opdkit.model.scoring import PromptResponse as ScoredSequence
from opdkit.store.reading import read_all
from opdkit.teacher.scores import ReplyReadings

ROOT = Path(__file__).parents[2]
LOGS = ROOT.parent / "shared" / "data"
HINT = "Check the reservation and the rules for changing it before you offer anything, and answer in one sentence."
VOCABULARY = 16_384


@dataclass(frozen=True)
class Log:
    """Log as opdkit extracts it: its sessions, and per session the messages that are trainable turns."""

    sessions: list[dict]
    turns: list[list[int]]  # message indices, one list per session


@dataclass
class Tokenized:
    """Sessions as targets; turns that a template cannot render are dropped, and counted by reason."""

    sessions: list[list[ReplyReadings]] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)

    @property
    def targets(self) -> list[ReplyReadings]:
        return [t for session in self.sessions for t in session]


def read(path: Path) -> Log:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        extract.run(ExtractConfig(run=run, logs=(str(path),)))
        sessions, turns = list(read_all(run, "sessions")), list(read_all(run, "turns"))
    of = {s["session_id"]: list[int]() for s in sessions}
    for turn in turns:
        if turn["trainable"]:
            of[turn["session_id"]].append(turn["message_index"])
    return Log(sessions, list(of.values()))


def tokenizer_of(log: Log, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerBase:
    """Train a byte-level BPE on the log itself, with the sample model's template and control tokens.

    With the sample model's 1,265 tokens, real text would be more than twice as long as with a real tokenizer.
    """
    sample = load_tokenizer(str(ROOT / "sample_data" / "model"))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocabulary - 64, show_progress=False, initial_alphabet=alphabet)
    backend.train_from_iterator(dict.fromkeys(_texts(log)), trainer)
    found = PreTrainedTokenizerFast(tokenizer_object=backend)
    found.add_tokens(list(sample.added_tokens_decoder.values()))
    found.eos_token, found.chat_template = sample.eos_token, sample.chat_template
    return found


def _texts(log: Log) -> Iterator[str]:
    for session in log.sessions:
        yield session["tools"] or ""
        for message in session["messages"]:
            yield message["content"] or ""
            yield from (call["arguments"] for call in message["tool_calls"])


def tokenized(log: Log, chat: Chat) -> Tokenized:
    """Tokenize every trainable turn; turns after a user message get the hint, at the end of that message."""
    found = Tokenized()
    for session, turns in zip(log.sessions, log.turns, strict=True):
        targets = []
        for index in turns:
            try:
                targets.append(_target(chat, session, index))
            except ChatError as error:
                found.dropped[error.reason] += 1
        found.sessions.append(targets)
    return found


def _target(chat: Chat, session: dict, index: int) -> ReplyReadings:
    messages = session["messages"]
    reply, before = chat.reply(messages, index, session["tools"]).ids, messages[:index]
    if not reply:
        raise ChatError("no response tokens")
    plain = ScoredSequence(chat.prompt_ids(before, session["tools"]), reply)
    if before[-1]["role"] != "user":
        return ReplyReadings(plain)
    hinted = chat.prompt_ids(with_hint(before, HINT, "last-user"), session["tools"])
    return ReplyReadings(plain, ((ScoredSequence(hinted, reply),),))


def taubench() -> tuple[PreTrainedTokenizerBase, list[list[ReplyReadings]]]:
    """Return a tokenizer trained on tau-bench, and the sessions that have turns, shortest first.

    If the log is absent, say so and end the program.
    """
    if not LOGS.is_dir():
        print(f"skipped: the sessions are not there ({LOGS})")
        raise SystemExit
    log = read(LOGS / "taubench")
    tokenizer = tokenizer_of(log)
    return tokenizer, sorted(filter(None, tokenized(log, Chat(tokenizer, {})).sessions), key=length)


def length(targets: Sequence[ReplyReadings]) -> int:
    """Return the number of tokens of a session's longest turn."""
    return max((len(t.student) for t in targets), default=0)


def evenly_spaced(items: Sequence, count: int) -> list:
    """Return `count` evenly spaced items, the first and the last among them."""
    if count >= len(items):
        return list(items)
    return [items[round(k * (len(items) - 1) / max(1, count - 1))] for k in range(count)]
