"""Tests of `opdkit night` on a growing sample log: successive nights, nights killed at any point and without news."""

import json
import shutil
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_server import Reply, completion, serving
from night_logs import LOG, grow
from night_logs import night_options as options
from sample_world import MODEL
from small_logs import chat, jsonl

from opdkit.commands.night import sessions as night_sessions
from opdkit.commands.night import steps
from opdkit.commands.night.command import check_prompts, configure_stages, run, run_forget
from opdkit.commands.night.home import KEPT, PROMOTED, RETESTED, WAITS, Home, Night
from opdkit.commands.night.models import run as models
from opdkit.commands.night.sessions import drop_withdrawn, read_opinion, read_sessions
from opdkit.commands.night.turned import Opinion
from opdkit.config.evaluate import EvalConfig
from opdkit.config.fields import JSON
from opdkit.config.night import ForgetConfig, ModelsConfig, NightConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate.checks import AFTER_CORRECTION
from opdkit.evaluate.log_prompts import COMPLAINT, PRAISE
from opdkit.store.joined_turns import JoinedTurn
from opdkit.store.reading import read_all
from opdkit.store.turn_ids import is_held_out


def turns_of(home: Home) -> list[tuple[int, int]]:
    """Return (night, trainable turns read) of every night."""
    return [
        (night.number, sum(row["trainable"] for row in read_all(night.log, "turns"))) for night in home.list_nights()
    ]


@pytest.mark.slow
def test_nights_follow_a_log_and_a_night_without_news_loads_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, home = options(tmp_path), Home(tmp_path / "home")
    for upto in (30, 60):
        grow(tmp_path, upto)
        run(config)
    first, second = home.list_nights()
    whole = tmp_path / "whole"
    from small_logs import run as extract

    extract(whole, tmp_path / "logs" / "chat.jsonl")
    trainable = sum(row["trainable"] for row in read_all(whole, "turns"))
    assert sum(count for _, count in turns_of(home)) == trainable, "0 lost, 0 doubled"
    printed = capsys.readouterr().out
    for night in (first, second):
        assert f"night {night.number}: {night.record['decision']}." in printed
        assert (night.folder / "report.html").exists()
        assert "**" in (night.folder / "gate.md").read_text()
        trained = {name for row in read_all(night.folder, "metrics") for name in row["turn_ids"]}
        assert trained
        assert not any(is_held_out(name.rpartition(":")[0], config.holdout) for name in trained)
    assert second.record["parent"] == (1 if first.record["decision"] == PROMOTED else 0)
    assert home.find_promoted() == max(
        [night.number for night in home.list_nights() if night.record["decision"] == PROMOTED] or [0]
    )
    script = ("import sys; from opdkit.cli import app; app(sys.argv[1:], standalone_mode=False); "
              "assert not {'torch', 'transformers'} & sys.modules.keys()")  # fmt: skip
    command = [str(config.home), str(tmp_path / "logs"), "--model", str(MODEL), "--judge", "rules"]
    done = subprocess.run(
        [sys.executable, "-c", script, "night", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "night 3: nothing new in the logs\n"
    assert len(home.list_nights()) == 2


class Killed(BaseException):
    """Stand-in for a kill: no handler catches this exception."""


@pytest.fixture
def killed_often(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kill a night once before and once after each of its stages. Return the list of these places."""
    really, killed = steps.run_stage, list[str]()

    def run_stage(name: str, *args: object) -> object:
        for place in (f"before {name}", f"after {name}"):
            if place.startswith("after"):
                done = really(name, *args)  # type: ignore[arg-type]
            if place not in killed:
                killed.append(place)
                raise Killed
        return done

    monkeypatch.setattr(steps, "run_stage", run_stage)
    return killed


@pytest.mark.slow
def test_a_night_that_is_killed_anywhere_ends_as_one_that_was_not(tmp_path: Path, killed_often: list[str]) -> None:
    grow(tmp_path, 30)
    config, calm = options(tmp_path), options(tmp_path, home=tmp_path / "calm")
    for _ in range(30):
        try:
            run(config)
            break
        except Killed:
            continue
    assert len(killed_often) == 2 * 5, "two places in each of five stages"
    run(calm)
    ours, theirs = Home(config.home).list_nights(), Home(calm.home).list_nights()
    assert [night.number for night in ours] == [1]
    assert {**ours[0].record, "began": "", "ended": ""} == {**theirs[0].record, "began": "", "ended": ""}
    for table in ("verdicts", "targets", "replies"):
        assert list(read_all(ours[0].folder, table)) == list(read_all(theirs[0].folder, table))
    assert (ours[0].model / "model.safetensors").read_bytes() == (theirs[0].model / "model.safetensors").read_bytes()
    assert not ours[0].news.exists()


def test_a_night_with_little_to_learn_waits_and_its_news_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grow(tmp_path, 6)
    config, home = options(tmp_path, least_hints=1000), Home(tmp_path / "home")
    run(config)
    grow(tmp_path, 12)
    run(config)
    assert [night.record["decision"] for night in home.list_nights()] == [WAITS, WAITS]
    assert home.find_pending(home.list_nights()) == [1, 2]
    assert "--least-hints" in capsys.readouterr().out
    assert all(count for _, count in turns_of(home))


def test_a_task_of_a_slurm_array_is_a_whole_night(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"ID": 2, "COUNT": 3, "MIN": 0, "MAX": 2}.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", str(value))
    grow(tmp_path, 6)
    run(options(tmp_path, least_hints=1000))
    (night,) = Home(tmp_path / "home").list_nights()
    assert len(list(read_all(night.log, "sessions"))) == 6


def test_a_log_that_is_cut_in_the_middle_of_a_line_loses_nothing(tmp_path: Path) -> None:
    config, home = options(tmp_path, least_hints=1000), Home(tmp_path / "home")
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "chat.jsonl"
    path.write_bytes(b"".join(LOG[:5]) + LOG[5][:50])
    run(config)
    path.write_bytes(b"".join(LOG[:6]))
    run(config)
    sessions = [len(list(read_all(night.log, "sessions"))) for night in home.list_nights()]
    assert sessions == [5, 1]
    assert not any(list(read_all(night.log, "rejected")) for night in home.list_nights())


def test_wrong_options_are_named(tmp_path: Path) -> None:
    config = options(tmp_path)
    for changed, flag in (({"judge": "batch"}, "--judge batch"), ({"logs": ("-",)}, "LOGS"), ({"holdout": 0.0},
                          "--holdout")):  # fmt: skip
        with pytest.raises(ConfigError, match=flag):
            replace(config, **changed)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="--prompts"):
        replace(config, prompts=str(tmp_path / "gone.jsonl")).check_inputs()
    with pytest.raises(OpdkitError, match="gone"):
        run(replace(config, logs=(str(tmp_path / "gone"),)))
    assert not Home(config.home).list_nights()


def test_set_reaches_training_and_evaluation(tmp_path: Path) -> None:
    grow(tmp_path, 6)
    home = Home(tmp_path / "home")
    stages = configure_stages(home, home.night(1), options(tmp_path, set=("eval.samples=3", "train.seed=7")))
    assert (stages["eval"].samples, stages["train"].seed) == (3, 7)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="trained"):
        configure_stages(home, home.night(1), options(tmp_path, set=("eval.trained=x",)))


def test_what_would_lose_parts_of_a_log_is_refused(tmp_path: Path) -> None:
    grow(tmp_path, 6)
    for text in ("extract.limit=3", "extract.shard=0/2", "extract.dry_run=true", "judge.limit=3", "teacher.shard=0/2",
                 "train.holdout=0.35", "train.name=b"):  # fmt: skip
        with pytest.raises(ConfigError, match=text.partition("=")[0].partition(".")[2]):
            run(options(tmp_path, set=(text,)))
    for line in (
        'prompts = "held-out.jsonl"',
        "from_log = true",
        'trained = "m"',
        'model = "m"',
        "max_prompts = 3",
        'name = "b"',
        "overwrite = true",
    ):
        config = options(tmp_path)
        (tmp_path / "night.toml").write_text(f"[eval]\n{line}\n")
        with pytest.raises(ConfigError, match=f"{line.partition(' ')[0]} of eval"):
            run(config)
    with pytest.raises(ConfigError, match="HOME"):
        run(options(tmp_path, logs=(str(tmp_path),)))
    assert not Home(tmp_path / "home").list_nights()


def test_a_night_whose_folder_was_removed_is_not_done_again(tmp_path: Path) -> None:
    config, home = options(tmp_path, least_hints=1000), Home(tmp_path / "home")
    for upto in (6, 12, 18):
        grow(tmp_path, upto)
        run(config)
    shutil.rmtree(home.night(1).folder)
    grow(tmp_path, 24)
    run(config)
    assert [night.number for night in home.list_nights()] == [2, 3, 4]
    assert len(list(read_all(home.night(4).log, "sessions"))) == 6


def test_options_can_be_mended_after_a_night_failed(tmp_path: Path) -> None:
    grow(tmp_path, 12)
    wrong = {"judge": "endpoint", "judge_model": "m", "judge_url": "http://127.0.0.1:9/v1", "least_hints": 1000}
    with pytest.raises(OpdkitError, match="127"):
        run(options(tmp_path, **wrong))
    run(options(tmp_path, least_hints=1000))
    assert [night.record["decision"] for night in Home(tmp_path / "home").list_nights()] == [WAITS]
    for upto in (12, 18):  # nothing new, and news
        grow(tmp_path, upto)
        with pytest.raises(ConfigError, match="--holdout"):
            run(options(tmp_path, least_hints=1000, holdout=0.5))
        assert (home := Home(tmp_path / "home")).read_options(home.path / "options").holdout == 0.2
        assert len(home.list_nights()) == 1
    run(options(tmp_path, least_hints=1000))
    assert [night.record["decision"] for night in Home(tmp_path / "home").list_nights()] == [WAITS, WAITS]


def test_the_options_that_are_kept_are_those_that_the_night_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow(tmp_path, 6)
    config, read_log = options(tmp_path, least_hints=1000), steps.read_log
    begun = Path(str(config.config)).read_text()

    def read_while_somebody_edits(*args: object) -> None:
        Path(str(config.config)).write_text("[train]\nepochs = 7\n")
        read_log(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(steps, "read_log", read_while_somebody_edits)
    run(config)
    (night,) = Home(tmp_path / "home").list_nights()
    assert Path(str(Home(tmp_path / "home").read_options(night.folder / "options").config)).read_text() == begun
    assert sorted(path.name for path in night.folder.iterdir()) == ["log", "night.json", "options"]


@pytest.fixture
def teachers(monkeypatch: pytest.MonkeyPatch) -> list[TeacherConfig]:
    """Stop every night at its teacher stage. Return the list of configurations that this stage got."""
    run_stage, seen = steps.run_stage, list[TeacherConfig]()

    def stop(name: str, config: TeacherConfig, *more: object) -> object:
        if name == "teacher":
            seen.append(config)
            raise OpdkitError("out of memory")
        return run_stage(name, config, *more)

    monkeypatch.setattr(steps, "run_stage", stop)
    return seen


def test_a_night_begins_again_with_the_model_that_was_promoted_since(
    tmp_path: Path, teachers: list[TeacherConfig]
) -> None:
    home = Home(tmp_path / "home")
    for number, upto in ((1, 30), (2, 50)):
        grow(tmp_path, upto)
        run(options(tmp_path, least_hints=1000))
        night = home.night(number)
        shutil.copytree(MODEL, night.model)
        night.write(night.record | {"parent": number - 1, "decision": PROMOTED})
        home.promote(number, by="night")
    grow(tmp_path, 121)
    config = options(tmp_path, least_hints=5, set=("teacher.served_as=prod",))
    for promoted in (2, 1):
        home.promote(promoted, by="hand")
        with pytest.raises(OpdkitError, match="out of memory"):
            run(config)
        assert home.night(3).record["parent"] == promoted
        assert teachers[-1].model == str(home.night(promoted).model)
        assert teachers[-1].served_as == ("prod",)


def call(number: int, who: str, reply: str, *texts: str) -> JSON:
    """Return a call as LiteLLM logs it."""
    messages = chat(*texts)["messages"]
    return {"id": f"c{number}", "call_type": "acompletion", "startTime": float(number), "endTime": number + 0.5,
            "response_cost": 0, "model": "m", "end_user": who, "messages": messages,
            "response": {"choices": [{"message": {"role": "assistant", "content": reply}, "finish_reason": "stop"}]},
            }  # fmt: skip


def test_who_asked_the_same_first_keeps_his_own_verdict(tmp_path: Path, teachers: list[TeacherConfig]) -> None:
    """Ann and Bob begin with the same words, so their conversations share one logged id. Then Ann's continues."""
    asks, ann, bob = "What time is the next train to Lund?", "It leaves at 6:10 pm.", "It leaves at 18:10."
    anns, bobs = (asks, ann, "No, that is wrong. Use the 24-hour clock."), (asks, bob, "Great, thanks! And to Kiruna?")
    calls = [call(1, "ann", ann, asks), call(2, "bob", bob, asks), call(3, "ann", bob, *anns),
             call(4, "bob", "At 7:30.", *bobs)]  # fmt: skip
    jsonl(tmp_path / "logs" / "calls.jsonl", *calls)
    run(options(tmp_path, least_hints=1000))
    more = (*anns, bob, "No, wrong again. Name the platform, too.")
    jsonl(tmp_path / "logs" / "calls.jsonl", *calls, call(5, "ann", "From platform 2.", *more))
    with pytest.raises(OpdkitError, match="out of memory"):
        run(options(tmp_path, least_hints=1))
    assert list_trainable(Home(tmp_path / "home").night(2).folder) == [(bob, -1), (bob, 1), (ann, -1)]


def list_trainable(run: Path) -> list[tuple[str, int]]:
    """Return (text, reward) of the replies in a run that can be trained on, sorted."""
    verdicts = {row["turn_id"]: row["reward"] for row in read_all(run, "verdicts")}
    sessions = {row["session_id"]: row["messages"] for row in read_all(run, "sessions")}
    return sorted((sessions[row["session_id"]][row["message_index"]]["content"], verdicts[row["turn_id"]])
                  for row in read_all(run, "turns") if row["trainable"])  # fmt: skip


def test_a_verdict_stays_if_the_number_of_its_conversation_changes(
    tmp_path: Path, teachers: list[TeacherConfig]
) -> None:
    """Ann and Bob begin with the same words, and the host of Ann, who asks last, comes first."""
    asks, hello = "What time is the next train to Lund?", call(0, "eve", "Hello.", "Hi!")
    bobs = [call(1, "bob", "18:10", asks), call(2, "bob", "At 7:30.", asks, "18:10", "Great, thanks! And to Kiruna?")]
    anns = [call(3, "ann", "6:10 pm", asks), call(4, "ann", "18:10", asks, "6:10 pm", "No, use the 24-hour clock.")]
    jsonl(tmp_path / "logs" / "b.jsonl", *bobs)
    for least, calls in ((1000, [hello]), (1, [hello, *anns])):
        jsonl(tmp_path / "logs" / "a.jsonl", *calls)
        config = options(tmp_path, least_hints=least)
        if least == 1000:
            run(config)
    with pytest.raises(OpdkitError, match="out of memory"):
        run(config)
    night = Home(tmp_path / "home").night(2)
    assert list_trainable(night.folder) == [("18:10", 1), ("6:10 pm", -1)]
    assert steps.count_trained(night, night_sessions.group_versions(read_sessions(night, 0.0))) == (2, 0)


def test_a_verdict_stays_if_the_user_goes_back_to_the_first_message(
    tmp_path: Path, teachers: list[TeacherConfig]
) -> None:
    """The new branch of the chat gets the number of the old one. The thumb on the old branch is not taken back."""
    (tmp_path / "logs").mkdir()
    nodes = dict[str, JSON]()
    for branch, least, texts in (("a", 1000, ("When is the train?", "6:10 pm", "No, use the 24-hour clock.", "18:10")),
                                 ("b", 1, ("When is the bus?", "7:30", "Great, thanks!", "Bye."))):  # fmt: skip
        for n, text in enumerate(texts):
            nodes[f"{branch}{n}"] = {"id": f"{branch}{n}", "parentId": f"{branch}{n - 1}" if n else None,
                                     "role": ("user", "assistant")[n % 2], "content": text}  # fmt: skip
        nodes["a3"]["annotation"] = {"rating": 1}
        history = {"messages": nodes, "currentId": f"{branch}3"}
        (tmp_path / "logs" / "export.json").write_text(json.dumps([{"id": "c", "chat": {"history": history}}]))
        config = options(tmp_path, least_hints=least)
        if least == 1000:
            run(config)
    with pytest.raises(OpdkitError, match="out of memory"):
        run(config)
    assert list_trainable(Home(tmp_path / "home").night(2).folder) == [("18:10", 1), ("6:10 pm", -1), ("7:30", 1)]


def test_a_night_trains_only_if_its_tests_could_show_that_the_model_is_better(
    tmp_path: Path, teachers: list[TeacherConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least six tests on corrected topics are needed, from the log or from the user's own prompts."""
    turns = list[str]()

    def read(turn: JoinedTurn) -> Opinion | None:
        turns.append(turn.turn_id)
        return read_opinion(turn)

    monkeypatch.setattr(night_sessions, "read_opinion", read)
    grow(tmp_path, 12)
    run(options(tmp_path, least_hints=1, prompts=None))
    assert len(set(turns)) == len(turns) > 0, "each turn is read once"
    record = Home(tmp_path / "home").night(1).record
    assert record["decision"] == WAITS
    assert "fewer than 6" in record["sentence"]
    grow(tmp_path, 18)
    with pytest.raises(OpdkitError, match="out of memory"):
        run(options(tmp_path, least_hints=1))
    assert len(teachers) == 1


def test_another_model_than_in_the_nights_before_is_refused(tmp_path: Path) -> None:
    home, other = Home(tmp_path / "home"), shutil.copytree(MODEL, tmp_path / "other")
    grow(tmp_path, 6)
    run(options(tmp_path, least_hints=1000))
    grow(tmp_path, 12)
    run(options(tmp_path, least_hints=1000, model=str(other)))  # nothing was trained yet
    home.night(2).write(home.night(2).record | {"decision": KEPT})
    for upto in (12, 18):  # nothing new, and news
        grow(tmp_path, upto)
        with pytest.raises(ConfigError, match=r"--model is .*other in the nights before"):
            run(options(tmp_path, least_hints=1000))
        assert home.read_options(home.path / "options").model == str(other)
    run(options(tmp_path, least_hints=1000, model=str(other)))
    assert [night.record["decision"] for night in home.list_nights()] == [WAITS, KEPT, WAITS]


def test_a_promotion_that_was_taken_back_before_the_night_was_over_stays_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, calls = Home(tmp_path / "home"), list[int]()

    def learn(home: Home, night: Night, *_: object) -> JSON:
        calls.append(night.number)
        shutil.copytree(MODEL, night.model)
        home.promote(night.number, by="night")
        raise Killed

    monkeypatch.setattr(steps, "learn", learn)
    grow(tmp_path, 6)
    with pytest.raises(Killed):
        run(options(tmp_path))
    assert home.find_promoted() == 1
    models(ModelsConfig(home=home.path, back=True))
    run(options(tmp_path))
    assert (home.find_promoted(), home.night(1).record["decision"], calls) == (0, KEPT, [1])


@pytest.mark.slow
def test_a_model_that_trained_in_vain_is_tested_again_on_what_was_logged_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is promoted without training, even if the night is killed right after the promotion."""
    home, answers, really, promote = Home(tmp_path / "home"), [False, True, True], steps.decide, Home.promote
    compared, killed = list[tuple[str | None, str | None]](), list[int]()

    def decide(night: Night, config: NightConfig, evaluation: EvalConfig, *more: Any) -> tuple[bool, JSON]:
        _, outcome = really(night, config, evaluation, *more)
        outcome["gate"]["ship"] = True
        compared.append((evaluation.model, evaluation.trained))
        return answers.pop(0), outcome

    def promote_and_die(home: Home, number: int, **how: Any) -> None:
        promote(home, number, **how)
        if not killed:
            killed.append(number)
            (home.path / "promotions.jsonl").unlink()  # it dies between the link and this line
            raise Killed

    monkeypatch.setattr(steps, "decide", decide)
    monkeypatch.setattr(Home, "promote", promote_and_die)
    grow(tmp_path, 60)
    run(options(tmp_path))
    grow(tmp_path, 121)
    with pytest.raises(Killed):
        run(options(tmp_path))
    assert home.find_promoted() == 1
    run(options(tmp_path))
    first, second = home.list_nights()
    assert (first.record["decision"], second.record["decision"], second.record["retested"]) == (KEPT, RETESTED, 1)
    assert compared == [(None, None)] + [(str(MODEL), str(first.model))] * 2
    assert not second.model.exists()
    assert home.find_promoted() == 1
    assert [line.get("during") for line in home.read_promotions()] == [2]
    assert (second.folder / "retest" / "report.html").exists()
    trained = {name.rpartition(":")[0] for row in read_all(first.folder, "metrics") for name in row["turn_ids"]}
    tests = {row["session_id"] for row in read_all(second.folder / "retest", "sessions")}
    assert tests - {row["session_id"] for row in read_all(first.log, "sessions")}, "what was logged since"
    assert not tests & trained
    assert home.find_pending([*home.list_nights(), home.night(3)]) == [2, 3], "what was logged since is learned next"
    home.go_back(second)
    assert home.find_promoted() == 0, "before the second night"


def test_a_night_whose_judge_failed_judges_again(tmp_path: Path) -> None:
    is_broken = [True]
    grow(tmp_path, 6)
    with serving(lambda *_: completion("I cannot." if is_broken[0] else r"\boxed{-1}"), ["m"]) as server:
        config = options(tmp_path, judge="endpoint", judge_model="m", judge_url=server.url, least_hints=1000)
        for _ in range(2):
            with pytest.raises(OpdkitError, match="the night judges again") as error:
                run(config)
            assert "--overwrite" not in str(error.value)
        is_broken[0] = False
        run(config)
    (night,) = Home(config.home).list_nights()
    assert {row["reward"] for row in read_all(night.log, "verdicts")} == {-1}
    assert night.record["without_verdict"] == 0


def test_a_night_says_how_many_replies_have_no_verdict(tmp_path: Path) -> None:
    grow(tmp_path, 6)

    def answer(body: JSON, _: int) -> Reply:
        return completion("I cannot." if zlib.crc32(json.dumps(body["messages"]).encode()) % 2 else r"\boxed{-1}")

    with serving(answer, ["m"]) as server:
        run(options(tmp_path, judge="endpoint", judge_model="m", judge_url=server.url, least_hints=1000))
    (night,) = Home(tmp_path / "home").list_nights()
    statuses = [row["reward_status"] for row in read_all(night.log, "verdicts")]
    unknown = statuses.count("failed")
    assert 0 < unknown < len(statuses)
    assert f"{unknown} of {len(statuses)} replies have no verdict." in night.record["sentence"]
    assert (night.record["without_verdict"], night.record["judged"]) == (unknown, len(statuses))


def test_users_who_change_their_rating_are_heard(tmp_path: Path, teachers: list[TeacherConfig]) -> None:
    """Each rates the reply +1 in night 1, then -1 with a comment in night 2. The turn counts once, as rated last."""
    for rating, comment, least in ((1, None, 1000), (-1, "Use a table instead, please.", 1)):
        decision = {"decision": {"rating": rating, "comment": comment}}
        chats = [chat(f"Please list the files of folder {n}", "Here are alpha, beta, gamma.") for n in range(12)]
        for one in chats:
            one["messages"][1] |= decision
        jsonl(tmp_path / "logs" / "chats.jsonl", *({"id": f"c{n}"} | one for n, one in enumerate(chats)))
        config = options(tmp_path, least_hints=least)
        if least == 1000:
            run(config)
    with pytest.raises(OpdkitError, match="out of memory"):
        run(config)
    night = Home(tmp_path / "home").night(2).folder
    assert len(teachers) == 1
    assert {row["reward"] for row in read_all(night, "verdicts")} == {-1}


@pytest.mark.parametrize("reaction", [None, "Thanks, that is perfect!"])
def test_a_thumb_that_is_taken_back_no_longer_counts(tmp_path: Path, reaction: str | None) -> None:
    """The thumb goes down by mistake, is taken back, and goes down again later. Each night counts its current state."""
    (tmp_path / "logs").mkdir()
    rewards = []
    for thumb in (None, -1, None, -1):
        texts = ("user", "List the files."), ("assistant", "alpha, beta"), ("user", reaction)
        nodes = {str(n): {"id": str(n), "parentId": str(n - 1) if n else None, "role": role, "content": text}
                 for n, (role, text) in enumerate(texts) if text}  # fmt: skip
        nodes["1"] |= {"annotation": {"rating": thumb}} if thumb else {}
        history = {"messages": nodes, "currentId": str(len(nodes) - 1)}
        (tmp_path / "logs" / "export.json").write_text(json.dumps([{"id": "c", "chat": {"history": history}}]))
        run(options(tmp_path, least_hints=1000))
        nights = Home(tmp_path / "home").list_nights()
        sessions = drop_withdrawn([session for night in nights for session in read_sessions(night, 0.2)])
        rewards.append([opinion.kind for session in sessions for opinion in session.opinions][-1:])
    calm = [PRAISE] if reaction else []
    assert rewards == [calm, [COMPLAINT], calm, [COMPLAINT]]


def test_a_night_with_nothing_to_judge_waits(tmp_path: Path) -> None:
    jsonl(tmp_path / "logs" / "chats.jsonl", chat("Tell me about cars", "They have wheels."))
    run(options(tmp_path, least_hints=1000, set=("judge.good=metadata.stars>=4",)))
    assert Home(tmp_path / "home").night(1).record["decision"] == WAITS


def test_wrong_files_and_models_are_named_before_the_log_is_read(tmp_path: Path) -> None:
    grow(tmp_path, 6)
    prompts = tmp_path / "own.jsonl"
    right = json.dumps({"prompt": "When?", "corrected": True, "check": {"match": ["now"]}})
    wrong = {"not JSON": "{", "no check": '{"prompt": "When?", "corrected": true}',
             "corrected": json.dumps({"prompt": "Where?", "check": {"match": ["here"]}})}  # fmt: skip
    for line in wrong.values():
        prompts.write_text(f"{right}\n\n{line}\n")
        with pytest.raises(ConfigError, match=r"own\.jsonl, line.3"):
            run(options(tmp_path, prompts=str(prompts)))
    mined = json.dumps(json.loads(wrong["corrected"]) | {"domain": AFTER_CORRECTION})
    prompts.write_text(f"{right}\n{mined}\n")
    check_prompts(prompts)  # from-log.jsonl has such lines
    for changed, named in (({"model": str(tmp_path / "typo")}, "typo"),
                           ({"set": (f"teacher.teacher={tmp_path / 'logs'}",)}, "logs"),
                           ({"set": (f"judge.wording={tmp_path / 'w.toml'}",)}, "w.toml")):  # fmt: skip
        with pytest.raises(OpdkitError, match=named):
            run(options(tmp_path, **changed))
    home = Home(tmp_path / "home")
    assert not home.list_nights()
    shutil.copytree(MODEL, home.night(1).model)
    home.promote(1, by="hand")
    shutil.rmtree(home.night(1).folder)
    with pytest.raises(OpdkitError, match=r"opdkit models .*home --promote N"):
        run(options(tmp_path))


def test_a_model_that_cannot_be_loaded_ends_the_night_with_an_error(tmp_path: Path) -> None:
    grow(tmp_path, 30)
    shutil.copytree(MODEL, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").write_text("{")
    with pytest.raises(OpdkitError, match="tokenizer"):
        run(options(tmp_path, model=str(tmp_path / "model"), prompts=None))
    (night,) = Home(tmp_path / "home").list_nights()
    assert night.record["decision"] is None


def test_a_home_whose_ledger_is_gone_reads_no_log_again(tmp_path: Path) -> None:
    grow(tmp_path, 6)
    run(options(tmp_path, least_hints=1000))
    Home(tmp_path / "home").ledger.unlink()
    with pytest.raises(OpdkitError, match=r"ledger\.sqlite is gone"):
        run(options(tmp_path, least_hints=1000))
    with pytest.raises(OpdkitError, match=r"ledger\.sqlite is gone"):
        run_forget(ForgetConfig(home=tmp_path / "home", where=("metadata.id=chat-1",)))


def test_an_unfinished_night_says_that_later_logs_wait(
    tmp_path: Path, teachers: list[TeacherConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    grow(tmp_path, 30)
    for is_again in (False, True):
        with pytest.raises(OpdkitError, match="out of memory"):
            run(options(tmp_path, least_hints=1))
        assert ("night 1 cannot be finished; later logs wait" in capsys.readouterr().err) is is_again
    assert len(teachers) == 2


def test_a_night_that_gives_no_target_does_not_block_later_ones(tmp_path: Path) -> None:
    """The next training waits until there are as many new hints as a first training needs."""
    home = Home(tmp_path / "home")
    for upto in (60, 62, 110):
        grow(tmp_path, upto)
        run(options(tmp_path, least_hints=10, set=("teacher.max_tokens=9", "teacher.too_long=drop")))
    assert [(night.record["decision"], night.record["learns"]) for night in home.list_nights()] == [
        (KEPT, [1]), (WAITS, [1, 2]), (KEPT, [1, 2, 3])]  # fmt: skip
    assert "since night 1, which trained in vain" in home.night(2).record["sentence"]
    assert "too long" in home.night(3).record["sentence"]


def test_a_log_does_not_control_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = {"decision": PROMOTED, "sentence": "In \x1b[2Jdates: better."}
    monkeypatch.setattr(steps, "learn", lambda *_: said)
    grow(tmp_path, 6)
    run(options(tmp_path))
    home = Home(tmp_path / "home")
    shutil.copytree(MODEL, home.night(1).model)
    home.promote(1, by="night")
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    models(ModelsConfig(home=home.path))
    out = capsys.readouterr().out
    assert "[2Jdates" in out
    assert "\x1b[2J" not in out
