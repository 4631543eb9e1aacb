"""Peak memory of scoring without the weights, in opdkit and in the usual way, at a vocabulary of 152K.

    python -m tests.benchmarks.memory

Each figure is from its own process: the most memory that it held while scoring (VmHWM of Linux, reset before) minus
what it held with the model loaded. The model is as small as possible, so that the growth with length and vocabulary
shows. Almost all tokens belong to replies, the hardest case for code that keeps only the logits of replies.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from opdkit.model.scoring import Mixture, PromptResponse
from opdkit.teacher.scores import ReplyReadings, ScoreOptions, score_session

from . import usual
from .pairs import RESULTS, save_rows

VOCABULARY = 151_936  # Qwen3
LENGTHS = (2048, 4096, 8192)
PROMPT = 64
TURNS = 8
SUPPORT = 20  # tokens stored at each position, the default of `opdkit teacher`


def model(vocabulary: int) -> Qwen3ForCausalLM:
    config = Qwen3Config(vocab_size=vocabulary, hidden_size=64, intermediate_size=64, num_hidden_layers=1, head_dim=32,
                         num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=1 << 15,
                         tie_word_embeddings=True)  # fmt: skip
    return Qwen3ForCausalLM(config).eval()


def one_turn(ids: list[int]) -> list[ReplyReadings]:
    return [ReplyReadings(PromptResponse(ids[:PROMPT], ids[PROMPT:]))]


def session(ids: list[int]) -> list[ReplyReadings]:
    """Return the same tokens as a conversation: turns of equal length that are almost all reply."""
    size = len(ids) // TURNS
    starts = range(0, TURNS * size, size)
    return [
        ReplyReadings(PromptResponse(ids[: s + PROMPT // TURNS], ids[s + PROMPT // TURNS : s + size])) for s in starts
    ]


def run(way: str, network: Qwen3ForCausalLM, ids: list[int]) -> None:
    """Score once. The usual way gets one sequence at a time, which needs the least memory."""
    if way == "usual":
        usual.logprobs(network, [t.student for t in one_turn(ids)])
        return
    targets = one_turn(ids) if way == "ours, one turn" else session(ids)
    score_session(network, Mixture((network,)), targets, ScoreOptions(SUPPORT), batch_tokens=16_384)


WAYS = ("usual", "ours, one turn", "ours, a session of 8 turns")


def peak(way: str, tokens: int, vocabulary: int) -> int:
    """Return the peak memory (bytes) of scoring in this process, which should have done nothing before."""
    network = model(vocabulary)
    ids = torch.randint(0, vocabulary, (tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    run(way, network, ids[: 2 * PROMPT])  # warm up: what libraries set up once
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM starts again from what is held now
    held = _status("VmRSS")
    run(way, network, ids)
    return _status("VmHWM") - held


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    return 1024 * int(found[1])


def apart(way: str, tokens: int, vocabulary: int = VOCABULARY) -> int:
    """Measure `peak` in a new process."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", "--one", way, str(tokens), str(vocabulary)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    return int(json.loads(done.stdout.splitlines()[-1]))


def rows(lengths: tuple[int, ...], vocabulary: int) -> list[dict]:
    found = []
    for tokens in lengths:
        for way in WAYS:
            found.append({"way": way, "tokens": tokens, "vocabulary": vocabulary,
                          "peak_bytes": apart(way, tokens, vocabulary)})  # fmt: skip
            print(f"{way}, {tokens:,} tokens: {found[-1]['peak_bytes'] / 1e9:.2f} GB", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="*", default=LENGTHS, help="tokens of the sequence")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        way, tokens, vocabulary = options.one
        print(json.dumps(peak(way, int(tokens), int(vocabulary))))
        return
    print(save_rows("memory", rows(tuple(options.lengths), options.vocabulary), options.results))


if __name__ == "__main__":
    main()
