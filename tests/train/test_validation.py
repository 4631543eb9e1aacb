"""Tests of the on-policy validation: what it measures, which prompts it takes, and that no worse model is written."""

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from forked import ranks
from runs import Messages
from scored_runs import ALONE, WORDS, Said, Toy, toy_sessions, train_and_kill, train_config, write_run
from toy_turns import toy_turn
from transformers import PreTrainedModel
from validation_rows import validation_row

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat, ChatError
from opdkit.commands.check.stage import examine
from opdkit.config.train import FEWEST, MOST_CYCLES
from opdkit.errors import NothingLearnedError, OpdkitError
from opdkit.model.load import load_model, load_template, load_tokenizer
from opdkit.model.random_streams import make_random_stream
from opdkit.model.sampling import Request, Sample, sample
from opdkit.model.scoring import PromptResponse, response_logits
from opdkit.store import stopping
from opdkit.store.reading import read_all
from opdkit.store.turn_ids import is_held_out
from opdkit.train import checkpoints, training_set
from opdkit.train import stage as train
from opdkit.train import validation as validating
from opdkit.train import validation_models as models
from opdkit.train.best_state import find_best
from opdkit.train.launch import start_accelerator
from opdkit.train.schedule import make_objectives
from opdkit.train.step import STOP_REQUESTS
from opdkit.train.targets import load_targets
from opdkit.train.training import Training
from opdkit.train.training_set import load_training_set
from opdkit.train.validation import (
    CAP,
    CAP_PER_TOKEN,
    CHANGED,
    LOST,
    Validation,
    ValidationPrompt,
    choose_validation_steps,
)
from opdkit.train.validation_models import fit_prompts, open_validation
from opdkit.train.validation_turns import (
    COST,
    HINTS,
    MOST_SHARE,
    choose_hints,
    choose_turns,
    estimate_tokens_to_train,
)

VALIDATED = ALONE | {"validate": 8, "objective": "distill", "batch_turns": 8, "learning_rate": 3e-3}
SESSIONS = 120


@pytest.fixture(scope="module")
def large(tmp_path_factory, plain_model_dir) -> Path:
    """Write a run with enough turns to keep some out of training."""
    toys = [Toy(f"toy-{n}", toy.replies) for n, toy in enumerate(toy_sessions(SESSIONS))]
    return write_run(tmp_path_factory.mktemp("large") / "run", plain_model_dir, toys, per_part=SESSIONS)


@pytest.fixture
def run(large, tmp_path) -> Path:
    return Path(shutil.copytree(large, tmp_path / "run"))


@pytest.fixture
def student(plain_model_dir) -> PreTrainedModel:
    return load_model(str(plain_model_dir), device="cpu", dtype="float32")


@pytest.fixture
def open_toys(run, plain_model_dir) -> Callable[[], Validation]:
    """Return a function that opens the validation of the run, with up to eight prompts of each kind."""
    config = train_config(run, plain_model_dir, **VALIDATED)
    chat = load_template(str(plain_model_dir), ())

    def open_it() -> Validation:
        turns, accelerator = load_targets(run), start_accelerator(config)
        chosen, _ = choose_turns(turns, 8, 1)
        return open_validation(chosen, chat, config, accelerator, hints=choose_hints(turns))

    return open_it


@pytest.fixture
def validation(open_toys) -> Validation:
    return open_toys()


@pytest.fixture
def any_state(monkeypatch) -> None:
    """Make train write the last state for any score: a hint means nothing to a model of random weights."""
    monkeypatch.setattr(train, "check_better", lambda *_: None)
    for module in (train, validating):
        monkeypatch.setattr(module, "find_best", lambda rows: rows[-1])
    monkeypatch.setattr(train, "has_stalled", lambda *_: False)
    monkeypatch.setattr(train, "has_two_broken", lambda *_: False)


def before_and_after(model_dir: Path, moved: float) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Load the model twice, and add normal noise times `moved` to the weights of the second."""
    before, after = (load_model(str(model_dir), device="cpu", dtype="float32") for _ in range(2))
    with torch.no_grad():
        for parameter in after.parameters():
            parameter.add_(moved * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return before, after


# -- what it measures -----------------------------------------------------------------------------------------------


def test_it_is_the_kl_of_sampled_replies_to_teacher_and_student_before(run, validation, plain_model_dir) -> None:
    """The row equals one recomputed reply by reply from plain forwards of two models, over TOP tokens and the rest."""
    before, after = before_and_after(plain_model_dir, 0.05)
    chat, turns = validation.chat, choose_turns(load_targets(run), 8, 1)[0]
    row = validation.measure(after, 3)
    sessions = {s["session_id"]: s for s in read_all(run, "sessions")}
    hints = {t["turn_id"]: t["hint"] for t in read_all(run, "targets")}
    kls: dict[bool, list[float]] = {True: [], False: []}
    ended = []
    for turn in turns:
        messages = sessions[turn.session_id]["messages"][: int(turn.turn_id.rpartition(":")[2])]
        hint = hints[turn.turn_id]
        prompt = chat.prompt_ids(messages, None)
        teacher = chat.prompt_ids(with_hint(messages, hint, "last-user"), None) if hint else prompt
        streams = [make_random_stream(validation.config.seed, "validation", turn.turn_id, 0)]
        ((reply,),) = sample(after, [Request(prompt, streams)], temperature=1.0, batch_tokens=8192,
                             max_new_tokens=validation.max_new_tokens, stop_ids=chat.stop_ids)  # fmt: skip
        ended.append(reply.finish_reason == "stop")
        with torch.no_grad():
            p, q = (response_logits(model, [PromptResponse(ids, reply.ids)]).log_softmax(-1)
                    for model, ids in ((after, prompt), (before, teacher)))  # fmt: skip
        top = p.topk(validating.TOP).indices
        p, q = (torch.cat([x.gather(-1, top), (1 - x.gather(-1, top).exp().sum(-1, keepdim=True)).log()], -1)
                for x in (p, q))  # fmt: skip
        kls[hint is not None].append(min(float((p.exp() * (p - q)).sum()), CAP))
    assert row["replies"] == len(turns)
    assert row["hint_kl"] == pytest.approx(np.mean(kls[True]), rel=1e-4)
    hinted = [turn.turn_id for turn in turns if hints[turn.turn_id]]
    found = {reply["turn_id"]: reply["kl"] for reply in row["hint_kls"]}
    assert found == pytest.approx(dict(zip(hinted, kls[True], strict=True)), rel=1e-4)
    assert row["kept_kl"] == pytest.approx(np.mean(kls[False]), rel=1e-4)
    assert row["forgotten"] == np.mean([kl > LOST * CAP for kl in kls[False]])
    assert row["score"] == row["hint_kl"] + row["kept_kl"]
    assert row["ended"] == np.mean(ended)


def test_the_model_that_read_the_hints_reads_them_again(
    run, open_toys, tmp_path, plain_model_dir, capsys, monkeypatch
) -> None:
    """Replies are compared with the hinted teacher, as the student may follow hints badly that contradict its training.

    A teacher that is gone does not stop a training.
    """
    monkeypatch.setattr(validating, "CAP", 1e6)
    before, other = before_and_after(plain_model_dir, 0.05)
    for save in (other.save_pretrained, load_tokenizer(str(plain_model_dir)).save_pretrained):
        save(tmp_path / "teacher")
    path = run / "teacher" / "manifest.json"
    document = json.loads(path.read_text())
    document["plan"]["config"]["teacher"] = [str(tmp_path / "teacher")]
    path.write_text(json.dumps(document))
    one, same = open_toys(), open_toys()
    assert torch.equal(one.teacher.lm_head.weight, other.lm_head.weight)
    assert torch.equal(one.base.lm_head.weight, before.lm_head.weight)
    as_before, as_teacher = one.measure(before, 1), one.measure(other, 1)
    assert as_before["kept_kl"] == pytest.approx(0.0, abs=1e-6)
    assert as_before["hint_kl"] > 0.1
    assert as_teacher["kept_kl"] > 0.1
    assert as_before["hint_kl"] == replace(same, base=other, teacher=same.teacher).measure(before, 1)["hint_kl"]
    assert as_before["hint_kl"] != replace(same, teacher=before).measure(before, 1)["hint_kl"]
    assert capsys.readouterr().err.count("validation reads hints with the student") == 0
    shutil.rmtree(tmp_path / "teacher")
    assert (gone := open_toys()).teacher is gone.base
    assert "validation reads hints with the student before training, not with" in capsys.readouterr().err


def test_a_teacher_with_more_weights_is_not_loaded(run, plain_model_dir, monkeypatch) -> None:
    config, chat = train_config(run, plain_model_dir, **VALIDATED), Chat(load_tokenizer(str(plain_model_dir)), {})
    base = load_model(str(plain_model_dir), device="cpu", dtype="float32")
    other = str(shutil.copytree(plain_model_dir, run / "other"))
    for times, is_loaded in ((models.ROOM, True), (0.5, False)):
        monkeypatch.setattr(models, "ROOM", times)
        model, _ = models.load_teacher(config, {"teacher": [other]}, base, chat)
        assert (model is not base) == is_loaded
    assert models.load_teacher(config, {"teacher": [other, str(plain_model_dir)]}, base, chat) == (base, chat)
    assert models.load_teacher(config, {"teacher": []}, base, chat) == (base, chat)


@pytest.mark.parametrize(("options", "copies"), [({}, 4), ({"lora_rank": 8}, 2)], ids=str)
def test_a_teacher_leaves_room_for_the_training(run, plain_model_dir, monkeypatch, options, copies: int) -> None:
    """A teacher needs room beside the gradients and two moments or, with adapters, beside activations, in float32."""
    model, config = load_model(str(plain_model_dir), device="cpu", dtype="float32"), train_config(run, plain_model_dir)
    size, config = model.num_parameters(), replace(config, dtype="float32")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(models, "resolve_device", lambda _: torch.device("cuda"))
    for free, has_room in ((copies * 4 * size, False), (copies * 4 * size + 1, True)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 1e12))
        assert models.has_room(model, size, replace(config, **options)) is has_room


def test_processes_that_share_a_training_have_more_room_for_a_teacher(run, plain_model_dir, monkeypatch) -> None:
    config, chat = train_config(run, plain_model_dir, **VALIDATED), Chat(load_tokenizer(str(plain_model_dir)), {})
    base = load_model(str(plain_model_dir), device="cpu", dtype="float32")
    other = str(shutil.copytree(plain_model_dir, run / "other"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(models, "resolve_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (8 * base.num_parameters(), 1e12))
    for processes, is_loaded in ((1, False), (8, True)):
        model, _ = models.load_teacher(config, {"teacher": [other]}, base, chat, processes)
        assert (model is not base) == is_loaded


def test_replies_that_do_not_fit_into_memory_make_no_student_better(validation, student, monkeypatch) -> None:
    """A reply that cannot be measured counts as lost, so a measurement that lacks replies has no better score."""
    monkeypatch.setattr(validating, "CAP", 1e3)  # far above what a model of random weights measures
    whole, real = validation.measure(student, 1), validating.sample

    def all_but_the_first(*given, **options):
        nothing = Sample([], [], "memory")
        return [[nothing] if k == 0 else group for k, group in enumerate(real(*given, **options))]

    monkeypatch.setattr(validating, "sample", all_but_the_first)
    some = validation.measure(student, 1)
    assert some["replies"] == whole["replies"]
    assert some["score"] > whole["score"]
    monkeypatch.setattr(validating, "logprobs_in_trees", lambda *_: ({}, 0))
    none = validation.measure(student, 1)
    assert (none["hint_kl"], none["kept_kl"], none["forgotten"]) == (1e3, 1e3, 1.0)


def test_before_training_hinted_prompts_alone_are_measured(run, validation, student) -> None:
    """The row is that of all prompts, as nothing has moved yet."""
    turns, _ = choose_turns(load_targets(run), 8, 1)
    before, same = validation.measure(student, 0), validation.measure(student, 1)
    hinted = sum(turn.teacher_logprobs is not None for turn in turns)
    assert (before["replies"], same["replies"]) == (hinted, len(turns))
    assert before["tokens_read"] < 0.8 * same["tokens_read"]
    assert before["kept_kl"] == 0.0 == pytest.approx(same["kept_kl"], abs=1e-6)
    assert before["hint_kl"] == pytest.approx(same["hint_kl"], rel=1e-6)
    assert before["hint_kl"] > 1e-4
    assert 0.5 < validation.cost / same["tokens_read"] < 2


def test_the_student_can_train_on_after_a_measurement_that_failed(validation, student, monkeypatch) -> None:
    """The student is in training mode again; in evaluation mode, gradient checkpointing would be off."""
    student.train()
    monkeypatch.setattr(validating, "sample", lambda *_, **__: (_ for _ in ()).throw(OpdkitError("no memory")))
    with pytest.raises(OpdkitError):
        validation.measure(student, 1)
    assert student.training


def test_sessions_for_the_evaluation_do_not_choose_the_best_state(run, plain_model_dir) -> None:
    config = train_config(run, plain_model_dir, **VALIDATED | {"holdout": 0.3})
    data, _ = load_training_set(config, make_objectives(config), load_template(str(plain_model_dir), {}))
    assert data.validation
    assert not any(is_held_out(turn.session_id, 0.3) for turn in data.validation)


def test_an_absurd_reply_counts_no_more_than_the_cap(validation, student) -> None:
    with torch.no_grad():
        student.lm_head.weight.copy_(30 * torch.randn(student.lm_head.weight.shape, generator=torch.Generator()))
    row = validation.measure(student, 1)
    assert (row["hint_kl"], row["kept_kl"], row["score"]) == (CAP, CAP, 2 * CAP)
    assert validation.max_new_tokens < CAP / CAP_PER_TOKEN, "a long reply counts more: see the test of caps"


def test_a_lost_reply_that_the_hint_of_another_turn_explains_is_not_lost(validation, student, monkeypatch) -> None:
    """The student answers `hinted`: compared with `own` alone the reply is lost, unless another hint explains it."""
    with torch.no_grad():
        student.lm_head.weight.mul_(5)
    validation = replace(validation, base=student, teacher=student)
    hinted, own, other, *_ = (prompt.prompt_ids for prompt in validation.prompts)
    readings = {"same": [hinted, own], "lost": [own], "explained": [own, hinted], "by none": [own, other],
                "unchanged": [own, hinted]}  # fmt: skip
    rows = {}
    for name, (compared, *others) in readings.items():
        prompts = [validating.ValidationPrompt(f"log:{n}:1", hinted, compared, others, False) for n in range(4)]
        measured = replace(validation, prompts=prompts)
        monkeypatch.setattr(validating, "CHANGED", math.inf if name == "unchanged" else 1e-4)
        monkeypatch.setattr(validating, "LOST", 0.0 if name == "same" else 1e-4)
        rows[name] = measured.measure(student, 1)
    assert [rows[name]["forgotten"] for name in ("lost", "explained", "by none")] == [1.0, 0.0, 1.0]
    assert rows["explained"]["kept_kl"] == pytest.approx(0.0, abs=1e-6)
    assert rows["by none"]["kept_kl"] <= rows["lost"]["kept_kl"] == rows["unchanged"]["kept_kl"]


@pytest.mark.parametrize(
    ("lost", "kept", "share"), [(1, 4, 0.25), (1, 5, 0.0), (2, 5, 0.4), (1, 12, 0.0), (2, 12, 1 / 6), (0, 0, None)]
)
def test_one_lost_prompt_of_five_or_more_is_chance(lost: int, kept: int, share: float | None) -> None:
    facts = {"turn_id": "log:1:1", "kl": 1.0, "ended": True, "looped": False, "broke_call": False}
    results = [{"hinted": False, "lost": n < lost, **facts} for n in range(kept)]
    hinted = {"hinted": True, "lost": True, **facts}
    assert validating._row([hinted, *results], tokens=9, step=3)["forgotten"] == pytest.approx(share)


@pytest.mark.parametrize(("explains", "tried"), [(0, 1), (1, 3), (2, 3), (3, 5), (None, 5)])
def test_hints_are_tried_until_one_explains_a_reply(validation, plain_model_dir, monkeypatch, explains, tried) -> None:
    """The KL after the hint `explains` is CHANGED, after the others 2.0; the reply itself has one of 3.0."""
    before, _ = before_and_after(plain_model_dir, 0.0)
    prompt = next(p for p in validation.prompts if not p.hinted)
    hints = [[n] for n in range(5)]
    prompt = replace(prompt, other_hint_ids=hints)
    validation = replace(validation, teacher=object())
    asked, models = list[list[int]](), list[object]()

    def compare(_: Validation, replies: list) -> tuple[list[float], int]:
        asked.extend(each.prompt_ids for each in replies)
        models.extend(each.model for each in replies)
        kls = {tuple(ids): CHANGED if n == explains else 2.0 for n, ids in enumerate(hints)}
        return [kls.get(tuple(each.prompt_ids), 3.0) for each in replies], 0

    monkeypatch.setattr(Validation, "_compare", compare)
    results, _ = validation._measure_once(before, [prompt], 0)
    assert asked == [prompt.prompt_ids, *hints[:tried]]
    assert models == [validation.base, *[validation.teacher] * tried], "the teacher reads the hints"
    assert results[prompt]["kl"] == (2.0 if explains is None else CHANGED)


def test_a_prompt_is_lost_where_two_replies_to_it_are(validation, plain_model_dir, monkeypatch) -> None:
    """One reply can be odd by chance, so prompts whose first reply is lost, and no others, get a second one."""
    _, after = before_and_after(plain_model_dir, 0.02)
    prompts = [replace(p, other_hint_ids=[]) for p in validation.prompts if not p.hinted]
    validation = replace(validation, prompts=prompts)
    first, second = ([r["kl"] for r in validation._measure_once(after, prompts, draw)[0].values()] for draw in (0, 1))
    assert max(first + second) < CAP
    limit = next(b for a, b in zip(first, second, strict=True) if a > b)
    monkeypatch.setattr(validating, "LOST", limit / CAP)
    lost = [kl > limit for kl in first]
    both = [a and b > limit for a, b in zip(lost, second, strict=True)]
    row = validation.measure(after, 1)
    assert row["forgotten"] == np.mean(both) < np.mean(lost)
    assert row["kept_kl"] == pytest.approx(np.mean(first)), "the distance is that of the first replies"
    again = [p for p, is_lost in zip(prompts, lost, strict=True) if is_lost]
    answered = [validation._measure_once(after, some, draw) for some, draw in ((prompts, 0), (again, 1))]
    assert row["tokens_read"] == sum(tokens for _, tokens in answered)


def test_adapters_are_compared_with_the_model_without_them(run, tmp_path, plain_model_dir, any_state, capsys) -> None:
    pytest.importorskip("peft")
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    for folder, options in ((whole, {}), (run, {"lora_rank": 8, "learning_rate": 2e-2})):
        train.run(train_config(folder, plain_model_dir, **(VALIDATED | options)))
    ours, theirs = (next(read_all(folder, "validations")) for folder in (run, whole))
    for name in ("replies", "hint_kl", "kept_kl", "ended", "looped"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=1e-6)
    *_, last = read_all(run, "validations")
    assert last["kept_kl"] > 1e-3
    said = capsys.readouterr().err
    assert f"validation before training: replies {ours['hint_kl']:.2f} nats from the hinted teacher" in said
    assert "from its beginning" not in said, "the model under the adapters still reads trees"


# -- its prompts ----------------------------------------------------------------------------------------------------


def test_its_sessions_train_on_nothing(run, plain_model_dir, any_state) -> None:
    train.run(train_config(run, plain_model_dir, **VALIDATED))
    turns = load_targets(run, supports="any")
    chosen, _ = choose_turns(turns, 8, 1)
    kinds = [turn.teacher_logprobs is not None for turn in chosen]
    assert FEWEST <= sum(kinds) <= 8
    assert FEWEST <= kinds.count(False) <= 8
    sessions = {turn.session_id for turn in chosen}
    trained = {i for row in read_all(run, "metrics") for i in row["turn_ids"]}
    assert not sessions & {i.rpartition(":")[0] for i in trained}
    hinted = {t.turn_id for t in turns if t.teacher_logprobs is not None}
    assert trained | {t.turn_id for t in turns if t.session_id in sessions} >= hinted


def test_prompts_without_a_hint_are_read_with_those_of_other_turns(run, open_toys, monkeypatch) -> None:
    """The hints are those that `choose_hints` takes, without prompts that would be too long."""
    hints, validation = choose_hints(load_targets(run)), open_toys()
    targets = {row["turn_id"]: row["hint"] for row in read_all(run, "targets")}
    assert 0 < len(hints) <= HINTS
    for prompt in validation.prompts:
        if prompt.hinted:
            assert prompt.other_hint_ids == []
            assert targets[prompt.turn_id] in validation.chat.text(prompt.compared_ids)
        else:
            assert prompt.compared_ids == prompt.prompt_ids
            for hint, ids in zip(hints, prompt.other_hint_ids, strict=True):
                assert hint in validation.chat.text(ids)
    context = max(len(prompt.prompt_ids) for prompt in validation.prompts) + validation.max_new_tokens
    monkeypatch.setattr(models, "context_length", lambda _: context)
    short = open_toys()
    assert any(not prompt.hinted for prompt in short.prompts)
    read = [ids for prompt in short.prompts for ids in (prompt.compared_ids, *prompt.other_hint_ids)]
    assert all(len(ids) + short.max_new_tokens <= context for ids in read)


def test_prompts_and_replies_keep_within_the_tokens_of_the_teacher_stage(run, open_toys) -> None:
    whole = open_toys()
    most = max(len(prompt.compared_ids) for prompt in whole.prompts) + 2
    path = run / "teacher/manifest.json"
    document = json.loads(path.read_text())
    document["plan"]["config"]["max_tokens"] = most
    path.write_text(json.dumps(document))
    validation = open_toys()
    assert validation.max_new_tokens == 2 < whole.max_new_tokens
    read = [ids for prompt in validation.prompts for ids in (prompt.compared_ids, *prompt.other_hint_ids)]
    assert all(len(ids) + validation.max_new_tokens <= most for ids in read)


def test_replies_have_less_room_where_too_few_prompts_would_have_it() -> None:
    """Prompts near the end of the context are left out, but not most of a kind: otherwise no hint would be checked."""

    def prompt(tokens: int, *, hinted: bool) -> ValidationPrompt:
        return ValidationPrompt(f"log:{tokens}:1", [1] * tokens, [1] * (tokens + 5), [[1] * (tokens + 40)], hinted)

    hinted, calm = ([prompt(tokens, hinted=kind) for tokens in (10, 20, 30, 60)] for kind in (True, False))
    fitting, room = fit_prompts([*hinted, *calm], 100, 50)
    assert room == 50
    assert [len(p.prompt_ids) for p in fitting] == [10, 20, 30] * 2
    assert [len(p.other_hint_ids) for p in fitting] == [1, 0, 0] * 2, "other hints have to leave room, too"
    fitting, room = fit_prompts([*hinted[1:], *calm], 100, 50)
    assert (room, len(fitting)) == (35, 7)
    assert fit_prompts([prompt(98, hinted=True)], 100, 50)[0] == []


def test_prompts_that_cannot_be_rendered_are_left_out(run, open_toys, monkeypatch) -> None:
    """A hint of another turn may have no place in a prompt, and a teacher's template may refuse a prompt."""
    turns, before = choose_turns(load_targets(run), 8, 1)[0], open_toys().prompts
    calm, other = next(t for t in turns if t.hint is None), next(t for t in turns if t.hint)

    def place(messages: Messages, *rest: str) -> Messages:
        if any(f"({turn.session_id})" in str(messages) for turn in (calm, other)):
            raise ChatError("no message for the hint")
        return with_hint(messages, *rest)

    monkeypatch.setattr(models, "with_hint", place)
    left = {prompt.turn_id: prompt for prompt in open_toys().prompts}
    apart = {prompt.turn_id for prompt in before} - left.keys()
    assert apart == {t.turn_id for t in turns if t.hint and t.session_id in (calm.session_id, other.session_id)}
    assert left[calm.turn_id].compared_ids == left[calm.turn_id].prompt_ids
    assert left[calm.turn_id].other_hint_ids == []


def test_few_turns_all_train(run) -> None:
    turns = load_targets(run)
    hinted = [t for t in turns if t.teacher_logprobs is not None]
    enough = int(FEWEST / MOST_SHARE)
    assert len(choose_turns(hinted[:enough], 8, 1)[0]) == FEWEST
    assert choose_turns(hinted[: enough - 1], 8, 1)[0] == []
    assert choose_turns(turns, 0, 1) == ([], [])


def test_one_session_alone_trains_on_the_prompts_of_its_validation(tmp_path, plain_model_dir, capsys) -> None:
    """Its steps read all of the ten replies, and cycles follow while hints are left to learn."""
    said = [Said(WORDS[n % 10], -1, f"Say it in {WORDS[n % 7]} letters.") for n in range(10)]
    run = write_run(tmp_path / "run", plain_model_dir, [Toy("one", said)])
    train.run(train_config(run, plain_model_dir, **(VALIDATED | {"epochs": None})))
    said = capsys.readouterr().err
    assert "with a hint (trained on, too)" in said
    assert "of the distance before training is left" in said
    every = {t.turn_id for t in load_targets(run)}
    assert {i for row in read_all(run, "metrics") for i in row["turn_ids"]} == every
    rows = list(read_all(run, "validations"))
    assert all({reply["turn_id"] for reply in row["hint_kls"]} <= every for row in rows)
    assert len(rows[0]["hint_kls"]) >= FEWEST


def test_trained_on_prompts_with_a_hint_decide_alone_how_much_is_left_to_learn() -> None:
    replies = [toy_turn("log:1:1/rollout-0:1"), toy_turn("log:2:1")]
    for turn_id, hinted, column in (
        ("log:1:1", True, "hint_kl"),
        ("log:1:1", False, "score"),
        ("log:3:1", True, "score"),
    ):
        prompts = [SimpleNamespace(turn_id=turn_id, hinted=hinted)]
        training = SimpleNamespace(replies=replies, validation=SimpleNamespace(prompts=prompts))
        assert Training.distance.fget(training) == column


def test_a_broken_model_of_a_small_log_is_not_written(tmp_path, plain_model_dir) -> None:
    """No reply here has a prompt outside the training."""
    said = [Said(WORDS[n % 10], -1, f"Say it in {WORDS[n % 7]} letters.") for n in range(10)]
    run = write_run(tmp_path / "run", plain_model_dir, [Toy("one", said)])
    with pytest.raises(NothingLearnedError):
        train.run(train_config(run, plain_model_dir, **(VALIDATED | {"learning_rate": 1.0, "step_limit": 0})))


def test_it_costs_a_share_of_the_training() -> None:
    for steps, tokens, cost in ((50, 100_000, 1000), (500, 10_000_000, 20_000), (50, 100_000, 2000)):
        checked = choose_validation_steps(steps, tokens, cost)
        assert max(checked) == steps
        assert (len(checked) + 1) * cost <= COST * tokens + cost
    assert choose_validation_steps(1, 100, 1000) == {1}


def test_longer_trainings_pay_for_more_prompts(run) -> None:
    turns = load_targets(run)
    few, many = (choose_turns(turns, 100, epochs)[0] for epochs in (1, 100))
    assert len(few) < len(many) <= MOST_SHARE * len(turns) + 1
    assert {t.turn_id for t in few} <= {t.turn_id for t in many}
    assert estimate_tokens_to_train(turns, 4) == 4 * estimate_tokens_to_train(turns, 1)


# -- the model that is written --------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["blend", "binary", "opd"])
def test_a_broken_model_is_not_written(run, plain_model_dir, objective: str) -> None:
    config = train_config(run, plain_model_dir, **(VALIDATED | {"learning_rate": 3.0, "objective": objective}))
    with pytest.raises(OpdkitError) as caught:
        train.run(config)
    said = str(caught.value)
    assert "before training" in said
    assert any(turn.turn_id in said for turn in load_targets(run))
    assert not (run / "train/model").exists()
    with pytest.raises(OpdkitError, match="before training"):  # the same command says the same
        train.run(config)
    train.run(replace(config, validate=0, overwrite=True))
    assert (run / "train/model").exists()


def test_the_best_state_is_written_and_not_the_last(run, plain_model_dir, monkeypatch) -> None:
    """The scores are set so that the middle state is the best, and the model has its weights."""
    scores, weights = iter([1.0, 0.5, 0.1, 0.6, 0.7]), []
    measure = validating.Validation.measure

    def ranked(self, student, step):
        weights.append({name: p.detach().clone() for name, p in student.named_parameters()})
        row = measure(self, student, step)
        row |= {"hint_kl": 0.1 if step else 1.0, "forgotten": 0.0, "score": next(scores)}
        return row

    monkeypatch.setattr(validating.Validation, "measure", ranked)
    monkeypatch.setattr(train, "choose_validation_steps", lambda *_: {2, 4, 6, 8})
    train.run(train_config(run, plain_model_dir, **VALIDATED))
    model = load_model(str(run / "train/model"), device="cpu", dtype="float32")
    kept = dict(model.named_parameters())
    assert all(torch.equal(kept[name], value) for name, value in weights[2].items() if name in kept)
    assert not (run / "train/checkpoints").exists()


@pytest.fixture
def scored_as(monkeypatch):
    """Return a function that sets step -> score of the state after it, and returns step -> measured weights."""

    def give(scores: dict[int, float]) -> dict[int, dict[str, torch.Tensor]]:
        weights = {}

        def measure(self, student, step):
            weights[step] = {name: p.detach().clone() for name, p in student.named_parameters()}
            row = validation_row(step, scores[step], 0.0) | dict.fromkeys(("ended", "looped", "broke_call"), 0.0)
            self.rows.append(row | {"replies": 1, "tokens_read": 1})
            return self.rows[-1]

        monkeypatch.setattr(Validation, "measure", measure)
        monkeypatch.setattr(train, "choose_validation_steps", lambda *_: scores.keys() - {0})
        return weights

    return give


def test_a_tracker_gets_the_measurement_before_training(run, plain_model_dir, monkeypatch, scored_as) -> None:
    scored_as({0: 1.0, 2: 0.5, 4: 0.4})
    logged = []
    monkeypatch.setattr(Accelerator, "log", lambda _self, values, step: logged.append((step, values)))
    train.run(train_config(run, plain_model_dir, **VALIDATED))
    scores = [(step, values["validation_score"]) for step, values in logged if "validation_score" in values]
    assert scores == [(row["step"], row["score"]) for row in read_all(run, "validations")]
    assert scores[0] == (0, 1.0)


@pytest.mark.parametrize("stopped", [4, 6], ids=["on the way", "at the end of the cycle"])
def test_a_training_that_is_asked_to_stop_validates_when_it_resumes(
    run, tmp_path, plain_model_dir, monkeypatch, scored_as, stopped: int
) -> None:
    """A validation can take minutes, and a launcher may give a process only seconds to stop."""
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    config = train_config(run, plain_model_dir, **BACK, checkpoint_every=0)
    scored_as({0: 1.0, 2: 0.5, 4: 0.4, 6: 0.45})
    train.run(replace(config, run=whole))
    step, seen = train.take_optimizer_step, list[int]()

    def asked(*args):
        seen.append(1)
        return step(*args) | {STOP_REQUESTS: float(len(seen) == stopped)}

    monkeypatch.setattr(train, "take_optimizer_step", asked)
    with pytest.raises(stopping.Stopped):
        train.run(config)
    state = checkpoints.read_newest(run / "train/checkpoints")
    assert state is not None
    assert (len(state["rows"]), state["validations"][-1]["step"]) == (stopped, stopped - 2)
    train.run(config)
    assert list(read_all(run, "validations")) == list(read_all(whole, "validations"))
    ours, theirs = ((folder / "train/model/model.safetensors").read_bytes() for folder in (run, whole))
    assert ours == theirs


BACK_TO_0 = {0: 1.0, 2: 1.6, 4: 1.7, 6: 0.5}  # step -> score; after step 4 the training rolls back
BACK_TO_1 = {0: 1.0, 1: 0.5, 2: 1.6, 4: 1.7, 6: 0.4}
BACK = VALIDATED | {"step_limit": 0.4, "batch_turns": 30}


@pytest.mark.parametrize(("scores", "back"), [(BACK_TO_0, 0), (BACK_TO_1, 1)], ids=("before training", "on the way"))
def test_after_two_states_that_are_worse_the_best_goes_on_at_a_quarter_of_the_rate(
    run, plain_model_dir, monkeypatch, scored_as, scores, back: int
) -> None:
    """The optimizer continues without its moments."""
    weights, begins, step, epsilons = scored_as(scores), [], train.take_optimizer_step, []

    def watched(training, *args):
        before = {name: p.detach().clone() for name, p in training.student.named_parameters()}
        epsilons.append(training.optimizer.param_groups[0]["eps"])
        begins.append((before, len(training.optimizer.state), training.trust.factor))
        done = step(training, *args)
        begins[-1] += (training.trust.factor,)
        return done

    monkeypatch.setattr(train, "take_optimizer_step", watched)
    train.run(train_config(run, plain_model_dir, **BACK | {"epsilon": 0.1}))
    before, moments, factor, _ = begins[4]
    assert epsilons[4] >= epsilons[3] > 1e-8, "the gradients are as small as before"
    assert all(torch.equal(before[name], value) for name, value in weights[back].items())
    assert moments == 0 < begins[3][1]
    assert factor == train.ROLLBACK_RATE * begins[3][3]
    assert [after[2] for after in begins[1:4]] == [before[3] for before in begins[:3]], "and nowhere else"
    model = load_model(str(run / "train/model"), device="cpu", dtype="float32")
    assert all(torch.equal(p, weights[6][name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("scores", [BACK_TO_0, BACK_TO_1], ids=("before training", "on the way"))
@pytest.mark.parametrize(("every", "steps"), [(1, 3), (1, 5), (3, 5), (4, 5)])
def test_a_training_that_rolled_back_resumes_with_the_same_bytes(
    run, tmp_path, plain_model_dir, monkeypatch, scored_as, scores, every: int, steps: int
) -> None:
    """The training is killed before and after the rollback, with a checkpoint before, after, and at that step."""
    whole, reported = Path(shutil.copytree(run, tmp_path / "whole")), []
    monkeypatch.setattr(train, "report_movement", lambda rows, _, **facts: (
        reported.append(([row["step"] for row in rows], facts["rolled_back"]))))  # fmt: skip
    scored_as(scores)
    train.run(train_config(whole, plain_model_dir, **BACK))
    options = BACK | {"checkpoint_every": every}
    train_and_kill(train_config(run, plain_model_dir, **options), steps, monkeypatch)
    train.run(train_config(run, plain_model_dir, **options))
    for table, columns in (
        ("validations", ["step", "score", "went_back_to"]),
        ("metrics", ["step", "learning_rate", "loss"]),
    ):
        ours, theirs = ([[row[name] for name in columns] for row in read_all(each, table)] for each in (run, whole))
        assert ours == theirs
    ours, theirs = ((folder / "train/model/model.safetensors").read_bytes() for folder in (run, whole))
    assert ours == theirs
    assert not (run / "train/checkpoints").exists()
    first = range(1, 1 + (scores is BACK_TO_1))
    assert reported == [([*first, 5, 6], True)] * 2, "the steps that led to the best state"
    card = (run / "train/model/README.md").read_text()
    assert f", {len(reported[0][0])} optimizer step" in card, "and no others"


@pytest.mark.parametrize(("every", "left"), [(0, []), (4, ["best-00000000.pt", "step-00000004.pt"])])
def test_a_training_in_vain_leaves_only_what_it_can_resume_from(
    run, plain_model_dir, scored_as, every: int, left: list[str]
) -> None:
    scored_as({0: 1.0, 6: 1.3})
    config = train_config(run, plain_model_dir, **BACK, checkpoint_every=every)
    for _ in range(2):  # the same command does the rest again
        with pytest.raises(OpdkitError, match="before training"):
            train.run(config)
        assert sorted(path.name for path in (run / "train/checkpoints").glob("*")) == left


@pytest.fixture
def cycle(run, plain_model_dir, monkeypatch) -> int:
    """Set the distances so that much is left to learn after the first cycle of the schedule. Return its steps."""
    monkeypatch.setattr(training_set, "choose_epochs", lambda *_: 1)
    monkeypatch.setattr(train, "choose_validation_steps", lambda steps, *_: {2, 4, steps})
    config, chat = train_config(run, plain_model_dir, **UNFINISHED), load_template(str(plain_model_dir), {})
    steps = math.ceil(len(load_training_set(config, make_objectives(config), chat)[0].replies) / 30)

    set_distances(monkeypatch, lambda step: 3.0 - 0.2 * step if step <= steps else 0.5)
    return steps


def set_distances(monkeypatch, distance_after: Callable[[int], float]) -> None:
    """Make validation find this distance from the teacher after each step, and no other."""

    def measure(self, student, step):
        row = validation_row(step, distance_after(step), 0.0)
        self.rows.append(row | dict.fromkeys(("ended", "looped", "broke_call"), 0.0) | {"replies": 1, "tokens_read": 1})
        return self.rows[-1]

    monkeypatch.setattr(Validation, "measure", measure)


UNFINISHED = VALIDATED | {"batch_turns": 30, "batch_by": "turn", "epochs": None}


def test_an_unfinished_training_goes_on_with_another_cycle(run, plain_model_dir, cycle, capsys) -> None:
    """The next cycle has other steps, and begins at the peak of the schedule. With --epochs there is one cycle."""
    once = Path(shutil.copytree(run, run.parent / "once"))
    train.run(train_config(run, plain_model_dir, dry_run=True, **UNFINISHED))
    assert re.search(rf"if much is left to learn +{MOST_CYCLES * cycle}$", capsys.readouterr().out, re.MULTILINE)
    train.run(train_config(run, plain_model_dir, **UNFINISHED))
    rows = list(read_all(run, "metrics"))
    cycles = [rows[n : n + cycle] for n in range(0, len(rows), cycle)]
    assert len(cycles) in (2, 3)
    rates = [[row["learning_rate"] for row in one] for one in cycles]
    assert all(one == sorted(rates[0], reverse=True) for one in rates)
    turns = [[row["turn_ids"] for row in one] for one in cycles]
    seen = [sorted(i for step in one for i in step) for one in turns]
    assert all(one == seen[0] for one in seen)
    assert turns[0] != turns[1]
    said = capsys.readouterr().err
    assert f"{cycle} more steps" in said
    measured = [row for row in read_all(run, "validations") if row["step"] <= cycle]
    best = find_best(measured, any_gain=True)["score"] / measured[0]["score"]
    assert f"{best:.0%} of the distance before training is left: {cycle} more steps" in said
    assert "not learned all" not in said
    assert not [f for f in examine(run).findings if f.stage == "train"]
    train.run(train_config(once, plain_model_dir, **(UNFINISHED | {"epochs": 1})))
    assert len(list(read_all(once, "metrics"))) == cycle
    said = capsys.readouterr().err
    assert "not learned all" in said
    assert "most of it at turns log:1:1: " in said


def test_a_cycle_that_ends_broken_goes_back_before_the_next_one(
    run, plain_model_dir, cycle, monkeypatch, capsys
) -> None:
    distances = {0: 6.0, 2: 0.5, 4: 4.8, cycle: 4.9}
    set_distances(monkeypatch, lambda step: distances.get(step, 0.01))
    train.run(train_config(run, plain_model_dir, **UNFINISHED))
    said = capsys.readouterr().err
    assert f"{cycle} more steps" in said
    assert "two bad measurements in a row: back to the state of step 2" in said


@pytest.mark.parametrize("more", [-1, 0, 1, 3])
def test_a_training_killed_around_the_end_of_a_cycle_resumes_with_the_same_bytes(
    run, plain_model_dir, monkeypatch, cycle: int, more: int
) -> None:
    whole, options = Path(shutil.copytree(run, run.parent / "whole")), UNFINISHED | {"checkpoint_every": 1}
    train.run(train_config(whole, plain_model_dir, **options))
    train_and_kill(train_config(run, plain_model_dir, **options), cycle + more, monkeypatch)
    train.run(train_config(run, plain_model_dir, **options))
    ours, theirs = ((folder / "train/model/model.safetensors").read_bytes() for folder in (run, whole))
    assert ours == theirs


def test_a_training_resumes_whose_best_state_was_replaced_after_the_checkpoint(
    run, tmp_path, plain_model_dir, monkeypatch, scored_as
) -> None:
    """The training repeats the same steps, as it continues with the best state at the time of the checkpoint."""
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    scored_as({0: 1.0, 1: 0.5, 4: 1.6, 5: 1.7, 6: 0.4, 9: 0.45})
    options = BACK | {"batch_turns": 20, "checkpoint_every": 3}
    train.run(train_config(whole, plain_model_dir, **options))
    save = checkpoints.save
    with monkeypatch.context() as patch:  # it dies before the checkpoint of step 6
        patch.setattr(checkpoints, "save", lambda folder, model, optimizer, rows, *rest, **named: (
            len(rows) == 3 and save(folder, model, optimizer, rows, *rest, **named)))  # fmt: skip
        train_and_kill(train_config(run, plain_model_dir, **options), 6, patch)
    names = sorted(path.name for path in (run / "train/checkpoints").iterdir())
    assert names == ["best-00000001.pt", "best-00000006.pt", "step-00000003.pt"]
    other = Path(shutil.copytree(run, tmp_path / "other"))
    train.run(train_config(run, plain_model_dir, **options))
    ours, theirs = ((folder / "train/model/model.safetensors").read_bytes() for folder in (run, whole))
    assert ours == theirs
    # On another machine, the repeated steps may lead to another state, which is not the best.
    scored_as({0: 1.0, 1: 0.5, 4: 1.6, 5: 1.2, 6: 0.6, 9: 0.55})
    train.run(train_config(other, plain_model_dir, **options))
    best = (other / "train/model/model.safetensors").read_bytes()
    assert best not in (ours, (plain_model_dir / "model.safetensors").read_bytes())


def test_a_training_that_ends_early_is_no_damage(run, plain_model_dir, monkeypatch, scored_as) -> None:
    """`opdkit check` expects only the steps that were done."""
    scored_as({0: 1.0, 1: 0.5, 2: 0.6, 3: 0.6, 4: 0.6})
    train.run(train_config(run, plain_model_dir, **BACK))
    assert len(list(read_all(run, "metrics"))) == 4
    assert not [f for f in examine(run).findings if f.stage == "train"]


def test_a_killed_training_remembers_its_validations(run, tmp_path, plain_model_dir, monkeypatch, any_state) -> None:
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    options = VALIDATED | {"checkpoint_every": 1}
    train.run(train_config(whole, plain_model_dir, **options))
    train_and_kill(train_config(run, plain_model_dir, **options), 6, monkeypatch)
    train.run(train_config(run, plain_model_dir, **options))
    assert list(read_all(run, "validations")) == list(read_all(whole, "validations"))
    ours, theirs = ((folder / "train/model/model.safetensors").read_bytes() for folder in (run, whole))
    assert ours == theirs


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_processes_measure_what_one_does(run, tmp_path, plain_model_dir, sharding: str) -> None:
    """Each process samples replies to its share of the prompts or, with a share of the weights, to all of them.

    Both write no model, for the same reason as a single process.
    """
    two = Path(shutil.copytree(run, tmp_path / "two"))
    options = VALIDATED | {"epochs": 1, "learning_rate": 3.0, "device": "cpu"}
    with pytest.raises(OpdkitError) as caught:
        train.run(train_config(run, plain_model_dir, **options))
    flags = [x for name, value in (options | {"sharding": sharding}).items()
             for x in (f"--{name.replace('_', '-')}", str(value))]  # fmt: skip
    processes = ranks(*[["train", str(two), "--model", str(plain_model_dir), *flags]] * 2, logs=tmp_path / "said")
    (before, *_), *ends = (re.findall(r"(\S+) nats from the hinted", str(caught.value)), *(p.end() for p in processes))
    assert [code for code, _ in ends] == [1, 1]
    assert all(f"before training, {before} nats from the hinted teacher" in said for _, said in ends)
