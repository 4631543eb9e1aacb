"""Tests of opdkit/teacher/samples.py: replies that the hinted teacher samples in addition to the logged ones."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import save_tiny_model
from judged_runs import plain, prompts_of, targets, three_parts
from judged_runs import write_run as write_judged_run
from scored_runs import toy_sessions, train_config, write_run
from transformers import AutoModelForCausalLM

from opdkit.errors import ConfigError
from opdkit.model.load import load_template
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Sample
from opdkit.store.reading import read_all
from opdkit.teacher import samples
from opdkit.teacher import stage as teacher
from opdkit.train import stage as train
from opdkit.train.targets import load_targets

OPTIONS = {"teacher_samples": 2, "max_new_tokens": 12, "top_k": 3}


def replies(rows: list[dict]) -> list[tuple]:
    return [(r["turn_id"], r["written"], tuple(r["response_ids"])) for r in rows if r["written"] is not None]


def test_a_written_reply_is_sampled_with_the_hint_and_scored_like_the_logged_one(run, config, tiny_model_dir):
    """A sample's log-probs are the teacher's log-probs from scoring: neither is shifted or at a temperature."""
    summary = teacher.run(config(run, **OPTIONS))
    rows = targets(run)
    logged = [r for r in rows if r["written"] is None]
    written = [r for r in rows if r["written"] is not None]
    hinted = [r for r in logged if r["hint"] is not None]
    assert len(logged) == 9
    assert sorted((r["turn_id"], r["written"]) for r in written) == [(h["turn_id"], g) for h in hinted for g in (0, 1)]
    assert summary.counters.total("written by the teacher") == len(written) == 12
    assert summary.counters.rows_in == summary.counters.rows_out + summary.counters.dropped.total()
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    of = {h["turn_id"]: h for h in hinted}
    for row in written:
        prompt, hint_prompt = prompts_of(run, tiny_model_dir, row, "last-user")
        assert (row["hint"], row["prompt_tokens"]) == (of[row["turn_id"]]["hint"], len(prompt))
        assert row["old_logprobs"] == pytest.approx(plain(model, prompt, row["response_ids"]), abs=1e-5)
        assert row["teacher_logprobs"] == pytest.approx(plain(model, hint_prompt, row["response_ids"]), abs=1e-5)
        assert row["behavior_logprobs"] == pytest.approx(row["teacher_logprobs"], abs=1e-4)
        assert row["reward"] is None, "nobody has reacted to it"
        assert all(row["response_mask"])
        assert np.shape(row["support_ids"]) == (len(row["response_ids"]), 3)


def test_a_draw_is_the_first_token_of_its_own_stream(run, config, tiny_model_dir):
    """The first token is that of inverse transform sampling, done by hand."""
    teacher.run(config(run, **OPTIONS))
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    for row in (r for r in targets(run) if r["written"] is not None):
        _, prompt = prompts_of(run, tiny_model_dir, row, "last-user")
        with torch.no_grad():
            below = model(torch.tensor([prompt])).logits[0, -1].softmax(-1).double().cumsum(-1)
        stream = make_random_stream(0, "written", row["turn_id"], row["written"])
        drawn = torch.rand((), generator=stream, dtype=torch.float64) * below[-1]
        assert row["response_ids"][0] == int((below <= drawn).sum())


def test_the_logged_rows_are_what_they_were(run, config, tmp_path):
    other = shutil.copytree(run, tmp_path / "other")
    teacher.run(config(run, top_k=3))
    teacher.run(config(other, **OPTIONS))
    assert [r for r in targets(other) if r["written"] is None] == targets(run)


def test_shards_write_what_one_process_writes(run, config, tmp_path):
    """Two shards in any order sample and score the replies of a single process."""
    other = shutil.copytree(run, tmp_path / "other")
    teacher.run(config(run, **OPTIONS))
    for shard in ("1/2", "0/2"):
        teacher.run(config(other, shard=shard, **OPTIONS))
    assert targets(other) == targets(run)
    assert len(set(replies(targets(run)))) == 12


def test_each_session_is_answered_by_the_teacher_it_names(tmp_path, config, tiny_model_dir, tiny_tokenizer):
    """The log-probs from sampling are those of the session's teacher, which is the student for every second session."""
    other = save_tiny_model(tmp_path / "other-teacher", tiny_tokenizer, seed=3)
    parts = [([s | {"metadata": json.dumps({"tier": s["session_id"][-1]})} for s in sessions], turns, verdicts)
             for sessions, turns, verdicts in three_parts()]  # fmt: skip
    run, roster = write_judged_run(tmp_path / "run", parts), (f"a={other}", f"b={tiny_model_dir}")
    teacher.run(config(run, teacher=roster, teacher_route="tier", **OPTIONS))
    models = {name: AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
              for name, path in (("a", other), ("b", tiny_model_dir))}  # fmt: skip
    written = [r for r in targets(run) if r["written"] is not None]
    assert len(written) == 12
    for row in written:
        _, prompt = prompts_of(run, tiny_model_dir, row, "last-user")
        logprobs = plain(models[row["turn_id"].partition(":")[0][-1]], prompt, row["response_ids"])
        assert row["behavior_logprobs"] == pytest.approx(logprobs, abs=1e-4)
        assert row["teacher_logprobs"] == pytest.approx(logprobs, abs=1e-4)


def test_no_room_for_a_reply_is_counted(run, config, monkeypatch):
    monkeypatch.setattr(samples, "choose_reply_room", lambda longest, most: most)
    longest = max(r["prompt_tokens"] + len(r["response_ids"]) for r in _scored(run, config))
    summary = teacher.run(
        config(run, overwrite=True, max_tokens=longest + 40, teacher_samples=1, max_new_tokens=longest)
    )
    assert summary.counters.labels("not written")["no room for a reply"] == 6
    assert summary.counters.rows_out == 9


def test_the_logged_reply_again_is_left_out(run, config, monkeypatch):
    """A sample that equals the logged reply is left out, because its hint changed nothing."""
    make = samples._choose_samples
    monkeypatch.setattr(samples, "_choose_samples", lambda scorer, turn, drawn: make(
        scorer, turn, [replace(drawn[0], ids=turn.example.reply.ids), *drawn[1:]]))  # fmt: skip
    summary = teacher.run(config(run, **OPTIONS))
    assert summary.counters.labels("not written")["the logged reply again: the hint changed nothing"] == 6
    assert [r["written"] for r in targets(run) if r["written"] is not None] == [1] * 6


def test_a_stop_token_of_the_teacher_alone_becomes_the_students_and_a_token_without_text_is_left_out(
    run, config, tiny_model_dir, monkeypatch
):
    """A teacher's template may use another stop token, and models have more rows than their tokenizer has tokens."""
    chat, make = load_template(str(tiny_model_dir), ()), samples._choose_samples
    other = chat.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    ends = {"of the teacher": [5, 6, other], "nothing": [other], "of both": [5, 6, chat.end_id], "cut": [5, other],
            "unknown": [5, len(chat.tokenizer)]}  # fmt: skip
    drawn = [Sample(ids, [-1.0] * len(ids), "length" if name == "cut" else "stop") for name, ids in ends.items()]
    monkeypatch.setattr(samples, "_choose_samples", lambda scorer, turn, _: make(
        replace(scorer, vocabulary=10**6), turn, drawn))  # fmt: skip
    summary = teacher.run(config(run, **OPTIONS))
    rows = [(r["response_ids"], r["response_mask"]) for r in targets(run) if r["written"] is not None]
    assert rows == [([5, 6, chat.end_id], [True, True, False]), ([5, 6, chat.end_id], [True] * 3),
                    ([5, other], [True] * 2)] * 6  # fmt: skip
    assert summary.counters.labels("not written") == {
        "nothing but a stop token": 6, "a token that the tokenizer lacks": 6}  # fmt: skip


def _scored(run, config) -> list[dict]:
    teacher.run(config(run))
    return targets(run)


def test_an_average_of_teachers_writes_nothing(run, config, tiny_model_dir):
    with pytest.raises(ConfigError, match="--teacher-samples"):
        config(run, teacher=(f"a={tiny_model_dir}", f"b={tiny_model_dir}"), teacher_samples=1)


def test_training_takes_both_and_reads_them_together(tmp_path, plain_model_dir):
    """A written reply shares the prompt of the logged reply, and the optimizer step of its session."""
    run = write_run(tmp_path / "run", plain_model_dir, toy_sessions(4))
    plain_run = shutil.copytree(run, tmp_path / "plain")
    teacher.run(teacher.TeacherConfig(run=run, model=str(plain_model_dir), device="cpu", overwrite=True, **OPTIONS))
    options = {"objective": "distill", "epochs": 1}
    summary = train.run(train_config(run, plain_model_dir, **options))
    before = train.run(train_config(plain_run, plain_model_dir, **options))
    written = [t for t in load_targets(run) if t.written is not None]
    assert summary.counters.rows_out == before.counters.rows_out + len(written)
    rows = list(read_all(run, "metrics"))
    assert sum(r["turns"] for r in rows) == summary.counters.rows_out
    for row in rows:
        names = {turn_id.rpartition(":")[0] for turn_id in row["turn_ids"]}
        rest = {i.rpartition(":")[0] for r in rows if r is not row for i in r["turn_ids"]}
        assert not names & rest, "a session's turns share a step"
        assert row["tokens_read"] < row["tokens"]
