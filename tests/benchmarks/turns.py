"""Cost of scoring by number of turns of a session, in opdkit and in the usual way.

    python -m tests.benchmarks.turns

Invented sessions of equally long turns, all with a hint, are read by one layer as wide as those of a model of 0.6
billion weights: in a narrow layer, attention would be most of the work at much shorter lengths than in real models.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from opdkit.model.scoring import Mixture, PromptResponse
from opdkit.teacher.scores import ReplyReadings, ScoreOptions, score_session

from . import usual
from .models import add_model_options, build_for, weights
from .pairs import PAIRS, RESULTS, Comparison, clock_of, save, turn_about
from .scoring import flat, largest_difference, tokens_read

COUNTS = (8, 16, 32, 64)
USER, HINT, REPLY = 16, 16, 16  # tokens
VOCABULARY = 4096
BATCH_TOKENS = 16_384


def session(turns: int, seed: int = 0) -> list[ReplyReadings]:
    draw = torch.Generator().manual_seed(seed)

    def ids(count: int) -> list[int]:
        return torch.randint(0, VOCABULARY, (count,), generator=draw).tolist()

    history, found = list[int](), []
    for _ in range(turns):
        asked, reply = history + ids(USER), ids(REPLY)
        found.append(ReplyReadings(PromptResponse(asked, reply), ((PromptResponse(asked + ids(HINT), reply),),)))
        history = asked + reply
    return found


def compare(turns: int, options: argparse.Namespace) -> Comparison:
    model, targets = build_for(options, VOCABULARY), session(turns)
    results: dict[str, list[Tensor]] = {}

    def the_usual_way() -> None:
        results["usual"] = usual.logprobs(model, usual.samples(targets))

    def ours() -> None:
        scores = score_session(model, Mixture((model,)), targets, ScoreOptions(), batch_tokens=BATCH_TOKENS)
        results["ours"] = flat(scores)

    ours()  # warm up: the first session is checked
    seconds = turn_about(the_usual_way, ours, options.pairs, clock_of(model.device))
    each, once = tokens_read([targets])
    facts = {
        "turns": turns,
        "tokens read, usual": each,
        "tokens read, ours": once,
        "largest difference in nats": f"{largest_difference(results['ours'], results['usual']):.1g}",
        "weights": weights(model),
        "threads": torch.get_num_threads(),
    }
    comparison = Comparison(f"a session of {turns} turns", usual.NAME, *seconds, facts)
    print(comparison.line(), flush=True)
    return comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="turns")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    add_model_options(parser, "wide")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    print(save("turns", [compare(n, options) for n in options.counts], options.results))


if __name__ == "__main__":
    main()
