"""Steps of one night: extract and judge what is new, choose what to train on, train, evaluate, decide."""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Set
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opdkit.commands.gate import gate
from opdkit.commands.night.forget import drop_sessions, read_forgotten
from opdkit.commands.night.home import KEPT, PROMOTED, WAITS, Home, Night, utc_now
from opdkit.commands.night.sessions import choose_sessions, count_trained, drop_withdrawn, read_sessions, write_run
from opdkit.commands.report.command import run as write_report
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON, StageConfig, read_text
from opdkit.config.gate import GateConfig
from opdkit.config.night import NightConfig
from opdkit.config.report import ReportConfig
from opdkit.console import counted, printable, say, stdout, verb, warn
from opdkit.errors import AnotherPlanError, ConfigError, NoPromptsError, NothingLearnedError, OpdkitError
from opdkit.evaluate.bootstrap import FEWEST, chance_of_rise
from opdkit.evaluate.checks import read_prompts
from opdkit.evaluate.conclusion import WHERE, deciding_shares
from opdkit.evaluate.from_log import write_log_prompts
from opdkit.evaluate.gate import Sums, measure_shares, sum_units
from opdkit.extract.known_turns import record_turns
from opdkit.extract.news import NEWS
from opdkit.judge.criterion import recorded_judge_options
from opdkit.judge.failures import describe_failure
from opdkit.store.atomic import find_left_overs, remove_entries, remove_folder, write_text
from opdkit.store.counters import Summary
from opdkit.store.reading import is_complete, read_all, read_arrow, read_part, summary_of
from opdkit.store.run_stage import run_stage
from opdkit.store.skip_reasons import FORGOTTEN
from opdkit.store.turn_ids import conversation_id

TESTS = "tests.jsonl"  # of a night: the prompts that decide
_CHANCE = 0.05  # that a model which is no better is promoted, at most


def run_steps(home: Home, night: Night, config: NightConfig, stages: Mapping[str, Any]) -> JSON:
    """Do what is left of a night, and return what its night.json says. `stages`: their configurations, by name."""
    shares = {other.record["holdout"] for other in home.nights() if "holdout" in other.record}
    if shares - {config.holdout}:
        raise ConfigError(f"--holdout is {config.holdout:g}, but {min(shares):g} in the nights before; keep it: what "
                          "has trained would become a test")  # fmt: skip
    trained = [other.record for other in home.nights() if other.record.get("decision") in (KEPT, PROMOTED)]
    first = next((record["model"] for record in trained if record.get("model", config.model) != config.model), None)
    if first:
        raise ConfigError(f"--model is {config.model}, but {first} in the nights before: keep it, with a link if its "
                          "folder has moved; another model begins its own nights, in another HOME")  # fmt: skip
    remove_entries(find_left_overs(night.folder, ".*"))  # of a night that was killed: news among them
    if not night.record:
        nights = [other for other in home.nights() if other.number <= night.number]
        night.write({
            "night": night.number, "began": utc_now(), "parent": home.promoted_night(), "learns": home.pending(nights),
            "earlier": [other.number for other in nights], "holdout": config.holdout, "decision": None,
        })  # fmt: skip
    read_log(home, night, stages)
    counters = summary_of(night.log, "extract").counters
    if counters.rows_out == 0 and 0 < counters.dropped[FORGOTTEN] == counters.dropped.total():
        remove_folder(night.folder)
        return {"decision": "removed", "sentence": "All that it read is forgotten."}
    if home.is_taken_back(night):
        outcome = {"decision": KEPT, "sentence": "The model stays: somebody took this night's promotion back."}
    else:
        outcome = learn(home, night, config, stages)
    record = night.record | outcome
    statuses = Counter(row["reward_status"] for row in read_all(night.log, "verdicts", ["reward_status"]))
    judged, unknown = statuses.total(), statuses["failed"] + statuses["no_quorum"]  # too many votes failed
    if unknown:
        record["sentence"] += f" {unknown:,} of {counted(judged, 'reply')} {verb(unknown, 'has', 'have')} no verdict."
    record |= {"model": config.model, "judged": judged, "without_verdict": unknown, "ended": utc_now()}
    if not (night.folder / "options").exists():  # else they are those that it is done again with
        home.keep_options(night.folder / "options", config)
    night.write(record)
    return night.record


def read_log(home: Home, night: Night, stages: Mapping[str, Any]) -> None:
    """Extract and judge what is new: the run in `night.log`."""
    if not is_complete(night.log, "extract"):
        extract = replace(stages["extract"], run=night.log, logs=(str(night.news),))
        try:
            say(run_step("extract", extract, night.news / NEWS).line())
        except OpdkitError as why:
            if not is_complete(night.log, "extract"):
                raise
            warn(str(why))  # little or nothing of it can be trained on, which is no reason to read it again
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
    """Run a stage of a night. One that was begun with other options, before a night failed, is begun again.

    All of its parts are done here: the tasks of a Slurm array are nights, one after the other, and do not share one.
    """
    if name != "train":  # which has one part
        config = replace(config, shard="0/1")
    try:
        return run_stage(name, config, *more)
    except AnotherPlanError:
        return run_stage(name, replace(config, overwrite=True), *more)


def learn(home: Home, night: Night, config: NightConfig, stages: Mapping[str, Any]) -> JSON:
    """Train on the nights that the promoted model has not learned from, and decide. Return what to write down."""
    if sentence := explain_too_few_hints(home, night, config):
        return {"decision": WAITS, "sentence": sentence}
    chosen = choose_sessions(home, night, config, stages["train"].seed)
    write_run(home, night, chosen, stages["extract"], stages["judge"])
    new, replayed = count_trained(night, chosen)
    say(f"{counted(new, 'judged turn')} to learn from, {replayed:,} of earlier nights, "
        f"{counted(chosen.kept_out, 'session')} kept out to decide with")  # fmt: skip
    known = {change.hint for change in chosen.changes if change not in chosen.new_changes}
    turned = sorted({change.hint for change in chosen.new_changes if change.hint and not change.is_back} - known)
    for hint in turned:
        warn(f"users turned around what they wanted; from now on: {hint}")
    for hint in sorted({change.hint for change in chosen.new_changes if change.hint and change.is_back}):
        warn(f"users turned around what they wanted; they no longer ask for: {hint}")
    facts: JSON = {"kept_out": chosen.kept_out, "turned": turned,
                   "changes": [change.to_json() for change in chosen.changes]}  # fmt: skip
    named = config.served_as or stages["teacher"].served_as
    logged = {row["model"] for row in read_all(night.folder, "sessions", ["model"]) if row["model"]}
    served_as = named or tuple(sorted(logged))
    if len(served_as) > 1 and not named:
        warn(f"the logs name several models, which all count as the student: {', '.join(served_as)}; --served-as says "
             "which of them it is")  # fmt: skip
    evaluation = replace(stages["eval"], served_as=served_as)
    tests = write_tests(night, config, evaluation, stages["train"].model)
    units = {prompt.unit for prompt in read_prompts(tests) if prompt.corrected} if tests else set()
    if len(units) < FEWEST:
        return facts | {"decision": WAITS, "sentence": f"Users corrected the model in {counted(len(units), 'test')}: "
                        f"with fewer than {FEWEST}, no training could be promoted. More come with later nights, or from"
                        " --prompts."}  # fmt: skip
    facts |= {"turns": new, "replayed": replayed}
    try:
        say(run_step("teacher", replace(stages["teacher"], served_as=served_as)).line())
        say(run_step("train", stages["train"]).line())
    except NothingLearnedError as why:
        return facts | {"decision": KEPT, "sentence": f"The model stays: {why}"}
    learns = set(night.record["learns"])
    learned = {conversation_id(name) for name, versions in chosen.sessions.items()
               if any(version.night in learns for version in versions)}  # fmt: skip
    return facts | decide(home, night, config, evaluation, learned)


def explain_too_few_hints(home: Home, night: Night, config: NightConfig) -> str:
    """Return why a night does not train; "" where --least-hints replies have a hint that no training has tried."""
    untried, since = list[Night](), ""
    for earlier in map(home.night, night.record["learns"]):
        untried.append(earlier)
        decision = earlier.record.get("decision")
        # What was taken back or in vain would most likely fail again, at the full cost of a training.
        if decision == PROMOTED or (decision == KEPT and earlier.record["parent"] == night.record["parent"]):
            why = "whose model was taken back" if decision == PROMOTED else "which trained in vain"
            untried, since = [], f" since night {earlier.number}, {why}"
    sessions = drop_withdrawn([session for one in untried for session in read_sessions(one, config.holdout)])
    opinions = (opinion for session in sessions if not session.is_held_out for opinion in session.opinions)
    hints = sum({opinion.turn_id: opinion.hint is not None for opinion in opinions}.values())
    text = f"{counted(hints, 'new reply')} with a hint{since}; a training begins at {config.least_hints:,}"
    return f"{text} (--least-hints)." if hints < config.least_hints else ""


def decide(home: Home, night: Night, config: NightConfig, evaluation: EvalConfig, learned: Set[str]) -> JSON:
    """Compare the trained model with its parent. Promote it if it is better, and no worse anywhere.

    `learned`: ids of the conversations of the nights that it learned from. Their complaints show whether it is better.
    """
    tests = night.folder / TESTS
    with stdout.capture():
        run_step("eval", replace(evaluation, from_log=False, prompts=str(tests)))
    decision = gate(GateConfig(run=night.folder, max_loss=config.max_loss, allow=config.allow))
    own = {prompt.id for prompt in read_prompts(Path(config.prompts))} if config.prompts else set()
    corrected = [prompt for prompt in read_prompts(tests) if prompt.corrected]
    new = [prompt for prompt in corrected if prompt.id in own or (prompt.session or "") in learned]
    replies = read_arrow(night.folder, "replies", 0)
    new_U4, all_U4 = (sum_known(replies, [prompt.id for prompt in prompts]) for prompts in (new, corrected))
    # What users complained about before, the parent has learned: it only adds noise to enough new complaints.
    is_enough = len(new_U4) >= FEWEST
    has_learned = has_gained(new_U4 if is_enough else all_U4)
    # Small losses that no gate sees would add up over the nights. So a model that is merely as good stays out.
    is_better = decision.ship and has_learned and all_U4[:, 1].sum() > all_U4[:, 0].sum()
    write_report(ReportConfig(run=night.folder))
    if is_better:
        home.promote(night.number, by="night")
    answer, sentence = PROMOTED if is_better else KEPT, decision.sentence
    if decision.ship:
        gain = ("More replies are right" if is_better else "What it learned of new complaints, it lost of older ones"
                if has_learned else "No gain beyond chance")  # fmt: skip
        shares = [f"{WHERE[row['domain']]}, {row['after']:.0%} ({row['before']:.0%} before)"
                  for row in deciding_shares(read_part(night.folder, "scores", 0))]  # fmt: skip
        if is_enough and len(new_U4) < len(all_U4):
            before, after, _, weight = new_U4.sum(0)
            shares.insert(0, f"on new complaints, {after / weight:.0%} ({before / weight:.0%} before)")
        sentence = f"{gain}: {'; '.join(shares)}."
    whole = printable(f"Night {night.number}: {answer}. {sentence}")
    write_text(night.folder / "gate.md", f"{whole}\n\nThe gate: {decision.markdown()}\n")
    return {"decision": answer, "sentence": sentence, "gate": asdict(decision)}


def sum_known(replies: pa.Table, prompts: Collection[str]) -> Sums:
    """Return the sums per unit of the shares of right replies to these prompts, without those that have no verdict."""
    ids = replies["prompt_id"]
    replies = replies.filter(pc.is_in(ids, pa.array(prompts, ids.type)))
    if not replies.num_rows:
        return np.zeros((0, 4))
    shares_N4 = measure_shares(replies)[1]["passed"]
    return sum_units(shares_N4[~np.isnan(shares_N4).any(1)])


def has_gained(sums_U4: Sums) -> bool:
    """Return True where right replies rose by more than chance, in FEWEST units at least.

    A model that is no better passes with a probability of 5% at most.
    """
    before_U, after_U, noise_U, _ = sums_U4.T
    return len(sums_U4) >= FEWEST and chance_of_rise(after_U - before_U, noise_U.sum()) <= _CHANCE


def write_tests(night: Night, config: NightConfig, evaluation: EvalConfig, student: str) -> Path | None:
    """Write tests.jsonl: prompts from the sessions that are kept out of training, then those of `--prompts`.

    A prompt of the log that the user edited, and has in `--prompts`, is there once, as edited. Return the path; None
    without any prompt. Without a judge that is a model, those that need one are left out.
    """
    evaluation = replace(evaluation, overwrite=True)
    mined, own = list[JSON](), list[JSON]()
    try:
        path = write_log_prompts(evaluation, {"before": student, "after": student}, config.holdout)
        mined = read_json_lines(path, "--from-log")
    except NoPromptsError:
        say("no session that is kept out makes a prompt")
    if config.prompts is not None:
        ids = [prompt.id for prompt in read_prompts(Path(config.prompts))]  # of rows without one, their lines
        rows = read_json_lines(Path(config.prompts), "--prompts")
        own = [row | {"id": name} for name, row in zip(ids, rows, strict=True)]
    names = {row["id"] for row in own}
    rows = [*(row for row in mined if row["id"] not in names), *own]
    if not (evaluation.judge_model or recorded_judge_options(night.folder)):
        if lost := sum("judge" in row["check"] for row in own):
            warn(f"{counted(lost, 'row')} of --prompts {verb(lost, 'needs', 'need')} a model as the judge: left out; "
                 "judge_model under [eval] in --config names one")  # fmt: skip
        rows = [row for row in rows if "judge" not in row["check"]]
    tests = night.folder / TESTS
    write_text(tests, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return tests if rows else None


def read_json_lines(path: Path, flag: str) -> list[JSON]:
    """Return the rows of a file of prompts."""
    lines = read_text(path, flag).split("\n")  # splitlines() would break JSON
    return [json.loads(line) for line in lines if line.strip()]
