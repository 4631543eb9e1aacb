"""opdkit/rollout: fresh replies as a run of their own, that the teacher and the training take as they are."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from conftest import save_tiny_model
from judged_runs import HINT, message, one_part, session, talk, turn, verdict, write_run
from sample_world import DATA, MODEL
from transformers import AutoModelForCausalLM

from opdkit import rollout, teacher, train
from opdkit.chat import Chat
from opdkit.errors import ConfigError, OpdkitError
from opdkit.models import load_tokenizer, token_generator
from opdkit.objective.advantages import behavior_weights
from opdkit.rollout import replies
from opdkit.rollout import stage as rollout_stage
from opdkit.sampling import Sample
from opdkit.stages import ExtractConfig, JudgeConfig, TeacherConfig, TrainConfig, configure, home
from opdkit.store import manifest, part_count, read_all, read_part
from opdkit.train.targets import load_prompts, load_turns

TABLES = ("sessions", "turns", "rejected", "verdicts")


def rows(run: Path, table: str) -> list[dict]:
    return list(read_all(run, table))


def everything(run: Path) -> dict[str, list[dict]]:
    return {table: rows(run, table) for table in TABLES}


def scored(run: Path, model: Path | str, **options) -> list[dict]:
    teacher.run(TeacherConfig(run=run, model=str(model), device="cpu", **options))
    return rows(run, "targets")


@pytest.fixture
def fixed_draws(monkeypatch):
    """Every prompt is answered with these draws, in place of what the model happens to say."""

    def fix(*draws: Sample) -> None:
        monkeypatch.setattr(replies, "sample", lambda _model, requests, **_: [list(draws) for _ in requests])

    return fix


# -- the replies ----------------------------------------------------------------------------------------------------


@torch.no_grad()
def by_hand(model, prompt: list[int], generator: torch.Generator, limit: int, stop: int) -> Sample:
    """One token after the other over the whole text, each where the uniform number falls in the cumulative sum."""
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
    """pitfall 5: temperature 1 for the draw and for its log-probs, after the prompt that the template renders."""
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
            expected = by_hand(model, prompt, token_generator(0, "rollout", old["turn_id"], g), 12,
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
    assert (counters.rows_in, counters.rows_out, counters.extra["replies"]) == (6, 18, 18)
    assert counters.extra["cut off by the limit"] == finished.count("length")
    assert summary.line().startswith("rollout: 6 in, 18 out, 0 dropped, ")


def test_the_scores_prove_that_the_replies_are_on_policy(config, student, capsys) -> None:
    """pitfall 1, pitfall 4, pitfall 5: the teacher stage finds, for the very tokens, the log-probs they were drawn
    with: every ratio and every behaviour weight is 1, and nobody warns of another model."""
    rollout.run(config(samples=3))
    run = config().run
    summary = teacher.run(TeacherConfig(run=run, model=str(student), device="cpu"))
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
    assert summary.counters.extra["with behaviour log-probs"] == 18
    assert "another model" not in capsys.readouterr().err


def test_a_student_of_the_same_name_with_other_weights_is_another(config, tmp_path, plain_tokenizer, capsys) -> None:
    """The folder of every training is called model."""
    first, second = (save_tiny_model(tmp_path / str(n) / "model", plain_tokenizer, seed=n) for n in (1, 2))
    rollout.run(config(model=str(first)))
    scored(config().run, second)
    assert "12 sessions were written by another model" in (said := capsys.readouterr().err)
    assert "model@" in said
    moved = shutil.copytree(first, tmp_path / "elsewhere")
    scored(config().run, moved, overwrite=True)
    assert "another model" not in capsys.readouterr().err


@pytest.mark.parametrize("objective", ["opd", "distill"])
def test_training_takes_the_run_as_any_other(config, student, objective) -> None:
    rollout.run(config())
    run = config().run
    scored(run, student, support=3)
    summary = train.run(TrainConfig(run=run, model=str(student), objective=objective, batch_turns=4,
                                    learning_rate=1e-3, device="cpu"))  # fmt: skip
    assert (summary.counters.rows_in, summary.counters.rows_out) == (12, 12)
    metrics = rows(run, "metrics")
    assert metrics[0]["approx_kl"] == pytest.approx(0, abs=1e-6)  # the first step is on-policy
    assert all(row["teacher_tokens"] or row["divergence_tokens"] for row in metrics)


def test_groups_share_their_prompt(config, student) -> None:
    """`--group-normalise` finds a group by its prompt's ids: the samples of one turn, and nothing else."""
    rollout.run(config(samples=3))
    run = config().run
    scored(run, student)
    turns = load_turns(run)
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
    """pitfall 3, pitfall 4: whatever was sampled is what is scored; no stop token is made up for a reply that was cut
    off, and none is lost where nothing else was said."""
    model = {"plain": plain_model_dir, "thinking": tiny_model_dir}[template]
    tokenizer = load_tokenizer(str(model))
    ids = ids_of(tokenizer, text) + [tokenizer.eos_token_id] * stops
    logprobs = [-0.5 - n / 16 for n in range(len(ids))]
    fixed_draws(Sample(ids, logprobs, "stop" if stops else "length"))
    rollout.run(config(model=str(model), samples=1))
    run = config().run
    said = {s["messages"][-1]["content"] for s in rows(run, "sessions")}
    assert said == {text if content is ... else content}
    summary = teacher.run(TeacherConfig(run=run, model=str(model), device="cpu"))
    targets = rows(run, "targets")
    assert len(targets) == 6
    for target in targets:
        assert target["response_ids"] == ids
        assert all(target["response_mask"])
        assert target["behavior_logprobs"] == logprobs
    assert summary.counters.extra["with logged tokens of another tokenizer"] == 0


def test_a_reply_cut_off_inside_a_character_keeps_its_tokens(config, fixed_draws, student) -> None:
    """pitfall 4: half of a character has no text of its own, and tokens all the same."""
    tokenizer = load_tokenizer(str(student))
    ids = ids_of(tokenizer, "snow \N{SNOWMAN}")[:-1]
    fixed_draws(Sample(ids, [-1.0] * len(ids), "length"))
    rollout.run(config(samples=1))
    assert {s["messages"][-1]["content"] for s in rows(config().run, "sessions")} == {"snow \N{REPLACEMENT CHARACTER}"}
    assert {tuple(t["response_ids"]) for t in scored(config().run, student)} == {tuple(ids)}


def test_draws_that_no_stage_could_take_are_dropped(config, fixed_draws, student) -> None:
    """pitfall 2: no log-prob that is no number; no token that the tokenizer could not write."""
    tokenizer = load_tokenizer(str(student))
    good = Sample([tokenizer.eos_token_id], [-0.5], "stop")
    fixed_draws(good, Sample([5, 6], [-1.0, float("nan")], "length"), Sample([len(tokenizer)], [-0.5], "length"))
    summary = rollout.run(config(samples=3))
    assert summary.counters.dropped == {
        "log-probs are not finite": 6,
        "sampled a token that the tokenizer lacks": 6,
    }
    assert len(rows(config().run, "turns")) == 6


def test_prompts_that_cannot_be_answered_are_dropped_and_counted(tmp_path, config, capsys) -> None:
    sessions = [talk("short"), session("long", message("user", "word " * 900), message("assistant", "x")),
                session("odd", message("user", "\U00100000"), message("assistant", "x"))]  # fmt: skip
    ids = ["short:2", "long:1", "odd:1"]
    run = write_run(tmp_path / "from", one_part(sessions, [turn(i) for i in ids], [verdict(i, HINT) for i in ids]))
    summary = rollout.run(config(from_=run, max_new_tokens=100))
    assert summary.counters.dropped == {"no room for a reply": 1, "private-use characters": 1}
    assert (summary.counters.rows_in, summary.counters.rows_out) == (3, 2)
    assert {s["session_id"].partition(":")[0] for s in rows(config().run, "sessions")} == {"short"}
    said = " ".join(capsys.readouterr().err.split())
    assert "1 prompts leave less than --max-new-tokens 100" in said


def test_a_limit_that_cuts_most_replies_off_is_said(config, capsys) -> None:
    rollout.run(config(max_new_tokens=1))
    assert "12 of 12 replies were cut off: raise --max-new-tokens" in " ".join(capsys.readouterr().err.split())


# -- the same rows --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def whole(source, student, tmp_path_factory) -> dict[str, list[dict]]:
    """What a rollout gives that nobody disturbs."""
    run = tmp_path_factory.mktemp("whole") / "run"
    flags = {"run": run, "from_": source, "model": str(student), "device": "cpu", "samples": 2}
    rollout.run(configure("rollout", flags | {"max_new_tokens": 12}, None))
    return everything(run)


def test_shards_give_the_same_rows(config, whole) -> None:
    """pitfall 26."""
    for shard in ("2/3", "0/3", "1/3"):
        summary = rollout.run(config(shard=shard))
    assert everything(config().run) == whole
    assert summary.counters.rows_in == 6
    assert part_count(config().run, "extract") == part_count(config().run, "judge") == 3


def test_another_seed_gives_other_replies_to_the_same_prompts(config, whole) -> None:
    rollout.run(config(seed=1))
    fresh = rows(config().run, "sessions")
    assert [s["messages"][:-1] for s in fresh] == [s["messages"][:-1] for s in whole["sessions"]]
    assert all(a["messages"][-1] != b["messages"][-1] for a, b in zip(fresh, whole["sessions"], strict=True))


def test_a_kill_between_replies_and_verdicts_samples_nothing_twice(config, whole, monkeypatch) -> None:
    """pitfall 25, pitfall 26: the committed replies are what the verdicts are written for."""

    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(rollout_stage, "write_verdicts", die)
        with pytest.raises(KeyboardInterrupt):
            rollout.run(config())
    assert not list((home(config().run, "judge")).glob("verdicts/*"))
    with pytest.raises(OpdkitError, match=r"run `opdkit rollout .* again"):  # not `opdkit judge`
        read_part(config().run, "verdicts", 0)
    monkeypatch.setattr(rollout_stage, "load_student", None)
    rollout.run(config())
    assert everything(config().run) == whole


def test_a_kill_at_any_file_resumes_to_the_same_rows(config, whole) -> None:
    """pitfall 25: parts that are missing are done again, in whichever table they are."""
    run = config().run
    rollout.run(config())
    for missing in ("extract/sessions/part-00001", "extract/turns/part-00001", "judge/verdicts/part-00002",
                    "extract/sessions/part-00000"):  # fmt: skip
        (run / f"{missing}.parquet").unlink()
    rollout.run(config())
    assert everything(run) == whole
    assert not list(run.glob("*/.tmp/*"))


def test_a_limit_counts_sessions_of_the_source(config, whole) -> None:
    summary = rollout.run(config(limit=3))
    assert rows(config().run, "sessions") == whole["sessions"][:6]
    assert summary.counters.rows_in == 3


def test_a_rollout_of_a_rollout(config, whole, tmp_path, source) -> None:
    """Its hints go on; its prompts are the same, so that nothing of the first replies is left."""
    rollout.run(config())
    again = config(tmp_path / "again", from_=config().run, samples=1)
    rollout.run(again)
    fresh = rows(again.run, "sessions")
    assert [s["session_id"] for s in fresh] == [f"{t['turn_id']}/rollout-0" for t in whole["turns"]]
    assert [s["messages"][:-1] for s in fresh] == [s["messages"][:-1] for s in whole["sessions"]]
    assert [v["hint"] for v in rows(again.run, "verdicts")] == [v["hint"] for v in whole["verdicts"]]


# -- what is carried over -------------------------------------------------------------------------------------------


def test_prompts_are_rendered_as_the_source_s_were(config, source, tmp_path, tiny_model_dir) -> None:
    """The arguments of the template go from the source's teacher stage to the rollout, and on to its teacher stage."""
    run = Path(shutil.copytree(source, tmp_path / "from"))
    args = ("enable_thinking=false",)
    scored(run, tiny_model_dir, template_arg=args)
    rollout.run(config(from_=run, model=str(tiny_model_dir)))
    new = config().run
    assert manifest(new, "extract")["plan"]["config"]["template_arg"] == list(args)
    targets = scored(new, tiny_model_dir)
    assert manifest(new, "teacher")["plan"]["config"]["template_arg"] == list(args)
    for target in targets:
        assert target["old_logprobs"] == pytest.approx(target["behavior_logprobs"], abs=1e-4)
    with pytest.raises(ConfigError, match="differs from what the replies"):
        scored(new, tiny_model_dir, template_arg=("enable_thinking=true",), overwrite=True)
    other = config(tmp_path / "other", from_=run, model=str(tiny_model_dir), template_arg=("enable_thinking=true",))
    rollout.run(other)
    assert manifest(other.run, "extract")["plan"]["config"]["template_arg"] == ["enable_thinking=true"]


def test_metadata_still_route_to_a_teacher(tmp_path, config, student, plain_tokenizer) -> None:
    big = save_tiny_model(tmp_path / "big", plain_tokenizer, seed=7)
    sessions = [talk(name) | {"metadata": json.dumps({"tier": tier})} for name, tier in (("a", "big"), ("b", "self"))]
    turns, verdicts = [turn("a:2"), turn("b:2")], [verdict("a:2", HINT), verdict("b:2", HINT)]
    run = write_run(tmp_path / "from", one_part(sessions, turns, verdicts))
    rollout.run(config(from_=run, samples=1))
    assert [s["metadata"] for s in rows(config().run, "sessions")] == [s["metadata"] for s in sessions]
    names = (f"big={big}", f"self={student}")
    routed = scored(config().run, student, teacher=names, teacher_route="tier")
    alone = scored(config().run, student, overwrite=True)
    assert routed[0]["teacher_logprobs"] != alone[0]["teacher_logprobs"]
    assert routed[1]["teacher_logprobs"] == alone[1]["teacher_logprobs"]


def test_another_model_s_log_is_no_matter(tmp_path, config, student, capsys) -> None:
    """The cure for a log that another model wrote: its replies and their log-probs are left behind."""
    logged = turn("a:2", response_token_ids=[1, 2, 3], behavior_logprobs=[-1.0, -1.0, -1.0])
    run = write_run(tmp_path / "from", one_part([talk("a") | {"model": "gpt-x"}], [logged], [verdict("a:2", HINT)]))
    scored(run, student)
    assert "another model" in capsys.readouterr().err
    rollout.run(config(from_=run))
    scored(config().run, student)
    assert "another model" not in capsys.readouterr().err
    assert [1, 2, 3] not in [t["response_token_ids"] for t in rows(config().run, "turns")]


# -- what is refused ------------------------------------------------------------------------------------------------


def test_what_cannot_be_rolled_out_is_refused(config, source, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"--from .* is RUN itself"):
        config(source / ".." / "run")
    with pytest.raises(ConfigError, match="--from is missing"):
        config(from_=None)
    with pytest.raises(ConfigError, match="--judge-url needs --judge-model"):
        config(judge_url="http://localhost:1/v1")
    with pytest.raises(ConfigError, match="--judge-url holds more than an address"):
        config(judge_model="m", judge_url="http://user:secret@localhost:1/v1")
    with pytest.raises(OpdkitError, match=f"opdkit judge {tmp_path / 'nothing'}"):
        rollout.run(config(from_=tmp_path / "nothing"))
    with pytest.raises(OpdkitError, match="not there"):
        rollout.run(config(model=str(tmp_path / "nothing")))
    assert not config().run.exists(), "what fails binds nobody"


def test_without_hints_there_is_nothing_to_do(tmp_path, config) -> None:
    sessions = [talk("a"), talk("b")]
    verdicts = [verdict("a:2", None, 1), verdict("b:2", HINT)]
    run = write_run(tmp_path / "from", one_part(sessions, [turn("a:2"), turn("b:2")], verdicts))
    with pytest.raises(OpdkitError, match=r"no turn with a hint in its first 1 sessions.*a larger --limit"):
        rollout.run(config(from_=run, limit=1))
    assert not config().run.exists()
    assert rollout.run(config(from_=run)).counters.rows_in == 1


def test_a_run_with_another_plan_is_refused(config, source, tmp_path) -> None:
    """pitfall 26: also one whose source was judged anew."""
    run = Path(shutil.copytree(source, tmp_path / "from"))
    rollout.run(config(from_=run))
    with pytest.raises(ConfigError, match=r"config\.samples: 2 -> 4"):
        rollout.run(config(from_=run, samples=4))
    logs = Path(shutil.copytree(source, tmp_path / "logs"))
    with pytest.raises(ConfigError, match="begun under another plan"):
        rollout.run(config(logs))
    document = json.loads((run / "judge" / "manifest.json").read_text())
    (run / "judge" / "manifest.json").write_text(json.dumps(document | {"fingerprint": "judged anew"}))
    for path in (run / "judge" / "verdicts").iterdir():
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"opdkit.plan": b"judged anew"}), path)
    with pytest.raises(ConfigError, match=r"inputs\.from\.judge"):
        rollout.run(config(from_=run))


def test_the_command_line_and_a_file_of_options(tmp_path, source) -> None:
    file = tmp_path / "options.toml"
    file.write_text(f"[rollout]\nfrom = '{source}'\nmodel = 'm'\nmax-new-tokens = 9\n")
    made = configure("rollout", {"run": tmp_path / "new", "samples": 3}, file)
    assert (made.from_, made.model, made.max_new_tokens, made.samples) == (source, "m", 9, 3)
    assert "from" not in made.plan()  # where the source lies decides nothing: its fingerprints do


# -- the sample world -----------------------------------------------------------------------------------------------


def test_the_sample_model_answers_its_own_log_afresh(tmp_path, config, capsys) -> None:
    """Extract to train on sample_data, with replies that the model would give now."""
    from opdkit import extract, judge

    run = tmp_path / "from"
    extract.run(ExtractConfig(run=run, logs=(str(DATA / "logs" / "openai.jsonl"),), limit=8))
    judge.run(JudgeConfig(run=run, judge="local", model=str(MODEL), votes=1, max_new_tokens=48, device="cpu"))
    hinted = [v["turn_id"] for v in rows(run, "verdicts") if v["hint"]]
    rollout.run(config(from_=run, model=str(MODEL), max_new_tokens=64))
    new = config().run
    turns = rows(new, "turns")
    assert [t["turn_id"].rpartition("/")[0] for t in turns] == [name for name in hinted for _ in range(2)]
    assert {t["finish_reason"] for t in turns} == {"stop"}  # it was trained to end
    capsys.readouterr()
    targets = scored(new, MODEL)
    assert "another model" not in capsys.readouterr().err
    gaps = [np.subtract(t["old_logprobs"], t["behavior_logprobs"]) for t in targets]
    assert np.abs(np.concatenate(gaps)).max() < 1e-4
    trained = train.run(TrainConfig(run=new, model=str(MODEL), batch_turns=4, device="cpu"))
    assert trained.counters.rows_out == len(turns)
    assert (new / "train" / "model" / "model.safetensors").exists()
