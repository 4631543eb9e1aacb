"""Time of a judge in this process: five votes against one vote, and opdkit's sampling against `model.generate`.

    python -m tests.benchmarks.judge

Both questions are asked about real turns (tau-bench in ../shared/data, else the sample logs). Answers have a tenth of
the prompts' mean length, and nothing ends them early. Weights are untrained: the time depends on sizes, not on values.
The usual way is one `model.generate` per vote and question, in batches of 8, longest first, padded on the left. The
CPU seconds of this process are counted, so that other work of the machine matters little.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel

from opdkit.chat.template import Chat
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.extract import stage as extract
from opdkit.judge.prompts import judge_messages, write_turn
from opdkit.judge.reply_in_context import reply_in_context
from opdkit.model.load import load_tokenizer
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample, sample
from opdkit.model.sampling.batches import group_prompts
from opdkit.store.reading import read_all

from .models import SIZES, build
from .pairs import PAIRS, Comparison, save, turn_about
from .sessions import LOGS, ROOT

VOTES = 5
DEFAULTS = JudgeConfig(run=Path("unused"), judge="local", judge_model="unused")
USUAL_BATCH = 8  # prompts per call of `generate`


def prompts(chat: Chat, log: Path, count: int) -> list[list[int]]:
    """Return the prompts of both questions about `count` trainable turns, evenly spread over the log."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        extract.run(ExtractConfig(run=run, logs=(str(log),)))
        messages = {row["session_id"]: row["messages"] for row in read_all(run, "sessions")}
        turns = [turn for turn in read_all(run, "turns") if turn["trainable"]]
    found = []
    for turn in turns[:: max(1, len(turns) // count)][:count]:
        reply = reply_in_context(messages[turn["session_id"]], turn)
        common = write_turn(reply, DEFAULTS.max_section_chars)
        found += [chat.prompt_ids(judge_messages(common, question)) for question in ("hint", "reward")]
    return found


def ours(model: PreTrainedModel, asked: Sequence[list[int]], votes: int, new_tokens: int) -> list[list[Sample]]:
    requests = [Request(ids, [make_random_stream(0, i, v) for v in range(votes)]) for i, ids in enumerate(asked)]
    return sample(model, requests, temperature=DEFAULTS.temperature, max_new_tokens=new_tokens, stop_ids=frozenset(),
                  batch_tokens=DEFAULTS.batch_tokens)  # fmt: skip


@torch.inference_mode()
def usual(model: PreTrainedModel, asked: Sequence[list[int]], votes: int, new_tokens: int) -> None:
    order = sorted(asked, key=len, reverse=True)
    for start in range(0, len(order), USUAL_BATCH):
        some = order[start : start + USUAL_BATCH]
        ids = torch.zeros(len(some), len(some[0]), dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(some):
            ids[row, -len(prompt) :], mask[row, -len(prompt) :] = torch.tensor(prompt), 1
        for _ in range(votes):
            made = model.generate(ids, attention_mask=mask, do_sample=True,
                                  temperature=DEFAULTS.temperature, top_k=0,
                                  top_p=1.0, max_new_tokens=new_tokens, eos_token_id=None, pad_token_id=0)  # fmt: skip
            assert made.shape[1] == ids.shape[1] + new_tokens  # nothing ended it early


def compare(model: PreTrainedModel, asked: Sequence[list[int]], pairs: int) -> list[Comparison]:
    """Time five votes against one vote, then opdkit's sampling against the usual way."""
    length = statistics.mean(map(len, asked))
    new_tokens = max(1, round(length / 10))
    facts: dict[str, float | int | str] = {
        "turns": len(asked) // 2,
        "tokens of a prompt (mean)": round(length),
        "tokens of an answer": new_tokens,
        "prompt tokens": sum(map(len, asked)),
        "prompt tokens read": sum(group.tokens for group in group_prompts(asked)),
        "million weights": round(sum(p.numel() for p in model.parameters()) / 1e6),
        "threads": torch.get_num_threads(),
    }
    ours(model, asked[:2], 1, 2)  # warm up: some things are loaded and checked only once
    one, five = turn_about(lambda: ours(model, asked, 1, new_tokens), lambda: ours(model, asked, VOTES, new_tokens),
                           pairs, time.process_time)  # fmt: skip
    times = statistics.median(f / o for o, f in zip(one, five, strict=True))
    votes = Comparison(f"{VOTES} votes per question", "one vote per question", one, five,
                       facts | {"times the time of one vote": round(times, 2)})  # fmt: skip
    plain, shared = turn_about(lambda: usual(model, asked, VOTES, new_tokens),
                               lambda: ours(model, asked, VOTES, new_tokens), pairs, time.process_time)  # fmt: skip
    name = f"both questions, {VOTES} votes each"
    return [
        votes,
        Comparison(name, f"`model.generate` for each vote, {USUAL_BATCH} prompts a batch", plain, shared, facts),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--size", choices=SIZES, default="10m")
    parser.add_argument("--no-save", action="store_true", help="print and keep nothing")
    options = parser.parse_args(arguments)
    tokenizer = load_tokenizer(str(ROOT / "sample_data" / "model"))
    log = LOGS / "taubench" if LOGS.is_dir() else ROOT / "sample_data" / "logs" / "openai.jsonl"
    asked = prompts(Chat(tokenizer, {}), log, options.turns)
    comparisons = compare(build(options.size, len(tokenizer)), asked, options.pairs)
    for comparison in comparisons:
        print(comparison.line(), flush=True)
    if not options.no_save:
        print(save("judge", comparisons))


if __name__ == "__main__":
    main()
