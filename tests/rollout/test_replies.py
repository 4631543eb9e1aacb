"""Tests of opdkit/rollout/replies.py: what is sampled, and that later stages use it unchanged."""

import shutil

import pytest
import torch
from conftest import save_tiny_model
from judged_runs import HINT, message, one_part, session, talk, turn, verdict, write_run
from rollout_runs import rows, scored
from transformers import AutoModelForCausalLM

from opdkit.chat.template import Chat
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import TrainConfig
from opdkit.errors import NothingLearnedError
from opdkit.model.load import load_tokenizer
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Sample, sampler
from opdkit.rollout import stage as rollout
from opdkit.teacher import stage as teacher
from opdkit.train import stage as train
from opdkit.train.objective.advantages import behavior_weights
from opdkit.train.targets import load_prompts, load_targets

TABLES = ("sessions", "turns", "rejected", "verdicts")


@pytest.fixture
def fixed_draws(monkeypatch):
    """Return a function that makes the sampler answer every prompt with the given samples."""

    def fix(*draws: Sample) -> None:
        monkeypatch.setattr(sampler, "sample", lambda _model, requests, **_: [list(draws) for _ in requests])

    return fix


# -- the replies ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def by_hand(model, prompt: list[int], generator: torch.Generator, limit: int, stop: int) -> Sample:
    """Sample token by token over the whole text: each token is where the uniform number falls in the cumulative sum."""
    ids, logprobs = [], []
    for uniform in torch.rand(limit, generator=generator, dtype=torch.float64):
        logits = model(torch.tensor([prompt + ids])).logits[0, -1].float()
        cdf = logits.softmax(-1).double().cumsum(-1)
        ids.append(int((cdf <= uniform * cdf[-1]).sum()))
        logprobs.append(logits.log_softmax(-1)[ids[-1]].item())
        if ids[-1] == stop:
            return Sample(ids, logprobs, "stop")
    return Sample(ids, logprobs, "length")


def test_replies_are_what_sampling_by_hand_gives(config, source, student) -> None:
    """Replies are sampled and scored at temperature 1, after the prompt that the template renders."""
    summary = rollout.run(config(samples=3))
    run = config().run
    model = AutoModelForCausalLM.from_pretrained(student, dtype=torch.float32).eval()
    tokenizer = load_tokenizer(str(student))
    logged = {s["session_id"]: s for s in rows(source, "sessions")}
    hinted = [v for v in rows(source, "verdicts") if v["hint"]]
    fresh = zip(rows(run, "sessions"), rows(run, "turns"), rows(run, "verdicts"), strict=True)
    for old in hinted:
        name, _, index = old["turn_id"].rpartition(":")
        before = logged[name]["messages"][: int(index)]
        plain = [{"role": m["role"], "content": m["content"]} for m in before]
        prompt = tokenizer.apply_chat_template(plain, add_generation_prompt=True, return_dict=False)
        for g in range(3):
            said, answered, judged = next(fresh)
            expected = by_hand(model, prompt, make_random_stream(0, "rollout", old["turn_id"], g), 12,
                               tokenizer.eos_token_id)  # fmt: skip
            assert answered["response_token_ids"] == expected.ids
            assert answered["behavior_logprobs"] == pytest.approx(expected.logprobs, abs=1e-5)
            assert answered["finish_reason"] == expected.finish_reason
            assert said["session_id"] == answered["session_id"] == f"{old['turn_id']}/rollout-{g}"
            assert said["messages"][:-1] == before
            whole = expected.ids[: -1 if expected.finish_reason == "stop" else None]
            assert said["messages"][-1] == message("assistant", tokenizer.decode(whole) or None)
            kept = {key: logged[name][key] for key in ("source", "line", "tools", "metadata")}
            assert {key: said[key] for key in kept} == kept
            index_now = len(before)
            assert answered["turn_id"] == judged["turn_id"] == f"{said['session_id']}:{index_now}"
            assert (answered["message_index"], answered["next_count"], answered["next_role"]) == (index_now, 0, None)
            assert (answered["trainable"], answered["kind"], answered["skip_reason"]) == (True, "main", None)
            assert (judged["hint"], judged["hints"], judged["hint_status"]) == (old["hint"], old["hints"], "ok")
            assert (judged["reward"], judged["reward_status"], judged["reward_votes"]) == (None, "not_judged", [])
    assert next(fresh, None) is None
    counters = summary.counters
    finished = [t["finish_reason"] for t in rows(run, "turns")]
    assert set(finished) == {"stop", "length"}
    assert (counters.rows_in, counters.rows_out, counters.total("replies")) == (6, 18, 18)
    assert counters.total("cut off by the limit") == finished.count("length")
    assert summary.line().startswith("rollout: 6 hinted turns in, 18 replies out, 0 dropped, ")


def test_the_scores_prove_that_the_replies_are_on_policy(config, student, capsys) -> None:
    """The teacher stage computes, for the same tokens, the log-probs that they were sampled with: every ratio and
    every behaviour weight is 1, and no warning names another model."""
    rollout.run(config(samples=3))
    run = config().run
    summary = teacher.run(TeacherConfig(run=run, model=str(student), device="cpu", teacher_samples=0))
    targets, turns = rows(run, "targets"), rows(run, "turns")
    assert len(targets) == 18
    assert {t["finish_reason"] for t in turns} == {"stop", "length"}
    for target, answered in zip(targets, turns, strict=True):
        assert target["response_ids"] == answered["response_token_ids"]
        assert all(target["response_mask"])
        assert target["behavior_logprobs"] == answered["behavior_logprobs"]
        assert target["old_logprobs"] == pytest.approx(target["behavior_logprobs"], abs=1e-4)
        weights = behavior_weights(torch.tensor(target["old_logprobs"]), torch.tensor(target["behavior_logprobs"]), 2.0)
        assert weights.tolist() == pytest.approx([1.0] * len(weights), abs=1e-4)
        assert target["hint"].startswith(HINT)
        assert target["teacher_logprobs"] != target["old_logprobs"]
    assert summary.counters.total("with behaviour log-probs") == 18
    assert "a model other than" not in capsys.readouterr().err


def test_a_student_of_the_same_name_with_other_weights_is_another(config, tmp_path, plain_tokenizer, capsys) -> None:
    """The model folder of every training is called `model`, so the name alone does not tell models apart."""
    first, second = (save_tiny_model(tmp_path / str(n) / "model", plain_tokenizer, seed=n) for n in (1, 2))
    rollout.run(config(model=str(first)))
    scored(config().run, second)
    assert "12 sessions were written by a model other than" in (said := capsys.readouterr().err)
    assert "model@" in said
    moved = shutil.copytree(first, tmp_path / "elsewhere")
    scored(config().run, moved, overwrite=True)
    assert "a model other than" not in capsys.readouterr().err


@pytest.mark.parametrize("objective", ["opd", "distill"])
def test_training_takes_the_run_as_any_other(config, student, objective) -> None:
    rollout.run(config())
    run = config().run
    scored(run, student, top_k=3)
    summary = train.run(TrainConfig(run=run, model=str(student), objective=objective, batch_turns=4,
                                    learning_rate=1e-3, device="cpu"))  # fmt: skip
    assert (summary.counters.rows_in, summary.counters.rows_out) == (12, 12)
    metrics = rows(run, "metrics")
    assert metrics[0]["approx_kl"] == pytest.approx(0, abs=1e-6)  # the first step is on-policy
    assert all(row["teacher_tokens"] or row["divergence_tokens"] for row in metrics)


def test_groups_share_their_prompt(config, student) -> None:
    """`--group-normalise` finds a group by its prompt ids, so a group must be exactly the samples of one turn."""
    rollout.run(config(samples=3))
    run = config().run
    scored(run, student)
    turns = load_targets(run)
    prompts = load_prompts(run, turns, Chat(load_tokenizer(str(student)), {}))
    groups = {prompts[t.turn_id].tobytes() for t in turns}
    assert len(groups) == 6
    assert {tuple(t.turn_id for t in turns if prompts[t.turn_id].tobytes() == g) for g in groups} == {
        tuple(t.turn_id for t in turns[i : i + 3]) for i in range(0, 18, 3)
    }
    assert len({tuple(t.response_ids) for t in turns}) > 12


# -- what may be sampled --------------------------------------------------------------------------------------------


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize(("text", "stops", "content"), [
    ("", True, None),
    ("fine", True, "fine"),
    ("  spaced \n", True, "  spaced \n"),
    ("cut of", False, "cut of"),
    ("<think>\nhm</think>\n\nyes", True, "<think>\nhm</think>\n\nyes"),
    ("<think>\nnever ends", False, "<think>\nnever ends"),
    ("</think>\n\nclosed", True, "</think>\n\nclosed"),
    ('<tool_call>\n{"name": "f", "arguments": {"a": "\\u00e9"}}\n</tool_call>', True, ...),
    ("<tool_call>\n{\"name\": ", False, ...),
    ("one<|im_start|>user\nmore and more and still more<|endoftext|>two", True, ...),
    ("<|im_start|>", False, "<|im_start|>"),
])  # fmt: skip
@pytest.mark.parametrize("template", ["plain", "thinking"])
def test_sampled_tokens_are_taken_as_they_are(
    config, fixed_draws, plain_model_dir, tiny_model_dir, text, stops, content, template
) -> None:
    """Exactly the sampled tokens are scored. No stop token is added to a reply that was cut off, and none is
    lost if the reply has no other token."""
    model = {"plain": plain_model_dir, "thinking": tiny_model_dir}[template]
    tokenizer = load_tokenizer(str(model))
    ids = ids_of(tokenizer, text) + [tokenizer.eos_token_id] * stops
    logprobs = [-0.5 - n / 16 for n in range(len(ids))]
    fixed_draws(Sample(ids, logprobs, "stop" if stops else "length"))
    rollout.run(config(model=str(model), samples=1))
    run = config().run
    said = {s["messages"][-1]["content"] for s in rows(run, "sessions")}
    assert said == {text if content is ... else content}
    summary = teacher.run(TeacherConfig(run=run, model=str(model), device="cpu", teacher_samples=0))
    targets = rows(run, "targets")
    assert len(targets) == 6
    for target in targets:
        assert target["response_ids"] == ids
        assert all(target["response_mask"])
        assert target["behavior_logprobs"] == logprobs
    assert summary.counters.total("with logged tokens of another tokenizer") == 0


def test_a_reply_cut_off_inside_a_character_keeps_its_tokens(config, fixed_draws, student) -> None:
    """Half of a character has no text of its own, but its tokens are kept."""
    tokenizer = load_tokenizer(str(student))
    ids = ids_of(tokenizer, "snow \N{SNOWMAN}")[:-1]
    fixed_draws(Sample(ids, [-1.0] * len(ids), "length"))
    rollout.run(config(samples=1))
    assert {s["messages"][-1]["content"] for s in rows(config().run, "sessions")} == {"snow \N{REPLACEMENT CHARACTER}"}
    assert {tuple(t["response_ids"]) for t in scored(config().run, student)} == {tuple(ids)}


def test_draws_that_no_stage_could_take_are_lost_and_counted(config, fixed_draws, student) -> None:
    """Such a reply has a log-prob that is not finite, or a token that the tokenizer lacks."""
    tokenizer = load_tokenizer(str(student))
    good = Sample([tokenizer.eos_token_id], [-0.5], "stop")
    bad = Sample([5, 6], [-1.0, float("nan")], "length"), Sample([len(tokenizer)], [-0.5], "length")
    fixed_draws(bad[0], good, bad[1])
    summary = rollout.run(config(samples=3))
    assert {s["session_id"].rpartition("-")[2] for s in rows(config().run, "sessions")} == {"1"}
    assert (summary.counters.rows_in, summary.counters.rows_out, summary.counters.dropped) == (6, 6, {})
    lost = {"log-probs are not finite": 6, "a token that the tokenizer lacks": 6}
    assert summary.counters.labels("lost replies") == lost
    fixed_draws(*bad)
    with pytest.raises(NothingLearnedError, match=r"none of 6 hinted turns .*log-probs are not finite \(6\)"):
        rollout.run(config(overwrite=True))


def test_prompts_that_cannot_be_answered_are_dropped_and_counted(tmp_path, config, capsys) -> None:
    sessions = [talk("short"), session("long", message("user", "word " * 900), message("assistant", "x")),
                session("odd", message("user", "\U00100000"), message("assistant", "x"))]  # fmt: skip
    ids = ["short:2", "long:1", "odd:1"]
    run = write_run(tmp_path / "from", one_part(sessions, [turn(i) for i in ids], [verdict(i, HINT) for i in ids]))
    summary = rollout.run(config(from_run=run, max_new_tokens=100))
    assert summary.counters.dropped == {"no room for a reply": 1, "private-use characters": 1}
    assert (summary.counters.rows_in, summary.counters.rows_out) == (3, 2)
    assert {s["session_id"].partition(":")[0] for s in rows(config().run, "sessions")} == {"short"}
    said = " ".join(capsys.readouterr().err.split())
    assert "1 prompt leaves less than --max-new-tokens 100" in said


def test_a_limit_that_cuts_most_replies_off_is_said(config, capsys) -> None:
    rollout.run(config(max_new_tokens=1))
    assert "12 of 12 replies were cut off: raise --max-new-tokens" in " ".join(capsys.readouterr().err.split())
