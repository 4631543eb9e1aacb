"""Tests of opdkit/teacher/edits.py: replies as people edited them, and what an edit shows about single tokens."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import save_tiny_model
from judged_runs import message, one_part, plain, prompts_of, session, targets, turn, verdict, write_run
from transformers import AutoModelForCausalLM

from opdkit.chat.conversation import NO_DECISION
from opdkit.chat.template import Chat, FittedPrompt, ReplyTokens
from opdkit.commands.check.stage import examine
from opdkit.config.rollout import RolloutConfig
from opdkit.model.load import load_tokenizer
from opdkit.model.scoring import PromptResponse
from opdkit.rollout import stage as rollout
from opdkit.store.tables import EDIT
from opdkit.teacher import stage as teacher
from opdkit.teacher.edits import ODDS, apply_edit
from opdkit.teacher.examples import Example
from opdkit.teacher.scores import ReplyReadings, ReplyScores, SupportLogprobs
from opdkit.train.data_summary import count_written
from opdkit.train.targets import load_targets

LOGGED, EDITED = "Take the train at noon.", "Take the bus at noon."


def edited_run(path: Path, edit: str = EDITED, status: str = "edited", ids: list[int] | None = None, **fields) -> Path:
    """Write a run with one edited reply, and one reply with an ordinary hint."""
    said = [message("user", "How do I get there?"), message("assistant", LOGGED) | fields]
    said += [message("user", "And back?"), message("assistant", "The same way, of course.")]
    turns = [turn("s:1", decision=NO_DECISION | {"edited": edit}, response_token_ids=ids), turn("s:3")]
    verdicts = [verdict("s:1", "Go by bus.", -1) | {"hint_status": status}, verdict("s:3", "Say when.", -1)]
    return write_run(path, one_part([session("s", *said)], turns, verdicts))


def rows_of(run: Path) -> dict[tuple, dict]:
    return {(row["turn_id"], row["written"]): row for row in targets(run)}


def test_the_odds_of_right_and_wrong_tokens_by_hand() -> None:
    """By Bayes' rule, 1/2 becomes 20/21 for a token of the edit, and 1/21 for the first token that the edit lacks."""

    def told(ids: list[int], edited: list[int], written: int | None, wrong: int | None = None) -> ReplyScores:
        support = SupportLogprobs(
            torch.tensor([[7, 8]] * len(ids)), torch.zeros(len(ids), 2), torch.tensor([[0.5, 0.25]] * len(ids)).log()
        )
        scores = ReplyScores(torch.zeros(len(ids)), torch.full((len(ids),), 0.5).log(), None, 0, None, support)
        reply = ReplyTokens(ids, [True] * len(ids))
        readings = ReplyReadings(PromptResponse([1], ids))
        edit = ReplyTokens(edited, [True] * len(edited))
        example = Example({}, FittedPrompt([1], 0), reply, None, ["x"], readings, written, edit, wrong)
        return apply_edit(scores, example)

    edit = told([7, 8], [7, 8], EDIT)
    assert edit.teacher.exp().tolist() == pytest.approx([20 / 21] * 2)
    assert edit.support.teacher.exp()[0].tolist() == pytest.approx([20 / 21, 0.25 / 10.5])
    logged = told([7, 7, 8], [7, 8, 8], None, 1)
    assert logged.teacher.exp().tolist() == pytest.approx([0.5, 1 / 21, 0.5]), "later tokens follow another beginning"
    assert logged.support.teacher.exp().tolist() == [pytest.approx(p) for p in (
        [0.5, 0.25], [1 / 21, 0.25 * 40 / 21], [0.5, 0.25])]  # fmt: skip
    other = told([9, 7], [9, 7], EDIT).support
    assert other.ids.tolist() == [[7, 9], [7, 8]], "the token of the edit takes the last place"
    assert other.teacher.exp()[0].tolist() == pytest.approx([0.5 / 10.5, 20 / 21])
    lost = told([9, 7], [8, 7], None, 0).support
    assert lost.ids[0].tolist() == [7, 9], "so does the token that the edit lacks"
    assert lost.teacher.exp()[0, 1].item() == pytest.approx(1 / 21)
    assert told([7], [7, 8], None).teacher.exp().tolist() == pytest.approx([0.5]), "cut off before it went wrong"


def test_an_edit_is_scored_beside_the_logged_reply_and_is_not_sampled(tmp_path, config, tiny_model_dir) -> None:
    """Log-probs are those of transformers; the teacher's are changed by the odds, here computed by another formula."""
    run = edited_run(tmp_path / "run")
    summary = teacher.run(config(run, teacher_samples=1, max_new_tokens=5, top_k=4))
    rows = rows_of(run)
    assert list(rows) == [("s:1", None), ("s:3", None), ("s:1", EDIT), ("s:3", 0)]
    assert summary.counters.total("edited by people") == 1
    assert summary.counters.total("written by the teacher") == 1
    assert summary.counters.rows_in == summary.counters.rows_out == 4
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32).eval()
    chat = Chat(load_tokenizer(str(tiny_model_dir)), {})
    logged, edit = rows["s:1", None], rows["s:1", EDIT]
    sampled = [i for i, own in zip(edit["response_ids"], edit["response_mask"], strict=True) if own]
    assert chat.text(sampled[:-1]).strip() == EDITED, "without the empty thinking of the template"
    assert edit["response_ids"][-1] in chat.stop_ids
    pairs = zip(logged["response_ids"], edit["response_ids"], strict=False)
    wrong = next(n for n, pair in enumerate(pairs) if len(set(pair)) == 2)
    for row, odds in ((edit, dict.fromkeys(range(len(edit["response_ids"])), ODDS)), (logged, {wrong: 1 / ODDS})):
        prompt, hinted = prompts_of(run, tiny_model_dir, row, "last-user")
        assert row["old_logprobs"] == pytest.approx(plain(model, prompt, row["response_ids"]), abs=1e-5)
        before = np.exp(plain(model, hinted, row["response_ids"]))
        factor = np.array([odds.get(n, 1.0) for n in range(len(before))])
        assert np.exp(row["teacher_logprobs"]) == pytest.approx(
            factor * before / (1 - before + factor * before), rel=1e-4
        )
        assert (np.exp(np.array(row["support_teacher"], np.float32)).sum(-1) < 1.001).all()
        for n, (ids, own, logprobs, known) in enumerate(zip(
            row["support_ids"], row["response_ids"], row["support_teacher"], row["teacher_logprobs"], strict=True
        )):  # fmt: skip
            if own in ids or row is edit or n == wrong:
                assert logprobs[list(ids).index(own)] == pytest.approx(known, abs=5e-3), "half precision"
    assert (logged["reward"], edit["reward"], edit["behavior_logprobs"]) == (-1, None, None)
    assert not [finding for finding in examine(run).findings if finding.table == "targets"]
    assert count_written(load_targets(run)) == {"written by the teacher": 1, "edited by people": 1}


@pytest.mark.parametrize("block", ["", "<think>\n\n</think>\n\n"])
def test_logged_ids_lack_what_the_template_makes_up(tmp_path, config, tiny_tokenizer, block) -> None:
    """The template's empty thinking before the edit is masked, so the first logged token does not count as wrong.

    Nor does it if the model wrote the empty block itself.
    """
    logged, edited = (tiny_tokenizer.encode(block + text) for text in (LOGGED, EDITED))
    wrong = next(n for n, pair in enumerate(zip(logged, edited, strict=False)) if len({*pair}) == 2)
    assert find_blamed(tmp_path, config, [*logged, tiny_tokenizer.eos_token_id]) == [wrong]


@pytest.mark.parametrize("before", ["", "\n", "\n\n"])
@pytest.mark.parametrize(
    ("edit", "kept"), [(EDITED, 9), ("Take the tram at noon.", 12), (f"{LOGGED} Or stay.", len(LOGGED))]
)
def test_no_token_is_blamed_that_the_edit_keeps(tmp_path, config, tiny_tokenizer, before, edit, kept) -> None:
    """The policy sampled words in other pieces than the tokenizer writes, and white space that the log lacks."""
    pieces = [i for character in before + LOGGED for i in tiny_tokenizer.encode(character)]
    assert find_blamed(tmp_path, config, [*pieces, tiny_tokenizer.eos_token_id], edit) == [len(before) + kept]


def test_white_space_that_the_log_lacks_is_not_blamed(tmp_path, config, tiny_tokenizer) -> None:
    ids = [*tiny_tokenizer.encode("\n"), *tiny_tokenizer.encode(LOGGED), tiny_tokenizer.eos_token_id]
    (blamed,) = find_blamed(tmp_path, config, ids)
    assert EDITED.startswith(tiny_tokenizer.decode(ids[:blamed]).strip())
    assert not EDITED.startswith(tiny_tokenizer.decode(ids[: blamed + 1]).strip())


def find_blamed(path: Path, config, ids: list[int], edit: str = EDITED) -> list[int]:
    """Return the logged tokens whose log-probs under the teacher are other ones because of the edit."""
    teachers = {}
    for status in ("edited", "ok"):
        run = edited_run(path / status, edit, status, ids)
        teacher.run(config(run))
        teachers[status] = rows_of(run)["s:1", None]["teacher_logprobs"]
    return np.flatnonzero(~np.isclose(*teachers.values(), atol=1e-4)).tolist()


def test_without_sampling_edits_are_trained_on_all_the_same(tmp_path, config, tiny_model_dir, tiny_tokenizer) -> None:
    """Edits become targets without sampling, even if the teacher is an average of models, which cannot sample."""
    run, mixed = edited_run(tmp_path / "run"), edited_run(tmp_path / "mixed")
    teacher.run(config(run))
    assert list(rows_of(run)) == [("s:1", None), ("s:3", None), ("s:1", EDIT)]
    other = save_tiny_model(tmp_path / "other", tiny_tokenizer, seed=3)
    teacher.run(config(mixed, teacher=(f"a={tiny_model_dir}", f"b={other}")))
    one, both = (rows_of(path)["s:1", EDIT] for path in (run, mixed))
    assert one["response_ids"] == both["response_ids"]
    assert one["teacher_logprobs"] != both["teacher_logprobs"]


@pytest.mark.parametrize(
    ("options", "fields", "limit", "problem"),
    [
        pytest.param({"edit": LOGGED}, {}, None, "the edit is the logged reply", id="no change"),
        pytest.param({"edit": EDITED * 40}, {}, 120, "no room for a reply", id="too long"),
        pytest.param({}, {"reasoning": "Trains are fast."}, None, None, id="the model thought of the logged reply"),
        pytest.param({}, {"content": f"<think>Trains?</think>{LOGGED}"}, None, None, id="it thought in the text"),
        pytest.param({"status": "reviewed"}, {}, None, None, id="a reviewer wrote another hint"),
    ],
)
def test_what_is_no_edit_of_the_reply_is_not_trained_on(tmp_path, config, options, fields, limit, problem) -> None:
    run = edited_run(tmp_path / "run", **options, **fields)
    limits = {"max_tokens": limit} if limit else {}
    summary = teacher.run(config(run, **limits))
    assert all(written is None for _, written in rows_of(run))
    assert dict(summary.counters.labels("not written")) == ({problem: 1} if problem else {})
    assert ("s:1", None) in rows_of(run), "the logged reply is scored with its hint"


def test_a_dry_run_counts_edits(tmp_path, config) -> None:
    run = edited_run(tmp_path / "run")
    dry = teacher.run(config(run, dry_run=True))
    assert dry.counters.total("edited by people") == 1
    done = teacher.run(config(run))
    assert dry.counters.total("tokens scored") == done.counters.total("tokens scored")
    assert math.isfinite(rows_of(run)["s:1", EDIT]["old_logprobs"][0])


def test_a_dry_run_counts_no_samples_of_edited_replies(tmp_path, config, capsys) -> None:
    """Edited replies count neither as replies to sample nor, with --measure, as tokens that the teacher writes."""
    run = edited_run(tmp_path / "run")
    teacher.run(config(run, dry_run=True, teacher_samples=3, max_new_tokens=5))
    assert "replies to sample 3 " in (shown := " ".join(capsys.readouterr().out.split()))
    assert "tokens to write, at most 15 " in shown
    teacher.run(config(run, dry_run=True, measure=1, teacher_samples=3, max_new_tokens=5))
    about = int(re.search(r"tokens to write, about +(\d+)", capsys.readouterr().out)[1])
    teacher.run(config(run, teacher_samples=3, max_new_tokens=5))
    written = [row for (_, written), row in rows_of(run).items() if written not in (None, EDIT)]
    assert about == sum(len(row["response_ids"]) for row in written)


def test_in_a_rollout_the_edit_of_the_logged_reply_is_a_hint_alone(tmp_path, config, tiny_model_dir) -> None:
    """The rollout takes over the log's verdict, but nobody has edited the fresh reply."""
    run, new = edited_run(tmp_path / "run"), tmp_path / "new"
    student = {"model": str(tiny_model_dir), "device": "cpu", "samples": 1, "max_new_tokens": 4}
    rollout.run(RolloutConfig(run=new, from_run=run, **student))
    teacher.run(config(new, teacher_samples=1, max_new_tokens=5))
    assert sorted(written is None for _, written in rows_of(new)) == [False, False, True, True]
    assert EDIT not in {written for _, written in rows_of(new)}
