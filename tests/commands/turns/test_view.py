"""Tests of whole turns: the interface that the report, the review page and `opdkit show` rely on."""

import json
import shutil

import pytest
from checked_runs import recommit, whole_run
from scored_runs import toy_sessions, write_run

from opdkit.commands.turns.token_text import open_texts
from opdkit.commands.turns.view import LIKELIEST, STEPS, read_turn_view, read_turn_views
from opdkit.errors import OpdkitError
from opdkit.store import reviews
from opdkit.store.plans import manifest
from opdkit.store.reading import part_path, read_all
from opdkit.store.reviews import Review

KEYS = {"turn_id", "session_id", "source", "line", "format", "model", "message_index", "kind", "trainable",
        "skip_reason", "finish_reason", "next_count", "messages", "decision", "verdict", "review",
        "targets"}  # fmt: skip


@pytest.fixture(scope="module")
def scored(tmp_path_factory, tiny_model_dir):
    return write_run(tmp_path_factory.mktemp("view") / "run", tiny_model_dir, toy_sessions(5), per_part=2)


@pytest.fixture
def run(scored, tmp_path):
    return shutil.copytree(scored, tmp_path / "run")


def test_a_view_is_the_rows_of_the_run(run):
    rows = {table: list(read_all(run, table)) for table in ("sessions", "turns", "verdicts", "targets")}
    views = list(read_turn_views(run, [turn["turn_id"] for turn in rows["turns"]]))
    assert [view["turn_id"] for view in views] == [turn["turn_id"] for turn in rows["turns"]]
    for view, turn in zip(views, rows["turns"], strict=True):
        assert view.keys() == KEYS
        json.dumps(view, allow_nan=False)
        (session,) = [s for s in rows["sessions"] if s["session_id"] == turn["session_id"]]
        assert len(view["messages"]) == turn["message_index"] + 1 + turn["next_count"]
        for shown, message in zip(view["messages"], session["messages"], strict=False):
            assert shown == {k: message[k] for k in ("role", "content", "reasoning", "name")} | {"tool_calls": []}
        (verdict,) = [v for v in rows["verdicts"] if v["turn_id"] == turn["turn_id"]]
        assert {k: view["verdict"][k] for k in view["verdict"]["voted"]} == view["verdict"]["voted"]
        assert view["verdict"]["hint"] == verdict["hint"]
        targets = [t for t in rows["targets"] if t["turn_id"] == turn["turn_id"]]
        assert [t["hint"] for t in view["targets"]] == [t["hint"] for t in targets]
        for shown, target in zip(view["targets"], targets, strict=True):
            assert [t["id"] for t in shown["tokens"]] == target["response_ids"]
            text = "".join(token["text"] for token in shown["tokens"])
            assert view["messages"][turn["message_index"]]["content"] in text


def test_the_advantage_is_teacher_less_old_and_missing_is_null(run):
    views = list(read_turn_views(run, [turn["turn_id"] for turn in read_all(run, "turns")]))
    tokens = [(target["hint"], token) for view in views for target in view["targets"] for token in target["tokens"]]
    assert {hint is None for hint, _ in tokens} == {True, False}
    for hint, token in tokens:
        if hint is None:
            assert (token["teacher"], token["advantage"]) == (None, None), "without a hint there is no teacher term"
        else:
            assert token["advantage"] == token["teacher"] - token["old"]


def test_a_marked_token_has_the_likeliest_of_both_models(tmp_path):
    run = whole_run(tmp_path / "run")
    rows = {(row["turn_id"], row["written"]): row for row in read_all(run, "targets")}

    def move(targets):
        for row in targets:
            if row["support_teacher"] is not None:  # another order than the student's
                row["support_teacher"] = [logprobs[::-1] for logprobs in row["support_old"]]
                row["teacher_logprobs"] = [p - n % 2 for n, p in enumerate(row["old_logprobs"])]

    for part in range(3):
        recommit(run, "targets", part, move)
    texts, seen = open_texts(manifest(run, "teacher")["plan"]["inputs"]["model"]), set()
    for view in read_turn_views(run, [turn["turn_id"] for turn in read_all(run, "turns")]):
        for target in view["targets"]:
            row = rows[view["turn_id"], target["written"]]
            for n, token in enumerate(target["tokens"]):
                is_marked = token["trained"] and token["advantage"] is not None and abs(token["advantage"]) >= STEPS[0]
                seen.add(is_marked)
                assert (token["likely"] is not None) == is_marked
                if not is_marked:
                    continue
                student = sorted(zip(row["support_old"][n], row["support_ids"][n], strict=True), reverse=True)
                teacher = sorted(zip(row["support_old"][n][::-1], row["support_ids"][n], strict=True), reverse=True)
                for model, expected in (("student", student), ("teacher", teacher)):
                    assert token["likely"][model] == [[texts([i])[0], p] for p, i in expected[:LIKELIEST]]
    assert seen == {True, False}


def test_a_part_is_opened_once_and_only_the_parts_that_are_needed(run, monkeypatch):
    from opdkit.store import joined_turns as joined

    read = joined.read_arrow
    opened = []
    monkeypatch.setattr(joined, "read_arrow", lambda run, table, part, *rest: (
        opened.append((table, part)), read(run, table, part, *rest))[1])  # fmt: skip
    list(read_turn_views(run, ["toy-4:3", "toy-0:1", "toy-4:1", "toy-1:3"]))
    assert opened == [(t, part) for part in (0, 2) for t in ("turns", "sessions", "verdicts", "targets")]


@pytest.mark.parametrize(("gone", "empty"), [("teacher", "targets"), ("judge", "verdict")])
def test_a_run_need_not_be_finished(run, gone, empty):
    shutil.rmtree(run / "teacher")
    if gone == "judge":
        shutil.rmtree(run / "judge")
    assert not read_turn_view(run, "toy-0:1")[empty]


def test_a_part_that_is_not_done_yet_is_nothing_yet(run):
    part_path(run, "targets", 0).unlink()
    first, last = read_turn_views(run, ["toy-4:1", "toy-0:1"])
    assert (first["turn_id"], first["targets"]) == ("toy-0:1", [])
    assert last["targets"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("toy-0:2", "toy-0:1, toy-0:3"), ("toy0:3", "toy-0:3"), ("", "toy-")],
)
def test_an_unknown_turn_names_the_nearest(run, name, words):
    with pytest.raises(OpdkitError, match=words):
        read_turn_view(run, name)


def test_a_decision_is_shown_beside_what_the_votes_said(run):
    reviews.append(
        run, [Review("toy-0:3", reward_decided=True, reward=1, note="fine", hint_decided=True, hint="Do so.")]
    )
    view = read_turn_view(run, "toy-0:3")
    assert (view["verdict"]["reward"], view["verdict"]["reward_status"]) == (1, "reviewed")
    assert (view["verdict"]["hint"], view["verdict"]["hint_status"]) == ("Do so.", "reviewed")
    assert view["verdict"]["voted"]["reward"] == -1
    assert {k: view["review"][k] for k in ("reward", "hint", "note")} == {"reward": 1, "hint": "Do so.", "note": "fine"}
    assert read_turn_view(run, "toy-0:1")["review"] is None


def test_without_the_tokenizer_the_ids_are_shown_and_a_message_says_so(run, capsys, monkeypatch):
    import opdkit.commands.turns.token_text

    def gone(identity):
        raise OpdkitError("the tokenizer is gone")

    monkeypatch.setattr(opdkit.commands.turns.token_text, "open_texts", gone)
    views = list(read_turn_views(run, ["toy-0:1", "toy-0:3"]))
    assert all(token["text"] == f"⟨{token['id']}⟩" for v in views for t in v["targets"] for token in t["tokens"])
    assert capsys.readouterr().err.count("the tokenizer is gone") == 1
