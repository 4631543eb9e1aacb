"""Tests of the reader for Open WebUI's exports of chats and feedbacks, on a chat that was counted by hand.

The fields follow the producer's code: src/lib/components/chat/Messages.svelte and Messages/ResponseMessage.svelte,
backend/open_webui/models/feedbacks.py and utils/middleware.py of Open WebUI 0.6 to 0.8. No export of our own was read.
"""

import html
import json
from pathlib import Path

import pytest
from small_logs import run, tables

from opdkit.chat.conversation import LEFT_OUT
from opdkit.errors import OpdkitError
from opdkit.extract.formats.trees import CIRCLE, EMPTY_CONVERSATION, NO_PARENT, NOT_THERE


def message(ident: str, parent: str | None, content: str, **more) -> dict:
    """Return a message; the first letter of its id gives the role."""
    role = {"u": "user", "a": "assistant"}[ident[0]]
    own = (
        {"models": ["qwen"]} if role == "user" else {"model": "qwen", "modelName": "Qwen", "modelIdx": 0, "done": True}
    )
    return {"id": ident, "parentId": parent, "childrenIds": [], "role": role, "content": content,
            "timestamp": 1750000000} | own | more  # fmt: skip


def chat(*messages: dict, current: str, name: str = "c1", **more) -> dict:
    """Return a row of an export of chats."""
    history = {"currentId": current, "messages": {m["id"]: m for m in messages}}
    return {"id": name, "user_id": "u", "title": "Lakes", "updated_at": 1750000100, "created_at": 1750000000,
            "share_id": None, "archived": False, "pinned": False, "meta": {"tags": ["geo"]}, "folder_id": None,
            "chat": {"id": "", "title": "Lakes", "models": ["qwen"], "params": {"system": "Be brief."}, "files": [],
                     "history": history, "messages": [], "tags": [], "timestamp": 1750000000000}} | more  # fmt: skip


def details(kind: str, body: str, **attributes: str) -> str:
    told = "".join(f' {key}="{html.escape(value)}"' for key, value in attributes.items())
    return f'<details type="{kind}" done="true"{told}>\n<summary>Done</summary>\n{html.escape(body)}\n</details>\n'


CALL = details(
    "tool_calls", "", id="t1", name="depth", arguments=json.dumps('{"lake": "Thun"}'), result=json.dumps("217")
)
THOUGHTS = details("reasoning", "> I look.\n> Now.", duration="3")
# The reply a1 to u1 was regenerated as a2. The user edited a2 and continued from it. The reply to u2 has thinking, a
# call and text. a4 was edited, too, and then regenerated as a5; both are rated. u9 is an edited first message.
LAKES = chat(
    message("u1", None, "Which lake?", files=[{"type": "image", "url": "data:x"}]),
    message("a1", "u1", "A lake.", annotation={"rating": -1, "reason": "Being lazy", "comment": "Which?",
                                               "tags": ["Geography"], "details": {"rating": 2}}),
    message("a2", "u1", "Lake Thun, in Bern.", originalContent="Lake Thun."),
    message("u2", "a2", "How deep?"),
    message("a3", "u2", THOUGHTS + "Let me see.\n" + CALL + "217 metres."),
    message("u3", "a3", "In feet?"),
    message("a4", "u3", "About 711 feet.", originalContent="About 700.", annotation={"rating": 1}),
    message("a5", "u3", "712", annotation={"rating": -1}),
    message("a6", "u3", "", error={"content": "no connection"}),
    message("u9", None, "Which river?"),
    message("a9", "u9", "", output=[
        {"type": "reasoning", "summary": None, "content": [{"type": "output_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "t2", "name": "rivers", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "t2", "output": [{"type": "input_text", "text": "Aare"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "The Aare."}]}]),
    current="a5",
)  # fmt: skip
# Two models answered at once: a reply counts as chosen only when the user continued from it.
ARENA = chat(
    message("u1", None, "hi", models=["x", "y"]), message("a1", "u1", "hello", model="x"),
    message("a2", "u1", "hey", model="y", modelIdx=1),
    message("u2", "a2", "bye", models=["x", "y"]), message("a3", "u2", "ciao", model="x"),
    message("a4", "u2", "see you", model="y", modelIdx=1),
    current="a4", name="c2",
)  # fmt: skip

PLAIN = chat(
    message("u1", None, "hi"), message("a1", "u1", "hello"), message("u2", "a1", "bye"), current="u2", name="c4"
)


def feedback(message_id: str, data: dict, snapshot: dict | None, updated_at: int = 1, chat_id: str = "c1") -> dict:
    meta = {"arena": False, "model_id": "qwen", "message_id": message_id, "message_index": 2, "chat_id": chat_id}
    return {"id": f"f-{message_id}-{updated_at}", "user_id": "u", "version": 0, "type": "rating",
            "data": {"model_id": "qwen", "sibling_model_ids": None} | data, "meta": meta | {"base_models": {}},
            "snapshot": {"chat": snapshot}, "created_at": 1, "updated_at": updated_at}  # fmt: skip


# The same rating of a1 as in the chat, an older and a newer rating of a5, and a rating of a9 that the chat lacks.
FEEDBACKS = [
    feedback("a1", LAKES["chat"]["history"]["messages"]["a1"]["annotation"], LAKES, 5),
    feedback("a5", {"rating": 1, "comment": "good"}, LAKES, 1),
    feedback("a5", {"rating": "-1", "reason": "Other"}, LAKES, 7),
    feedback("a9", {"rating": 1}, LAKES, 6),
]
SYSTEM, ASKED = "Be brief.", "Which lake?\n[image]"
BRANCHES = {
    "c1": [SYSTEM, ASKED, "Lake Thun, in Bern.", "How deep?", "Let me see.", "217", "217 metres.", "In feet?", "712"],
    "c1#branch-2": [SYSTEM, ASKED, "Lake Thun, in Bern.", "How deep?", "Let me see.", "217", "217 metres.", "In feet?",
                    "About 700."],
    "c1#branch-3": [SYSTEM, ASKED, "Lake Thun, in Bern.", "How deep?", "Let me see.", "217", "217 metres.", "In feet?",
                    None],
    "c1#branch-4": [SYSTEM, ASKED, "A lake."],
    "c1#branch-5": [SYSTEM, ASKED, "Lake Thun."],
    "c1#branch-6": [SYSTEM, "Which river?", None, "Aare", "The Aare."],
}  # fmt: skip
A1 = {"rating": -1, "comment": "Which?", "tags": ["Geography", "Being lazy"], "edited": None,
      "kept": "Lake Thun, in Bern."}  # fmt: skip
NOTHING = {"rating": None, "comment": None, "tags": [], "edited": None, "kept": None}
# Turn -> (skip reason, decision), from the chats alone
TURNS = {
    "c1:2": ("edited by a person", None),
    "c1:4": (None, None),
    "c1:6": (None, None),
    "c1:8": (None, NOTHING | {"rating": -1}),
    **{f"c1#branch-{n}:{i}": ("duplicate", None) for n in (2, 3) for i in (2, 4, 6)},
    "c1#branch-2:8": (None, NOTHING | {"rating": 1, "edited": "About 711 feet.", "kept": "712"}),
    "c1#branch-3:8": ("error", None),
    "c1#branch-4:2": (None, A1),
    "c1#branch-5:2": (None, NOTHING | {"edited": "Lake Thun, in Bern."}),
    "c1#branch-6:2": (None, None),
    "c1#branch-6:4": ("no next state", None),
}
RATED = TURNS | {
    "c1:8": (None, NOTHING | {"rating": -1, "tags": ["Other"]}),
    "c1#branch-6:4": (None, NOTHING | {"rating": 1}),
}


def write(path: Path, *records: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records))
    return path


def check(found: dict[str, list[dict]], turns: dict[str, tuple]) -> None:
    """Compare the tables with what was counted by hand."""
    told = {s["session_id"].partition(":")[2]: s for s in found["sessions"]}
    assert {key: [m["content"] for m in s["messages"]] for key, s in told.items()} == BRANCHES
    assert len({s["tree"] for s in told.values()}) == 1
    assert {t["turn_id"].partition(":")[2]: (t["skip_reason"], t["decision"]) for t in found["turns"]} == turns
    assert found["rejected"] == []


def test_every_branch_rating_edit_and_regenerated_reply(tmp_path: Path) -> None:
    run(tmp_path / "run", write(tmp_path / "chats.json", LAKES))
    found = tables(tmp_path / "run")
    check(found, TURNS)
    first, *_, last = found["sessions"]
    assert [m["role"] for m in first["messages"]] == ["system", "user", "assistant", "user", "assistant", "tool",
                                                     "assistant", "user", "assistant"]  # fmt: skip
    call = {"id": "t1", "name": "depth", "arguments": '{"lake": "Thun"}'}
    assert (first["messages"][4]["reasoning"], first["messages"][4]["tool_calls"]) == ("I look.\nNow.", [call])
    assert first["messages"][5]["tool_call_id"] == "t1"
    assert (last["messages"][2]["reasoning"], last["messages"][2]["tool_calls"][0]["name"]) == ("Hm.", "rivers")
    assert (first["model"], first["format"]) == ("qwen", "open_webui")
    assert json.loads(first["metadata"])["title"] == "Lakes"


def test_feedbacks_beside_the_chats_count_once(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "chats.json", LAKES)
    write(tmp_path / "logs" / "feedbacks.json", *FEEDBACKS)
    run(tmp_path / "run", tmp_path / "logs")
    check(tables(tmp_path / "run"), RATED)


def test_a_rating_in_a_later_chat_outranks_an_older_feedback(tmp_path: Path) -> None:
    write(tmp_path / "logs" / "chats.json", LAKES | {"updated_at": 9})
    write(tmp_path / "logs" / "feedbacks.json", feedback("a4", {"rating": -1, "comment": "wrong"}, None, 1))
    run(tmp_path / "run", tmp_path / "logs")
    turns = {row["turn_id"].partition(":")[2]: row["decision"] for row in tables(tmp_path / "run")["turns"]}
    decision = turns["c1#branch-2:8"]
    assert (decision["rating"], decision["comment"]) == (1, None)


def test_feedbacks_alone_hold_the_chat(tmp_path: Path) -> None:
    run(tmp_path / "run", write(tmp_path / "feedbacks.json", *FEEDBACKS))
    check(tables(tmp_path / "run"), RATED)


def test_a_message_that_only_an_older_copy_holds_is_not_lost(tmp_path: Path) -> None:
    later = json.loads(json.dumps(LAKES))
    for name in ("u9", "a9"):
        del later["chat"]["history"]["messages"][name]
    run(tmp_path / "run", write(tmp_path / "logs.json", later, *FEEDBACKS))
    check(tables(tmp_path / "run"), RATED)


def test_of_replies_written_at_once_the_one_that_was_gone_on_from_was_kept(tmp_path: Path) -> None:
    run(tmp_path / "run", write(tmp_path / "chats.json", ARENA))
    kept = {t["turn_id"].partition(":")[2]: t["decision"] for t in tables(tmp_path / "run")["turns"]}
    assert kept == {
        "c2:2": None, "c2:4": None, "c2#branch-2:2": None, "c2#branch-2:4": None,
        "c2#branch-3:2": NOTHING | {"kept": "hey"},
    }  # fmt: skip


@pytest.mark.parametrize("content", [
    details("code_interpreter", "print(1)"),
    "text\n" + details("tool_calls", "217", id="t", name="f", arguments="{broken"),
    details("reasoning", "> only thinking"), "<details><summary>no type</summary>hi</details>", "<details type=\"x", "",
])  # fmt: skip
def test_markup_of_the_client(content: str, tmp_path: Path) -> None:
    nodes = message("u1", None, "hi"), message("a1", "u1", content), message("u2", "a1", "bye")
    run(tmp_path / "run", write(tmp_path / "chats.json", ARENA, chat(*nodes, current="u2")))
    found = tables(tmp_path / "run")
    (session,) = (s for s in found["sessions"] if s["session_id"] == "chats:c1")
    first = next(t for t in found["turns"] if t["session_id"] == "chats:c1")
    reply = session["messages"][2]
    if "code_interpreter" in content:
        assert first["skip_reason"] == "not only text"
    elif "tool_calls" in content:
        assert reply["tool_calls"] == [{"id": "t", "name": "f", "arguments": "{broken"}]
        assert (reply["content"], session["messages"][3]["content"]) == ("text", "217")
    elif "reasoning" in content:
        assert (reply["content"], reply["reasoning"], first["skip_reason"]) == (None, "only thinking", "empty")
    else:
        assert (reply["content"] or "") == content


def test_a_chat_that_is_cut_off_anywhere_is_read_or_set_aside(tmp_path: Path) -> None:
    """The file is cut at every 50th byte. ARENA comes first, so that the format is known."""
    data, whole = json.dumps([ARENA, LAKES]).encode(), len(json.dumps([ARENA]))
    for size in range(whole, len(data) - 1, 50):
        (tmp_path / f"{size}.json").write_bytes(data[:size])
        run(tmp_path / f"run-{size}", tmp_path / f"{size}.json")
        found = tables(tmp_path / f"run-{size}")
        assert {s["tree"] for s in found["sessions"]} == {f"{size}:c2"}
        assert len(found["rejected"]) == (size > whole + 1), size


def hostile(**changes: object) -> dict:
    """Return LAKES with other values in the given fields of its messages, written `message__field`."""
    record = json.loads(json.dumps(LAKES))
    messages = record["chat"]["history"]["messages"]
    for path, value in changes.items():
        name, _, field = path.partition("__")
        if field:
            messages[name][field] = value
        else:
            messages[name] = value
    return record


@pytest.mark.parametrize(
    ("record", "reasons"),
    [
        (hostile(u2__parentId="gone"), {NO_PARENT: 6}),  # u2, a3, u3, a4, a5, a6
        (hostile(u3__parentId="a6"), {CIRCLE: 4}),
        (hostile(u1__parentId="a1"), {CIRCLE: 10}),  # with the edited text of a2
        (hostile(u1__parentId="a1", u9__parentId="a9"), {CIRCLE: 12}),  # no root
        # Below u2: a3, u3, a4, a5, a6
        (hostile(u2__parentId=3), {"parent of unknown shape": 1, NO_PARENT: 5}),
        (hostile(u2=None), {"message is not an object": 1, NO_PARENT: 5}),
        (hostile(u2__role="bot"), {"unknown role": 1, NO_PARENT: 5}),
        (hostile(u2__role=None), {"unknown role": 1, NO_PARENT: 5}),
        (hostile(u2__content={"a": 1}), {"content of unknown shape": 1, NO_PARENT: 5}),
        (hostile(x={"done": True, "content": "late"}), {"unknown role": 1}),
        (chat(current="a"), {EMPTY_CONVERSATION: 1}),
        (chat(current="a") | {"chat": {"history": {}}}, {"no messages": 1}),
        (feedback("gone", {"rating": 1}, LAKES), {NOT_THERE: 1}),
        (feedback("u1", {"rating": 1}, LAKES), {NOT_THERE: 1}),
        (feedback("a1", {"rating": 1}, None), {NOT_THERE: 1}),
        (feedback("a1", {}, None) | {"meta": {"chat_id": "c1"}}, {"no messages": 1}),
        (feedback("a1", {}, LAKES) | {"data": 5}, {}),
    ],
)
def test_damaged_trees_are_set_aside_and_counted(record: dict, reasons: dict[str, int], tmp_path: Path) -> None:
    summary = run(tmp_path / "run", write(tmp_path / "log.json", ARENA, record))
    assert summary.counters.dropped == reasons
    found = tables(tmp_path / "run")
    assert len(found["rejected"]) == sum(n for why, n in reasons.items() if not why.startswith(LEFT_OUT))
    assert "log:c2" in {s["session_id"] for s in found["sessions"]}


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], [1], {}, {"rating": []}, {"rating": True, "tags": {}, "reason": 1}]
)
@pytest.mark.parametrize("field", ["content", "annotation", "rating", "output", "files", "model", "error", "done",
                                   "originalContent", "parentId", "childrenIds", "models"])  # fmt: skip
def test_wrong_types_never_crash(field: str, value: object, tmp_path: Path) -> None:
    records = hostile(**{f"a5__{field}": value, f"u9__{field}": value}), feedback("a1", {}, {"chat": value}, 1, "c3")
    run(tmp_path / "run", write(tmp_path / "log.json", ARENA, PLAIN, *records, records[-1] | {"data": value}))
    assert {"log:c2", "log:c4"} <= {s["session_id"] for s in tables(tmp_path / "run")["sessions"]}, "those beside it"


def test_a_message_without_a_role_costs_its_branch_and_no_more(tmp_path: Path) -> None:
    run(tmp_path / "run", write(tmp_path / "chats.json", hostile(x={"done": True, "content": "late"})))
    found = tables(tmp_path / "run")
    (row,) = found.pop("rejected")
    check(found | {"rejected": []}, TURNS)
    assert row["detail"].startswith("message x:")
    assert json.loads(row["raw"]) == {"done": True, "content": "late"}


@pytest.mark.parametrize("added", ["{}\n\n_12 tokens/s_", "> checked\n{}", " {} "])
def test_what_a_filter_puts_around_a_reply_is_no_edit(added: str, tmp_path: Path) -> None:
    a1, a2 = (
        message(name, parent, added.format(text), originalContent=text, output=[{"type": "message", "content": "?"}])
        for name, parent, text in (("a1", "u1", "hello"), ("a2", "u2", "ciao"))
    )
    nodes = message("u1", None, "hi"), a1, message("u2", "a1", "bye"), a2
    run(tmp_path / "run", write(tmp_path / "chats.json", chat(*nodes, current="a2")))
    found = tables(tmp_path / "run")
    assert [[m["content"] for m in s["messages"]] for s in found["sessions"]] == [
        ["Be brief.", "hi", "hello", "bye", "ciao"]
    ]  # fmt: skip
    assert [(t["skip_reason"], t["decision"]) for t in found["turns"]] == [(None, None), ("no next state", None)]


def test_a_chat_of_an_older_export_has_its_tree_beside_a_list_of_its_messages(tmp_path: Path) -> None:
    body = LAKES["chat"]
    old = LAKES | body | {"id": "c1", "messages": list(body["history"]["messages"].values())}
    del old["chat"]
    run(tmp_path / "run", write(tmp_path / "chats.json", old))
    check(tables(tmp_path / "run"), TURNS)


def test_nothing_but_empty_chats_are_recognised(tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match=EMPTY_CONVERSATION):
        run(tmp_path / "run", write(tmp_path / "chats.json", chat(current="a")))


def test_nothing_but_ratings_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OpdkitError, match=NOT_THERE):
        run(tmp_path / "run", write(tmp_path / "log.json", feedback("a1", {"rating": 1}, None)))


def test_the_summary_of_thinking_that_the_responses_api_sends_is_thinking(tmp_path: Path) -> None:
    output = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "thinking about it"}], "content": []},
              {"type": "message", "content": [{"type": "output_text", "text": "Thun."}]}]  # fmt: skip
    nodes = message("u1", None, "Which lake?"), message("a1", "u1", "Thun.", output=output)
    run(tmp_path / "run", write(tmp_path / "chats.json", chat(*nodes, current="a1")))
    (session,) = tables(tmp_path / "run")["sessions"]
    assert [session["messages"][-1][key] for key in ("reasoning", "content")] == ["thinking about it", "Thun."]


def test_a_merged_reply_is_what_the_chat_went_on_from(tmp_path):
    """The reaction is to the merged text; no reply counts as rejected by it."""
    texts = {"b": "Apple.", "c": "Pear."}
    rows = {"a": {"parentId": None, "role": "user", "content": "Two fruits?", "models": ["m", "n"]},
            **{name: {"parentId": "a", "role": "assistant", "content": text} for name, text in texts.items()},
            "d": {"parentId": "c", "role": "user", "content": "Great, now reversed."},
            "e": {"parentId": "d", "role": "assistant", "content": "Pear and apple."}}  # fmt: skip
    rows["c"]["merged"] = {"status": True, "content": "Apple and pear."}
    chat = {"id": "x", "chat": {"history": {"currentId": "e", "messages": rows}}}
    (log := tmp_path / "chat.jsonl").write_text(json.dumps(chat))
    run(tmp_path / "run", log)
    found = tables(tmp_path / "run")
    told = [[m["content"] for m in session["messages"]] for session in found["sessions"]]
    assert told == [["Two fruits?", "Apple and pear.", "Great, now reversed.", "Pear and apple."],
                    ["Two fruits?", "Apple."], ["Two fruits?", "Pear."]]  # fmt: skip
    skipped = [turn["skip_reason"] for turn in found["turns"]]
    assert skipped == ["merged from several replies", "no next state", "no next state", "no next state"]
    assert not any(turn["decision"] for turn in found["turns"])
