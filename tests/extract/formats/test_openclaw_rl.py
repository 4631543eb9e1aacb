"""Tests of the reader for OpenClaw-RL records: which records are joined to a session, and which must not be."""

import json
import random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_logs import turn_rows

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats.openclaw_rl import READER, read_reply, recognises
from opdkit.extract.formats.reader import Line, Rejected


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def answer(text: str) -> dict:
    return {"role": "assistant", "content": text}


def record(messages: list[dict], reply: str, turn: int = 1, next_state=None, session="s", **more) -> dict:
    prompt = "".join(f"<|im_start|>{m['role']}\n{m.get('content')}<|im_end|>\n" for m in messages)
    return {"session_id": session, "turn": turn, "timestamp": f"t{turn}", "messages": messages,
            "prompt_text": prompt + "<|im_start|>assistant\n", "response_text": reply + "<|im_end|>\n",
            "tool_calls": None, "next_state": next_state} | more  # fmt: skip


def dialogue(*texts: str, think: str = "", **more) -> list[dict]:
    """Return the records of one session; `texts` alternate between user and assistant."""
    messages, records = [], []
    for turn, (asked, said) in enumerate(zip(texts[::2], texts[1::2], strict=False), 1):
        messages = [*messages, user(asked)]
        following = user(texts[2 * turn]) if 2 * turn < len(texts) else None
        records.append(record(messages, think + said, turn, following, **more))
        messages = [*messages, answer(said)]
    return records


def read(records: list) -> tuple[list[Conversation], list[Rejected]]:
    lines = [Line("log", i, r if isinstance(r, bytes) else orjson.dumps(r)) for i, r in enumerate(records, 1)]
    sessions = list(READER.read(lines))
    return [t for t in sessions if isinstance(t, Conversation)], [t for t in sessions if isinstance(t, Rejected)]


def texts(session: Conversation) -> list:
    return [m["content"] for m in session.messages]


def reasons(session: Conversation) -> list:
    return [row["skip_reason"] for row in turn_rows("x", session)]


THINK = "<think>\nhm\n</think>\n\n"


def test_records_that_continue_each_other_are_one_session():
    (session,), aside = read(dialogue("u1", "a1", "u2", "a2", "u3", think=THINK))
    assert aside == []
    assert texts(session) == ["u1", "a1", "u2", "a2", "u3"]
    assert [m["reasoning"] for m in session.messages] == [None, "hm", None, "hm", None]
    assert reasons(session) == [None, None]
    logged = [{"line": 1, "turn": 1, "timestamp": "t1", "message_index": 1},
              {"line": 2, "turn": 2, "timestamp": "t2", "message_index": 3}]  # fmt: skip
    assert session.metadata == {"session_id": "s", "records": logged}


def test_the_next_state_is_everything_the_next_prompt_adds():
    """The record's own next_state is only the last of the parallel tool results."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": f'{{"i": {i}}}'}} for i in (1, 2)
    ]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": f"r{i}"} for i in (1, 2)]
    markup = "".join(f'\n<tool_call>\n{{"name": "f", "arguments": {{"i":{i}}}}}\n</tool_call>' for i in (1, 2))
    first = record([user("u1")], "on it" + markup, 1, results[1], tool_calls=calls)
    called = {"role": "assistant", "content": "on it", "tool_calls": calls}
    second = record([user("u1"), called, *results], "done", 2, user("thanks"))
    (session,), _ = read([first, second])
    assert texts(session) == ["u1", "on it", "r1", "r2", "done", "thanks"]
    assert [(r["next_count"], r["next_role"]) for r in turn_rows("x", session)] == [(2, "tool"), (1, "user")]
    assert [c["id"] for c in session.messages[1]["tool_calls"]] == ["c1", "c2"]
    # Without the next record there is only the tool result that this record logged.
    (alone,), _ = read([first])
    assert texts(alone) == ["u1", "on it", "r2"]


@pytest.mark.parametrize("changed", [
    answer(" a1\n"), answer(THINK + "a1"), answer("a1<|im_end|>"),
    {"role": "assistant", "content": [{"type": "text", "text": "a1"}]},
    {"role": "assistant", "content": "a1", "reasoning_content": "hm", "tool_calls": None},
])  # fmt: skip
def test_a_reply_that_comes_back_a_little_different_is_the_same(changed):
    (session,), _ = read([record([user("u1")], THINK + "a1"), record([user("u1"), changed, user("u2")], "a2", 2)])
    assert texts(session) == ["u1", "a1", "u2", "a2"]
    assert session.messages[1]["reasoning"] == "hm"


def test_the_order_of_the_lines_does_not_matter():
    """Records out of order are joined to one session in the order of the conversation."""
    records = dialogue("u1", "a1", "u2", "a2", "u3", "a3", "u4")
    random.Random(0).shuffle(records)
    (session,), aside = read(records)
    assert texts(session) == ["u1", "a1", "u2", "a2", "u3", "a3", "u4"]
    assert aside == []


def test_sessions_that_share_an_id_stay_apart():
    """Records of two conversations under one session id are told apart by their messages."""
    one, two = dialogue("u1", "a1", "u2", "a2"), dialogue("v1", "b1", "v2", "b2", "v3")
    sessions, _ = read([one[0], two[0], one[1], two[1]])
    assert [texts(t) for t in sessions] == [["u1", "a1", "u2", "a2"], ["v1", "b1", "v2", "b2", "v3"]]


def test_the_first_message_of_the_next_session_is_no_reaction():
    """The recorder logs that message as the next state if both sessions have the same id."""
    one, two = dialogue("u1", "a1"), dialogue("v1", "b1")
    one[0]["next_state"] = user("v1")
    sessions, _ = read(one + two)
    assert [texts(t) for t in sessions] == [["u1", "a1"], ["v1", "b1"]]
    assert [reasons(t) for t in sessions] == [["no next state"], ["no next state"]]


def test_a_compacted_context_begins_a_new_session_and_keeps_the_reaction():
    """The next prompt does not continue this conversation, so the two are not joined."""
    before = record([user("u1")], "a1", 1, user("u2"))
    after = record([user("summary of u1"), answer("a0"), user("u2")], "a2", 2, user("u3"))
    sessions, _ = read([before, after])
    assert [texts(t) for t in sessions] == [["u1", "a1", "u2"], ["summary of u1", "a0", "u2", "a2", "u3"]]
    assert [reasons(t) for t in sessions] == [[None], ["no record", None]]


def test_exact_repeats_are_dropped_and_counted():
    """A retry and a record that was logged twice are not a user who repeats the request."""
    records = dialogue("u1", "a1", "u2", "a2")
    (session,), aside = read([records[0], records[0], records[1], records[1]])
    assert texts(session) == ["u1", "a1", "u2", "a2"]
    assert [(r.line, r.reason) for r in aside] == [(2, "repeated record"), (4, "repeated record")]


def test_of_a_repeated_record_the_one_with_a_next_state_stays():
    early, late = record([user("u1")], "a1"), record([user("u1")], "a1", 1, user("u2"))
    for records, dropped in (([early, late], 1), ([late, early], 2)):
        (session,), aside = read(records)
        assert texts(session) == ["u1", "a1", "u2"]
        assert [r.line for r in aside] == [dropped]


def test_a_retried_reply_leaves_the_conversation():
    """Of two replies to one prompt, only the one that the conversation continued from is trainable."""
    kept = dialogue("u1", "good", "u2", "a2", "u3")
    sessions, _ = read([record([user("u1")], "bad", 0, user("u1")), *kept])
    assert [texts(t) for t in sessions] == [["u1", "bad", "u1"], ["u1", "good", "u2", "a2", "u3"]]
    assert [reasons(t) for t in sessions] == [["retry"], [None, None]]


def test_two_replies_that_both_got_a_reaction_are_two_sessions():
    sessions, _ = read([record([user("u1")], "x", 1, user("more")), record([user("u1")], "y", 1, user("less"))])
    assert [(texts(t), reasons(t)) for t in sessions] == [(["u1", "x", "more"], [None]), (["u1", "y", "less"], [None])]


def test_of_replies_that_nobody_answered_the_last_one_stays():
    sessions, _ = read([record([user("u1")], "x"), record([user("u1")], "y")])
    assert [(texts(t), reasons(t)) for t in sessions] == [(["u1", "x"], ["retry"]), (["u1", "y"], ["no next state"])]


def test_conversations_keep_their_numbers_in_a_log_that_grows():
    """Two conversations begin alike; later the first one continues and a third one begins. Lines come in any order."""
    ann, bob = (record([user("u1")], reply, 1, user(f"to {reply}")) for reply in ("ann's", "bob's"))
    later = record([user("u1"), answer("ann's"), user("to ann's")], "again", 2, user("ok"))
    third = record([user("u1")], "carl's", 1, user("to carl's"))
    for records in ([ann, bob], [ann, bob, later], [ann, bob, later, third]):
        sessions, _ = read(records)
        assert [texts(session)[1] for session in sessions] == ["ann's", "bob's", "carl's"][: len(sessions)]
    assert len(read([later, third, bob, ann])[0]) == 3


def test_conversations_keep_their_numbers_if_a_record_is_logged_again_or_comes_late():
    first = record([user("u1")], "a1")
    ann, bob, again = (record([user("u1"), answer("a1"), user(f"to {name}")], f"for {name}", 2, following)
                       for name, following in (("ann", None), ("bob", None), ("ann", user("thanks"))))  # fmt: skip
    for records in ([ann, bob], [ann, bob, again], [ann, bob, first], [first, ann, bob, again]):
        assert [texts(session)[3] for session in read(records)[0]] == ["for ann", "for bob"]


def test_a_turn_that_two_sessions_share_is_trained_once():
    """If the user went back and asked something else, the shared turn counts in the branch of its logged next state."""
    first = record([user("u1")], "a1", 1, user("u2"))
    ways = [record([user("u1"), answer("a1"), user(u)], f"to {u}", 2, user("ok")) for u in ("u2", "v2")]
    sessions, _ = read([first, *ways])
    assert [texts(t) for t in sessions] == [["u1", "a1", "u2", "to u2", "ok"], ["u1", "a1", "v2", "to v2", "ok"]]
    assert [reasons(t) for t in sessions] == [[None, None], ["duplicate", None]]


def test_a_lost_record_leaves_a_reply_that_nobody_vouches_for():
    records = dialogue("u1", "a1", "u2", "a2", "u3", "a3", "u4")
    (session,), _ = read([records[0], records[2]])
    assert texts(session) == ["u1", "a1", "u2", "a2", "u3", "a3", "u4"]
    assert reasons(session) == [None, "no record", None]


def test_judge_votes_and_broken_records_are_set_aside():
    votes = {"session_id": "s", "turn": 1, "accepted": False, "hint": "", "votes": []}
    assert recognises(votes)
    sessions, aside = read([votes, b"{", {"session_id": "s"}, {"session_id": "s", "messages": [user("u")]},
                            record([{"role": "narrator"}], "a"), record([user("u1")], "a1")])  # fmt: skip
    assert [r.reason for r in aside] == [
        "judge votes, not a conversation", "last line cut short", "no messages", "no reply", "unknown role"
    ]  # fmt: skip
    assert len(sessions) == 1


def test_a_reply_that_is_the_whole_conversation():
    """If the prompt was not a prefix of the conversation, the recorder logged the whole conversation as the reply."""
    whole = record([user("u1")], "a1")
    whole["response_text"] = whole["prompt_text"].replace("u1", "u1 ") + "a1<|im_end|>\n"
    assert read_reply(whole)["content"] == "a1"
    whole |= {"prompt_text": "[INST] u1 [/INST]", "response_text": "[INST] u1 [/INST] a1"}
    assert read([whole])[1][0].reason == "reply is the whole conversation"


def test_an_empty_reply_is_null_not_empty_text():
    assert read_reply(record([user("u1")], ""))["content"] is None
    assert read_reply(record([user("u1")], "code:\n\n  x "))["content"] == "code:\n\n  x "


def test_logged_tokens_and_side_turns():
    more = {"response_token_ids": [1, 2], "logprobs": [-0.5, -1], "turn_type": "side", "finish_reason": "stop",
            "reward": 1.0, "model": "m", "tools": [{"a": 1}]}  # fmt: skip
    (session,), _ = read([record([user("u1")], "a1", 1, user("u2"), **more)])
    note = session.notes[1]
    assert (note.token_ids, note.logprobs, note.kind, note.finish_reason) == ([1, 2], [-0.5, -1.0], "side", "stop")
    assert (session.model, session.tools) == ("m", '[{"a":1}]')
    assert session.metadata["records"][0]["reward"] == 1.0


def test_the_real_record(shared_data):
    (session,), aside = read([json.loads((shared_data / "openclaw_rl" / "qwen3_4b_lora_record.jsonl").read_text())])
    assert aside == []
    assert [m["role"] for m in session.messages] == ["user", "assistant", "user"]
    assert session.messages[1]["content"].startswith("The solution to the problem $2 + 2$")
    assert session.messages[1]["content"].endswith("$$\n\\boxed{4}\n$$")
    assert session.messages[1]["reasoning"].startswith("Okay, so I need to solve 2 + 2.")
    assert reasons(session) == [None]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), min_size=1, max_size=4), st.randoms())
def test_every_turn_is_trained_once_and_no_prompt_is_invented(sessions, rng):
    """A trained turn is a logged prompt and reply and counts once, though records share beginnings and are shuffled."""
    records = []
    for words in sessions:
        spoken = [w for i, word in enumerate(words) for w in (f"u{word}{i}", f"a{word}{i}")]
        records += dialogue(*spoken, "ok")
    rng.shuffle(records)
    conversations, aside = read(records)
    logged = {
        (*(m["content"] for m in r["messages"]), r["response_text"].removesuffix("<|im_end|>\n")) for r in records
    }
    trained = []
    for conversation in conversations:
        contents = texts(conversation)
        trained += [
            tuple(contents[: row["message_index"] + 2]) for row in turn_rows("x", conversation) if row["trainable"]
        ]
    assert {turn[:-1] for turn in trained} == logged
    assert len(trained) == len(set(trained))
    assert len(aside) < len(records)


def test_a_record_that_cannot_be_written_is_set_aside_alone():
    """Fields that are nested too deeply to be written cost their own record; the records beside it stay a session."""
    deep: list = []
    for _ in range(600):
        deep = [deep]
    first, second = dialogue("u0", "a0", "u1", "a1", "ok")
    for field in ("tools", "extra"):
        (session,), (aside,) = read([first, second, json.dumps(record([user("x")], "y", **{field: deep})).encode()])
        assert texts(session) == ["u0", "a0", "u1", "a1", "ok"]
        assert (aside.line, aside.reason) == (3, "nested too deeply")


def test_arguments_nested_deeper_than_is_written_are_compared_as_text():
    """orjson reads 1,024 levels but writes only 254, so such arguments cannot be normalised."""
    call = {"id": "c", "function": {"name": "f", "arguments": "[" * 300 + "]" * 300}}
    (session,), aside = read([record([user("u")], "a", tool_calls=[call])])
    assert session.messages[1]["tool_calls"][0]["arguments"] == "[" * 300 + "]" * 300
    assert not aside
