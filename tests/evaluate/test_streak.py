"""Tests of the number of sessions until three in a row are right: by hand, for any replies, and in `opdkit eval`."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import save_tiny_model
from http_server import completion, serving
from hypothesis import given
from hypothesis import strategies as st
from scored_runs import Said, Toy, write_run
from transformers import AutoModelForCausalLM, AutoTokenizer

from opdkit.config.evaluate import EvalConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.wording import DEFAULTS
from opdkit.evaluate import stage as evaluate
from opdkit.evaluate import streak
from opdkit.evaluate.checks import Criterion, HeldOutPrompt
from opdkit.evaluate.replies import Reply
from opdkit.evaluate.streak import count_sessions_before_streak
from opdkit.judge.criterion import FreshReply, make_criterion_messages
from opdkit.store import reviews
from opdkit.store.reading import read_all
from opdkit.store.reviews import Review
from opdkit.store.turn_ids import is_held_out
from opdkit.teacher import stage as teacher


@pytest.mark.parametrize(("right", "expected"), [
    ("", 0), ("1", 1), ("11", 2), ("111", 0), ("0111", 1), ("1101110", 3), ("110110", 6), ("0" * 9, 9),
])  # fmt: skip
def test_before_the_streak_or_all_of_them(right: str, expected: int) -> None:
    """The number of all sessions stands for never: no streak can begin there, as it needs three more sessions."""
    assert count_sessions_before_streak([letter == "1" for letter in right]) == expected


@given(st.lists(st.booleans(), max_size=12), st.sets(st.integers(0, 11)))
def test_it_is_the_first_streak_and_more_right_sessions_never_make_it_later(right: list[bool], more: set[int]) -> None:
    text, before = "".join("01"[ok] for ok in right), count_sessions_before_streak(right)
    assert before == (text.find("111") if "111" in text else len(right))
    assert count_sessions_before_streak([ok or s in more for s, ok in enumerate(right)]) <= before


def says_yes(asked: str) -> bool:
    """Return the verdict of these tests' judge on a question: yes to about two of three, by a hash of the text."""
    return hashlib.sha256(asked.encode()).digest()[0] % 3 > 0


def judged_eval(run: Path, folder: Path, models: tuple[Path, Path], **options) -> dict[str, dict]:
    """Evaluate with a judge on a server; return the rows of the streaks."""
    prompts = folder / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "say red", "check": {"match": ["."]}}))
    script = lambda body, _: completion(rf"\boxed{{{1 if says_yes(body['messages'][-1]['content']) else -1}}}")  # noqa: E731
    with serving(script) as server:
        evaluate.run(EvalConfig(run=run, prompts=str(prompts), model=str(models[0]), trained=str(models[1]),
                                judge_model="judge", judge_url=server.url, device="cpu", samples=1,
                                **({"max_new_tokens": 6} | options)))  # fmt: skip
    return {row["metric"]: row for row in read_all(run, "scores") if row["metric"].endswith("_streak")}


def expected_streaks(run: Path, models: tuple[Path, Path], max_new_tokens: int = 6) -> dict[str, list[int]]:
    """Return the streaks, found with plain loops over the tables and transformers' own greedy search."""
    right, hinted = {"log": [], "before": [], "after": []}, {}
    seen: set[str] = set()
    messages = {row["session_id"]: row["messages"] for row in read_all(run, "sessions")}
    for row in read_all(run, "verdicts"):
        session_id, _, index = row["turn_id"].rpartition(":")
        if row["reward"] is not None and session_id not in seen:
            seen.add(session_id)
            right["log"].append(row["reward"] == 1)
        if row["hint"] is not None and session_id not in hinted:
            hinted[session_id] = (messages[session_id][: int(index)], row["hint"])
    for label, folder in zip(("before", "after"), models, strict=True):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for before, hint in hinted.values():
            plain = [{"role": m["role"], "content": m["content"]} for m in before]
            prompt = tokenizer.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
            made = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=max_new_tokens)
            reply = tokenizer.decode(made[0, len(prompt) :], skip_special_tokens=True).strip()
            asked = make_criterion_messages(
                FreshReply("", before, reply, "The reply does what the hint asks for.", hint)
            )
            right[label].append(bool(reply) and says_yes(asked[-1]["content"]))

    def first(held: list[bool]) -> int:
        return next((s for s in range(len(held) - 2) if held[s] and held[s + 1] and held[s + 2]), len(held))

    return {"log_streak": [first(right["log"]), None], "hint_streak": [first(right["before"]), first(right["after"])]}


@pytest.fixture(scope="module")
def models(tmp_path_factory, plain_model_dir, plain_tokenizer) -> tuple[Path, Path]:
    return plain_model_dir, save_tiny_model(tmp_path_factory.mktemp("after") / "model", plain_tokenizer, seed=1)


@pytest.fixture(scope="module")
def scored(tmp_path_factory, plain_model_dir) -> Path:
    """Return a run whose log is right three times in a row only from session 5 on."""
    hints = [None if n == 3 else f"Say {n}." for n in range(9)]
    first = [Said("red", 1 if n in (1, 2, 5, 6, 7) else -1, hint) for n, hint in enumerate(hints)]
    toys = [Toy(f"s{n}", [said, Said("x", 1)]) for n, said in enumerate(first)]
    return write_run(tmp_path_factory.mktemp("scored") / "run", plain_model_dir, toys)


def test_eval_reports_the_streaks_of_the_log_and_of_both_models(scored, models, tmp_path, capsys) -> None:
    run = Path(shutil.copytree(scored, tmp_path / "run"))
    found, expected = judged_eval(run, tmp_path, models), expected_streaks(run, models)
    assert {name: [row["before"], row["after"]] for name, row in found.items()} == expected
    assert expected["log_streak"] == [5, None]
    assert expected["hint_streak"][0] != expected["hint_streak"][1]
    assert (found["log_streak"]["count"], found["hint_streak"]["count"]) == (9, 8)
    assert found["hint_streak"]["difference"] == expected["hint_streak"][1] - expected["hint_streak"][0]
    shown = capsys.readouterr().out
    assert "right, in the log: 5, of 9 sessions" in shown
    before, after = ("never" if n == 8 else str(n) for n in expected["hint_streak"])
    assert f"follow the hint: {after}, before {before}, of 8 sessions" in shown


def test_the_first_sessions_and_decisions_of_people_count(scored, models, tmp_path) -> None:
    run = Path(shutil.copytree(scored, tmp_path / "run"))
    assert judged_eval(run, tmp_path, models, max_prompts=4)["log_streak"]["before"] == 4, "never, of four"
    reviews.append(run, [Review("s3:1", reward_decided=True, reward=1)])
    teacher.run(TeacherConfig(run=run, model=str(models[0]), device="cpu", top_k=3, teacher_samples=0,
                              shard="0/1"))  # fmt: skip
    assert judged_eval(run, tmp_path, models, overwrite=True)["log_streak"]["before"] == 1


def test_sessions_without_a_verdict_on_both_models_are_left_out() -> None:
    """If the judge fails, nothing is known of a session: it is not wrong."""
    prompt = HeldOutPrompt("p", "log", [], None, Criterion("It is red."))
    verdicts = {"before": (True, None, True, True, None), "after": (True, True, None, True, True)}
    replies = [Reply(prompt, model, 0, "", "", None, "stop", passed)
               for model, given in verdicts.items() for passed in given]  # fmt: skip
    (row,) = streak.score_streaks([], replies)
    assert (row["before"], row["after"], row["count"], row["units"]) == (2, 2, 2, 2)
    assert streak.score_streaks([], replies[1:2] + replies[6:7]) == []


def test_an_edited_prompt_of_the_log_keeps_its_question(scored, models, tmp_path) -> None:
    """The prompt has the id of a hinted turn, but is judged by its own criterion; the streak is judged by the hint."""
    run, prompts = Path(shutil.copytree(scored, tmp_path / "run")), tmp_path / "prompts.jsonl"
    (asked,) = [s.prompt for s in streak.read_logged_sessions(run, 1, 0.0, DEFAULTS["criterion"])]
    said = asked.messages[-1]["content"]
    prompts.write_text(json.dumps({"id": asked.id, "prompt": said, "check": {"judge": "Rude."}}))
    is_rude = lambda body, _: completion(rf"\boxed{{{1 if 'Rude.' in str(body) else -1}}}")  # noqa: E731
    with serving(is_rude) as server:
        evaluate.run(EvalConfig(run=run, prompts=str(prompts), model=str(models[0]), trained=str(models[1]), samples=0,
                                max_new_tokens=6, device="cpu", judge_model="j", judge_url=server.url))  # fmt: skip
    assert [row["passed"] for row in read_all(run, "replies") if row["reply"].strip()] == [True, True]
    (row,) = [row for row in read_all(run, "scores") if row["metric"] == "hint_streak"]
    assert (row["before"], row["after"], row["count"]) == (8, 8, 8), "no reply follows its hint"


def test_without_a_judge_the_log_alone_is_measured(scored, models, tmp_path) -> None:
    run, prompts = Path(shutil.copytree(scored, tmp_path / "run")), tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "say red", "check": {"match": ["."]}}))
    evaluate.run(EvalConfig(run=run, prompts=str(prompts), model=str(models[0]), trained=str(models[1]), samples=0,
                            max_new_tokens=4, device="cpu"))  # fmt: skip
    assert [r["metric"] for r in read_all(run, "scores") if r["metric"].endswith("_streak")] == ["log_streak"]


def test_sessions_that_trained_are_not_asked(scored, tmp_path) -> None:
    every = list(streak.read_logged_sessions(scored, None, 0.0, DEFAULTS["criterion"]))
    held_out = list(streak.read_logged_sessions(scored, None, 0.5, DEFAULTS["criterion"]))
    assert [s.right for s in every] == [s.right for s in held_out] == [n in (1, 2, 5, 6, 7) for n in range(9)]
    assert [s.prompt is not None for s in every] == [n != 3 for n in range(9)]
    asked = {s.prompt.id for s in held_out if s.prompt}
    assert asked == {s.prompt.id for s in every if s.prompt and is_held_out(s.prompt.id.rpartition(":")[0], 0.5)}
    assert 0 < len(asked) < 8
