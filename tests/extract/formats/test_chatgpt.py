"""Tests of the reader for ChatGPT's data export, on a conversation that was counted by hand.

OpenAI does not document the format. Fields and content types are those in pionxzh/chatgpt-exporter 2.x (src/api.ts)
and in published exports of ChatGPT from 2023 to January 2026; no export of our own was read.
"""

import json
import zipfile
from pathlib import Path

import pytest
from small_logs import run, tables

from opdkit.errors import OpdkitError
from opdkit.extract.formats.trees import CIRCLE, EMPTY_CONVERSATION, NO_PARENT, NOT_THERE


def node(ident: str, parent: str | None, role: str, content: dict | str, recipient: str = "all", **more) -> dict:
    """Return a node of the mapping, whose message has the fields of an export."""
    author = {"role": role, "name": more.pop("name", None), "metadata": {}}
    metadata = {"model_slug": "gpt-5-2"} if role == "assistant" else {}
    body = {"content_type": "text", "parts": [content]} if isinstance(content, str) else content
    message = {"id": ident, "author": author, "create_time": 1765672220.3, "update_time": None, "content": body,
               "status": more.pop("status", "finished_successfully"), "end_turn": None, "weight": 1.0,
               "metadata": metadata | more, "recipient": recipient, "channel": None}  # fmt: skip
    return {"id": ident, "message": message, "parent": parent, "children": []}


def conversation(*nodes: dict, current: str, name: str = "c1", **more) -> dict:
    root = {"id": "root", "message": None, "parent": None, "children": []}
    return {"title": "Trip", "create_time": 1765671790.1, "update_time": 1765672999.9, "moderation_results": [],
            "mapping": {n["id"]: n for n in (root, *nodes)}, "current_node": current, "conversation_id": name,
            "id": name, "default_model_slug": "gpt-5-2", "is_archived": False} | more  # fmt: skip


HIDDEN = {"is_visually_hidden_from_conversation": True}
# u1 has three replies: b2 was kept, b1 was regenerated, and b0 is a call whose result b00 has no reply. The user edited
# u2 into u2b and continued from u2b. The 5 branches end in b1, b00, b4, b5 and b8.
TRIP = conversation(
    node("sys", "root", "system", "", **HIDDEN),
    node("about", "sys", "user", {"content_type": "user_editable_context", "user_profile": "I live in Bern.",
                                  "user_instructions": "Be brief."}, **HIDDEN),
    node("u1", "about", "user", {"content_type": "multimodal_text", "parts": [
        {"content_type": "image_asset_pointer", "asset_pointer": "sediment://x"}, "What is this?"]}),
    node("b1", "u1", "assistant", "A lake.", finish_details={"type": "stop"}),
    node("h2", "u1", "system", "", **HIDDEN),
    node("t2", "h2", "assistant", {"content_type": "thoughts", "source_analysis_msg_id": "z", "thoughts": [
        {"summary": "Look", "content": "It is water.", "chunks": [], "finished": True},
        {"summary": "Decide", "content": "Lake Thun.", "chunks": [], "finished": True}]}),
    node("r2", "t2", "assistant", {"content_type": "reasoning_recap", "content": "Thought for 8s"}),
    node("b2", "r2", "assistant", "Lake Thun.", model_slug="gpt-5-2-thinking"),
    node("b0", "u1", "assistant", {"content_type": "code", "language": "unknown", "text": "search('lake')"}, "browser"),
    node("b00", "b0", "tool", {"content_type": "tether_browsing_display", "result": "3 hits", "summary": None},
         name="browser"),
    node("u2", "b2", "user", "How deep?"),
    node("b4", "u2", "assistant", "217 metres, I"  , status="finished_partial_completion",
         finish_details={"type": "interrupted"}),
    node("u2b", "b2", "user", "How deep, in feet?"),
    node("b5", "u2b", "assistant", "About 700."),
    node("b6", "u2b", "assistant", {"content_type": "code", "language": "python", "text": "217 * 3.28"}, "python"),
    node("b7", "b6", "tool", {"content_type": "execution_output", "text": "711.76"}, name="python"),
    node("b8", "b7", "assistant", "712 feet."),
    current="b8",
)  # fmt: skip
PLAIN = conversation(
    node("p1", "root", "user", "hi"), node("p2", "p1", "assistant", "hello"), node("p3", "p2", "user", "in French"),
    node("p4", "p3", "assistant", "salut"), current="p4", name="c2",
)  # fmt: skip


def rating(message: str, rating: str, said: object = None, conversation: str = "c1", **more) -> dict:
    content = said if isinstance(said, str) else json.dumps(said or {})
    return {"id": message, "conversation_id": conversation, "user_id": "user-1", "rating": rating,
            "create_time": "2025-12-14T00:00:00Z", "workspace_id": None, "content": content,
            "evaluation_name": None, "evaluation_treatment": None, "update_time": None} | more  # fmt: skip


RATINGS = [
    rating("b2", "thumbs_up"),
    rating("b1", "thumbsDown", {"tags": ["not-helpful", "false"], "text": "Which one?"}),
    rating("b8", "thumbs_down", "no JSON at all"),
    rating("p2", "thumbsUp", {"tags": [], "text": ""}, "c2"),
    rating("gone", "thumbs_up"),
    rating("u1", "thumbs_up"),
    rating("x", "thumbs_up", conversation="c9"),
]


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Write an unpacked export and return its folder."""
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "conversations.json").write_text(json.dumps([TRIP, PLAIN], indent=1))
    (folder / "message_feedback.json").write_text(json.dumps(RATINGS))
    (folder / "user.json").write_text('{"id": "user-1", "email": "a@b.c"}')
    (folder / "shared_conversations.json").write_text("[]")
    return folder


BROWSER = ["I live in Bern.\nBe brief.", "[image]\nWhat is this?"]
BRANCHES = {
    "c1": [*BROWSER, "Lake Thun.", "How deep, in feet?", None, "711.76", "712 feet."],
    "c1#branch-2": [*BROWSER, "Lake Thun.", "How deep, in feet?", "About 700."],
    "c1#branch-3": [*BROWSER, "Lake Thun.", "How deep?", "217 metres, I"],
    "c1#branch-4": [*BROWSER, "A lake."],
    "c1#branch-5": [*BROWSER, None, "3 hits"],
    "c2": ["hi", "hello", "in French", "salut"],
}
# Turn -> (skip reason, rating, tags, comment, the reply that was kept instead)
TURNS = {
    "c1:2": (None, 1, [], None, None),
    "c1:4": (None, None, None, None, None),
    "c1:6": (None, -1, [], "no JSON at all", None),
    "c1#branch-2:2": ("duplicate", None, None, None, None),
    "c1#branch-2:4": ("no next state", None, None, None, None),
    "c1#branch-3:2": ("duplicate", None, None, None, None),
    "c1#branch-3:4": ("aborted", None, None, None, None),
    "c1#branch-4:2": (None, -1, ["not-helpful", "false"], "Which one?", "Lake Thun."),
    "c1#branch-5:2": (None, None, [], None, "Lake Thun."),
    "c2:1": (None, 1, [], None, None),
    "c2:3": ("no next state", None, None, None, None),
}


def check(found: dict[str, list[dict]]) -> None:
    """Compare the tables with what was counted by hand."""
    name = found["sessions"][0]["session_id"].partition(":")[0]
    told = {s["session_id"].removeprefix(f"{name}:"): s for s in found["sessions"]}
    assert {key: [m["content"] for m in s["messages"]] for key, s in told.items()} == BRANCHES
    assert {key: s["tree"] for key, s in told.items()} == {
        key: f"{name}:c1" if key < "c2" else None for key in BRANCHES
    }
    assert {s["format"] for s in told.values()} == {"chatgpt"}
    turns = {}
    for turn in found["turns"]:
        decision = turn["decision"] or dict.fromkeys(("rating", "tags", "comment", "kept"))
        turns[turn["turn_id"].removeprefix(f"{name}:")] = (turn["skip_reason"], *(
            decision[key] for key in ("rating", "tags", "comment", "kept")))  # fmt: skip
    assert turns == TURNS
    assert [r for r in found["rejected"] if r["line"]] == []


def test_every_branch_rating_and_regenerated_reply(export: Path, tmp_path: Path) -> None:
    summary = run(tmp_path / "run", export)
    assert summary.counters.dropped == {NOT_THERE: 3, "unknown format": 1}
    found = tables(tmp_path / "run")
    check(found)
    first = found["sessions"][0]
    assert [m["role"] for m in first["messages"]] == ["system", "user", "assistant", "user", "assistant", "tool",
                                                     "assistant"]  # fmt: skip
    assert first["messages"][2]["reasoning"] == "It is water.\nLake Thun."
    assert first["messages"][4]["tool_calls"] == [{"id": "", "name": "python", "arguments": "217 * 3.28"}]
    assert first["messages"][5]["name"] == "python"
    assert first["model"] == "gpt-5-2"
    assert json.loads(first["metadata"]) == {"title": "Trip", "create_time": 1765671790.1, "update_time": 1765672999.9,
                                             "conversation_id": "c1", "id": "c1", "default_model_slug": "gpt-5-2",
                                             "is_archived": False}  # fmt: skip
    aside = {Path(r["source"]).name: r["reason"] for r in found["rejected"] if not r["line"]}
    assert aside == {"user.json": "unknown format"}, "an array without objects is empty"


def test_attached_files_leave_a_placeholder(tmp_path: Path) -> None:
    """An attached image gets no second placeholder, because the message's parts already have one."""
    attached = [{"name": "a.pdf", "mimeType": "application/pdf"}, {"name": "b.png", "mimeType": "image/png"},
                {"name": "d.md", "mime_type": "text/markdown"}, {"name": "c"}, "?"]  # fmt: skip
    chat = conversation(node("u", "root", "user", "Sum it up.", attachments=attached), node("a", "u", "assistant", "."),
                        current="a")  # fmt: skip
    (tmp_path / "conversations.json").write_text(json.dumps([chat]))
    run(tmp_path / "run", tmp_path / "conversations.json")
    (session,) = tables(tmp_path / "run")["sessions"]
    assert session["messages"][0]["content"] == "[file: application/pdf]\n[file: text/markdown]\n[file]\nSum it up."


@pytest.mark.parametrize(("told", "text"), [
    ({"about_user_message": "I live in Bern.", "about_model_message": "Be brief."}, "I live in Bern.\nBe brief."),
    ({"about_model_message": "Be brief."}, "Be brief."), ({}, None), (None, None),
])  # fmt: skip
def test_custom_instructions_of_older_exports_are_beside_an_empty_text(tmp_path: Path, told: object, text: object):
    about = node("sys", "root", "system", "", is_user_system_message=True, user_context_message_data=told)
    chat = conversation(about, node("u1", "sys", "user", "hi"), node("a1", "u1", "assistant", "hello"), current="a1")
    (tmp_path / "conversations.json").write_text(json.dumps([chat]))
    run(tmp_path / "run", tmp_path / "conversations.json")
    (session,) = tables(tmp_path / "run")["sessions"]
    assert [m["content"] for m in session["messages"]] == [*([text] if text else []), "hi", "hello"]


def test_states_of_the_page_while_a_tool_runs_are_no_messages(tmp_path: Path) -> None:
    spinner = {"content_type": "tether_browsing_display", "result": "", "summary": ""}
    nothing = {"content_type": "execution_output", "text": ""}
    chat = conversation(node("u", "root", "user", "Read it."), node("e", "u", "assistant", ""),
                        node("s", "e", "tool", spinner, command="spinner"), node("t", "s", "tool", "# done"),
                        node("o", "t", "tool", nothing), node("a", "o", "assistant", "Deploy."),
                        node("v", "a", "user", "No."), current="v")  # fmt: skip
    (tmp_path / "conversations.json").write_text(json.dumps([chat]))
    run(tmp_path / "run", tmp_path / "conversations.json")
    found = tables(tmp_path / "run")
    assert [(m["role"], m["content"]) for m in found["sessions"][0]["messages"]] == [
        ("user", "Read it."), ("tool", "# done"), ("tool", ""), ("assistant", "Deploy."), ("user", "No.")
    ]  # fmt: skip
    assert [turn["skip_reason"] for turn in found["turns"]] == [None]


def test_the_zip_as_it_comes_says_the_same(export: Path, tmp_path: Path) -> None:
    archive = tmp_path / "export.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for file in sorted(export.iterdir()):
            out.write(file, file.name)
        out.writestr("chat.html", "<html>")
    run(tmp_path / "run", archive)
    found = tables(tmp_path / "run")
    check(found)
    assert {s["source"] for s in found["sessions"]} == {f"{archive}/conversations.json"}


def test_an_export_that_is_read_twice_counts_once(export: Path, tmp_path: Path) -> None:
    """A later export of the same account holds the older conversations again, some with more messages."""
    older = json.loads(json.dumps(TRIP)) | {"update_time": 1.0, "current_node": "b1"}
    for name in ("b6", "b7", "b8"):
        del older["mapping"][name]
    (export / "a.json").write_text(json.dumps([older, PLAIN]))
    run(tmp_path / "run", export)
    check(tables(tmp_path / "run"))


def test_ratings_alone_are_left_out(export: Path, tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match=rf"{NOT_THERE} \({len(RATINGS)}\)"):
        run(tmp_path / "run", export / "message_feedback.json")


def test_ratings_of_conversations_that_were_deleted_do_not_stop_the_rest(export: Path, tmp_path: Path) -> None:
    deleted = [rating("m", "thumbs_down", conversation=f"gone-{n}") for n in range(20)]
    (export / "message_feedback.json").write_text(json.dumps([*RATINGS, *deleted]))
    assert run(tmp_path / "run", export).counters.dropped[NOT_THERE] == 23


def test_a_conversation_that_is_cut_off_anywhere_is_read_or_set_aside(tmp_path: Path) -> None:
    """The file is cut at every 50th byte. PLAIN comes first, so that the format is known."""
    data = json.dumps([PLAIN, TRIP]).encode()
    whole = len(json.dumps([PLAIN]))
    for size in range(whole, len(data) - 1, 50):
        (tmp_path / f"{size}.json").write_bytes(data[:size])
        run(tmp_path / f"run-{size}", tmp_path / f"{size}.json")
        found = tables(tmp_path / f"run-{size}")
        assert [s["session_id"] for s in found["sessions"]] == [f"{size}:c2"]
        assert len(found["rejected"]) == (size > whole + 1), size


def hostile(**changes: object) -> dict:
    """Return TRIP with other values at the given paths of its nodes, written `node__key__key`."""
    record = json.loads(json.dumps(TRIP))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = record["mapping"]
        for key in parents:
            place = place[key]
        place[last] = value
    return record


@pytest.mark.parametrize(
    ("record", "reasons"),
    [
        (hostile(u2__parent="gone"), {NO_PARENT: 2}),  # u2, b4
        (hostile(u2__parent="b4"), {CIRCLE: 2}),
        (hostile(b8__parent="b8"), {CIRCLE: 1}),
        (hostile(root__parent="b8"), {CIRCLE: 14}),  # no root at all: every message
        # Below u1: b1, t2, b2, b0, b00, u2, b4, u2b, b5, b6, b7, b8
        (hostile(u1__parent=7), {"parent of unknown shape": 1, NO_PARENT: 12}),
        (hostile(u1=[]), {"message is not an object": 1, NO_PARENT: 12}),
        (hostile(u1__message="hi"), {"message of unknown shape": 1, NO_PARENT: 12}),
        (hostile(u1__message__author__role="bot"), {"unknown role": 1, NO_PARENT: 12}),
        (hostile(u1__message__author__role={}), {"unknown role": 1, NO_PARENT: 12}),
        (hostile(u1__message__content="hi"), {"message of unknown shape": 1, NO_PARENT: 12}),
        (
            hostile(u1__message__content={"content_type": "text", "parts": [1]}),
            {"content of unknown shape": 1, NO_PARENT: 12},
        ),
        (hostile(b5__message__author__role="critic"), {"unknown role": 1}),
        (conversation(current="root"), {EMPTY_CONVERSATION: 1}),
        (TRIP | {"mapping": {}}, {EMPTY_CONVERSATION: 1}),
    ],
)
def test_damaged_trees_are_set_aside_and_counted(record: dict, reasons: dict[str, int], tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps([PLAIN, record]))
    summary = run(tmp_path / "run", tmp_path / "log.json")
    found = tables(tmp_path / "run")
    assert summary.counters.dropped == reasons
    assert len(found["rejected"]) == sum(n for why, n in reasons.items() if why != EMPTY_CONVERSATION)
    assert "log:c2" in {s["session_id"] for s in found["sessions"]}


def test_a_message_that_cannot_be_read_costs_its_branch_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps([hostile(b5__message__author__role="critic")]))
    run(tmp_path / "run", tmp_path / "log.json")
    found = tables(tmp_path / "run")
    expected = [texts for name, texts in BRANCHES.items() if "c1" in name and "About 700." not in texts]
    assert [[m["content"] for m in s["messages"]] for s in found["sessions"]] == expected
    (row,) = found["rejected"]
    assert "b5" in row["detail"]
    assert json.loads(row["raw"])["message"]["author"]["role"] == "critic"


@pytest.mark.parametrize("value", [None, 1, "x", [], {}, {"parts": {}}, {"content_type": 3}, {"thoughts": 1}])
@pytest.mark.parametrize("path", ["message", "message__content", "message__metadata", "message__recipient",
                                  "message__metadata__finish_details", "parent", "children"])  # fmt: skip
def test_wrong_types_never_crash(path: str, value: object, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps([PLAIN, hostile(**{f"b5__{path}": value})]))
    run(tmp_path / "run", tmp_path / "log.json")
    assert "log:c2" in {s["session_id"] for s in tables(tmp_path / "run")["sessions"]}, "that beside it stays"
