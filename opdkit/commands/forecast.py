"""`opdkit forecast`: estimate the gain and the cost of a training from some fifty turns of a judged run.

Training can teach what the student does when the hint is in its prompt. So the student answers the prompts of hinted
turns with the hint and without it (`opdkit.teacher.hint_checks`). For requests like those that the hints are about,

    gain = learned * mean of (share that passes with the hint - share without it)      learned = n^2 / (n^2 + h^2)

for n turns whose hints the test keeps, and h = HALF_LEARNED. The mean includes hints that replies also follow without
the hint: a student that already does most of it has little to gain. It excludes hints that do not help: for such turns,
the student learns what to reply from the other turns. The shares are corrected for the judge's errors (Rogan and Gladen
1978), which are measured on logged replies: a reply that was complained about does not do what its hint asks; the next
reply of the session does if it was praised.
"""

import json
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from opdkit.chat.markup import visible
from opdkit.chat.template import Chat, ChatError
from opdkit.config.fields import JSON
from opdkit.config.forecast import ForecastConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import MOST_CYCLES, TrainConfig, fit_epochs
from opdkit.config.wording import DEFAULTS
from opdkit.console import counted, duration, print_facts
from opdkit.errors import OpdkitError
from opdkit.evaluate.bootstrap import FEWEST, resample_sums
from opdkit.judge.criterion import FreshReply, judge_replies
from opdkit.judge.judges import MODEL_JUDGES, SERVED
from opdkit.judge.prompts import write_turn
from opdkit.judge.reply_in_context import reply_in_context
from opdkit.judge.votes import USAGE, Ask
from opdkit.model.tree import count_nodes
from opdkit.store.counters import Counters, list_reasons
from opdkit.store.joined_turns import JoinedTurn, all_joined_turns
from opdkit.store.plans import check_upstream, manifest
from opdkit.store.reading import summary_of
from opdkit.store.stable_hash import stable_hash
from opdkit.store.template_args import choose_template_args
from opdkit.store.turn_ids import conversation_id, session_of
from opdkit.teacher import hint_checks
from opdkit.teacher.costs import measure_scoring
from opdkit.teacher.examples import JudgedSession, JudgedTurn, Row, encode_reply
from opdkit.teacher.models import Scorer, load_scorer

SAMPLES = 8  # replies per prompt: with each hint, and without a hint
# Fitted to 64 trainings in eight worlds of tests/benchmarks/worlds, in builds that docs/learning.md does not report.
HALF_LEARNED = 2.5  # turns from which half of the gain is learned; for the interval, divided or multiplied by UNSURE
UNSURE = 3.0
SPREAD = 0.06  # standard deviation of measured gains around expected ones, in addition to that from drawing turns
_NORMAL_90 = 1.645
WORTH = 0.02  # gain that the lower end of the interval must exceed for "go"
LEAST_SKILL = 0.5  # smallest skill (`measure_skill`) of a judge whose verdicts can be used
TRAINING_PASSES = 3  # cost of a training step in forward passes: a backward pass costs two
LEARNED_FROM = (hint_checks.HELPS, hint_checks.NOT_NEEDED)  # statuses of the tested hints that training learns from
Judge = dict[str, tuple[int, int]]  # replies that "follow" or "do not follow" a hint -> right verdicts, verdicts


@dataclass(frozen=True)
class JudgedLog:
    """Judged turns of a log, and their verdicts with the decisions in force applied."""

    turns: list[JoinedTurn]
    verdicts: dict[str, JSON]  # turn id -> verdict
    hinted: list[JoinedTurn]  # the turns that have a hint
    scale: float  # turns that can be judged per judged turn: more than 1 after `judge --limit`


def run(config: ForecastConfig) -> None:
    """Print the forecast, the decision first. Raises what `predict` raises."""
    found = predict(config)
    if config.json:
        print(json.dumps(found, indent=2))
        return
    shares = ("complaints", "agreement", "without_hint", "with_hint")
    percent = {name: "-" if found[name] is None else f"{found[name]:.0%}" for name in shares}
    costs = {name: f"{duration(seconds)} on this machine" for name, seconds in found["seconds"].items()}
    costs |= {name: f"{tokens:,} tokens, {costs[name]}" for name, tokens in found["tokens"].items()}
    costs[f"training, one cycle of at most {MOST_CYCLES}"] = costs.pop("training")
    print_facts([
        ("go" if found["go"] else "no-go", found["reason"]),
        ("judged turns", f"{found['judged_turns']:,}, {percent['complaints']} complaints"),
        ("hinted turns, in the whole log", f"{found['hinted_turns']:,}"),
        ("hints tested", ", ".join(f"{count:,} {status}" for status, count in found["hints"].items())),
        ("replies as wanted without a hint", f"{percent['without_hint']}, with the hint {percent['with_hint']}"),
        ("votes that agree on a reward", percent["agreement"]),
        *((f"judge right where replies {kind}", f"{n:,} of {of:,}") for kind, (n, of) in found["judge"].items()),
        *((f"replies left out: {reason}", f"{count:,}") for reason, count in found["replies_left_out"].items()),
        *((f"cost of {name}", text) for name, text in costs.items()),
    ])  # fmt: skip


def predict(config: ForecastConfig) -> JSON:
    """Return the forecast of a training on a judged run.

    Raises OpdkitError if no turn has a hint, or none of the drawn turns can be scored.
    """
    check_upstream(config.run, ["judge"])
    args = choose_template_args(config.run, "extract", config.template_arg)
    teacher = TeacherConfig(
        run=config.run, model=config.model, template_arg=args, check_hints=SAMPLES, judge_model=config.judge_model,
        judge_url=config.judge_url, api_key_env=config.api_key_env, max_new_tokens=config.max_new_tokens,
        device=config.device, dtype=config.dtype, seed=config.seed, shard="0/1",
    )  # fmt: skip
    teacher = replace(teacher, **hint_checks.choose_hint_judge(teacher))
    log = read_log(config.run)
    drawn = draw_turns(log.hinted, config)
    # check_hints skips hints that people decided; the status "ok" makes it test them, too.
    sessions = [JudgedSession(turn.session, [JudgedTurn(turn.turn, log.verdicts[turn.turn_id] | {"hint_status": "ok"})])
                for turn in drawn]  # fmt: skip
    scorer, left_out = load_scorer(teacher), Counters()
    ask, begin = hint_checks.open_judge(teacher, scorer), time.monotonic()
    tests = hint_checks.check_hints(teacher, scorer, ask, sessions)
    testing = (time.monotonic() - begin) / len(drawn)
    judge = measure_judge(scorer.student.chat, ask, drawn, log, left_out)
    learned_from = [row for row in tests if row["status"] in LEARNED_FROM]
    hinted_turns = len(log.hinted) * log.scale
    rewards = [verdict["reward"] for verdict in log.verdicts.values() if verdict["reward"] is not None]
    agreements = [a for verdict in log.verdicts.values() if (a := verdict["reward_agreement"]) is not None]
    tokens, seconds = measure_costs(teacher, scorer, sessions, log)
    return {
        **decide(tests, learned_from, judge, hinted_turns),
        "judged_turns": len(log.turns), "complaints": rewards.count(-1) / len(rewards) if rewards else None,
        "hinted_turns": round(hinted_turns),
        "hints": Counter(row["status"] for row in tests), "judge": judge, "replies_left_out": dict(left_out.dropped),
        **{name: float(np.mean([row[name] for row in learned_from])) if learned_from else None
           for name in ("with_hint", "without_hint")},
        "agreement": float(np.mean(agreements)) if agreements else None,
        "tokens": count_judging(config, scorer.student.chat, log) | tokens,
        "seconds": {"judging": summary_of(config.run, "judge").counters.seconds * log.scale,
                    "testing the hints": testing * hinted_turns} | seconds,
    }  # fmt: skip


def read_log(run: Path) -> JudgedLog:
    """Return the judged turns of a run. Raises OpdkitError if none of them has a hint."""
    turns = list(all_joined_turns(run, partial=True))
    verdicts = {turn.turn_id: turn.final_verdict for turn in turns if turn.final_verdict is not None}
    judged = [turn for turn in turns if turn.turn_id in verdicts]
    hinted = [turn for turn in judged if verdicts[turn.turn_id]["hint"]]
    if not hinted:
        why = "only rewards could train it, and what they bring cannot be foreseen" if judged else "judge it first"
        raise OpdkitError(f"{run} has no turn with a hint among {counted(len(judged), 'judged turn')}: {why}")
    able = sum(turn.skip_reason is None for turn in turns)
    return JudgedLog(judged, verdicts, hinted, able / len(judged))


def draw_turns(turns: Sequence[JoinedTurn], config: ForecastConfig) -> list[JoinedTurn]:
    """Return at most `--hints` of these turns, drawn by `--seed`."""
    return sorted(turns, key=lambda turn: stable_hash(config.seed, "forecast", turn.turn_id))[: config.hints]


def decide(tests: Sequence[Row], learned_from: Sequence[Row], judge: Judge, hinted_turns: float) -> JSON:
    """Return the decision, its reason and the gain; low and high are None if the hints are from too few sessions."""
    gain, low, high = expect(learned_from, judge, hinted_turns * len(learned_from) / len(tests))
    sessions = len({conversation_id(session_of(row["turn_id"])) for row in learned_from or tests})
    is_known, problem = sessions >= FEWEST, find_problem(tests, judge)
    reason = f"too few sessions to tell: the hints to learn from are from {sessions:,}, and {FEWEST} are needed"
    if is_known:
        reason = f"the expected gain is {gain:+.2f}, with probability 0.9 between {low:+.2f} and {high:+.2f}"
    return {"go": is_known and low > WORTH and problem is None, "reason": problem or reason,
            "gain": gain, "low": low if is_known else None, "high": high if is_known else None}  # fmt: skip


def find_problem(rows: Sequence[Row], judge: Judge) -> str | None:
    """Return why the test of the hints is inconclusive, and what helps; None if it is conclusive."""
    untested = Counter(row["status"] for row in rows if row["status"].startswith(hint_checks.NOT_TESTED))
    tested = len(rows) - untested.total()
    if tested < untested.total():
        status = untested.most_common(1)[0][0]
        if status == hint_checks.REPLIES_CUT_OFF:
            return "most replies are cut off before they say anything: raise --max-new-tokens"
        remedy = "; a smaller --max-new-tokens leaves more room for prompts" if "too long" in status else ""
        return f"most hints are {status}{remedy}"
    if measure_skill(judge) < LEAST_SKILL or 2 * sum(row["status"] == hint_checks.NOT_JUDGED for row in rows) > tested:
        return "the judge cannot say whether replies do what the hints ask; --judge-model names another"
    return None


def measure_costs(
    teacher: TeacherConfig, scorer: Scorer, drawn: list[JudgedSession], log: JudgedLog
) -> tuple[dict[str, int], dict[str, float]]:
    """Return the tokens and seconds of scoring and training for the whole log, measured on its hinted turns `drawn`.

    Raises OpdkitError if no drawn turn can be scored.
    """
    alone, both = (measure_scoring(replace(teacher, teacher_samples=n), scorer, drawn) for n in (0, teacher.samples))
    read, more_read = (counters.total("tokens read") for counters in (alone, both))
    if not read:
        reasons = list_reasons(alone.dropped)
        raise OpdkitError(f"none of {counted(len(drawn), 'turn')} with a hint can be scored: {reasons}")
    # Per hinted turn: tokens read for the logged reply and for the teacher's; seconds to sample and score the latter.
    logged, written, sampling = (n / len(drawn) for n in (read, more_read - read, both.seconds - alone.seconds))
    turns, hinted, speed = len(log.turns) * log.scale, len(log.hinted) * log.scale, read / alone.seconds
    tokens_per_epoch = round(logged / 2 * turns + written / 2 * hinted)  # half of the tokens are read without the hint
    scoring = tokens_per_epoch + round((logged + written) / 2 * hinted)
    training = tokens_per_epoch * fit_epochs(round((turns + teacher.samples * hinted) / TrainConfig.batch_turns))
    return {"scoring": scoring, "training": training}, {
        "scoring": (scoring - written * hinted) / speed + sampling * hinted,
        "training": TRAINING_PASSES * training / speed,
    }


def measure_skill(judge: Judge) -> float:
    """Return Youden's index: 1 without errors, 0 by chance. Ten verdicts per kind, nine of them right, are added."""
    return sum((right + 9) / (count + 10) for right, count in judge.values()) - 1


def expect(learned_from: Sequence[Row], judge: Judge, turns: float) -> tuple[float, float, float]:
    """Return the expected gain, and the ends of the interval that holds the gain with probability 0.9.

    `learned_from` are the tested hints that training learns from; `turns` is how many turns of the log have such hints.
    """
    by_session, skill = defaultdict[str, list[float]](list), max(LEAST_SKILL, measure_skill(judge))
    for row in learned_from:
        by_session[conversation_id(session_of(row["turn_id"]))].append((row["with_hint"] - row["without_hint"]) / skill)
    sums = np.array([[sum(values), len(values)] for values in by_session.values()] or [[0.0, 1.0]])
    mean = min(1.0, float(np.divide(*sums.sum(0))))  # a single hint's difference may exceed 1 by chance
    halves = (UNSURE * HALF_LEARNED, HALF_LEARNED, HALF_LEARNED / UNSURE)
    least, learned, most = (turns**2 / (turns**2 + half**2) for half in halves)
    spread = np.divide(*resample_sums(sums, 0).T).std()
    margin = _NORMAL_90 * math.hypot(spread, SPREAD) * max(0.5, learned)
    low, high = sorted((least * mean, most * mean))  # if the mean is negative, `most` gives the lower end
    return learned * mean, max(-1.0, low - margin), min(1.0, high + margin)


def measure_judge(chat: Chat, ask: Ask, drawn: Sequence[JoinedTurn], log: JudgedLog, left_out: Counters) -> Judge:
    """Return how often the judge is right about logged replies, and count in `left_out` those that cannot be rendered.

    A drawn turn's reply with reward -1 does not follow its hint. The session's next judged reply with reward +1 does.
    """
    next_of = {a.turn_id: b for a, b in pairwise(log.turns) if a.session_id == b.session_id}
    judge, texts = Judge(), DEFAULTS["criterion"]
    for name, reward in (("follow", 1), ("do not follow", -1)):
        replies = []
        for turn in drawn:
            replied = next_of.get(turn.turn_id) if reward == 1 else turn
            if replied is None or log.verdicts[replied.turn_id]["reward"] != reward:
                continue
            try:
                ids = encode_reply(chat, replied.session, replied.turn, left_out)[0].ids
            except ChatError as error:
                left_out.drop(error.reason)
                continue
            before, hint = turn.session["messages"][: turn.index], log.verdicts[turn.turn_id]["hint"]
            seen = visible(chat.text([i for i in ids if i not in chat.stop_ids]), thinking=False)
            replies.append(FreshReply(f"{turn.turn_id}:{name}", before, seen, texts["helps"], hint))
        said = [one.is_met for _, one in judge_replies(ask, replies, texts) if one.is_met is not None]
        judge[name] = (said.count(reward == 1), len(said))
    return judge


def count_judging(config: ForecastConfig, chat: Chat, log: JudgedLog) -> dict[str, int]:
    """Return {"judging": tokens that the votes on the whole log take}; {} if a rollout judged it.

    The judge stage has counted the tokens. If its server does not report them, `chat` counts those of a sample of the
    turns. A server reads a turn again for each vote, a local judge reads common prefixes once, and rules read nothing.
    """
    plan, total = manifest(config.run, "judge")["plan"], 0
    if not (judge := plan["config"].get("judge")):
        return {}
    prompt, cached, completion = map(summary_of(config.run, "judge").counters.total, USAGE)
    if prompt:
        return {"judging": round((prompt - (cached if judge == "local" else 0) + completion) * log.scale)}
    texts = plan["inputs"].get("wording", {}).get("judge", DEFAULTS["judge"])
    encode, drawn = partial(chat.tokenizer.encode, add_special_tokens=False), draw_turns(log.turns, config)
    for turn in drawn if judge in MODEL_JUDGES else ():
        verdict = log.verdicts[turn.turn_id]
        votes = {name: [vote["raw"] for vote in verdict[f"{name}_votes"]] for name in ("hint", "reward")}
        reply = reply_in_context(turn.session["messages"], turn.turn)
        common = texts["system"] + write_turn(reply, plan["config"]["max_section_chars"])
        prompts = [encode(common + texts[name]) for name in votes for _ in votes[name]]
        total += sum(map(len, prompts)) if judge in SERVED else count_nodes(prompts)
        total += sum(len(encode(answer)) for answers in votes.values() for answer in answers)
    return {"judging": round(total / len(drawn) * len(log.turns) * log.scale)}
