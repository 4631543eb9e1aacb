"""Costs of a judge before it is asked: votes, tokens with and without a prefix cache, time, money.

Prompts are counted with the judge's tokenizer. For a model on a server, that is looked up in a local folder and in the
hub's cache; without it, four bytes of UTF-8 count as a token. `--measure N` asks about N turns: see `Measured`.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from heapq import nsmallest
from itertools import chain, groupby
from typing import Any, NamedTuple

from opdkit.config.judge import JudgeConfig
from opdkit.config.wording import Texts
from opdkit.console import counted
from opdkit.judge.cascade import leaves_open
from opdkit.judge.judges import load_judges
from opdkit.judge.kept_answers import KeptAnswers, answers_file
from opdkit.judge.rounds import ask_in_rounds, count_missing_votes
from opdkit.judge.turns import read_turns, write_questions
from opdkit.judge.votes import Answers, Ask, Question
from opdkit.store.counters import Counters, Summary
from opdkit.store.dry_run import describe_costs, print_dry_run
from opdkit.store.part_writer import Stage
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import ESCALATED

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


def report_work(config: JudgeConfig, stage: Stage, texts: Texts) -> Summary:
    """Print the work and the costs of the parts that are not done (`--dry-run`).

    Without `--measure`, no weights are loaded and no request is sent.
    """
    counters, names, judges = Counters(), Counter[str](), load_judges(config)
    work, first_work = Counter[str](), Counter[str]()
    sampled: list[list[Question]] = []  # the questions about each turn that `--measure` samples
    for part in stage.todo():
        turns = list(read_turns(config, part, counters))
        counters.rows_out += len(turns)
        counters.count("outcomes", sum(turn.outcome is not None for turn in turns))
        if not judges.judge:
            continue
        questions = write_questions(turns, config, texts)
        names.update(f"  questions on the {question.name}" for question in questions)
        work.update(judges.judge.count_work(questions, KeptAnswers(answers_file(stage, part), stage.fingerprint)))
        if judges.first:  # the second judge may get no question: its MIN_VOTES stays 0
            kept = KeptAnswers(answers_file(stage, part, ESCALATED.name), stage.fingerprint)
            first_work.update(judges.first.count_work(questions, kept))
        else:
            work[MIN_VOTES] += sum(count_missing_votes(question, (), config, texts) for question in questions)
        by_turn = [list(group) for _, group in groupby(questions, key=lambda question: question.turn_id)]
        sampled = nsmallest(config.measure, sampled + by_turn, key=lambda of: stable_hash(config.seed, of[0].turn_id))
    costs, left = dict[str, int | str](), sampled
    if config.first:
        costs, left = describe_first_judge(config.first, judges.first, first_work, sampled, texts)
    if judges.judge:
        measured = measure_judge(config, judges.judge, work, sampled, left, texts) if sampled else None
        costs |= describe_work(config, judges.judge, work, measured)
    return print_dry_run(stage, counters, "turns", {"turns to judge": counters.rows_out, **names, **costs})


def describe_first_judge(
    config: JudgeConfig, judge: Any, work: Counter[str], sampled: list[list[Question]], texts: Texts
) -> tuple[dict[str, int | str], list[list[Question]]]:
    """Return the lines of `--dry-run` on the first judge, and the questions about each sampled turn that it leaves.

    It is asked all questions about the sampled turns; `config` and `work` are its own.
    """
    work[MIN_VOTES] = work[VOTES]  # the first judge always gives all votes
    measured, answers = measure(judge, judge.ask, sampled) if sampled else (None, {})
    left = [[one for one in turn if leaves_open(one.name, answers[one.key], texts)] for turn in sampled]
    lines = describe_work(config, judge, work, measured)
    costs: dict[str, int | str] = {f"first: {name.strip()}": value for name, value in lines.items()}
    costs["left to the second judge"] = "not measured: --measure 50 tries 50 turns"
    if sampled:
        asked = counted(sum(map(len, sampled)), "question")
        costs["left to the second judge"] = f"{sum(map(len, left)):,} of {asked}, as measured"
    return costs, left


def measure_judge(
    config: JudgeConfig,
    judge: Any,
    work: Counter[str],
    sampled: list[list[Question]],
    left: list[list[Question]],
    texts: Texts,
) -> Measured:
    """Ask the judge, or the second one of a cascade, the questions that are `left` of those about the sampled turns.

    If the first judge decided some, change `work` to what is left of it.
    """
    still_open, asked = sum(map(len, left)), sum(map(len, sampled))
    measured = Measured(0, 0.0, 0.0, None, 0.0)  # of no question
    if still_open:
        measured, _ = measure(judge, lambda some: ask_in_rounds(judge.ask, some, config, texts), [*filter(None, left)])
    if still_open < asked:
        # Two questions about a turn share its text, so reading one of them takes more than half of reading both.
        read_left, read_all = (judge.count_work([*chain(*turns)])[UNCACHED] for turns in (left, sampled))
        work[UNCACHED] = round(work[UNCACHED] * read_left / max(1, read_all))
        measured = measured._replace(share=measured.share * still_open / asked)
    return measured


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
