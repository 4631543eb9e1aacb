"""Steps of one night: extract and judge what is new, choose what to train on, train, evaluate, decide."""

import json
from collections.abc import Collection, Mapping, Set
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opdkit.commands.gate import gate
from opdkit.commands.night.forget import drop_sessions, read_forgotten
from opdkit.commands.night.gather import count_hints, gather, write_run
from opdkit.commands.night.home import KEPT, PROMOTED, WAITS, Home, Night
from opdkit.commands.report.command import run as write_report
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON, StageConfig
from opdkit.config.gate import GateConfig
from opdkit.config.night import NightConfig
from opdkit.config.report import ReportConfig
from opdkit.console import counted, printable, say, stdout, warn
from opdkit.errors import AnotherPlanError, ConfigError, NothingLearnedError, OpdkitError
from opdkit.evaluate.bootstrap import FEWEST, score_rise
from opdkit.evaluate.checks import read_prompts, read_text
from opdkit.evaluate.conclusion import WHERE, deciding_shares
from opdkit.evaluate.gate import measure_shares, sum_units
from opdkit.evaluate.stage import model_names, write_log_prompts
from opdkit.extract.known_turns import record_turns
from opdkit.extract.news import NEWS
from opdkit.judge.criterion import judge_of_run
from opdkit.store.atomic import find_left_overs, remove_entries, remove_folder, write_text
from opdkit.store.counters import Summary
from opdkit.store.reading import is_complete, part_count, read_arrow, read_part, summary_of
from opdkit.store.run_stage import run_stage
from opdkit.store.skip_reasons import FORGOTTEN


def finish(home: Home, night: Night, config: NightConfig, stages: Mapping[str, StageConfig]) -> JSON:
    """Do what is left of a night, and return what its night.json says. Raises what the stages raise."""
    shares = {one.record["holdout"] for one in home.nights() if "holdout" in one.record}
    if shares - {config.holdout}:
        raise ConfigError(f"--holdout is {config.holdout:g}, but {min(shares):g} in the nights before; keep it: what "
                          "has trained would become a test")  # fmt: skip
    remove_entries(find_left_overs(night.folder, ".*"))  # of a night that was killed: news among them
    if not night.record:
        nights = [one for one in home.nights() if one.number <= night.number]
        night.write({
            "night": night.number, "began": now(), "parent": home.promoted(), "learns": home.pending(nights),
            "earlier": [one.number for one in nights], "holdout": config.holdout, "decision": None,
        })  # fmt: skip
    read_log(home, night, stages)
    counters = summary_of(night.log, "extract").counters
    if counters.rows_out == 0 and 0 < counters.dropped[FORGOTTEN] == counters.dropped.total():
        remove_folder(night.folder)
        return {"decision": "removed", "sentence": "All that it read is forgotten."}
    record = night.record | learn(home, night, config, stages) | {"ended": now()}
    if not (night.folder / "options").exists():  # else they are those that it is done again with
        home.keep_options(night.folder / "options", config)
    night.write(record)
    return night.record


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_log(home: Home, night: Night, stages: Mapping[str, StageConfig]) -> None:
    """Extract and judge what is new: the run in `night.log`."""
    if not is_complete(night.log, "extract"):
        extract = replace(stages["extract"], run=night.log, logs=(str(night.news),))  # type: ignore[call-arg]
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
    if not is_complete(night.log, "judge"):
        judge = replace(stages["judge"], run=night.log)
        try:
            say(run_step("judge", judge).line())
        except OpdkitError as why:
            if has_trainable(night.log) or not is_complete(night.log, "judge"):
                raise
            warn(str(why))  # there is nothing to judge


def has_trainable(run: Path) -> bool:
    """Return True if a turn of a run can be trained on."""
    tables = (read_arrow(run, "turns", part, ["trainable"]) for part in range(part_count(run, "extract")))
    return any(any(table["trainable"].to_pylist()) for table in tables)


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


def learn(home: Home, night: Night, config: NightConfig, stages: Mapping[str, StageConfig]) -> JSON:
    """Train on the nights that the promoted model has not learned from, and decide. Return what to write down."""
    pending = [home.night(number) for number in night.record["learns"]]
    # What was tried in vain would most likely fail again, at the full cost of a training.
    parent = night.record["parent"]
    vain = (one for one in pending if one.record.get("decision") == KEPT and one.record["parent"] == parent)
    tried = max((one.number for one in vain), default=0)
    hints = count_hints([one for one in pending if one.number > tried], config.holdout)
    if hints < config.least_hints:
        since = f" since night {tried}, which trained in vain" if tried else ""
        return {"decision": WAITS,
                "sentence": f"{counted(hints, 'new reply')} with a hint{since}; a training begins at "
                            f"{config.least_hints:,} (--least-hints)."}  # fmt: skip
    chosen = gather(home, night, config, vars(stages["train"])["seed"])
    write_run(home, night, chosen, stages["extract"], stages["judge"])  # type: ignore[arg-type]
    facts = {"turns": chosen.new, "replayed": chosen.replayed, "kept_out": chosen.kept_out, "turned": chosen.turned}
    say(f"{counted(chosen.new, 'judged turn')} to learn from, {chosen.replayed:,} of earlier nights, "
        f"{counted(chosen.kept_out, 'session')} kept out to decide with")  # fmt: skip
    for hint in chosen.turned:
        warn(f"users turned around what they wanted; from now on: {hint}")
    named = config.served_as or vars(stages["teacher"])["served_as"]
    served_as = named or names_in(night.folder)
    if len(served_as) > 1 and not named:
        warn(f"the logs name several models, which all count as the student: {', '.join(served_as)}; --served-as says "
             "which of them it is")  # fmt: skip
    try:
        say(run_step("teacher", replace(stages["teacher"], served_as=served_as)).line())  # type: ignore[call-arg]
        say(run_step("train", stages["train"]).line())
    except NothingLearnedError as why:
        return facts | {"decision": KEPT, "sentence": f"The model stays: {why}"}
    evaluation = replace(stages["eval"], served_as=served_as)  # type: ignore[call-arg]
    return facts | decide(home, night, config, evaluation, chosen.conversations(night.record["learns"]))  # type: ignore[arg-type]


def names_in(run: Path) -> tuple[str, ...]:
    """Return the names of models in the sessions of a run: those under which the nights' models were served."""
    tables = (read_arrow(run, "sessions", part, ["model"]) for part in range(part_count(run, "extract")))
    return tuple(sorted({name for table in tables for name in table["model"].to_pylist() if name}))


def decide(home: Home, night: Night, config: NightConfig, evaluation: EvalConfig, learned: Set[str]) -> JSON:
    """Compare the trained model with its parent. Promote it if it is better, and no worse anywhere.

    `learned`: ids of the conversations of the nights that it learned from. Their complaints show whether it is better.
    """
    tests = write_tests(night, config, evaluation)
    if tests is None:
        return {"decision": KEPT, "sentence": "The model stays: no session kept out of training makes a test, and "
                "there is no --prompts."}  # fmt: skip
    with stdout.capture():
        run_step("eval", replace(evaluation, from_log=False, prompts=str(tests)))
    decision = gate(GateConfig(run=night.folder, max_loss=config.max_loss, allow=config.allow))
    # Small losses that no gate sees would add up over the nights. So a model that is merely as good stays out. What
    # users complained of before, the parent has learned: it only adds noise, where there are enough new complaints.
    corrected = [prompt for prompt in read_prompts(tests) if prompt.corrected]
    new = [prompt for prompt in corrected if prompt.session is None or prompt.session in learned]
    is_enough = len({prompt.unit for prompt in new}) >= FEWEST
    asked = [prompt.id for prompt in (new if is_enough else corrected)]
    is_better = decision.ship and has_gained(read_arrow(night.folder, "replies", 0), asked)
    write_report(ReportConfig(run=night.folder))
    if is_better:
        home.promote(night.number, by="night")
    shares = "; ".join(f"{WHERE[row['domain']]}, {row['after']:.0%} ({row['before']:.0%} before)"
                       for row in deciding_shares(read_part(night.folder, "scores", 0)))  # fmt: skip
    gain = "More replies are right" if is_better else "No gain beyond chance"
    sentence = f"{gain}: {shares}." if decision.ship else decision.sentence
    answer = PROMOTED if is_better else KEPT
    whole = printable(f"Night {night.number}: {answer}. {sentence}")
    write_text(night.folder / "gate.md", f"{whole}\n\nThe gate: {decision.markdown()}\n")
    return {"decision": answer, "sentence": sentence, "gate": asdict(decision)}


def has_gained(replies: pa.Table, corrected: Collection[str]) -> bool:
    """Return True where right replies to the prompts `corrected` rose by more than chance.

    It is the gate's test the other way round. A model that is no better passes with a probability of 5% at most.
    """
    if len(corrected) < FEWEST:
        return False
    ids = replies["prompt_id"]
    shares_N4 = measure_shares(replies.filter(pc.is_in(ids, pa.array(corrected, ids.type))))[1]["passed"]
    shares_N4 = shares_N4[~np.isnan(shares_N4).any(1)]  # without a verdict
    before_U, after_U, noise_U, _ = sum_units(shares_N4).T
    return len(before_U) >= FEWEST and score_rise(after_U - before_U, noise_U.sum()) >= NormalDist().inv_cdf(0.95)


def write_tests(night: Night, config: NightConfig, evaluation: EvalConfig) -> Path | None:
    """Write tests.jsonl: prompts from the sessions that are kept out of training, then those of `--prompts`.

    Return its path; None without any. Without a judge that is a model, only those with patterns to check by are used.
    """
    evaluation = replace(evaluation, overwrite=True)
    rows: list[str] = []
    try:
        path = write_log_prompts(evaluation, model_names(evaluation))
        has_judge = bool(evaluation.judge_model or judge_of_run(night.folder))
        lines = read_text("--from-log", path).split("\n")  # splitlines() would break JSON
        rows = [line for line in lines if line and (has_judge or "judge" not in json.loads(line)["check"])]
    except ConfigError:
        raise
    except OpdkitError as why:
        say(str(why))
    if config.prompts is not None:
        rows += filter(str.strip, read_text("--prompts", Path(config.prompts)).split("\n"))
    tests = night.folder / "tests.jsonl"
    write_text(tests, "".join(f"{row}\n" for row in rows))
    return tests if rows else None
