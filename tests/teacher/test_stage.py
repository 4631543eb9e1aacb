"""opdkit/teacher: from verdicts to targets, on a run directory with a tiny random model."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer, save_tiny_model
from transformers import AutoModelForCausalLM

from opdkit.chat import HINT_HEADER, Chat
from opdkit.errors import ConfigError
from opdkit.models import load_model, load_tokenizer
from opdkit.stages import ExtractConfig, JudgeConfig, TeacherConfig
from opdkit.store import Stage, read_all
from opdkit.tables import REJECTED, SESSIONS, TURNS, VERDICTS
from opdkit.teacher import examples, policies
from opdkit.teacher import stage as teacher

HINT = "Answer in one short sentence."


def message(role: str, content: str | None, **fields) -> dict:
    empty = {"reasoning": None, "name": None, "tool_call_id": None, "tool_calls": []}
    return {"role": role, "content": content} | empty | fields


def session(session_id: str, *messages: dict, tools: str | None = None) -> dict:
    return {"session_id": session_id, "source": "log", "line": 1, "format": "openai", "model": None,
            "messages": list(messages), "tools": tools, "metadata": None}  # fmt: skip


def turn(turn_id: str, **fields) -> dict:
    session_id, _, index = turn_id.rpartition(":")
    return {"turn_id": turn_id, "session_id": session_id, "message_index": int(index), "next_count": 1,
            "next_role": "user", "kind": "main", "trainable": True, "skip_reason": None, "finish_reason": None,
            "response_token_ids": None, "behavior_logprobs": None} | fields  # fmt: skip


def verdict(turn_id: str, hint: str | None = None, reward: int | None = None) -> dict:
    return {"turn_id": turn_id, "hint_votes": [], "reward_votes": [], "reward": reward,
            "reward_status": "ok" if reward is not None else "no_quorum", "reward_agreement": None,
            "hints": [hint] if hint else [], "hint": hint, "hint_status": "ok" if hint else "none"}  # fmt: skip


def write_run(run: Path, parts: list[tuple[list[dict], list[dict], list[dict]]]) -> Path:
    """A run with the extract and judge stages done: (sessions, turns, verdicts) of each part."""
    extract = Stage.open(
        ExtractConfig(run=run, logs=("log",)), "extract", [SESSIONS, TURNS, REJECTED], parts=len(parts)
    )
    for part, (sessions, turns, _) in enumerate(parts):
        with extract.writing(part) as out:
            out.rows("sessions", sessions)
            out.rows("turns", turns)
    judge = Stage.open(JudgeConfig(run=run), "judge", [VERDICTS], parts=len(parts), upstream=["extract"])
    for part, (_, _, verdicts) in enumerate(parts):
        with judge.writing(part) as out:
            out.rows("verdicts", verdicts)
    return run


def talk(name: str, replies: int = 2) -> dict:
    said = [message("system", f"You are {name}.")]
    for n in range(replies):
        said += [
            message("user", f"{name} question {n}?"),
            message("assistant", f"Answer {n} of {name}, at some length."),
        ]
    return session(name, *said, message("user", "No, shorter."))


def three_parts() -> list[tuple[list[dict], list[dict], list[dict]]]:
    """Three parts of two sessions with two turns each: hints, rewards, both, none."""
    parts = []
    for k in range(3):
        names = [f"s{k}a", f"s{k}b"]
        ids = [f"{name}:{index}" for name in names for index in (2, 4)]
        verdicts = [
            verdict(ids[0], HINT),
            verdict(ids[1], None, 1),
            verdict(ids[2], HINT + f" ({k})", -1),
            verdict(ids[3]),
        ]
        parts.append(([talk(n) for n in names], [turn(i) for i in ids], verdicts))
    return parts


def one_part(sessions: list[dict], turns: list[dict], verdicts: list[dict]):
    return [(sessions, turns, verdicts)]


def targets(run: Path) -> list[dict]:
    return list(read_all(run, "targets"))


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", three_parts())


@pytest.fixture
def config(tiny_model_dir):
    return lambda run, **options: TeacherConfig(run=run, **({"model": str(tiny_model_dir), "device": "cpu"} | options))


@torch.no_grad()
def plain(model, prompt: list[int], response: list[int]) -> list[float]:
    """One turn at a time: a forward over the whole, log-softmax, and the token at each next position."""
    logprobs = model(torch.tensor([prompt + response])).logits[0].float().log_softmax(-1)
    return [logprobs[len(prompt) + t - 1, token].item() for t, token in enumerate(response)]


# -- the numbers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["last-user", "tail", "system"])
@pytest.mark.parametrize("batch_tokens", [1, 16384])
def test_targets_equal_a_plain_forward_of_each_turn(run, config, tiny_model_dir, placement, batch_tokens):
    """pitfall 1, pitfall 5: both models at temperature 1, nothing shifted, in whatever batch."""
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
    """pitfall 9: no hint, no teacher log-probs; the reward alone is a target, null stays null."""
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
    assert summary.counters.extra["with a hint"] == 6


def test_student_and_teacher_read_the_same_response(run, config, monkeypatch):
    """pitfall 3, pitfall 4: one list of response ids after two prompts that differ by the hint alone."""
    seen = []
    real = teacher.score_session
    monkeypatch.setattr(teacher, "score_session", lambda *a, **k: seen.extend(a[2]) or real(*a, **k))
    teacher.run(config(run))
    hinted = [t for t in seen if t.hinted]
    assert len(hinted) == 6
    for target in hinted:
        [(reading,)] = target.hinted
        assert target.student.response_ids == reading.response_ids
        assert len(reading.prompt_ids) > len(target.student.prompt_ids)


def test_a_copy_of_the_student_is_no_other_teacher(run, config, tiny_model_dir, tmp_path, monkeypatch):
    """Guard: the same weights in another folder are loaded once and give the same rows."""
    copy = shutil.copytree(tiny_model_dir, tmp_path / "copy")
    teacher.run(config(run))
    alone = targets(run)
    loaded = []
    monkeypatch.setattr(policies, "load_model", lambda name, **k: loaded.append(name) or load_model(name, **k))
    teacher.run(config(run, teacher=(str(copy),), overwrite=True))
    assert targets(run) == alone
    assert loaded == [str(tiny_model_dir)]


def test_a_hint_that_changes_nothing_has_no_advantage(run, config, monkeypatch):
    """Guard: with the student's own prompt the teacher's log-probs are the same numbers, bit for bit."""
    monkeypatch.setattr(examples, "with_hint", lambda messages, hint, placement: messages)
    teacher.run(config(run))
    hinted = [r for r in targets(run) if r["hint"] is not None]
    assert len(hinted) == 6
    assert all(r["teacher_logprobs"] == r["old_logprobs"] for r in hinted)


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
    """pitfall 12: the vocabularies are of one size, two tokens have changed places."""
    swapped = (CHATML_TOKENS[0], CHATML_TOKENS[2], CHATML_TOKENS[1])
    other = build_tokenizer(tiny_tokenizer.chat_template, swapped, CHATML_WORDS)
    with pytest.raises(ConfigError, match="share one tokenizer"):
        teacher.run(config(run, teacher=(str(save_tiny_model(tmp_path / "other", other)),)))


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
        if len(calls) == 4:  # the second session of the second part
            raise KeyboardInterrupt
        return teacher_score_session(*args, **kwargs)

    teacher_score_session = teacher.score_session
    with monkeypatch.context() as patch:
        patch.setattr(teacher, "score_session", killed)
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
    """pitfall 11: the teacher is the model in the manifest; other weights under the same path are refused."""
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


# -- what cannot be scored ------------------------------------------------------------------------------------------


def test_every_drop_has_its_reason(tmp_path, config):
    cases = {
        "no signal": (talk("a"), turn("a:2"), verdict("a:2")),
        "too long": (
            session("b", message("user", "x " * 2000), message("assistant", "ok")),
            turn("b:1"),
            verdict("b:1", HINT),
        ),
        "no response tokens": (
            session("c", message("user", "x"), message("assistant", "")),
            turn("c:1", finish_reason="length"),
            verdict("c:1", HINT),
        ),
        "no user message": (
            session("d", message("system", "x"), message("assistant", "y")),
            turn("d:1"),
            verdict("d:1", HINT),
        ),
        "no prompt": (session("e", message("assistant", "y")), turn("e:0"), verdict("e:0", None, 1)),
        "private-use characters": (
            session("f", message("user", "\U00100000"), message("assistant", "y")),
            turn("f:1"),
            verdict("f:1", None, 1),
        ),
    }
    sessions, turns, verdicts = (list(column) for column in zip(*cases.values(), strict=True))
    run = write_run(tmp_path / "run", one_part(sessions, turns, verdicts))
    summary = teacher.run(config(run))
    assert summary.counters.dropped == dict.fromkeys(cases, 1)
    assert targets(run) == []


def test_log_probs_that_are_not_finite_are_set_aside(run, config, tiny_model_dir, tmp_path):
    """pitfall 2: a turn whose teacher overflows is no target; the others are."""
    folder = shutil.copytree(tiny_model_dir, tmp_path / "broken")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = load_tokenizer(str(folder))
    with torch.no_grad():  # "(" is only in the hints of every third turn
        model.model.embed_tokens.weight[tokenizer.convert_tokens_to_ids("(")] = float("nan")
    model.save_pretrained(folder)
    summary = teacher.run(config(run, model=str(folder)))
    assert summary.counters.dropped == {"log-probs are not finite": 3, "no signal": 3}
    assert all(torch.isfinite(torch.tensor(r["old_logprobs"])).all() for r in targets(run))


def test_tokens_that_the_model_has_no_row_for_are_set_aside(tmp_path, config, tiny_model_dir, tiny_tokenizer):
    """A tokenizer that was extended and a model that was not."""
    folder = shutil.copytree(tiny_model_dir, tmp_path / "extended")
    build_tokenizer(tiny_tokenizer.chat_template, CHATML_TOKENS, (*CHATML_WORDS, "<more>")).save_pretrained(folder)
    said = [message("user", "x"), message("assistant", "a <more>"), message("user", "y"), message("assistant", "b")]
    turns = [turn("a:1"), turn("a:3")]
    run = write_run(
        tmp_path / "run", one_part([session("a", *said)], turns, [verdict("a:1", HINT), verdict("a:3", HINT)])
    )
    assert teacher.run(config(run, model=str(folder))).counters.dropped == {"tokens outside the model's vocabulary": 2}


def test_what_does_not_fit_is_cut_for_both_alike(tmp_path, config, tiny_model_dir):
    """The student's prompt loses the same messages as the teacher's, which is the longer one."""
    long = talk("a", replies=6)
    run = write_run(tmp_path / "run", one_part([long], [turn("a:12")], [verdict("a:12", HINT)]))
    chat = Chat(load_tokenizer(str(tiny_model_dir)), {})
    whole = len(chat.prompt_ids(long["messages"][:12])) + len(chat.reply(long["messages"], 12).ids)
    teacher.run(config(run, max_tokens=whole, too_long="cut"))
    [row] = targets(run)
    assert row["cut_messages"] == 2  # one exchange: the student alone would have fitted
    kept = [long["messages"][0], *long["messages"][3:12]]
    assert row["prompt_tokens"] == len(chat.prompt_ids(kept))
    other = write_run(tmp_path / "other", one_part([long], [turn("a:12")], [verdict("a:12", HINT)]))
    assert teacher.run(config(other, max_tokens=whole)).counters.dropped == {"too long": 1}


def test_more_tokens_than_the_model_was_built_for_are_refused(run, config):
    with pytest.raises(ConfigError, match="built for at most 2048"):
        teacher.run(config(run, max_tokens=2049))


# -- logged tokens --------------------------------------------------------------------------------------------------


def logged(tmp_path, config, ids: list[int], said: dict) -> tuple[dict, int]:
    """The target of one turn with logged token ids, and how often such ids were not used."""
    run = write_run(
        tmp_path / "run",
        one_part(
            [session("a", message("user", "x"), said)], [turn("a:1", response_token_ids=ids)], [verdict("a:1", HINT)]
        ),
    )
    summary = teacher.run(config(run))
    return targets(run)[0], summary.counters.extra["with logged tokens of another tokenizer"]


def test_logged_tokens_are_scored_as_they_are(tmp_path, config, tiny_tokenizer):
    """Also where they are not how the tokenizer itself would split the text."""
    ids = [tiny_tokenizer.convert_tokens_to_ids(c) for c in "hello"] + [tiny_tokenizer.eos_token_id]
    assert ids != tiny_tokenizer("hello<|im_end|>")["input_ids"]
    row, refused = logged(tmp_path, config, ids, message("assistant", "hello"))
    assert (row["response_ids"], row["response_mask"], refused) == (ids, [True] * 6, 0)


@pytest.mark.parametrize("kind", ["out of range", "negative", "other text", "whole conversation", "empty"])
def test_logged_tokens_of_another_tokenizer_are_encoded_anew(tmp_path, config, tiny_tokenizer, kind):
    good = tiny_tokenizer("hello")["input_ids"]
    ids = {
        "out of range": [*good, len(tiny_tokenizer)],
        "negative": [*good, -1],
        "other text": tiny_tokenizer("world")["input_ids"],
        "whole conversation": tiny_tokenizer("system: a long way before it, and then again: " * 2 + "hello")[
            "input_ids"
        ],
        "empty": [],
    }[kind]
    row, refused = logged(tmp_path, config, ids, message("assistant", "hello"))
    assert refused == 1
    assert tiny_tokenizer.decode(row["response_ids"]).endswith("hello<|im_end|>")


def test_logged_tokens_with_thinking_and_calls_are_recognised(tmp_path, config, tiny_tokenizer):
    call = {"id": "1", "name": "search", "arguments": '{"query": "the \\"file\\""}'}
    said = message("assistant", "Let me see.", reasoning="A file?", tool_calls=[call])
    chat = Chat(tiny_tokenizer, {})
    ids = chat.reply([message("user", "x"), said], 1).ids
    row, refused = logged(tmp_path, config, ids, said)
    assert (row["response_ids"], refused) == (ids, 0)
