"""Tests of opdkit/teacher/stage.py, from verdicts to targets, with a tiny model of random weights."""

import shutil

import pytest
import torch
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer, save_tiny_model
from judged_runs import (
    HINT,
    message,
    one_part,
    plain,
    prompts_of,
    session,
    talk,
    targets,
    three_parts,
    turn,
    verdict,
    write_run,
)
from runs import HINT_HEADER
from transformers import AutoModelForCausalLM

from opdkit.chat.template import Chat
from opdkit.errors import ConfigError, OpdkitError
from opdkit.model import tree_reading
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.reading import read_all
from opdkit.teacher import examples
from opdkit.teacher import models as policies
from opdkit.teacher import part as teacher_part
from opdkit.teacher import stage as teacher

# -- the numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["last-user", "tail", "system"])
@pytest.mark.parametrize("batch_tokens", [1, 16384])
def test_targets_equal_a_plain_forward_of_each_turn(run, config, tiny_model_dir, placement, batch_tokens):
    """Both models' log-probs are at temperature 1 and not shifted by a position, for any size of batch."""
    teacher.run(config(run, hint_placement=placement, batch_tokens=batch_tokens))
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    tokenizer = load_tokenizer(str(tiny_model_dir))
    sessions = {s["session_id"]: s for s in read_all(run, "sessions")}
    rows = targets(run)
    assert len(rows) == 9
    for row in rows:
        name, _, index = row["turn_id"].rpartition(":")
        before = [{"role": m["role"], "content": m["content"]} for m in sessions[name]["messages"][: int(index)]]
        prompt = tokenizer.apply_chat_template(before, add_generation_prompt=True, return_dict=False)
        assert row["prompt_tokens"] == len(prompt)
        assert row["old_logprobs"] == pytest.approx(plain(model, prompt, row["response_ids"]), abs=1e-5)
        if row["hint"] is None:
            assert row["teacher_logprobs"] is None
            continue
        where = {"last-user": -1, "tail": -1, "system": 0}[placement]
        before[where]["content"] += f"\n\n{HINT_HEADER}\n{row['hint']}"
        hinted = tokenizer.apply_chat_template(before, add_generation_prompt=True, return_dict=False)
        assert row["teacher_logprobs"] == pytest.approx(plain(model, hinted, row["response_ids"]), abs=1e-5)
        assert row["teacher_logprobs"] != row["old_logprobs"]


def test_the_rows_say_what_was_judged(run, config):
    """A turn without a hint has no teacher log-probs; a reward alone makes a target, and a null reward stays null."""
    summary = teacher.run(config(run))
    rows = targets(run)
    assert [r["turn_id"] for r in rows] == [i for k in range(3) for i in (f"s{k}a:2", f"s{k}a:4", f"s{k}b:2")]
    assert [r["reward"] for r in rows[:3]] == [None, 1, -1]
    assert [r["hint"] for r in rows[:3]] == [HINT, None, f"{HINT} (0)"]
    assert [r["teacher_logprobs"] is None for r in rows[:3]] == [False, True, False]
    for row in rows:
        lengths = {len(row["response_ids"]), len(row["response_mask"]), len(row["old_logprobs"])}
        assert len(lengths) == 1
        assert row["teacher_logprobs"] is None or len(row["teacher_logprobs"]) in lengths
    assert (summary.counters.rows_in, summary.counters.rows_out) == (12, 9)
    assert summary.counters.dropped == {"no signal": 3}
    assert summary.counters.total("with a hint") == 6


def test_student_and_teacher_read_the_same_response(run, config, monkeypatch):
    """The same response ids follow both prompts: the reply is not tokenized or rendered a second time."""
    seen = []
    real = teacher_part.score_session
    monkeypatch.setattr(teacher_part, "score_session", lambda *a, **k: seen.extend(a[2]) or real(*a, **k))
    teacher.run(config(run))
    hinted = [t for t in seen if t.hinted]
    assert len(hinted) == 6
    for target in hinted:
        [(reading,)] = target.hinted
        assert target.student.response_ids == reading.response_ids
        assert len(reading.prompt_ids) > len(target.student.prompt_ids)


def test_a_copy_of_the_student_is_no_other_teacher(run, config, tiny_model_dir, tmp_path, monkeypatch):
    """The same weights in another folder are loaded once and give the same rows."""
    copy = shutil.copytree(tiny_model_dir, tmp_path / "copy")
    teacher.run(config(run))
    alone = targets(run)
    loaded = []
    monkeypatch.setattr(policies, "load_model", lambda name, **k: loaded.append(name) or load_model(name, **k))
    teacher.run(config(run, teacher=(str(copy),), overwrite=True))
    assert targets(run) == alone
    assert loaded == [str(tiny_model_dir)]


def test_a_hint_that_the_template_leaves_out_drops_its_turn(run, config, monkeypatch):
    """The teacher would read what the student reads, and agree with it in everything."""
    monkeypatch.setattr(examples, "with_hint", lambda messages, *_: messages)
    summary = teacher.run(config(run))
    assert summary.counters.dropped == {"no signal": 3, "template: leaves out the hint": 6}
    assert [row["hint"] for row in targets(run)] == [None] * 3


def test_another_teacher_scores_with_its_own_weights(run, config, tiny_tokenizer, tmp_path):
    other = save_tiny_model(tmp_path / "other", tiny_tokenizer, seed=7)
    teacher.run(config(run))
    own = targets(run)
    teacher.run(config(run, teacher=(str(other),), overwrite=True))
    for row, before in zip(targets(run), own, strict=True):
        assert row["old_logprobs"] == pytest.approx(before["old_logprobs"], abs=1e-5)
        assert (row["teacher_logprobs"] is None) == (before["teacher_logprobs"] is None)
        assert row["teacher_logprobs"] is None or row["teacher_logprobs"] != before["teacher_logprobs"]


def test_a_teacher_with_other_ids_is_refused(run, config, tmp_path, tiny_tokenizer):
    """Two tokens are swapped, so the ids differ although the vocabularies have the same size."""
    swapped = (CHATML_TOKENS[0], CHATML_TOKENS[2], CHATML_TOKENS[1])
    other = build_tokenizer(tiny_tokenizer.chat_template, swapped, CHATML_WORDS)
    with pytest.raises(ConfigError, match="tokenizer"):
        teacher.run(config(run, teacher=(str(save_tiny_model(tmp_path / "other", other)),)))


# -- sessions that are scored together ------------------------------------------------------------------------------


def calls_of(monkeypatch) -> list[int]:
    """Return a list that collects the number of targets in each call of score_session."""
    calls, real = [], teacher_part.score_session
    monkeypatch.setattr(teacher_part, "score_session", lambda *a, **k: calls.append(len(a[2])) or real(*a, **k))
    return calls


@pytest.mark.parametrize(("batch_tokens", "expected"), [(16384, [5]), (1, [3, 1, 1])])
def test_short_sessions_are_scored_together(tmp_path, config, monkeypatch, batch_tokens, expected):
    """The longest session is scored first; the rows are in the order of the sessions."""
    sessions = [talk("a", 1), talk("b", 3), talk("c", 1)]
    ids = ["a:2", "b:2", "b:4", "b:6", "c:2"]
    calls = calls_of(monkeypatch)
    run = write_run(tmp_path / "run", one_part(sessions, [turn(i) for i in ids], [verdict(i, HINT, 1) for i in ids]))
    teacher.run(config(run, batch_tokens=batch_tokens))
    assert [r["turn_id"] for r in targets(run)] == ids
    assert calls == expected


def test_turn_by_turn_gives_the_same_numbers(run, config):
    read = []
    for turn_by_turn in (False, True):
        summary = teacher.run(config(run, turn_by_turn=turn_by_turn, overwrite=True))
        read.append((targets(run), summary.counters))
    (once, saving), (each, nothing) = read
    for a, b in zip(once, each, strict=True):
        for column in ("old_logprobs", "teacher_logprobs"):
            assert a[column] == (b[column] and pytest.approx(b[column], abs=1e-5))
    assert saving.total("tokens saved") > nothing.total("tokens saved") == 0
    assert sum(saving.total(f"tokens {x}") for x in ("read", "saved")) == nothing.total("tokens read")


def test_a_session_whose_numbers_differ_leaves_no_rows(run, config, monkeypatch):
    """The first session of a run is read both ways; if the results differ beyond rounding, no rows are written."""
    monkeypatch.setattr(tree_reading, "find_difference", lambda *_: 1.0)
    monkeypatch.setattr(tree_reading, "check_tree_reading", lambda model: True)
    with pytest.raises(OpdkitError, match="--turn-by-turn"):
        teacher.run(config(run))
    assert not list((run / "teacher").glob("*/*.parquet"))
    assert teacher.run(config(run, turn_by_turn=True, overwrite=True)).counters.rows_out == 9


# -- parts ----------------------------------------------------------------------------------------------------------


def test_shards_and_order_change_nothing(run, config, tmp_path):
    teacher.run(config(run))
    whole = targets(run)
    other = write_run(tmp_path / "other", three_parts())
    for shard in ("1/2", "0/2"):
        summary = teacher.run(config(other, shard=shard))
    assert targets(other) == whole
    assert (summary.counters.rows_in, summary.parts_done) == (12, 3)


def test_a_killed_run_goes_on(run, config, tmp_path, monkeypatch):
    teacher.run(config(run))
    whole = targets(run)
    other = write_run(tmp_path / "other", three_parts())
    calls = []

    def killed(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:  # the second part
            raise KeyboardInterrupt
        return teacher_score_session(*args, **kwargs)

    teacher_score_session = teacher_part.score_session
    with monkeypatch.context() as patch:
        patch.setattr(teacher_part, "score_session", killed)
        with pytest.raises(KeyboardInterrupt):
            teacher.run(config(other))
    assert [p.name for p in (other / "teacher/targets").iterdir()] == ["part-00000.parquet"]
    summary = teacher.run(config(other))
    assert targets(other) == whole
    assert summary.counters.rows_in == 12


def test_a_finished_run_loads_no_model(run, config, monkeypatch):
    first = teacher.run(config(run))
    monkeypatch.setattr(policies, "load_model", None)
    assert teacher.run(config(run)).counters.to_json() == first.counters.to_json()


def test_the_plan_pins_the_models(run, config, tmp_path, tiny_tokenizer):
    """The manifest holds the digests of the models, so other weights under the same path are refused."""
    student = save_tiny_model(tmp_path / "student", tiny_tokenizer, seed=1)
    teacher.run(config(run, model=str(student)))
    shutil.rmtree(student)
    save_tiny_model(student, tiny_tokenizer, seed=2)
    with pytest.raises(ConfigError, match=r"inputs\.model\.files\.model\.safetensors"):
        teacher.run(config(run, model=str(student)))


def test_a_limit_counts_sessions(run, config):
    summary = teacher.run(config(run, limit=3))
    assert [r["turn_id"] for r in targets(run)] == ["s0a:2", "s0a:4", "s0b:2", "s1a:2", "s1a:4"]
    assert summary.counters.rows_in == 6


# -- supports -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whose", ["student", "teacher"])
def test_supports_are_stored_in_half_precision(run, config, tiny_model_dir, whose):
    """Values are within half a unit in the last place, most likely first; without a hint the teacher has none."""
    teacher.run(config(run, top_k=5, top_k_of=whose))
    model = load_model(str(tiny_model_dir), device="cpu", dtype="float32")
    for row in targets(run):
        if row["hint"] is None:
            assert row["support_teacher"] is None
            if whose == "teacher":
                assert (row["support_ids"], row["support_old"]) == (None, None)
            continue
        prompts = prompts_of(run, tiny_model_dir, row, "last-user")
        for prompt, name, leads in zip(
            prompts, ("old", "teacher"), (whose == "student", whose == "teacher"), strict=True
        ):
            with torch.no_grad():
                logits = model(torch.tensor([prompt + row["response_ids"]])).logits[0, len(prompt) - 1 : -1]
            logprobs, ids = logits.log_softmax(-1), torch.tensor(row["support_ids"])
            stored, exact = torch.tensor(row[f"support_{name}"]), logprobs.gather(1, ids)
            assert stored.shape == (len(row["response_ids"]), 5)
            assert ((stored - exact).abs() <= exact.abs() * 2**-11 + 1e-5).all()
            if leads:
                torch.testing.assert_close(exact, logprobs.topk(5).values, atol=1e-5, rtol=0)
                assert (stored[:, 1:] <= stored[:, :-1]).all()


def test_without_supports_there_are_none(run, config):
    teacher.run(config(run, top_k=0))
    for row in targets(run):
        assert {row[name] for name in ("support_ids", "support_old", "support_teacher", "overlap")} == {None}
        assert (row["unhinted_logprobs"], row["behavior_logprobs"]) == (None, None)


def test_more_support_than_tokens_is_refused(run, config, tiny_tokenizer):
    with pytest.raises(ConfigError, match="--top-k is 999"):
        teacher.run(config(run, top_k=999))


@pytest.mark.slow
def test_shards_and_a_kill_change_nothing_with_everything_on(run, config, tmp_path, tiny_tokenizer):
    """With all options on, shards in any order and a resumed run write the same rows, supports included."""
    big = save_tiny_model(tmp_path / "big", tiny_tokenizer, seed=7)
    everything = {"top_k": 3, "top_k_of": "teacher", "teacher_hint": "overlap", "score_unhinted": True,
                  "teacher": (f"big={big}", f"self={config(run).model}"), "teacher_share": ("big=3",)}  # fmt: skip
    teacher.run(config(run, **everything))
    other = write_run(tmp_path / "other", three_parts())
    for shard in ("1/2", "0/2"):
        teacher.run(config(other, shard=shard, **everything))
    (other / "teacher/targets/part-00001.parquet").unlink()  # as if killed before it was written
    teacher.run(config(other, **everything))
    assert targets(other) == targets(run)
    assert any(row["support_teacher"] for row in targets(run))


# -- the behaviour policy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("logprobs", "used"), [
    ([-0.5, 0.0, -1.0, -2.0, -3.0, -0.25], True),
    (None, None),
    ([0.0] * 6, False),  # a placeholder
    ([0.0, 0.0, 0.0, 0.0, 0.0, -(2.0**-20)], True),
    ([-0.5, -1.0], False),
    ([-0.5, 0.5, -1.0, -2.0, -3.0, -0.25], False),
    ([-0.5, float("nan"), -1.0, -2.0, -3.0, -0.25], False),
    ([-0.5, float("-inf"), -1.0, -2.0, -3.0, -0.25], False),
])  # fmt: skip
def test_logged_log_probs_are_of_the_logged_tokens(tmp_path, config, tiny_tokenizer, logprobs, used):
    """Logged log-probs that cannot be those of the logged tokens become null, never a number."""
    ids = [tiny_tokenizer.convert_tokens_to_ids(c) for c in "hello"] + [tiny_tokenizer.eos_token_id]
    reply = turn("a:1", response_token_ids=ids, behavior_logprobs=logprobs)
    said = session("a", message("user", "x"), message("assistant", "hello"))
    run = write_run(tmp_path / "run", one_part([said], [reply], [verdict("a:1", HINT)]))
    counters = teacher.run(config(run)).counters
    assert targets(run)[0]["behavior_logprobs"] == (logprobs if used else None)
    assert counters.total("with behaviour log-probs") == int(used is True)
    assert counters.total("with unusable behaviour log-probs") == int(used is False)


@pytest.mark.parametrize("logged", ["fewer", "as many", "as many of another tokenizer", "none"])
def test_log_probs_of_other_tokens_are_not_taken_over(tmp_path, config, tiny_tokenizer, logged):
    """The reply is encoded again, so the logged log-probs are of other tokens, even if their number is the same."""
    messages = [message("user", "x"), message("assistant", "hello")]
    scored = Chat(tiny_tokenizer, {}).reply(messages, 1).ids
    ids = {
        "fewer": tiny_tokenizer("world")["input_ids"][:1],
        "as many": scored[::-1],
        "as many of another tokenizer": [i + len(tiny_tokenizer) for i in scored],
        "none": None,
    }[logged]
    reply = turn("a:1", response_token_ids=ids, behavior_logprobs=[-1.0] * len(scored if ids is None else ids))
    run = write_run(tmp_path / "run", one_part([session("a", *messages)], [reply], [verdict("a:1", HINT)]))
    counters = teacher.run(config(run)).counters
    [row] = targets(run)
    assert row["response_ids"] == scored
    assert row["behavior_logprobs"] is None
    assert counters.labels("with unusable behaviour log-probs") == {"of other tokens": 1}
    assert counters.total("with behaviour log-probs") == 0


def test_logs_of_another_model_are_said_to_be_off_policy(tmp_path, config, tiny_model_dir, capsys):
    named = {"a": None, "b": "gpt-x", "c": f"hosted/{tiny_model_dir.name}", "d": "gpt-x", "e": "gpt-y"}
    sessions = [talk(name) | {"model": model} for name, model in named.items()]
    turns, verdicts = [turn(f"{n}:2") for n in named], [verdict(f"{n}:2", HINT) for n in named]
    run = write_run(tmp_path / "run", one_part(sessions, turns, verdicts))
    for _ in range(2):  # also if all parts are done already
        summary = teacher.run(config(run))
        assert summary.counters.labels("sessions of another model") == {"gpt-x": 2, "gpt-y": 1}
        assert "3 sessions were written by a model other than" in (said := capsys.readouterr().err)
        assert "gpt-x (2), gpt-y (1)" in said
    assert summary.counters.rows_out == 5
    alike = write_run(tmp_path / "alike", one_part([talk("a")], [turn("a:2")], [verdict("a:2", HINT)]))
    teacher.run(config(alike))
    assert "a model other than" not in capsys.readouterr().err
