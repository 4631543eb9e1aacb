"""Tests of opdkit/teacher/examples.py: which prompts, hints and tokens of a turn are scored, and what is dropped."""

import shutil
from pathlib import Path

import pytest
import torch
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer
from judged_runs import (
    HINT,
    message,
    one_part,
    prompts_of,
    session,
    talk,
    targets,
    turn,
    verdict,
    write_run,
)
from runs import HINT_HEADER
from transformers import AutoModelForCausalLM

from opdkit.chat.hint_placement import with_hint
from opdkit.chat.template import Chat
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.hints import score_specificity
from opdkit.model.load import load_model, load_tokenizer
from opdkit.store.reading import summary_of
from opdkit.teacher import stage as teacher

# -- what cannot be scored ------------------------------------------------------------------------------------------


def dropped_all(config) -> dict[str, int]:
    """Run the teacher, assert that it fails because no turn is left, and return the drops by reason."""
    with pytest.raises(OpdkitError, match="trained on"):
        teacher.run(config)
    return summary_of(config.run, "teacher").counters.dropped


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
    assert dropped_all(config(run)) == dict.fromkeys(cases, 1)
    assert targets(run) == []


def test_log_probs_that_are_not_finite_are_set_aside(run, config, tiny_model_dir, tmp_path):
    """A turn with log-probs that are not finite is dropped; the other turns become targets."""
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
    """If the tokenizer was extended and the model was not, turns with the new tokens are dropped."""
    folder = shutil.copytree(tiny_model_dir, tmp_path / "extended")
    build_tokenizer(tiny_tokenizer.chat_template, CHATML_TOKENS, (*CHATML_WORDS, "<more>")).save_pretrained(folder)
    said = [message("user", "x"), message("assistant", "a <more>"), message("user", "y"), message("assistant", "b")]
    turns = [turn("a:1"), turn("a:3")]
    run = write_run(
        tmp_path / "run", one_part([session("a", *said)], turns, [verdict("a:1", HINT), verdict("a:3", HINT)])
    )
    assert dropped_all(config(run, model=str(folder))) == {"tokens outside the model's vocabulary": 2}


def test_what_does_not_fit_is_cut_for_both_alike(tmp_path, config, tiny_model_dir, capsys):
    """The student's prompt loses the same messages as the teacher's, which is the longer one."""
    long = talk("a", replies=6)
    run = write_run(tmp_path / "run", one_part([long], [turn("a:12")], [verdict("a:12", HINT)]))
    chat = Chat(load_tokenizer(str(tiny_model_dir)), {})
    whole = len(chat.prompt_ids(long["messages"][:12])) + len(chat.reply(long["messages"], 12).ids)
    teacher.run(config(run, max_tokens=whole, too_long="cut"))
    [row] = targets(run)
    assert row["cut_messages"] == 2  # one exchange; the student's prompt alone would have fitted
    kept = [long["messages"][0], *long["messages"][3:12]]
    assert row["prompt_tokens"] == len(chat.prompt_ids(kept))
    other = write_run(tmp_path / "other", one_part([long], [turn("a:12")], [verdict("a:12", HINT)]))
    assert dropped_all(config(other, max_tokens=whole)) == {"too long": 1}
    shown = " ".join(capsys.readouterr().err.split())
    assert "1 reply does not fit into the model's context with the prompt; --too-long cut leaves out" in shown
    short = write_run(tmp_path / "short", one_part([long], [turn("a:12")], [verdict("a:12", HINT)]))
    assert dropped_all(config(short, max_tokens=8, too_long="cut")) == {"too long": 1}
    assert "--too-long cut" not in capsys.readouterr().err, "it is what was done"


def test_more_tokens_than_the_model_was_built_for_are_refused(run, config):
    with pytest.raises(ConfigError, match="--max-tokens is 2049"):
        teacher.run(config(run, max_tokens=2049))


# -- logged tokens --------------------------------------------------------------------------------------------------


def logged(tmp_path, config, ids: list[int], said: dict) -> tuple[dict, int]:
    """Return the target of one turn with logged token ids, and the number of turns whose ids were not used."""
    run = write_run(
        tmp_path / "run",
        one_part(
            [session("a", message("user", "x"), said)], [turn("a:1", response_token_ids=ids)], [verdict("a:1", HINT)]
        ),
    )
    summary = teacher.run(config(run))
    return targets(run)[0], summary.counters.total("with logged tokens of another tokenizer")


def test_logged_tokens_are_scored_as_they_are(tmp_path, config, tiny_tokenizer):
    """Logged ids are kept even if the tokenizer would split the text differently."""
    ids = [tiny_tokenizer.convert_tokens_to_ids(c) for c in "hello"] + [tiny_tokenizer.eos_token_id]
    assert ids != tiny_tokenizer("hello<|im_end|>")["input_ids"]
    row, refused = logged(tmp_path, config, ids, message("assistant", "hello"))
    assert (row["response_ids"], row["response_mask"], refused) == (ids, [True] * 6, 0)


@pytest.mark.parametrize("kind", ["out of range", "negative", "other text", "whole conversation", "empty"])
def test_logged_tokens_of_another_tokenizer_are_encoded_again(tmp_path, config, tiny_tokenizer, kind):
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


# -- hints, placed and selected -------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement", ["last-user", "tail", "system"])
def test_a_hint_changes_one_message_wherever_it_is_placed(placement):
    """One message gets the hint at its end; all others are the same objects as before."""
    call = {"id": "1", "name": "search", "arguments": "{}"}
    said = [
        message("system", "Be brief."),
        message("user", "first"),
        message("assistant", "ok"),
        message("user", "second"),
        message("assistant", None, tool_calls=[call]),
        message("tool", "the result", tool_call_id="1"),
    ]
    hinted = with_hint(said, HINT, placement)
    where = {"last-user": 3, "tail": 5, "system": 0}[placement]
    assert [i for i, (a, b) in enumerate(zip(said, hinted, strict=True)) if a is not b] == [where]
    assert hinted[where] == said[where] | {"content": f"{said[where]['content']}\n\n{HINT_HEADER}\n{HINT}"}


@pytest.mark.parametrize("placement", ["last-user", "tail", "system"])
def test_the_two_prompts_differ_by_the_hint_alone(run, config, tiny_model_dir, tiny_tokenizer, placement):
    """The teacher's prompt without the inserted hint is the student's prompt."""
    teacher.run(config(run, hint_placement=placement))
    hinted_rows = [r for r in targets(run) if r["hint"]]
    assert len(hinted_rows) == 6
    for row in hinted_rows:
        without, with_it = (tiny_tokenizer.decode(ids) for ids in prompts_of(run, tiny_model_dir, row, placement))
        inserted = f"\n\n{HINT_HEADER}\n{row['hint']}"
        assert with_it.count(inserted) == 1
        assert with_it.replace(inserted, "") == without
        assert row["prompt_tokens"] == len(prompts_of(run, tiny_model_dir, row, placement)[0])


CANDIDATES = ["Be brief.", "Say it in a single short sentence.", "Say what the file is called, and where in it."]


def run_with_candidates(folder: Path, chosen: str | None, hints: list[str] = CANDIDATES) -> Path:
    judged = verdict("a:2", chosen, 1) | {"hints": hints}
    return write_run(folder, one_part([talk("a")], [turn("a:2")], [judged]))


@pytest.mark.parametrize(("how", "expected"), [
    ("judge", CANDIDATES[2]),
    ("longest", max(CANDIDATES, key=len)),
    ("shortest", CANDIDATES[0]),
    ("score", max(CANDIDATES, key=score_specificity)),
])  # fmt: skip
def test_another_hint_than_the_judges(tmp_path, config, how, expected):
    run = run_with_candidates(tmp_path / "run", CANDIDATES[2])
    teacher.run(config(run, teacher_hint=how))
    assert (targets(run)[0]["hint"], targets(run)[0]["overlap"]) == (expected, None)
    plain_run = run_with_candidates(tmp_path / "plain", expected)
    teacher.run(config(plain_run))
    assert targets(run)[0]["teacher_logprobs"] == pytest.approx(targets(plain_run)[0]["teacher_logprobs"], abs=1e-5)


@pytest.mark.parametrize("how", ["longest", "shortest", "score", "overlap"])
def test_what_the_votes_did_not_carry_is_not_selected(tmp_path, config, how):
    """Without a quorum, or if outvoted, a turn has candidates but no hint, and --teacher-hint selects none."""
    run = run_with_candidates(tmp_path / "run", None)
    teacher.run(config(run, teacher_hint=how))
    [row] = targets(run)
    assert (row["hint"], row["overlap"], row["teacher_logprobs"], row["reward"]) == (None, None, None, 1)


@pytest.mark.parametrize("support", [0, 6])
def test_overlap_scores_the_three_shortest(tmp_path, config, tiny_model_dir, support):
    """The hint with the largest overlap of both top K is chosen, compared with sets from plain forward passes."""
    fourth = "This one is so much longer than the other three of them that it is never scored at all, by anyone."
    run = run_with_candidates(tmp_path / "run", fourth, [*CANDIDATES[::-1], fourth])
    summary = teacher.run(config(run, teacher_hint="overlap", top_k=support))
    [row] = targets(run)
    top = support or 4
    chat, model = (
        Chat(load_tokenizer(str(tiny_model_dir)), {}),
        load_model(str(tiny_model_dir), device="cpu", dtype="float32"),
    )
    said = talk("a")["messages"][:2]

    @torch.no_grad()
    def tops(prompt: list[int]) -> list[set[int]]:
        logits = model(torch.tensor([prompt + row["response_ids"]])).logits[0, len(prompt) - 1 : -1]
        return [set(ids) for ids in logits.topk(top).indices.tolist()]

    ours = tops(chat.prompt_ids(said))
    sums = {
        hint: sum(
            len(a & b) for a, b in zip(ours, tops(chat.prompt_ids(with_hint(said, hint, "last-user"))), strict=True)
        )
        for hint in CANDIDATES
    }
    assert row["hint"] == max(sums, key=lambda hint: sums[hint])
    assert row["overlap"] == pytest.approx(max(sums.values()) / (top * len(row["response_ids"])))
    assert summary.counters.total("tokens scored") == 4 * len(row["response_ids"])


def test_a_candidate_that_does_not_fit_leaves_the_others(tmp_path, config, tiny_model_dir):
    long = "Answer " + "in one short sentence, and " * 20 + "stop."
    chat, said = Chat(load_tokenizer(str(tiny_model_dir)), {}), talk("a")["messages"]
    room = len(chat.prompt_ids(with_hint(said[:2], CANDIDATES[2], "last-user"))) + len(chat.reply(said, 2).ids)
    run = run_with_candidates(tmp_path / "run", long, [*CANDIDATES[1:], long])
    teacher.run(config(run, teacher_hint="overlap", max_tokens=room))
    assert targets(run)[0]["hint"] in CANDIDATES[1:]
    other = run_with_candidates(tmp_path / "other", long, [long, long + "!"])
    assert dropped_all(config(other, teacher_hint="overlap", max_tokens=room)) == {"too long": 1}
