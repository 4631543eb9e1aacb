"""Costs of a judge before it is asked: votes, tokens with and without a prefix cache, time, money.

Prompts are counted with the judge's tokenizer. For a model on a server, that is looked up in a local folder and in the
hub's cache; without it, four bytes of UTF-8 count as a token. `--measure N` asks about N turns: see `Measured`.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opdkit.config.judge import JudgeConfig
from opdkit.judge.votes import Answers, Ask, Question
from opdkit.store.dry_run import describe_costs

# Keys of `count_work`, which assumes that all votes are asked for: votes; votes already given; questions that cannot be
# asked; prompt tokens without and with a prefix cache; the most tokens that the answers can have. The dry run adds
# MIN_VOTES, the fewest votes that can decide all questions.
VOTES, KNOWN, UNASKABLE, PROMPT, UNCACHED, WRITTEN = "votes", "known", "unaskable", "prompt", "uncached", "written"
MIN_VOTES = "minimum"
BYTES_PER_TOKEN = 4  # of UTF-8, if there is no tokenizer


class Measured(NamedTuple):
    """Figures measured on a judge's votes on a few turns; None if the judge does not report them."""

    votes: int
    share: float  # given votes / all votes that the questions could have; the others were not needed
    seconds: float  # per vote
    prompt_scale: float | None  # prompt tokens that the judge reports / those that `count_work` counts
    completion: float | None  # tokens per vote


def measure(judge: Any, ask: Ask, turns: Sequence[Sequence[Question]]) -> tuple[Measured, Answers]:
    """Ask all questions about some turns. If there are several turns, the first is a warm-up and is not timed.

    `ask` asks `judge` for no more votes than are needed.
    """
    given, seconds, expected = Answers(), 0.0, Counter[str]()
    for questions in ([q for turn in chosen for q in turn] for chosen in (turns[:1], turns[1:]) if chosen):
        expected += judge.count_work(questions)
        begin = time.monotonic()
        votes = ask(questions)
        seconds = (time.monotonic() - begin) / sum(map(len, votes))
        given.update(zip([question.key for question in questions], votes, strict=True))
    answers = [answer for votes in given.values() for answer in votes]
    share = len(answers) / expected[VOTES]
    if not (usages := [answer.usage for answer in answers if answer.usage]):
        return Measured(len(answers), share, seconds, None, None), given
    prompt, _, completion = (sum(column) / len(usages) for column in zip(*usages, strict=True))
    asked = expected[VOTES] - expected[UNASKABLE] * judge.config.votes
    return Measured(len(answers), share, seconds, prompt * asked / expected[PROMPT], completion), given


def describe_work(
    config: JudgeConfig, judge: Any, work: Mapping[str, int], measured: Measured | None
) -> dict[str, int | str]:
    """Return the lines of `--dry-run` on the costs of the votes, from the counts of `count_work`.

    Without `measured`, they assume that all votes are asked for: exact with --all-votes, else an upper bound.
    """
    is_local, is_fixed = config.judge == "local", work[MIN_VOTES] == work[VOTES]
    most = work[VOTES] - work[KNOWN]
    left = max(0, round(work[VOTES] * measured.share) - work[KNOWN]) if measured else most
    scale, completion = (measured.prompt_scale, measured.completion) if measured else (None, None)
    sent = left / most if most else 1.0  # votes to ask for / votes whose tokens `work` counts
    answered = left - work[UNASKABLE] * config.votes * sent  # without votes on questions that do not fit
    prompt_tokens, uncached = round(work[PROMPT] * (scale or 1) * sent), round(work[UNCACHED] * (scale or 1))
    written = work[WRITTEN] if completion is None else round(answered * completion)
    about = "" if is_fixed else ", about" if measured else ", at most"
    lines: dict[str, int | str] = {
        f"{'votes' if is_local else 'requests'}{about}": left,
        "  at least": 0 if is_fixed else max(0, work[MIN_VOTES] - work[KNOWN]),
        "  given before, and kept": work[KNOWN],
        "  questions that do not fit": work[UNASKABLE],
    }
    if is_local:
        read = uncached
        lines |= {f"tokens to read{about}": read, "  read without a prefix cache": prompt_tokens}
    else:
        read, counted = prompt_tokens, f"with the tokenizer of {config.judge_model}"
        if measured and scale:
            counted = f"by the server, on {measured.votes:,} votes"
        elif not judge.encode:
            counted = f"as one per {BYTES_PER_TOKEN} bytes: no tokenizer of {config.judge_model} is here"
            about = ", about"
        lines |= {f"tokens to read{about}": read, "  read with a prefix cache": uncached, "  counted": counted}
    lines[f"tokens to write, {'at most' if completion is None else 'about'}"] = written
    seconds = answered * measured.seconds if measured else None
    lines |= describe_costs(read, written, config.price, seconds, is_bound=completion is None)
    return {name: value for name, value in lines.items() if value or not name.startswith("  ")}
