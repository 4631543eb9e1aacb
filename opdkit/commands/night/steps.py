"""Steps of one night: extract and judge what is new, choose what to train on, train, evaluate, decide."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import asdict, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opdkit.commands.gate import gate
from opdkit.commands.night.forget import drop_sessions, read_forgotten
from opdkit.commands.night.home import KEPT, PROMOTED, RETESTED, WAITS, Home, Night, utc_now
from opdkit.commands.night.sessions import (
    ReadNight,
    choose_sessions,
    choose_unseen,
    count_trained,
    drop_withdrawn,
    find_complaints,
    read_current_sessions,
    read_sessions,
    write_run,
)
from opdkit.commands.night.turned import NightSession
from opdkit.commands.report.command import run as write_report
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON, StageConfig
from opdkit.config.gate import GateConfig
from opdkit.config.night import NightConfig
from opdkit.config.report import ReportConfig
from opdkit.console import counted, escape_markdown, say, stdout, verb, warn
from opdkit.errors import AnotherPlanError, NoPromptsError, NothingLearnedError, OpdkitError
from opdkit.evaluate.bootstrap import FEWEST, compute_chance_of_rise
from opdkit.evaluate.checks import read_prompt_lines, read_prompts
from opdkit.evaluate.conclusion import WHERE, choose_shares
from opdkit.evaluate.from_log import write_log_prompts
from opdkit.evaluate.gate import Sums, measure_shares, sum_units
from opdkit.extract.known_turns import record_turns
from opdkit.extract.news import NEWS
from opdkit.judge.criterion import read_judge_options
from opdkit.judge.warnings import describe_failure
from opdkit.store.atomic import find_left_overs, remove_entries, remove_folder, write_text
from opdkit.store.counters import Summary
from opdkit.store.plans import find_upstream_change, has_stage
from opdkit.store.reading import is_complete, read_all, read_arrow, read_part, summary_of
from opdkit.store.run_stage import run_stage
from opdkit.store.skip_reasons import FORGOTTEN
from opdkit.store.turn_ids import conversation_id

TESTS = "tests.jsonl"  # the prompts that decide on promotion
RETEST = "retest"  # folder in that of a night: the run that tests an earlier night's model
_MORE_TESTS = 1.5  # a retest needs this many times the sessions of the last one: with fewer, it would likely fail again
_CHANCE = 0.05  # highest probability that a night promotes a model that is no better; retest and training share it


def run_steps(home: Home, night: Night, config: NightConfig, stages: Mapping[str, Any]) -> JSON:
    """Run the remaining steps of a night, and return its night.json. `stages`: name -> configuration of each stage."""
    remove_entries(find_left_overs(night.folder, ".*"))  # of a killed night, such as copied logs
    has_own_options = (night.folder / "options").exists()  # the night is done again
    if not has_own_options:
        home.keep_options(night.folder / "begun", config)  # now, since the files may change during the night
    if not night.record:
        nights = [other for other in home.list_nights() if other.number <= night.number]
        night.write({
            "night": night.number, "began": utc_now(), "parent": home.find_promoted(),
            "learns": home.find_pending(nights), "earlier": [other.number for other in nights],
            "holdout": config.holdout, "decision": None,
        })  # fmt: skip
    read_log(home, night, stages)
    counters = summary_of(night.log, "extract").counters
    if counters.rows_out == 0 and 0 < counters.dropped[FORGOTTEN] == counters.dropped.total():
        remove_folder(night.folder)
        return {"decision": "removed", "sentence": "All that it read is forgotten."}
    if home.find_promoted_by(night) not in (None, home.find_promoted()):
        outcome = {"decision": KEPT, "sentence": "The model stays: somebody took this night's promotion back."}
    else:
        outcome = learn(home, night, config, stages)
    record = night.record | outcome
    statuses = Counter(row["reward_status"] for row in read_all(night.log, "verdicts", ["reward_status"]))
    judged, unknown = statuses.total(), statuses["failed"] + statuses["no_quorum"]  # too many of their votes failed
    if unknown:
        record["sentence"] += f" {unknown:,} of {counted(judged, 'reply')} {verb(unknown, 'has', 'have')} no verdict."
    record |= {"model": config.model, "judged": judged, "without_verdict": unknown, "ended": utc_now()}
    if not has_own_options:
        (night.folder / "begun").rename(night.folder / "options")
    night.write(record)
    return night.record


def read_log(home: Home, night: Night, stages: Mapping[str, Any]) -> None:
    """Extract and judge the new log records, as the run `night.log`."""
    if not is_complete(night.log, "extract"):
        extract = replace(stages["extract"], run=night.log, logs=(str(night.news),))
        try:
            say(run_step("extract", extract, night.news / NEWS).line())
        except OpdkitError as why:
            if not is_complete(night.log, "extract"):
                raise
            warn(str(why))  # few or no turns are trainable; reading them again would not help
    drop_sessions(night, read_forgotten(home))
    record_turns(home.ledger, night.log)
    if night.news.exists():
        remove_folder(night.news)
    is_judged = is_complete(night.log, "judge")
    if not is_judged or describe_failure(night.log, summary_of(night.log, "judge").counters):
        judge = replace(stages["judge"], run=night.log, overwrite=is_judged)
        try:
            say(run_step("judge", judge).line())
        except OpdkitError as why:
            if not is_complete(night.log, "judge"):
                raise
            if failure := describe_failure(night.log, summary_of(night.log, "judge").counters):
                raise OpdkitError(f"{failure}; once the judge answers, call the same command again: the night judges "
                                  "again") from why  # fmt: skip
            if any(row["trainable"] for row in read_all(night.log, "turns", ["trainable"])):
                raise
            warn(str(why))  # there is nothing to judge


def run_step(name: str, config: StageConfig, *more: Any) -> Summary:
    """Run a stage of a night. If a failed attempt began it with other options or other inputs, overwrite it.

    This process does all parts: the tasks of a Slurm array are successive nights, and do not share parts.
    """
    if name != "train":  # training has one part
        config = replace(config, shard="0/1")
    if has_stage(config.run, name) and find_upstream_change(config.run, name):
        config = replace(config, overwrite=True)
    try:
        return run_stage(name, config, *more)
    except AnotherPlanError:
        return run_stage(name, replace(config, overwrite=True), *more)


def learn(home: Home, night: Night, config: NightConfig, stages: Mapping[str, Any]) -> JSON:
    """Retest or train, and decide. Return the fields of the record.

    If the last trained model passed the gate, but was not promoted, it is tested first, on the sessions logged since.
    If that promotes it, there is no training: the next night learns from these sessions.
    """
    read_night = cache(lambda number: read_sessions(home.night(number), config.holdout))  # reads each night once
    too_few, candidate = explain_too_few_hints(home, night, read_night, config.least_hints), home.find_candidate(night)
    if too_few and not candidate:
        return {"decision": WAITS, "sentence": too_few}
    current = read_current_sessions(home, night, read_night)
    known = {change.hint for change in current.changes if change not in current.new_changes}
    turned = sorted({change.hint for change in current.new_changes if change.hint and not change.is_back} - known)
    for hint in turned:
        warn(f"users changed what they want; they now ask for: {hint}")
    for hint in sorted({change.hint for change in current.new_changes if change.hint and change.is_back}):
        warn(f"users changed what they want; they no longer ask for: {hint}")
    outcome = retest(home, night, candidate, current.sessions, config, stages) if candidate else None
    if outcome is None and too_few:
        outcome = {"decision": WAITS, "sentence": too_few}
    elif outcome is None:
        outcome = train(home, night, current.sessions, config, stages)
    return {"turned": turned, "changes": [change.to_json() for change in current.changes]} | outcome


def train(
    home: Home, night: Night, current: Sequence[NightSession], config: NightConfig, stages: Mapping[str, Any]
) -> JSON:
    """Train on the nights that the promoted model has not learned from, and decide. Return the fields of the record."""
    sessions = choose_sessions(night, current, config, stages["train"].seed)
    write_run(night.folder, home, sessions, stages["extract"], stages["judge"])
    new, replayed = count_trained(night, sessions)
    facts: JSON = {"kept_out": sum(versions[0].is_held_out for versions in sessions.values())}
    say(f"{counted(new, 'judged turn')} to learn from, {replayed:,} of earlier nights, "
        f"{counted(facts['kept_out'], 'session')} kept out to decide with")  # fmt: skip
    evaluation = configure_evaluation(night.folder, config, stages)
    if len(evaluation.served_as) > 1 and not any(one.served_as for one in (config, stages["teacher"], stages["eval"])):
        warn(f"the logs name several models, which all count as the student: {', '.join(evaluation.served_as)}; "
             "--served-as says which of them it is")  # fmt: skip
    tests = write_tests(config, evaluation, stages["train"].model, config.holdout)
    units = {prompt.unit for prompt in read_prompts(tests) if prompt.corrected} if tests else set()
    if len(units) < FEWEST:
        return facts | {"decision": WAITS, "sentence": f"Users corrected the model in {counted(len(units), 'test')}: "
                        f"with fewer than {FEWEST}, no training could be promoted. More come with later nights, or from"
                        " --prompts."}  # fmt: skip
    facts |= {"turns": new, "replayed": replayed}
    try:
        say(run_step("teacher", replace(stages["teacher"], served_as=evaluation.served_as)).line())
        say(run_step("train", stages["train"]).line())
    except NothingLearnedError as why:
        return facts | {"decision": KEPT, "sentence": f"The model stays: {why}"}
    learns = set(night.record["learns"])
    fresh = {conversation_id(name) for name, versions in sessions.items()
             if any(version.night in learns for version in versions)}  # fmt: skip
    chance = _CHANCE / 2 if "retest_sessions" in night.record else _CHANCE
    is_better, outcome = decide(night, config, evaluation, fresh, chance)
    if is_better:
        home.promote(night.number, by="night")
    return facts | {"decision": PROMOTED if is_better else KEPT} | outcome


def retest(
    home: Home,
    night: Night,
    candidate: Night,
    current: Sequence[NightSession],
    config: NightConfig,
    stages: Mapping[str, Any],
) -> JSON | None:
    """Compare the model of an earlier night with the promoted one, and promote it if it is better.

    The tests are sessions that it has not learned from: held-out ones, and up to MOST_TESTS logged since its training.
    At least FEWEST of the latter must have a complaint, and they must be at least _MORE_TESTS times as many as in the
    last retest. Return the fields for night.json; None if the model is not promoted.
    """
    sessions, since = choose_unseen(current, candidate.number)
    between = (home.night(n).record for n in night.record["earlier"] if candidate.number < n < night.number)
    tested = max((record.get("retest_sessions", 0) for record in between), default=0)
    if len(since & find_complaints(current)) < FEWEST or len(since) < _MORE_TESTS * tested:
        return None
    run = night.folder / RETEST
    write_run(run, home, sessions, stages["extract"], stages["judge"])
    student = stages["train"].model
    evaluation = replace(configure_evaluation(run, config, stages), model=student, trained=str(candidate.model))
    if not write_tests(config, evaluation, student, share=1.0):
        return None
    say(f"the model of night {candidate.number} is tested again, on what was logged since")
    is_better, outcome = decide(night, config, evaluation, set(map(conversation_id, since)), _CHANCE / 2)
    if not is_better:
        say(f"it is not promoted: {outcome['sentence']}")
        night.write(night.record | {"retest_sessions": len(since)})
        return None
    night.write(night.record | {"promotes": candidate.number})  # a kill may come before promotions.jsonl says so
    home.promote(candidate.number, by="night", during=night.number)
    sentence = f"The model of night {candidate.number} is promoted, with the tests since. {outcome['sentence']}"
    return outcome | {"decision": RETESTED, "retested": candidate.number, "sentence": sentence}


def configure_evaluation(run: Path, config: NightConfig, stages: Mapping[str, Any]) -> EvalConfig:
    """Return the configuration of eval for a run: by default, all models that its log names count as the student."""
    teacher, evaluation = stages["teacher"], stages["eval"]
    served_as = config.served_as or teacher.served_as or evaluation.served_as
    if not served_as:
        served_as = tuple(sorted({row["model"] for row in read_all(run, "sessions", ["model"]) if row["model"]}))
    template_arg = evaluation.template_arg or teacher.template_arg
    return replace(evaluation, run=run, served_as=served_as, template_arg=template_arg)


def explain_too_few_hints(home: Home, night: Night, read_night: ReadNight, least: int) -> str:
    """Return why a night does not train; "" if at least `least` replies have a hint that no training has tried."""
    untried, since = list[int](), ""
    for earlier in map(home.night, night.record["learns"]):
        untried.append(earlier.number)
        decision = earlier.record.get("decision")
        # Hints of an unsuccessful or withdrawn training would most likely fail again, at the full cost of a training.
        if decision == PROMOTED or (decision == KEPT and earlier.record["parent"] == night.record["parent"]):
            why = "whose model was taken back" if decision == PROMOTED else "which trained in vain"
            untried, since = [], f" since night {earlier.number}, {why}"
    sessions = drop_withdrawn(chain.from_iterable(map(read_night, untried)))
    opinions = (opinion for session in sessions if not session.is_held_out for opinion in session.opinions)
    hints = sum({opinion.key: opinion.hint is not None for opinion in opinions}.values())
    text = f"{counted(hints, 'new reply')} with a hint{since}; a training begins at {least:,} (--least-hints)."
    return text if hints < least else ""


def decide(
    night: Night, config: NightConfig, evaluation: EvalConfig, new_conversations: Set[str], chance: float = _CHANCE
) -> tuple[bool, JSON]:
    """Compare two models. Return True if the second is better and nowhere worse, and the fields for night.json.

    `new_conversations`: ids of those whose tests count as new. `chance`: see `has_gained`.
    """
    run = evaluation.run
    tests = run / TESTS
    with stdout.capture():
        run_step("eval", replace(evaluation, from_log=False, prompts=str(tests)))
    decision = gate(GateConfig(run=run, max_loss=config.max_loss, allow=config.allow))
    own = {prompt.id for prompt in read_prompts(Path(config.prompts))} if config.prompts else set()
    tested = [prompt for prompt in read_prompts(tests) if prompt.corrected is not None]
    # All new prompts count, not only those with a complaint. The present model got the latter wrong, in part by chance:
    # on these alone, any other model would seem to be better.
    new = [prompt for prompt in tested if prompt.id in own or (prompt.session or "") in new_conversations]
    corrected = [prompt for prompt in tested if prompt.corrected]
    replies = read_arrow(run, "replies", 0)
    new_U4, all_U4, corrected_U4 = (sum_known(replies, [prompt.id for prompt in prompts])
                                    for prompts in (new, tested, corrected))  # fmt: skip
    # The parent has learned from earlier feedback, so if there are enough new prompts, earlier ones only add noise.
    is_enough = len(new_U4) >= FEWEST
    is_gain = has_gained(new_U4 if is_enough else all_U4, chance)
    # Losses too small for the gate would add up over the nights. So a model that is merely as good is not promoted.
    is_better = decision.ship and is_gain and bool(corrected_U4[:, 1].sum() > corrected_U4[:, 0].sum())
    write_report(ReportConfig(run=run))
    sentence = decision.sentence
    if decision.ship:
        gain = ("More replies are right" if is_better else "What it gained, it lost where users corrected the model"
                if is_gain else "No gain beyond chance")  # fmt: skip
        shares = [f"{WHERE[row['domain']]}, {row['after']:.0%} ({row['before']:.0%} before)"
                  for row in choose_shares(read_part(run, "scores", 0))]  # fmt: skip
        if is_enough and len(new_U4) < len(all_U4):
            before, after, _, weight = new_U4.sum(0)
            shares.insert(0, f"on new prompts, {after / weight:.0%} ({before / weight:.0%} before)")
        sentence = f"{gain}: {'; '.join(shares)}."
    answer = escape_markdown(f"Night {night.number}: {PROMOTED if is_better else KEPT}. {sentence}")
    write_text(run / "gate.md", f"{answer}\n\nThe gate: {decision.markdown()}\n")
    return is_better, {"sentence": sentence, "gate": asdict(decision)}


def sum_known(replies: pa.Table, prompts: Collection[str]) -> Sums:
    """Return the sums per unit of the shares of right replies to these prompts, without prompts that lack a verdict."""
    ids = replies["prompt_id"]
    replies = replies.filter(pc.is_in(ids, pa.array(prompts, ids.type)))
    if not replies.num_rows:
        return np.zeros((0, 4))
    shares_N4 = measure_shares(replies)[1]["passed"]
    return sum_units(shares_N4[~np.isnan(shares_N4).any(1)])


def has_gained(sums_U4: Sums, chance: float = _CHANCE) -> bool:
    """Return True if right replies rose by more than chance, over at least FEWEST units.

    A model that is no better passes with a probability of at most `chance`.
    """
    before_U, after_U, noise_U, _ = sums_U4.T
    return len(sums_U4) >= FEWEST and compute_chance_of_rise(after_U - before_U, noise_U.sum()) <= chance


def write_tests(config: NightConfig, evaluation: EvalConfig, student: str, share: float) -> Path | None:
    """Write tests.jsonl: prompts from the held-out `share` of the run's sessions, then those of `--prompts`.

    A log prompt whose id is in `--prompts`, too, is written once, as `--prompts` has it. Return the path, or None if no
    prompt is left. Without a judge model, rows that need one are left out.
    """
    evaluation = replace(evaluation, overwrite=True)
    mined, own = list[JSON](), list[JSON]()
    try:
        path = write_log_prompts(evaluation, {"before": student, "after": student}, share)
        mined = read_prompt_rows(path)
    except NoPromptsError:
        say("no session that is kept out makes a prompt")
    if config.prompts is not None:
        ids = [prompt.id for prompt in read_prompts(Path(config.prompts))]  # "line-N" if a row has none
        rows = read_prompt_rows(Path(config.prompts))
        own = [row | {"id": name} for name, row in zip(ids, rows, strict=True)]
    names = {row["id"] for row in own}
    rows = [*(row for row in mined if row["id"] not in names), *own]
    if not (evaluation.judge_model or read_judge_options(evaluation.run)):
        if lost := sum("judge" in row["check"] for row in rows):
            warn(f"{counted(lost, 'test')} {verb(lost, 'needs', 'need')} a model as the judge: left out; judge_model "
                 "under [eval] in --config names one")  # fmt: skip
        rows = [row for row in rows if "judge" not in row["check"]]
    tests = evaluation.run / TESTS
    write_text(tests, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return tests if rows else None


def read_prompt_rows(prompts: Path) -> list[JSON]:
    return [json.loads(line) for line in read_prompt_lines(prompts)[1] if line.strip()]
