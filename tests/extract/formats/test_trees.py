"""Tests of trees of messages: branches, copies, regenerated replies, and damage that must be counted."""

from collections import Counter

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import jsonl, run, tables, turn_rows

from opdkit.chat.conversation import Conversation, Note, Unreadable
from opdkit.chat.messages import message
from opdkit.extract.formats import READERS, trees
from opdkit.extract.formats.reader import Line, Reader, Rejected
from opdkit.extract.formats.sessions import line_reader
from opdkit.extract.formats.trees import CIRCLE, NO_PARENT, REPEATED, TOO_MANY, Node, read_branches
from opdkit.store.turn_ids import is_held_out

LINE = Line("log", 1, b"")


def node(name: str, parent: str | None, text: str | None = None, **more) -> Node:
    """Return a node whose id begins with its role (U, A, T or S); a name in small letters has no message."""
    role = {"U": "user", "A": "assistant", "T": "tool", "S": "system"}.get(name[0])
    return Node(name, parent, [message(role, name if text is None else text, **more)] if role else [])


def read(*nodes: Node, current: str | None = None) -> tuple[list[Conversation], list[Rejected]]:
    items = list(read_branches(LINE, nodes, current, {"title": "t"}))
    return [i for i in items if isinstance(i, Conversation)], [i for i in items if isinstance(i, Rejected)]


def texts(conversation: Conversation) -> list[str | None]:
    return [m["content"] for m in conversation.messages]


def kept(conversations: list[Conversation]) -> dict[str, str]:
    """Return a map from the text of a reply to the reply that was kept instead."""
    return {c.messages[i]["content"]: note.decision["kept"]
            for c in conversations for i, note in c.notes.items() if note.decision}  # fmt: skip


def regenerated() -> list[Node]:
    return [node("U1", None), node("A1", "U1"), node("A2", "U1"), node("U2", "A2"), node("A3", "U2")]


def test_every_path_is_a_session_and_the_current_one_comes_first() -> None:
    (first, second), rejected = read(*regenerated(), current="A3")
    assert texts(first) == ["U1", "A2", "U2", "A3"]
    assert texts(second) == ["U1", "A1"]
    assert (first.branch, second.branch, rejected) == (1, 2, [])
    assert first.metadata == second.metadata == {"title": "t"}
    assert kept([first, second]) == {"A1": "A2"}


def test_without_a_current_node_the_branches_keep_their_order_and_nothing_is_made_up() -> None:
    conversations, _ = read(*regenerated(), current="gone")
    assert [texts(c)[1] for c in conversations] == ["A1", "A2"]
    assert kept(conversations) == {}


def test_a_single_path_is_no_branch() -> None:
    (only,), _ = read(node("root", None), node("U1", "root"), node("A1", "U1"), node("end", "A1"))
    assert (texts(only), only.branch) == (["U1", "A1"], 0)


def test_a_client_may_keep_several_roots() -> None:
    """In Open WebUI neither an edited first message nor the original has a parent."""
    (first, second), _ = read(
        node("U1", None), node("A1", "U1"), node("U2", None), node("A2", "U2"), current="A2"
    )  # fmt: skip
    assert [texts(first), texts(second)] == [["U2", "A2"], ["U1", "A1"]]
    assert kept([first, second]) == {}, "another question is no regenerated reply"


@pytest.mark.parametrize(
    ("other", "chosen", "expected"),
    [
        (node("A1", "U1"), node("A2", "U1"), {"A1": "A2"}),
        (node("A1", "U1", "same"), node("A2", "U1", "same"), {}),
        (node("A1", "U1"), node("A2", "U1", "", tool_calls=[{"id": "", "name": "f", "arguments": "{}"}]), {}),
        (node("U2", "U1"), node("A2", "U1"), {}),
        (node("A1", "U1"), node("U2", "U1"), {}),
    ],
)
def test_the_kept_reply_answers_the_same_prompt_with_another_text(other: Node, chosen: Node, expected) -> None:
    conversations, _ = read(node("U1", None), other, chosen, current=chosen.id)
    assert kept(conversations) == expected


def test_a_reply_that_failed_was_not_kept() -> None:
    failed = node("A2", "U1", "no connection")
    failed.last_note.skip_reason = "error"
    conversations, _ = read(node("U1", None), node("A1", "U1"), failed, current="A2")
    assert kept(conversations) == {}


def test_thinking_that_a_client_keeps_apart_belongs_to_the_reply_behind_it() -> None:
    nodes = (
        node("U1", None), node("hidden", "U1"),
        node("A1", "hidden", "", reasoning="hm"), node("A2", "A1", "two"),
        node("A3", "hidden", "", reasoning="well"), node("A4", "A3", "four", reasoning="so"),
    )  # fmt: skip
    conversations, _ = read(*nodes, current="A4")
    assert [(m["content"], m["reasoning"]) for c in conversations for m in c.messages] == [
        ("U1", None), ("four", "well\nso"), ("U1", None), ("two", "hm")
    ]  # fmt: skip
    assert kept(conversations) == {"two": "four"}
    (alone,), _ = read(node("U1", None), node("A1", "U1", "", reasoning="hm"))
    assert [m["reasoning"] for m in alone.messages] == [None, "hm"]


def test_who_asks_the_same_again_below_the_reply_means_it() -> None:
    """A message that a client sends again is a sibling of the first; below the reply, the user really repeats it."""
    (only,), _ = read(node("U1", None, "go on"), node("A1", "U1"), node("U2", "A1", "go on"))
    assert [row["skip_reason"] for row in turn_rows("log:1", only)] == [None]


def test_messages_that_no_root_leads_to_are_set_aside_one_by_one() -> None:
    nodes = (
        node("U1", None), node("A1", "U1"), node("A1", "U1", "again"),
        node("A5", "U9"), node("U6", "A5"), node("gap", "U9"),
        node("U7", "A8"), node("A8", "U7"), node("U8", "A8"), node("A9", "A9"),
    )  # fmt: skip
    (only,), rejected = read(*nodes)
    assert texts(only) == ["U1", "A1"]
    assert Counter(r.reason for r in rejected) == {REPEATED: 1, NO_PARENT: 2, CIRCLE: 4}
    assert [orjson.loads(r.raw)[0]["content"] for r in rejected] == ["again", "A5", "U6", "U7", "A8", "U8", "A9"]
    assert [(r.source, r.line) for r in rejected] == [("log", 1)] * 7


def test_a_tree_without_a_message_and_one_with_too_many_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unreadable) as none:
        read(node("root", None))
    assert none.value.reason == "no messages"
    with pytest.raises(Unreadable) as many:
        read(*(Node(str(n), None) for n in range(100_001)))
    assert many.value.reason == "too many messages"


def test_the_branches_of_one_tree_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The branches of a chain of 200 messages with a reply beside each would hold 20,000 messages."""
    chain = [node("U0", None)]
    for n in range(1, 200):
        chain += [node(f"U{n}", f"U{n - 1}"), node(f"A{n}", f"U{n - 1}")]
    monkeypatch.setattr(trees, "MOST_CHARACTERS", 1_000_000)
    conversations, rejected = read(*chain, current="U199")
    assert len(conversations[0].messages) == 200
    assert sum(len(c.messages) for c in conversations) <= 1_000
    assert {r.reason for r in rejected} == {TOO_MANY}
    held = {text for c in conversations for text in texts(c)}
    assert held | {orjson.loads(r.raw)[0]["content"] for r in rejected} == {n.id for n in chain}
    assert len(held) + len(rejected) == len(chain)


@given(st.lists(st.tuples(st.integers(-2, 12), st.sampled_from("UATSx")), max_size=12), st.integers(-1, 12))
def test_no_message_is_lost_whatever_the_links(links: list[tuple[int, str]], current: int) -> None:
    nodes = [
        node(
            f"{kind}{n}",
            None if parent < -1 else next((f"{k}{i}" for i, (_, k) in enumerate(links) if i == parent), "?"),
        )
        for n, (parent, kind) in enumerate(links)
    ]
    expected = {m["content"] for n in nodes for m in n.messages}
    try:
        conversations, rejected = read(*nodes, current=nodes[current % len(nodes)].id if nodes else None)
    except Unreadable:
        assert not expected
        return
    held = {text for c in conversations for text in texts(c)}
    aside = [orjson.loads(r.raw)[0]["content"] for r in rejected]
    assert held | set(aside) == expected
    assert len(held) + len(aside) == len(expected)
    assert len({tuple(texts(c)) for c in conversations}) == len(conversations)


# -- what extract writes --------------------------------------------------------------------------------------------


def read_record(line: Line, record: dict) -> list:
    nodes = [node(*fields) for fields in record["nodes"]]
    for n in nodes:
        if n.id in record.get("rated", {}):
            n.last_note.add_decision(rating=record["rated"][n.id], comment="", tags=[])
        n.model = record.get("models", {}).get(n.id)
    return list(read_branches(line, nodes, record["current"], {}))


FOREST = line_reader("forest", lambda record: "nodes" in record, read_record)
TREE = {
    "nodes": [("U1", None), ("A1", "U1"), ("U2", "A1"), ("A2", "U2"), ("U3", "A1"), ("A3", "U3"), ("U4", "A3")],
    "current": "U4",
    "rated": {"A1": -1, "A2": 1},
    "models": {"A1": "m1", "A2": "m2", "A3": "m3"},
}


@pytest.fixture
def forest(monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setitem(READERS, "forest", FOREST)
    return FOREST


def test_a_shared_reply_is_trainable_and_rated_once(tmp_path, forest) -> None:
    log = jsonl(tmp_path / "log.jsonl", {"nodes": [("U1", None), ("A1", "U1")], "current": None}, TREE)
    run(tmp_path / "run", log)
    found = tables(tmp_path / "run")
    assert [(s["session_id"], s["tree"], [m["content"] for m in s["messages"]]) for s in found["sessions"]] == [
        ("log:1", None, ["U1", "A1"]),
        ("log:2", "log:2", ["U1", "A1", "U3", "A3", "U4"]),
        ("log:2#branch-2", "log:2", ["U1", "A1", "U2", "A2"]),
    ]
    assert [
        (t["turn_id"], t["skip_reason"], t["decision"] and t["decision"]["rating"]) for t in found["turns"]
    ] == [
        ("log:1:1", "no next state", None),
        ("log:2:1", None, -1),
        ("log:2:3", None, None),
        ("log:2#branch-2:1", "duplicate", None),
        ("log:2#branch-2:3", None, 1),
    ]  # fmt: skip
    assert found["turns"][1]["decision"] == {"rating": -1, "comment": None, "tags": [], "edited": None, "kept": None}


def test_a_copy_counts_where_a_filter_left_out_the_first(tmp_path, forest) -> None:
    log = jsonl(tmp_path / "log.jsonl", TREE)
    run(tmp_path / "run", log, filter=("model=m2",))
    found = tables(tmp_path / "run")
    assert [(t["turn_id"], t["skip_reason"], t["decision"]["rating"]) for t in found["turns"]] == [
        ("log:1#branch-2:1", None, -1), ("log:1#branch-2:3", None, 1)
    ]  # fmt: skip


def test_the_branches_of_a_conversation_are_held_out_together(tmp_path, forest) -> None:
    run(tmp_path / "run", jsonl(tmp_path / "log.jsonl", *[TREE] * 30))
    sides: dict[str, set[bool]] = {}
    for session in tables(tmp_path / "run")["sessions"]:
        sides.setdefault(session["tree"], set()).add(is_held_out(session["session_id"], 0.4))
    assert len(sides) == 30
    assert Counter(map(len, sides.values())) == {1: 30}
    assert {next(iter(side)) for side in sides.values()} == {True, False}


def test_what_people_wrote_is_redacted(tmp_path, forest, monkeypatch) -> None:
    def read_rated(line: Line, record: dict) -> list:
        nodes = [node("U1", None), node("A1", "U1"), node("U2", "A1")]
        texts = {name: f"{name} bob@example.com" for name in ("comment", "edited", "kept")}
        nodes[1].last_note.add_decision(rating=1, tags=["bob@example.com"], **texts)
        return list(read_branches(line, nodes, None, {}))

    monkeypatch.setitem(
        READERS,
        "forest",
        line_reader("forest", lambda record: "nodes" in record, read_rated),
    )
    run(tmp_path / "run", jsonl(tmp_path / "log.jsonl", TREE), redact=True)
    assert tables(tmp_path / "run")["turns"][0]["decision"] == {
        "rating": 1, "tags": ["[email]"], "comment": "comment [email]", "edited": "edited [email]",
        "kept": "kept [email]",
    }  # fmt: skip


def test_a_note_takes_only_what_somebody_decided() -> None:
    note = Note()
    note.add_decision(rating=None, comment="", tags=[])
    assert note.decision is None
    note.add_decision(rating=0)
    note.add_decision(kept="better")
    assert note.decision == {"rating": 0, "comment": None, "tags": [], "edited": None, "kept": "better"}
