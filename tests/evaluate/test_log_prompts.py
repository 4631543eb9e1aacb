"""Tests of `opdkit eval --from-log`: prompts from complaints and praise in held-out sessions, on the sample data."""

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_server import completion, serving
from judged_runs import message, one_part, session, turn, verdict, write_run
from sample_world import DATA, MODEL, labels
from typer.testing import CliRunner

from opdkit.chat.template import Chat
from opdkit.cli import app
from opdkit.config.evaluate import EvalConfig
from opdkit.config.extract import ExtractConfig
from opdkit.config.judge import JudgeConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.config.wording import DEFAULTS
from opdkit.errors import ConfigError, OpdkitError
from opdkit.evaluate import log_prompts
from opdkit.evaluate import stage as evaluate
from opdkit.evaluate.checks import Criterion, HeldOutPrompt, Patterns, read_patterns, read_prompts
from opdkit.evaluate.conclusion import read_conclusion
from opdkit.evaluate.from_log import write_log_prompts
from opdkit.evaluate.log_prompts import (
    ACCEPTED_REPLIES,
    AFTER_CORRECTION,
    NEUTRAL,
    OTHER_COMPLAINTS,
    PRAISED_REPLIES,
    count_reactions,
    describe_prompts,
    make_prompts,
    read_reactions,
)
from opdkit.evaluate.similar import list_request_words
from opdkit.extract import stage as extract
from opdkit.model.behavior_policy import list_student_names
from opdkit.model.load import load_tokenizer
from opdkit.store.joined_turns import joined_turns
from opdkit.store.part_writer import Stage
from opdkit.store.plans import manifest
from opdkit.store.reading import read_all, read_part
from opdkit.store.stable_hash import stable_hash
from opdkit.store.tables import HINT_CHECKS, METRICS, TARGETS, VALIDATIONS, VERDICTS
from opdkit.store.turn_ids import is_held_out
from opdkit.teacher.hint_checks import WORSE

sys.path.insert(0, str(DATA))

from world import TOPICS, Topic, order_answer

sys.path.remove(str(DATA))

NAMES = "Ada Bob Cleo Dan Eve Finn Gus Hal Ida Jo Kim Leo".split()
STYLES = {style.name: (topic, style) for topic in TOPICS for style in topic.styles}
SHARE = 0.3
CRITERIA = DEFAULTS["criterion"]


def train_stage(run: Path, holdout: float = SHARE) -> Path:
    """Write a training that changes nothing: eval needs only its held-out share and its model."""
    stage = Stage.open(TrainConfig(run=run, model=str(MODEL), holdout=holdout, shard="0/1"), "train",
                       [METRICS, VALIDATIONS], parts=1, upstream=["extract", "judge"])  # fmt: skip
    with stage.writing(0) as out:
        out.add_rows("metrics", [])
    shutil.copytree(MODEL, run / "train" / "model")
    return run


def sample_run(run: Path, wrong: int = 0) -> Path:
    """Write the stages of a run on the sample logs, judged as labels.jsonl says.

    One of every `wrong` labels gets the opposite reward, and the hint of another topic or none.
    """
    extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs"),), shard="0/1"))
    rows = []
    preferred = [style for topic, style in STYLES.values() if topic.preferred == style.name]
    for n, label in enumerate(labels()):
        style = STYLES[label["wanted"]][1] if label["wanted"] else None
        if wrong and n % wrong == 0:
            label |= {"reward": -label["reward"]}
            style = None if style else preferred[n // wrong % len(preferred)]
        hint = style.hints[n % len(style.hints)] if style else None
        rows.append(verdict(label["turn_id"], hint, label["reward"]))
    known = {row["turn_id"]: row for row in rows}
    config = JudgeConfig(run=run, judge="rules", shard="0/1")
    parts = manifest(run, "extract")["plan"]["parts"]
    judge = Stage.open(config, "judge", [VERDICTS], parts=parts, upstream=["extract"])
    turns = [turn["turn_id"] for turn in read_all(run, "turns") if turn["trainable"]]
    with judge.writing(0) as out:
        out.add_rows("verdicts", [known[name] for name in turns if name in known])
    return train_stage(run)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample_run(tmp_path_factory.mktemp("log") / "run")


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chat(load_tokenizer(str(MODEL)), {})


def mined(run: Path, chat: Chat, holdout: float = SHARE, room: float = 4096) -> tuple[list[Any], Counter[str]]:
    reactions = list(read_reactions(run, holdout))
    return make_prompts(
        reactions, count_reactions(run, reactions), chat, room, CRITERIA, list_student_names(str(MODEL), {})
    )


def rows_of(run: Path, chat: Chat) -> list[dict[str, Any]]:
    return mined(run, chat)[0]


def prompts_of(rows: list[dict[str, Any]], folder: Path) -> list[HeldOutPrompt]:
    path = folder / "mined.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return read_prompts(path)


def topic_of(prompt: HeldOutPrompt) -> tuple[Topic, str]:
    """Return the topic and item that a prompt asks for, from its last request that names an item."""
    asked = [m["content"] or "" for m in prompt.messages if m["role"] == "user"]
    return next((topic, item) for text in reversed(asked) for topic in TOPICS for item in topic.items
                for request in topic.requests if request.format(item) in text)  # fmt: skip


def right_reply(prompt: HeldOutPrompt) -> str:
    topic, item = topic_of(prompt)
    if prompt.messages[-1]["role"] == "tool" and not prompt.messages[-1]["content"].startswith("error"):
        return order_answer(item)
    return topic.style(topic.preferred).reply(item) if topic.preferred else topic.styles[0].reply(item)


def facts(reply: str) -> str:
    """Return what a reply says apart from its style, for a topic that nobody corrects."""
    if reply.startswith("Your order"):
        return reply[reply.index(" is ") :]
    return reply.removeprefix("Try ").split(",")[0].rstrip(".").split(" is ")[-1]


def passes(prompt: HeldOutPrompt, reply: str) -> bool:
    """Return whether a reply passes a prompt's check; a criterion is decided as a perfect judge would."""
    check = prompt.check
    if isinstance(check, Patterns):
        return check.passes(reply)
    assert isinstance(check, Criterion)
    if check.hint is not None:
        _, style = next(known for known in STYLES.values() if check.hint in known[1].hints)
        given = topic_of(prompt)[0].style_of(reply)
        return given is not None and given.name == style.name
    assert check.praised is not None
    topic, _ = topic_of(prompt)
    if topic.preferred is None or check.praised.startswith("Your order"):
        return facts(check.praised) in reply
    return topic.style_of(reply) == topic.style_of(check.praised)


# -- what is found --------------------------------------------------------------------------------------------------


def test_each_corrected_topic_has_prompts_that_the_logged_replies_fail(run, chat, tmp_path) -> None:
    rows = rows_of(run, chat)
    prompts = prompts_of(rows, tmp_path)
    found = Counter(topic_of(prompt)[0].name for prompt in prompts if prompt.corrected)
    assert found.keys() == {topic.name for topic in TOPICS if topic.preferred}
    assert min(found.values()) >= 8
    checks = Counter((topic_of(p)[0].name, *row["check"].get("match", ["by the judge"]))
                     for p, row in zip(prompts, rows, strict=True) if p.corrected and row["hint"])  # fmt: skip
    assert checks.keys() == {
        ("weather", r"\d ?C\b"), ("cooking", r"(?m)^\s*\d+[.)] "), ("trains", r"\b\d\d:\d\d\b"),
        ("orders", r"\border_id\b"),
    }  # fmt: skip
    assert not any(prompt.check.passes(row["logged"]) for prompt, row in zip(prompts, rows, strict=True)
                   if prompt.corrected and row["hint"] and isinstance(prompt.check, Patterns))  # fmt: skip


def test_praise_is_uncorrected_where_nobody_complained_about_like_requests(run, chat, tmp_path) -> None:
    """Requests whose replies users want changed count as corrected, even if a reply was right at once."""
    rows = rows_of(run, chat)
    prompts = prompts_of(rows, tmp_path)
    asked = [prompt for prompt in prompts if prompt.messages[-1]["role"] == "user"]
    assert {topic_of(prompt)[0].preferred for prompt in asked if prompt.corrected is False} == {None}
    assert any(prompt.corrected and row["hint"] is None for prompt, row in zip(prompts, rows, strict=True))
    after = [prompt for prompt in prompts if prompt.corrected is None]
    assert (
        {prompt.domain for prompt in after}
        == {AFTER_CORRECTION}
        == {p.domain for p in prompts if len(p.domains()) == 2}
    )


def test_they_are_of_held_out_sessions_and_each_turn_counts_once(run, chat) -> None:
    reactions = list(read_reactions(run, SHARE))
    rows, left_out = mined(run, chat)
    assert all(is_held_out(row["id"].rpartition(":")[0], SHARE) for row in rows)
    judged = {row["turn_id"] for row in read_all(run, "verdicts") if row["hint"] or row["reward"] == 1}
    held_out = {name for name in judged if is_held_out(name.rpartition(":")[0], SHARE)}
    assert {one.turn.turn_id for one in reactions if one.is_held_out and one.kind != NEUTRAL} == held_out
    accepted = {one.turn.turn_id for one in reactions if one.kind == NEUTRAL}
    assert sum(row["turns"] for row in rows) == len(held_out | accepted) - left_out.total() > len(rows)
    asked = Counter((row["domain"], json.dumps(row.get("prompt"))) for row in rows if "prompt" in row)
    assert set(asked.values()) == {1}


def test_praise_must_not_change(run, chat) -> None:
    """A judge compares new replies with the praised one; right after a correction, its complaint's pattern counts."""
    rows = rows_of(run, chat)
    kept = [row for row in rows if row.get("corrected") is False]
    assert {row["domain"] for row in kept} == {PRAISED_REPLIES, ACCEPTED_REPLIES}
    for row in kept:
        assert row["check"] == {"judge": CRITERIA["serves_as_well"], "praised": row["logged"]}
    after = [row for row in rows if row["domain"] == AFTER_CORRECTION]
    assert all(row["hint"] and "corrected" not in row for row in after)
    assert any(read_patterns(row["check"]).passes(row["logged"]) for row in after if "judge" not in row["check"])


@pytest.mark.parametrize("wrong", [0, 20], ids=["a perfect judge", "a judge that errs in 5%"])
def test_a_right_reply_passes(wrong: int, tmp_path, chat) -> None:
    """A right reply fails at most one check in twenty, even if the judge of the log errs in 5%."""
    prompts = prompts_of(rows_of(sample_run(tmp_path / "run", wrong), chat), tmp_path)
    failed = [prompt.id for prompt in prompts if not passes(prompt, right_reply(prompt))]
    assert len(prompts) >= 100
    assert len(failed) <= 0.05 * len(prompts), f"{len(failed)} of {len(prompts)}: {failed}"
    if not wrong:
        assert failed == ["openai:5:1"]  # its user was thankful for the wrong city


# -- by hand --------------------------------------------------------------------------------------------------------


def hand_run(
    run: Path, *talks: tuple[str, list[tuple[str, str, str | None, int | None]]], writer: str | None = None
) -> Path:
    """Write sessions of (request, reply, hint, reward), all of which were held out; `writer` is the logged model."""
    sessions, turns, verdicts = [], [], []
    for name, said in talks:
        messages = [
            message(role, text) for ask, reply, _, _ in said for role, text in (("user", ask), ("assistant", reply))
        ]
        sessions.append(session(name, *messages, message("user", "Bye.")) | {"model": writer})
        for n, (_, _, hint, reward) in enumerate(said):
            turns.append(turn(f"{name}:{2 * n + 1}"))
            verdicts.append(verdict(f"{name}:{2 * n + 1}", hint, reward))
    return write_run(run, one_part(sessions, turns, verdicts))


def fields(rows: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.get(name) for name in names) for row in rows]


def test_rows_by_hand(tmp_path, chat) -> None:
    """Eleven pairs of replies show the unit; two requests differ in a number only, one has no praise, one was right."""
    talks = [(f"s{n}", [(f"Weight of {name} {n}?", f"{n} lb", "Use kg.", -1), ("In kg.", f"{n} kg", None, 1)])
             for n, name in enumerate("Ada Bob Cleo Dan Eve Hal Ida Jo Kim Leo".split())]  # fmt: skip
    talks += [
        ("same", [("weight of ada 77", "70 lb", "Use kg.", -1), ("In kg!", "70 kg", None, 1)]),
        ("open", [("Weight of Finn?", "9 lb", "Use kg.", -1), ("Well.", "Hm?", None, 0)]),
        ("other", [("Weight of Ada 5?", "7 kg", None, 1), ("Weight of Bob 5?", "7 lb", None, 1)]),
        ("odd", [("Weight of Gus?", "8 kg", "Use kg.", -1), ("Poem?", "Roses", None, 1), ("So?", "So.", "Rhyme.", -1)]),
    ]
    made, left_out = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 400)
    in_kg, by_judge = {"match": [r"\d ?kg\b"]}, {"judge": CRITERIA["follows_hint"], "hint": "Use kg."}
    assert fields(made, "id", "corrected", "domain", "check", "turns") == [
        row for n in range(10) for row in (
            (f"s{n}:1", True, "Use kg.", in_kg, 1 + 2 * (n == 0)),
            (f"s{n}:3", None, AFTER_CORRECTION, in_kg, 1 + (n == 0)),
        )
    ] + [
        ("open:1", True, "Use kg.", in_kg, 1),
        ("odd:1", True, "Use kg.", by_judge, 1),  # the pattern says that nothing was wrong with the reply
        ("odd:3", None, AFTER_CORRECTION, {"judge": CRITERIA["serves_as_well"], "praised": "Roses"}, 1),
        ("odd:5", True, OTHER_COMPLAINTS, {"judge": CRITERIA["follows_hint"], "hint": "Rhyme."}, 1),
    ]  # fmt: skip
    assert left_out == {"praise for what others corrected": 1}
    said = [("user", "Weight of Ada 0?"), ("assistant", "0 lb"), ("user", "In kg.")]
    assert made[1]["messages"] == [{"role": role, "content": text} for role, text in said]
    assert re.findall(r"\d+", describe_prompts(made, left_out, 4)) == "24 13 0 0 11 3 1 21 3 12".split()


def test_most_users_decide_what_the_edited_reply_to_a_request_is(tmp_path, chat) -> None:
    """Hints that hold the reply that a user wrote share their words, but ask for different things."""
    says = "Reply as follows; this is how the user changed the reply: {}"
    talks = [(f"s{n}", [("Is Lima in Peru?", "Perhaps, Peru.", says.format(reply), -1)])
             for n, reply in enumerate(("Yes.", "No.", "No."))]  # fmt: skip
    sessions, turns, verdicts = (list(read_all(hand_run(tmp_path / "plain", *talks), name))
                                 for name in ("sessions", "turns", "verdicts"))  # fmt: skip
    edited = [row | {"hint_status": "edited"} for row in verdicts]
    made, left_out = mined(write_run(tmp_path / "run", one_part(sessions, turns, edited)), chat, 1.0)
    assert [(row["hint"], row["turns"]) for row in made] == [(says.format("No."), 2)]
    assert left_out == {"the same reply was judged otherwise": 1}


def test_a_reply_that_more_users_rejected_than_praised_is_no_good_reply(tmp_path, chat) -> None:
    """A thumb down has no hint."""
    for first in (1, 0):
        rewards = (first, -1, -1, -1)
        talks = [(f"s{n}", [("Capital of Peru?", "It is Quito, in Peru.", None, r)]) for n, r in enumerate(rewards)]
        made, left_out = mined(hand_run(tmp_path / str(first), *talks), chat, 1.0)
        assert (made, left_out) == ([], {"the same reply was judged otherwise": 1})


def test_requests_that_differ_in_signs_are_different(tmp_path, chat) -> None:
    asked = ("What is 12 + 30?", "What is 12 * 30?", "Sort it in C++", "Sort it in C#", "what is 13 + 31 ?!")
    talks = [(f"s{n}", [(request, f"It is {n}.", f"Say {n}.", -1)]) for n, request in enumerate(asked)]
    made, _ = mined(hand_run(tmp_path / "run", *talks), chat, 1.0)
    hashes = {log_prompts._hash_prompt(turn) for turn in joined_turns(tmp_path / "run", 0)}
    assert (len(made), len(hashes)) == (5, 4)


def test_what_is_like_a_complaint_counts_as_corrected_and_what_follows_one_neither_way(tmp_path, chat) -> None:
    talks = [("first", [("Weight of Ada?", "1 lb", "Use kg.", -1), ("I said kg.", "2 lb", "Use kg.", -1)]),
             ("second", [("Weight of Bob?", "5 lb", "Use kg.", -1)]),
             ("like", [("Weight of Zoe?", "3 kg", None, 1)]), ("unlike", [("Who is it?", "Zoe.", None, 1)]),
             ("longer", [("Weight of Zoe in kg?", "3 kg", None, 1)]),
             ("odd", [("Sing of rain.", "La.", "Rhyme.", -1)]), ("fine", [("Sing of snow.", "Do.", None, 1)]),
             ("good", [("Sing of sun.", "Re.", None, 1)])]  # fmt: skip
    made, left_out = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 400)
    assert fields(made, "id", "corrected", "domain") == [
        ("first:1", True, OTHER_COMPLAINTS), ("first:3", None, AFTER_CORRECTION),
        ("second:1", True, OTHER_COMPLAINTS), ("like:1", True, OTHER_COMPLAINTS),
        ("unlike:1", False, PRAISED_REPLIES), ("longer:1", False, PRAISED_REPLIES), ("odd:1", True, OTHER_COMPLAINTS),
        # Such requests were praised more often than complained about.
        ("fine:1", False, PRAISED_REPLIES), ("good:1", False, PRAISED_REPLIES),
    ]  # fmt: skip
    assert not left_out


def test_what_follows_a_correction_does_so_in_every_branch(tmp_path, chat) -> None:
    """The reply after the correction was regenerated; in the second branch, only that reply is judged."""
    begin = [message("user", "Weight of Ada?"), message("assistant", "1 lb"), message("user", "In kg.")]
    ends = [[message("assistant", reply), message("user", "Thanks!")] for reply in ("1 kg", "2 kg")]
    names = "log:s", "log:s#branch-2"
    turns = [turn(f"{name}:{index}") for name in names for index in (1, 3)]
    turns[2] |= {"trainable": False, "skip_reason": "duplicate"}
    verdicts = [verdict("log:s:1", "Use kg.", -1), *(verdict(f"{name}:3", None, 1) for name in names)]
    sessions = [session(name, *begin, *end) for name, end in zip(names, ends, strict=True)]
    run = write_run(tmp_path / "run", one_part(sessions, turns, verdicts))
    assert [one.after_correction for one in read_reactions(run, 0.999999)] == [False, True, True]
    made, _ = mined(run, Chat(load_tokenizer(str(MODEL)), {}), 0.999999)
    assert {row["session"] for row in made} == {"log:s"}, "of both branches"


@pytest.mark.parametrize(("wrong", "right", "hint", "other", "opposite"), [
    ("At {}:15 pm.", "At 1{}:15.", "Use the 24-hour clock.", "At 1:15 pm.", "Use the 12-hour clock."),
    ("May {}.", "1990-05-1{}.", "Write dates as YYYY-MM-DD.", "03.05.2021.", "Write dates as DD.MM.YYYY."),
    ("{} F", "{} C", "用摄氏度回答", "70 F", "用华氏度回答"),
    ("It is {}.", "It is {}.05.", "Use 2 decimal places.", "1.1234.", "Use 4 decimal places."),
    ("Print {}.", "```\n{}", "Use C++ code.", "Console.", "Use C# code."),
])  # fmt: skip
def test_opposite_wishes_share_no_check(wrong, right, hint, other, opposite, tmp_path, chat) -> None:
    """Ten users ask for one thing, two for the opposite in similar words; one of the two praised a reply."""
    talks = [(f"s{n}", [(f"What about {name}?", wrong.format(n), hint, -1), ("No.", right.format(n), None, 1)])
             for n, name in enumerate(NAMES[:10])]  # fmt: skip
    talks += [("yes", [("What about Zoe?", "Soon", opposite, -1), ("No.", other, None, 1)]),
              ("no", [("What about Max?", "Soon", opposite, -1), ("No.", "ok", None, 0)])]  # fmt: skip
    made, _ = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 400)
    checks = {row["id"]: row["check"] for row in made}
    assert all("match" in checks[f"s{n}:1"] for n in range(10))
    topics = {hint} if "C#" not in opposite else {hint, "other complaints"}  # wishes in similar words are one topic
    assert {row["domain"] for row in made if row.get("corrected")} == topics
    for name in ("yes:1", "no:1"):
        assert checks[name] == {"judge": CRITERIA["follows_hint"], "hint": opposite}


def test_a_pattern_that_replies_praised_at_once_fail_is_no_check(tmp_path, chat) -> None:
    """All praised corrections cheer, but users also praised invitations that do not."""
    talks = [(f"s{n}", [(f"Invite {name} to tea.", f"Come, {name}.", "Be polite.", -1),
                        ("Politely.", f"Dear {name}, do come, hurray!", None, 1)])
             for n, name in enumerate(NAMES[:8])]  # fmt: skip
    made, _ = mined(hand_run(tmp_path / "cheer", *talks), chat, 1.0, 400)
    assert [row["check"] for row in made if row["hint"]] == [{"match": ["!"]}] * 16
    talks += [(name, [(f"Invite {name} to tea.", f"Dear {name}, do come.", None, 1)]) for name in ("Max", "Zoe")]
    made, left_out = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 400)
    assert all("judge" in row["check"] for row in made)
    assert not left_out


def test_prompts_with_the_same_last_message_are_merged_only_where_all_messages_are_the_same(tmp_path, chat) -> None:
    talks = [(f"s{n}", [(f"Tell me about {name}.", f"{name} is 7.", None, None), ("Go on.", f"{name} is 8.", None, 1)])
             for n, name in enumerate(NAMES[:6])]  # fmt: skip
    talks += [("same", [("Tell me about Ada!", "Ada is 7.", None, None), ("Go on!", "Ada is 9.", None, 1)]),
              ("bad", [("Book the train.", "Shall I?", None, None), ("Go on.", "At 3.", "Say when.", -1)])]  # fmt: skip
    made, _ = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 400)
    assert fields(made, "id", "turns", "domain", "session") == [
        *((f"s{n}:3", 1 + (n == 0), PRAISED_REPLIES, f"s{n}") for n in range(6)),
        ("bad:3", 1, OTHER_COMPLAINTS, "bad")]  # fmt: skip


def test_prompts_that_end_with_the_same_result_of_another_call_are_not_merged(tmp_path, chat) -> None:
    sessions = []
    for name in NAMES[:4]:
        call = {"id": "c", "name": "mend", "arguments": json.dumps({"what": name})}
        said = [message("user", f"Mend it for {name}."), message("assistant", "", tool_calls=[call]),
                message("tool", "OK", tool_call_id="c"), message("assistant", f"{name} can use it.")]  # fmt: skip
        sessions.append(session(name, *said, message("user", "Thanks!")))
    turns = [turn(f"{name}:3") for name in NAMES[:4]]
    run = write_run(tmp_path / "run", one_part(sessions, turns, [verdict(f"{name}:3", None, 1) for name in NAMES[:4]]))
    made, _ = mined(run, chat, 1.0, 400)
    assert fields(made, "turns") == [(1,)] * 4
    requests = [list_request_words(turn) for turn in joined_turns(run, 0)]
    assert requests[0] == ["ok", *(f"before: {word}" for word in "mend it for ada".split())]


def test_few_turns_of_sessions_that_trained_are_held(tmp_path, monkeypatch) -> None:
    """Their hints are all different, so that only the limit over all hints applies; a hash decides which are kept."""
    run = hand_run(tmp_path / "run", *((f"s{n}", [("Why?", "So.", f"Say {n}.", -1)]) for n in range(40)))
    names = [f"s{n}:1" for n in range(40) if not is_held_out(f"s{n}", SHARE)]
    assert len(names) > 10
    monkeypatch.setattr(log_prompts, "_ALL_EXAMPLES", 5)
    found = [one.turn.turn_id for one in read_reactions(run, SHARE)]
    assert len(found) == 40 - len(names) + 5
    assert found[-5:] == sorted(names, key=stable_hash)[:5]


def test_a_word_of_another_writer_is_no_check(tmp_path, chat) -> None:
    """All right replies of the log bow and no wrong one does, but another model may be right in other words."""
    talks = [(f"s{n}", [(f"Greet {name}.", f"Hi {name}!", "Be polite.", -1), ("Politely.", f"I bow, {name}.", None, 1)])
             for n, name in enumerate("Ada Bob Cleo Dan Eve Finn Gus Hal Ida Jo Kim Leo".split())]  # fmt: skip
    for name, writer in (("own", MODEL.name), ("unknown", None), ("other", "some-other-model")):
        made, _ = mined(hand_run(tmp_path / name, *talks, writer=writer), chat, 1.0, 400)
        assert {"judge" in row["check"] for row in made} == {name == "other"}


def test_what_nobody_complained_about_must_not_change(tmp_path, chat) -> None:
    """A reply with reward 0 by the votes is accepted, unless such requests got complaints or it follows a complaint."""
    talks = [(f"s{n}", [(f"Weight of {name}?", f"{n} lb", "Use kg.", -1), ("Ask Bo.", "I asked Bo.", None, 0)])
             for n, name in enumerate("Ada Bob Cleo Dan".split())]  # fmt: skip
    talks += [(f"calm{n}", [(f"Capital of {name}?", "Lima.", None, 0)])
              for n, name in enumerate("Peru Cuba Chad Mali Oman Iran Laos".split())]  # fmt: skip
    talks += [("again", [("Capital of Peru!", "Lima.", None, 0)]), ("like", [("Weight of Zoe?", "3 lb", None, 0)]),
              ("angry", [("Well?", "Yes.", None, -1), ("So?", "No.", None, 0)]),
              ("unjudged", [("Sing of rain.", "La.", None, None)])]  # fmt: skip
    made, left_out = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 400)
    kept = [row for row in made if row["domain"] == ACCEPTED_REPLIES]
    assert len(made) - len(kept) == 4
    assert sum(row["turns"] for row in kept) == 6  # so few are enough for four complaints
    assert all(row["id"].startswith(("calm", "again")) for row in kept)
    assert not any(row["corrected"] or row["check"]["praised"] != row["logged"] for row in kept)
    assert [n for _, n in sorted(left_out.items(), key=lambda item: "others" in item[0])] == [2, 1]
    assert mined(tmp_path / "run", chat, 1.0, 400) == (made, left_out)


@pytest.mark.parametrize(("asked", "reply", "hint", "done"), [
    ("秘鲁的首都是哪里？", "秘鲁的首都是利马。", "用千克。", "可以的。"),
    ("ペルーの首都はどこ？", "ペルーの首都はリマです。", "キロで。", "了解です。"),
])  # fmt: skip
def test_most_users_decide_in_scripts_without_spaces(asked, reply, hint, done, tmp_path, chat) -> None:
    """The last two requests share no words with their reply, so the two verdicts on it are not compared."""
    talks = [(f"s{n}", [(asked, reply, *said)]) for n, said in enumerate([(hint, -1), (None, 1), (None, 1)])]
    talks += [("done1", [("发送我的信。", done, None, 1)]), ("done2", [("唱你的歌。", done, hint, -1)])]
    made, left_out = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 400)
    assert fields(made, "id", "turns") == [("s1:1", 2), ("done1:1", 1), ("done2:1", 1)]
    assert left_out == {"the same reply was judged otherwise": 1}


def test_where_a_log_holds_a_reply_more_than_once_most_users_decide(tmp_path, chat) -> None:
    """One of three users corrects what two praise, so praise wins; "Done." may be wrong after one request only."""
    talks = [(f"s{n}", [("Capital of Peru?", "It is Lima, in Peru.", *said)])
             for n, said in enumerate([(None, 1), ("Use kg.", -1), (None, 1)])]  # fmt: skip
    talks += [("even1", [("Gift for Clara?", "A book for Clara.", "Be kind.", -1)]),
              ("even2", [("Gift for Clara!", "A book for Clara.", None, 1)]),
              ("done1", [("Book it.", "Done.", None, 1)]), ("done2", [("Send it.", "Done.", None, 1)]),
              ("done3", [("Sing.", "Done.", "Sing!", -1)])]  # fmt: skip
    made, left_out = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 400)
    assert fields(made, "id", "turns") == [("s0:1", 2), ("done1:1", 1), ("done2:1", 1), ("done3:1", 1)]
    assert left_out == {"the same reply was judged otherwise": 3}


def test_a_prompt_that_does_not_fit_is_left_out_and_counted(tmp_path, chat) -> None:
    talks = [("long", [("word " * 500, "no", "Be kind.", -1)]), ("short", [("word", "no", "Be kind.", -1)]),
             ("empty", [("word", " ", None, 1)])]  # fmt: skip
    made, left_out = mined(hand_run(tmp_path / "run", *talks), chat, 1.0, 300)
    assert fields(made, "id", "prompt") == [("short:1", "word")]
    assert left_out == {"too long": 1, "empty reply": 1}


# -- the command ----------------------------------------------------------------------------------------------------


def judge_with(answer: Callable[[str], bool]) -> Callable[[dict[str, Any], int], Any]:
    return lambda body, _: completion("\\boxed{1}" if answer(body["messages"][-1]["content"]) else "\\boxed{-1}")


def evaluate_with(run: Path, url: str, **options: Any) -> EvalConfig:
    config = EvalConfig(run=run, device="cpu", max_new_tokens=48, samples=0, max_prompts=40, judge_model="m",
                        judge_url=url, shard="0/1", **options)  # fmt: skip
    evaluate.run(config)
    return config


@pytest.mark.slow
def test_the_untrained_model_fails_and_the_file_gives_the_same_scores(run, tmp_path, capsys) -> None:
    run = Path(shutil.copytree(run, tmp_path / "run"))
    with serving(judge_with(lambda asked: "good reply" in asked)) as server:
        evaluate_with(run, server.url, from_log=True)
        file, scores = run / "from-log.jsonl", list(read_all(run, "scores"))
        found = {row["domain"]: row for row in scores if row["metric"] == "passed_greedy"}
        assert found["corrected"]["before"] <= 0.25
        assert found["uncorrected"]["before"] >= 0.8
        assert sum(found[domain]["count"] for domain in ("corrected", "uncorrected", AFTER_CORRECTION)) == 40
        assert read_conclusion(run).word == "the same"  # it is the same model
        asked = len(server.requests)
        assert asked > 0
        evaluate_with(run, server.url, prompts=str(file))  # the same plan: nothing is asked again
        assert len(server.requests) == asked
        evaluate_with(run, server.url, prompts=str(file), overwrite=True)
        assert list(read_all(run, "scores")) == scores
        assert manifest(run, "eval")["configuration"]["prompts"] == str(file)

        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        edited = [row | ({"check": {"match": ["."]}} if row.get("corrected") else {}) for row in rows]
        file.write_text("".join(json.dumps(row) + "\n" for row in edited), encoding="utf-8")
        evaluate_with(run, server.url, prompts=str(file), overwrite=True)
        changed = {row["domain"]: row for row in read_all(run, "scores") if row["metric"] == "passed_greedy"}
        assert changed["corrected"]["before"] == 1.0
        assert changed["uncorrected"] == found["uncorrected"]
        with pytest.raises(ConfigError, match="--prompts"):  # what was edited is not lost
            evaluate_with(run, server.url, from_log=True)
        assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == edited
        evaluate_with(run, server.url, from_log=True, overwrite=True)
        assert [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] == rows


def test_a_night_makes_the_same_prompts_before_and_after_hints_were_checked(run, tmp_path) -> None:
    """It passes its own share. `eval --from-log` does not, and leaves out what `--check-hints` dropped."""
    run = Path(shutil.copytree(run, tmp_path / "run"))
    config, names = EvalConfig(run=run, device="cpu", max_new_tokens=48, overwrite=True), dict.fromkeys(
        ("before", "after"), str(MODEL))  # fmt: skip
    before = write_log_prompts(config, names, SHARE).read_text()
    options = TeacherConfig(run=run, model="m", check_hints=2, judge_model="m", shard="0/1")
    teacher = Stage.open(options, "teacher", [TARGETS, HINT_CHECKS], parts=manifest(run, "judge")["plan"]["parts"],
                         upstream=["extract", "judge"])  # fmt: skip
    shares = {"samples": 2, "judged": 2, "with_hint": 0.0, "without_hint": 0.0, "reply": None, "status": WORSE}
    for part in teacher.todo():
        with teacher.writing(part) as out:
            out.add_rows("hint_checks", [{"turn_id": row["turn_id"], "hint": row["hint"]} | shares
                                         for row in read_part(run, "verdicts", part) if row["hint"]])  # fmt: skip
    assert write_log_prompts(config, names, SHARE).read_text() == before
    assert '"corrected": true' in before
    assert '"corrected": true' not in write_log_prompts(config, names).read_text()


def test_without_held_out_sessions_it_says_what_to_do(tmp_path) -> None:
    talks = [("a", [("Why?", "So.", "Say why.", -1)])]
    run = train_stage(hand_run(tmp_path / "none", *talks), holdout=0.0)
    with pytest.raises(OpdkitError, match="--holdout"):
        evaluate.run(EvalConfig(run=run, from_log=True, device="cpu"))
    name = next(f"s{n}" for n in range(100) if not is_held_out(f"s{n}", SHARE))
    run = train_stage(hand_run(tmp_path / "unlucky", (name, talks[0][1])))
    with pytest.raises(OpdkitError, match="--holdout"):
        evaluate.run(EvalConfig(run=run, from_log=True, device="cpu"))
    assert not (run / "from-log.jsonl").exists()


def test_criteria_need_a_judge_and_the_judge_of_the_run_is_one(run, tmp_path) -> None:
    with pytest.raises(ConfigError, match="--judge-model"):  # the rules judged this run
        evaluate.run(EvalConfig(run=run, from_log=True, device="cpu", max_new_tokens=48))
    run = Path(shutil.copytree(run, tmp_path / "run"))
    document = json.loads((run / "judge/manifest.json").read_text())
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "Who?", "check": {"judge": "It is kind.", "praised": "You!"}}))
    with serving(judge_with(lambda asked: "## Good reply\n| You!" in asked)) as server:
        document["configuration"] |= {"judge": "endpoint", "judge_model": "m", "judge_url": server.url}
        (run / "judge/manifest.json").write_text(json.dumps(document))
        evaluate.run(
            EvalConfig(run=run, prompts=str(prompts), samples=0, max_prompts=1, max_new_tokens=8, device="cpu")
        )
        assert {body["model"] for body in server.requests} == {"m"}
    assert {row["passed"] for row in read_all(run, "replies")} == {True}


@pytest.mark.parametrize("options", [[], ["--from-log", "--prompts", "p.jsonl"]])
def test_prompts_come_from_one_place(options: list[str], tmp_path) -> None:
    result = CliRunner().invoke(app, ["eval", str(tmp_path), *options])
    assert result.exit_code == 2
    assert "--prompts" in result.stderr
    assert "--from-log" in result.stderr
