"""Time of scoring that reads each conversation once, and of the usual way, every prompt from its beginning.

    python -m tests.benchmarks.scoring            what docs/performance.md shows
    python -m tests.benchmarks.scoring --exact    whether the numbers are the same, on all turns and templates

Measured on real sessions (../shared/data) with a hint at every turn that answers a user, and on logs of single turns,
where there is nothing to share and opdkit should not be slower. Both ways score the same turns in alternation.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from opdkit.chat.template import Chat
from opdkit.config.teacher import TeacherConfig
from opdkit.model.scoring import Mixture
from opdkit.model.tree import plan_passes
from opdkit.model.tree_reading import PACK_TOKENS
from opdkit.teacher.scores import ReplyReadings, ReplyScores, ScoreOptions, count_tree_tokens, score_session

from . import usual
from .models import add_model_options, build_for, weights
from .pairs import PAIRS, RESULTS, Comparison, clock_of, save, turn_about
from .sessions import LOGS, ROOT, Tokenized, evenly_spaced, length, read, tokenized, tokenizer_of

WORDS = {"taubench": "tau-bench", "sweagent": "SWE-agent", "pi_openclaw": "one session of a coding agent"}


def once(
    model: PreTrainedModel, sessions: Sequence[list[ReplyReadings]], batch_tokens: int = TeacherConfig.batch_tokens
) -> list[ReplyScores]:
    """Score as `opdkit teacher` scores a part: short sessions together."""
    found, waiting, tokens = list[ReplyScores](), list[ReplyReadings](), 0
    for targets in [*sessions, None]:
        size = count_tree_tokens(targets or [])
        if waiting and (targets is None or tokens + size > batch_tokens):
            found += score_session(model, Mixture((model,)), waiting, ScoreOptions(), batch_tokens=batch_tokens)
            waiting, tokens = [], 0
        waiting, tokens = waiting + (targets or []), tokens + size
    return found


def flat(scores: Sequence[ReplyScores]) -> list[Tensor]:
    """Return the scores in the order of `usual.samples`."""
    return [x for s in scores for x in (s.old, s.teacher) if x is not None]


def largest_difference(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def tokens_read(sessions: Sequence[list[ReplyReadings]]) -> tuple[int, int]:
    """Return the number of tokens that the usual way reads, without padding, and that opdkit reads."""
    once, each = 0, 0
    for targets in sessions:
        if targets:
            tree = plan_passes([s.prompt_ids + s.response_ids for s in usual.samples(targets)], PACK_TOKENS)
            once, each = once + tree.tokens, each + tree.tokens + tree.saved
    return each, once


def compare(
    name: str, model: PreTrainedModel, sessions: Sequence[list[ReplyReadings]], pairs: int, facts: dict
) -> Comparison:
    """Time both ways on the same sessions, after a first run of opdkit's way."""
    targets = [t for session in sessions for t in session]
    results: dict[str, list[Tensor]] = {}

    def the_usual_way() -> None:
        results["usual"] = usual.logprobs(model, usual.samples(targets))

    def ours() -> None:
        results["ours"] = flat(once(model, sessions))

    ours()  # warm up: the first session is checked once per run
    seconds = turn_about(the_usual_way, ours, pairs, clock_of(model.device))
    each, read_once = tokens_read(sessions)
    facts = {
        "sessions": len(sessions),
        "turns": len(targets),
        "turns with a hint": sum(bool(t.hinted) for t in targets),
        "tokens read, usual": each,
        "tokens read, ours": read_once,
        "largest difference in nats": f"{largest_difference(results['ours'], results['usual']):.1g}",
        "weights": weights(model),
        "threads": torch.get_num_threads(),
    } | facts
    comparison = Comparison(name, usual.NAME, *seconds, facts)
    print(comparison.line(), flush=True)
    return comparison


def real(name: str, options: argparse.Namespace) -> Comparison:
    """Compare both ways on sessions of a log with turns of at most `--tokens` tokens, evenly spaced by length."""
    log = read(LOGS / name)
    tokenizer = tokenizer_of(log)
    found = tokenized(log, Chat(tokenizer, {}))
    fitting = sorted((s for s in found.sessions if s and length(s) <= options.tokens), key=length)
    chosen = evenly_spaced(fitting, options.sessions)
    each, once_all = tokens_read(found.sessions)
    timed, _ = tokens_read(chosen)
    facts = {
        "chosen": f"{len(chosen)} sessions, evenly spaced by length among the {len(fitting)} of {len(found.sessions)} "
        f"whose turns are at most {options.tokens:,} tokens",
        "share of the log's tokens that is timed": f"{timed / each:.1%}",
        "tokens read in the whole log, usual to ours": f"{each:,} to {once_all:,} ({each / once_all:.1f} times)",
        "dropped turns": sum(found.dropped.values()),
    }
    return compare(
        f"{WORDS[name]}, {options.size} model", build_for(options, len(tokenizer)), chosen, options.pairs, facts
    )


def single(name: str, path: Path, count: int, options: argparse.Namespace, *, hinted: bool) -> Comparison:
    """Compare both ways on the first turns of sessions alone, as a log of single turns."""
    log = read(path)
    tokenizer = tokenizer_of(log)
    sessions: Tokenized = tokenized(log, Chat(tokenizer, {}))
    first = [s[:1] if hinted else [ReplyReadings(s[0].student)] for s in sessions.sessions if s][:count]
    return compare(f"{name}, {options.size} model", build_for(options, len(tokenizer)), first, options.pairs, {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=4, help="that many of each log")
    parser.add_argument("--tokens", type=int, default=8192, help="longest turn")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    add_model_options(parser)
    parser.add_argument("--logs", nargs="*", choices=WORDS, default=["taubench", "sweagent"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--exact", action="store_true", help="compare the numbers, on all turns, and time nothing")
    parser.add_argument("--turns", type=int, help="with --exact: at most so many of each template")
    options = parser.parse_args()
    if not LOGS.is_dir():
        print(f"skipped: the sessions are not there ({LOGS})")
        return
    if options.exact:
        from . import exact

        exact.main(options.turns, options.results)
        return
    sample = ROOT / "sample_data" / "logs" / "openai.jsonl"
    found = [real(name, options) for name in options.logs]
    for hinted in (False, True):
        words = "with a hint" if hinted else "without a hint"
        found.append(single(f"single short turns {words}", sample, 80, options, hinted=hinted))
        found.append(single(f"single long turns {words}", LOGS / "taubench", 8, options, hinted=hinted))
    print(save("scoring", found, options.results))


if __name__ == "__main__":
    main()
