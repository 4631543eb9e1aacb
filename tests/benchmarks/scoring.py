"""How long scoring takes with each conversation read once, and with every turn read from its beginning.

    python -m tests.benchmarks.scoring

On real sessions (tau-bench, ../shared/data), whose turns all have a hint, and on single turns, long and short, with a
hint and without: without one there is nothing to share, and nothing must be lost. Untrained weights: the time depends
on sizes, not on values. Both ways score the same sessions, turn about, and the CPU seconds of this process are
counted, so that what else the machine does plays little part.
"""

import argparse
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from opdkit import extract
from opdkit.chat import Chat, ChatError, with_hint
from opdkit.models import load_tokenizer
from opdkit.scoring import Mixture, Sequence
from opdkit.stages import ExtractConfig
from opdkit.store import read_all
from opdkit.teacher.session import Scores, Target, Wanted, score_session

ROOT = Path(__file__).parents[2]
LOG = ROOT.parent / "shared" / "data" / "taubench"
HINT = "Check the reservation and the rules for changing it before you offer anything, and answer in one sentence."
BATCH_TOKENS = 16384
# Hidden size, layers, heads, MLP: about 10 and 100 million weights below the embeddings.
SIZES = {"1m": (128, 4, 4, 512), "10m": (320, 6, 8, 1280), "100m": (768, 12, 12, 2560)}


def build(size: str, vocabulary: int) -> PreTrainedModel:
    """A random Qwen3 with two heads to a key."""
    hidden, layers, heads, mlp = SIZES[size]
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers,
                         num_attention_heads=heads, num_key_value_heads=heads // 2, head_dim=hidden // heads,
                         max_position_embeddings=1 << 16, tie_word_embeddings=True)  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def sessions(chat: Chat, log: Path, count: int, most: int) -> list[list[Target]]:
    """The trainable turns of the first `count` sessions of at most `most` tokens, each with a hint."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        extract.run(ExtractConfig(run=run, logs=(str(log),)))
        rows, turns = list(read_all(run, "sessions")), list(read_all(run, "turns"))
    found: list[list[Target]] = []
    for row in rows:
        indices = [t["message_index"] for t in turns if t["session_id"] == row["session_id"] and t["trainable"]]
        try:
            targets = [target(chat, row, index) for index in indices]
        except ChatError:
            continue
        if len(targets) > 1 and max(len(t.student) for t in targets) <= most:
            found.append(targets)
        if len(found) == count:
            break
    return found


def target(chat: Chat, session: dict, index: int) -> Target:
    messages = session["messages"]
    reply = chat.reply(messages, index, session["tools"]).ids
    before = messages[:index]
    plain, hinted = (chat.prompt_ids(m, session["tools"]) for m in (before, with_hint(before, HINT, "last-user")))
    return Target(Sequence(plain, reply), ((Sequence(hinted, reply),),))


def compare(name: str, model: PreTrainedModel, chosen: list[list[Target]], pairs: int) -> None:
    """One table row: both ways over all sessions, `pairs` times, which goes first in turn."""

    def once(counted: Counter[str]) -> list[list[Scores]]:
        return [
            score_session(model, Mixture((model,)), t, Wanted(20), batch_tokens=BATCH_TOKENS, counted=counted)
            for t in chosen
        ]

    def plainly(counted: Counter[str]) -> list[list[Scores]]:
        with patch("opdkit.tree_reading.reads_trees", lambda model: False):
            return once(counted)

    seconds: dict = {once: [], plainly: []}
    counts = {once: Counter[str](), plainly: Counter[str]()}
    scores = {}
    for pair in range(pairs):
        for way in (once, plainly) if pair % 2 else (plainly, once):
            counts[way].clear()
            start = time.process_time()
            scores[way] = way(counts[way])
            seconds[way].append(time.process_time() - start)
    ratios = sorted(b / a for a, b in zip(seconds[once], seconds[plainly], strict=True))
    found, expected = ([x for s in scores[way] for x in s] for way in (once, plainly))
    difference = max(
        float((a - b).abs().max())
        for x, y in zip(found, expected, strict=True)
        for a, b in ((x.old, y.old), (x.teacher, y.teacher))
        if a is not None
    )
    print(
        f"{name}: {len(chosen)} sessions, {sum(map(len, chosen))} turns\n"
        f"  tokens read      {counts[plainly]['tokens read']:,} -> {counts[once]['tokens read']:,}\n"
        f"  CPU seconds      {statistics.median(seconds[plainly]):.2f} -> {statistics.median(seconds[once]):.2f}"
        f" (medians of {pairs})\n"
        f"  times as fast    {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})\n"
        f"  largest difference in a log-prob  {difference:.1g} nats",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=2, help="that many of tau-bench")
    parser.add_argument("--tokens", type=int, default=5000, help="longest session")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--size", choices=SIZES, default="10m")
    options = parser.parse_args()
    if not LOG.is_dir():
        print(f"skipped: the sessions are not there ({LOG})")
        return
    tokenizer = load_tokenizer(str(ROOT / "sample_data" / "model"))
    model = build(options.size, len(tokenizer))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f} million weights, {torch.get_num_threads()} threads")
    chat = Chat(tokenizer, {})
    long = sessions(chat, LOG, options.sessions, options.tokens)
    short = sessions(chat, ROOT / "sample_data" / "logs" / "openai.jsonl", 40, options.tokens)
    compare("whole sessions", model, long, options.pairs)
    for name, chosen in (("long", long), ("short", short)):
        compare(f"{name} single turns with a hint", model, [t[:1] for t in chosen], options.pairs)
        compare(f"{name} single turns without", model, [[Target(t[0].student)] for t in chosen], options.pairs)


if __name__ == "__main__":
    main()
