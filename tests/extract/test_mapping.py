"""Tests of `--map`, which says where the fields are in logs that no reader knows."""

import json
from pathlib import Path

import pytest
from small_logs import jsonl, run, tables, turn_rows
from work import passes

from opdkit.chat.conversation import Conversation
from opdkit.config.extract import ExtractConfig
from opdkit.errors import ConfigError
from opdkit.extract.formats.mapped import NO_THUMB, make_mapped_reader
from opdkit.extract.formats.reader import LeftOut, Line, Rejected
from opdkit.extract.mapping import load, parse_path, value_at
from opdkit.extract.stage import choose_format
from opdkit.store.plans import manifest

CHAT = """
messages = "chat.turns"
role = "speaker"
content = "body.text"
model = "meta.model"
time = "meta.at"
tools = "functions"
tool_calls = "actions"
[roles]
customer = "user"
bot = "assistant"
note = "drop"
[tool_call]
name = "tool"
arguments = "params"
"""
ROW = {"chat": {"turns": [
    {"speaker": "customer", "body": {"text": "u"}}, {"speaker": "note", "body": {"text": "x"}},
    {"speaker": "bot", "body": {"text": "a"}, "actions": [{"tool": "find", "params": {"q": 1}}]},
    {"speaker": "tool", "body": {"text": "found"}}]},
    "meta": {"model": "m", "at": 1767225600, "shop": "s"}, "functions": [{"name": "find"}], "stars": 5}  # fmt: skip


def mapping(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fields.toml"
    path.write_text(text)
    return path


def read(tmp_path: Path, text: str, *records) -> list[Conversation | Rejected | LeftOut]:
    lines = [Line("log", n, json.dumps(r).encode()) for n, r in enumerate(records, 1)]
    return list(make_mapped_reader(load(str(mapping(tmp_path, text)))).read(lines))


def said(told: Conversation) -> list:
    return [(m["role"], m["content"]) for m in told.messages]


def test_a_conversation_a_line(tmp_path):
    (told,) = read(tmp_path, CHAT, ROW)
    assert said(told) == [("user", "u"), ("assistant", "a"), ("tool", "found")]
    assert told.messages[1]["tool_calls"] == [{"id": "", "name": "find", "arguments": '{"q":1}'}]
    assert (told.model, json.loads(told.tools)) == ("m", [{"name": "find"}])
    assert told.metadata == {"timestamp": "2026-01-01T00:00:00+00:00", "stars": 5, "meta": ROW["meta"]}


def test_the_metadata_can_be_named(tmp_path):
    (told,) = read(tmp_path, 'metadata = ["meta.shop", "stars"]\n' + CHAT, ROW)
    assert told.metadata == {"timestamp": "2026-01-01T00:00:00+00:00", "meta.shop": "s", "stars": 5}


def test_an_object_without_a_role_is_the_message_that_its_place_says(tmp_path):
    """This also holds if the roles of other messages are in an object (`author.role`)."""
    fields = 'prompt = "q"\nreply = "a"\nrole = "author.role"\ncontent = "text"'
    row = {"q": [{"author": {"role": "user"}, "text": "hi"}], "a": {"author": {"name": "bot"}, "text": "hello"}}
    (told,) = read(tmp_path, fields, row)
    assert said(told) == [("user", "hi"), ("assistant", "hello")]


def test_messages_may_be_json_text_as_in_a_column_of_a_table(tmp_path):
    turns = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    text = json.dumps(turns)
    for fields, row in (('messages = "m"', {"m": text}), ('prompt = "q"\nreply = "a"', {"q": text, "a": "b"})):
        (told,) = read(tmp_path, fields, row)
        assert said(told)[:2] == [("user", "u"), ("assistant", "a")]
    for words in ('["u"]', '[{"id": 1}]', "[u]", '[{"role": "CEO", "name": "Ann"}]'):  # what a person pasted
        (told,) = read(tmp_path, 'prompt = "q"\nreply = "a"', {"q": words, "a": words})
        assert said(told) == [("user", words), ("assistant", words)]


PAIRS = 'prompt = "question"\nreply = "answer"\nnext = "feedback.text"\nsystem = "instructions"\nfinish_reason = "why"'


def test_prompt_reply_and_what_came_of_it(tmp_path):
    row = {"question": "u", "answer": "a", "feedback": {"text": "wrong"}, "instructions": "s", "why": "stop", "id": 7}
    told, silent, cut = read(tmp_path, PAIRS, row, row | {"feedback": None}, row | {"why": "length"})
    assert said(told) == [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "wrong")]
    assert told.metadata == {"id": 7, "why": "stop"}
    assert [turn_rows("s", t)[0]["skip_reason"] for t in (told, silent, cut)] == [None, "no next state", "truncated"]


def test_a_reply_may_be_a_list_with_calls_before_it(tmp_path):
    call = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "find", "arguments": "{}"}}]}
    result = {"role": "tool", "tool_call_id": "1", "content": "found"}
    row = {"q": "u", "a": [call, result, {"role": "assistant", "content": "a"}]}
    (told,) = read(tmp_path, 'prompt = "q"\nreply = "a"', row)
    assert [m["role"] for m in told.messages] == ["user", "assistant", "tool", "assistant"]
    assert told.messages[1]["tool_calls"][0]["name"] == "find"


def test_a_reply_may_be_the_parts_of_a_content(tmp_path):
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    parts = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."}, use]
    (told,) = read(tmp_path, 'prompt = "p"\nreply = "r.content"', {"p": "hi", "r": {"content": parts}})
    reply = told.messages[1]
    assert (reply["role"], reply["content"], reply["reasoning"]) == ("assistant", "I look.", "hm")
    assert reply["tool_calls"] == [{"id": "t", "name": "f", "arguments": '{"a":1}'}]
    (aside,) = read(tmp_path, 'messages = "m"', {"m": parts})
    assert aside.reason == "message without a role"


@pytest.mark.parametrize(("logged", "rating"), [
    (1, 1), (0, 0), (0.0, 0), (-1, -1), (True, 1), (False, -1), ("up", 1), ("bad", -1),
    ("1", 1), ("0", 0), ("-1.0", -1), ("True", 1), ("false", -1), ("👍", 1),
])  # fmt: skip
def test_ratings(tmp_path, logged, rating):
    (told,) = read(tmp_path, 'prompt = "q"\nreply = "a"\nrating = "thumb"', {"q": "hi", "a": "hello", "thumb": logged})
    assert told.notes[1].decision["rating"] == rating


@pytest.mark.parametrize(("final", "edited"), [("Goodbye.", None), ("Goodbye.\n", None), (" \n", None),
                                               ("Bye.", "Bye.")])  # fmt: skip
def test_a_text_that_is_the_reply_itself_or_blank_is_no_edit(tmp_path, final, edited):
    """A column with the final text is filled in every row, so an unchanged reply must not count as corrected (-1)."""
    (tmp_path / "map.toml").write_text('prompt = "q"\nreply = "a"\nedited = "final"\nrating = "thumb"')
    log = jsonl(tmp_path / "log.jsonl", {"q": "hi", "a": "Goodbye.", "final": final, "thumb": 1})
    run(tmp_path / "run", log, map=str(tmp_path / "map.toml"))
    (turn,) = tables(tmp_path / "run")["turns"]
    assert turn["decision"]["edited"] == edited
    assert turn["decision"]["rating"] == 1


@pytest.mark.parametrize("stars", [5, "4", "*****", 0.5])
def test_ratings_that_are_no_thumbs_are_counted(tmp_path, stars):
    fields, row = 'prompt = "q"\nreply = "a"\nrating = "stars"', {"q": "hi", "a": "hello", "stars": stars}
    for link in ("", "\nlink = true"):
        told, left_out = read(tmp_path, fields + link, row)
        assert told.notes[1].decision is None
        assert left_out == LeftOut(NO_THUMB)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello", "stars": stars}]
    assert read(tmp_path, 'messages = "m"\nrating = "stars"', {"m": turns})[1:] == [LeftOut(NO_THUMB)]


def test_pairs_whose_prompts_repeat_the_conversation_are_linked(tmp_path):
    u, a = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
    rows = [{"p": [u], "r": "a"}, {"p": [u, a, {"role": "user", "content": "no"}], "r": {"content": "b"}}]
    log = jsonl(tmp_path / "log.jsonl", *rows)
    fields = mapping(tmp_path, 'prompt = "p"\nreply = "r"\nlink = true')
    run(tmp_path / "run", log, map=str(fields))
    found = tables(tmp_path / "run")
    assert [(m["role"], m["content"]) for m in found["sessions"][0]["messages"]] == [
        ("user", "u"), ("assistant", "a"), ("user", "no"), ("assistant", "b")]  # fmt: skip
    assert [t["skip_reason"] for t in found["turns"]] == [None, "no next state"]


def test_two_users_who_ask_the_same_each_keep_their_reply_and_reaction(tmp_path):
    """The other's call may repeat the words of a reaction, and only one of the replies may be continued."""
    fields = mapping(tmp_path, 'prompt = "p"\nreply = "r"\nnext = "n"\nlink = true')
    ask = {"role": "user", "content": "How do I reset it?"}
    other = {"role": "assistant", "content": "Use the app."}
    for words, more in (("No.", []), ("Which app?", [{"p": [ask], "r": "Use the app.", "n": "Which app?"}])):
        said = [ask, other, {"role": "user", "content": words}]
        records = [{"p": [ask], "r": "Click Forgot.", "n": "No."}, *more, {"p": said, "r": "Ours.", "n": "Thanks."}]
        run(tmp_path / words, jsonl(tmp_path / f"{words}.jsonl", *records), map=str(fields))
        found = tables(tmp_path / words)
        (first,) = (s for s in found["sessions"] if s["messages"][1]["content"] == "Click Forgot.")
        assert first["messages"][2]["content"] == "No."
        assert [t["skip_reason"] for t in found["turns"] if t["session_id"] == first["session_id"]] == [None]


MESSAGES = 'session = "conv"\norder = "n"\nrole = "from"\ncontent = "text"\nmodel = "model"'


def test_thousands_of_users_who_get_the_same_reply_to_the_same_words_are_linked_in_linear_time(tmp_path):
    """Each record has a different next state, and still no record is compared with all others."""
    reader = make_mapped_reader(load(str(mapping(tmp_path, 'prompt = "p"\nreply = "r"\nnext = "n"\nlink = true'))))
    text = "\n".join(json.dumps({"p": "hi", "r": "Hello!", "n": f"question {n}"}) for n in range(3_000))
    lines = [Line("log", n, data) for n, data in enumerate(text.encode().splitlines(), 1)]
    assert len(list(reader.read(lines))) == 3_000
    assert passes(lambda _: list(reader.read(lines)), text) < 50  # 11; with each compared to all others 110


def line(conv, n, who: str, text: str, **more) -> dict:
    return {"conv": conv, "n": n, "from": who, "text": text, **more}


def test_a_message_a_line_in_its_order_wherever_it_lies(tmp_path):
    rows = [line("x", 2, "gpt", "a", model="m"), line("y", 1, "user", "U"), line("x", 1, "user", "u"),
            line("y", 2, "assistant", "A"), line("x", 10, "human", "v", place="web")]  # fmt: skip
    log = jsonl(tmp_path / "log.jsonl", *rows)
    summary = run(tmp_path / "run", log, map=str(mapping(tmp_path, MESSAGES)), part_mb=1e-6)
    found = tables(tmp_path / "run")["sessions"]
    assert summary.counters.rows_in == 2
    assert [(s["session_id"], s["format"], s["model"]) for s in found] == [
        ("log:x", "mapped", "m"), ("log:y", "mapped", None)]  # fmt: skip
    assert [m["content"] for m in found[0]["messages"]] == ["u", "a", "v"]


def test_what_only_a_later_line_of_a_session_says_is_kept(tmp_path):
    rows = [line("x", 1, "user", "u", shop="s", stars=None), line("x", 2, "gpt", "a", shop="t", tools=[{"name": "f"}]),
            line("x", 3, "rating", "", stars=5), line("x", 4, "user", "v", stars=1)]  # fmt: skip
    (told,) = read(tmp_path, MESSAGES + '\ntools = "tools"\n[roles]\nrating = "drop"', *rows)
    assert [m["content"] for m in told.messages] == ["u", "a", "v"]
    assert (told.metadata, told.tools) == ({"shop": "s", "stars": 5}, '[{"name":"f"}]')


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes as Linux does")
def test_messages_of_many_sessions_side_by_side_are_read_without_what_lies_around_them(tmp_path):
    roles = ("user", "assistant", "user")
    rows = [line(k, n, roles[n], f"{n} {'x' * 3_000}") for n in range(3) for k in range(500)]
    log, fields = jsonl(tmp_path / "log.jsonl", *rows), mapping(tmp_path, MESSAGES)
    before = int(Path("/proc/self/io").read_text().split()[1])
    run(tmp_path / "run", log, map=str(fields))
    assert int(Path("/proc/self/io").read_text().split()[1]) - before < len(rows) * 100_000


def test_rows_of_use_chat_hold_whole_replies(tmp_path):
    call = {"type": "tool-f", "toolCallId": "1", "state": "output-available", "input": {}, "output": "x"}
    parts = [{"type": "step-start"}, call, {"type": "step-start"}, {"type": "text", "text": "a"}]
    rows = [{"chatId": "c", "role": "user", "parts": [{"type": "text", "text": "u"}]},
            {"chatId": "c", "role": "assistant", "parts": parts}]  # fmt: skip
    (told,) = read(tmp_path, 'session = "chatId"\ncontent = "parts"', *rows)
    assert said(told) == [("user", "u"), ("assistant", None), ("tool", "x"), ("assistant", "a")]


def test_sessions_may_be_named_by_numbers_that_pandas_made_floats(tmp_path):
    rows = [line(7.0, 1, "user", "u"), line(7, 2, "gpt", "a"), line(8.0, 1, "user", "v"),
            line(2.5, 1, "user", "?"), line(None, 1, "user", "?")]  # fmt: skip
    log, fields = jsonl(tmp_path / "log.jsonl", *rows), mapping(tmp_path, MESSAGES)
    run(tmp_path / "run", log, map=str(fields), part_mb=1e-6)
    found = tables(tmp_path / "run")
    assert [(s["session_id"], len(s["messages"])) for s in found["sessions"]] == [("log:7", 2), ("log:8", 1)]
    assert [r["detail"] for r in found["rejected"]] == ["a float at conv", "nothing at conv"]


def test_numbers_that_are_written_as_text_give_the_order(tmp_path):
    rows = [line("x", str(n), "user" if n % 2 == 0 else "assistant", f"t{n}") for n in (10, 9, 1, 0)]
    (told,) = read(tmp_path, MESSAGES, *rows)
    assert [m["content"] for m in told.messages] == ["t0", "t1", "t9", "t10"]


@pytest.mark.parametrize("days", [("12/31/2026, 9:05:00 AM", "12/31/2026, 10:01:00 AM"), ("31.12.2026", "1.1.2027"),
                                  ("Thu, 31 Dec 2026 09:00:00 GMT", "Fri, 01 Jan 2027 09:00:00 GMT")])  # fmt: skip
def test_a_time_that_is_not_iso_gives_no_order(tmp_path, days):
    """Compared as text, these times would put the messages into a wrong order."""
    rows = [line("x", day, role, role) for day, role in zip(days, ("user", "assistant"), strict=True)]
    assert [(item.reason, day in item.detail) for item, day in zip(read(tmp_path, MESSAGES, *rows), days, strict=True)
            ] == [("no order", True)] * 2  # fmt: skip
    iso = [line("x", f"{year}/01/01 00:00:00 UTC", role, role) for year, role in ((2027, "assistant"), (2026, "user"))]
    (told,) = read(tmp_path, MESSAGES, *iso)
    assert [m["content"] for m in told.messages] == ["user", "assistant"]


def test_a_message_that_cannot_be_read_marks_the_turns_beside_it(tmp_path):
    rows = [line("x", 1, "user", "u"), line("x", 2, "assistant", "a"), line("x", 3, "robot", "?"),
            line("x", 4, "assistant", "b"), line("x", 5, "user", "v"), line("x", None, "user", "w")]  # fmt: skip
    first, second, told = read(tmp_path, MESSAGES, *rows)
    assert [first.reason, second.reason] == ["unknown role", "no order"]
    skips = [row["skip_reason"] for row in turn_rows("s", told)]
    assert skips == ["unreadable line beside it"] * 2


@pytest.mark.parametrize(("row", "reason"), [
    ({"chat": {}}, "no messages"), ({"chat": {"turns": []}}, "no messages"), ({"chat": {"turns": "x"}}, "no messages"),
    ({"chat": {"turns": [1]}}, "message is not an object"), ({"chat": {"turns": [{}]}}, "message without a role"),
    ({"chat": {"turns": [{"speaker": "boss"}]}}, "unknown role"),
    ({"chat": {"turns": [{"speaker": "note"}]}}, "no messages"),
])  # fmt: skip
def test_rows_that_the_mapping_does_not_fit_are_set_aside(tmp_path, row, reason):
    (aside,) = read(tmp_path, CHAT, row)
    assert aside.reason == reason


@pytest.mark.parametrize(("text", "words"), [
    ("", "by one of `messages`"), ('mesages = "x"', "did you mean 'messages'"),
    ('messages = "x"\nprompt = "y"', "one of"),
    ('prompt = "y"', "belong together"), ('messages = "a..b"', "a path is written like"), ("messages = 3", "a path"),
    ('messages = "x"\n[roles]\nbot = "assistent"', "did you mean 'assistant'"), ("messages = ", "TOML"),
    ('messages = "x"\norder = "y"', "`order`"), ('messages = "x"\nnext = "y"', "`next` is for"),
    ('messages = "x"\nlink = true', "`link` is for"), ('messages = "x"\nmetadata = 3', "list of paths"),
    ('messages = "x"\n[tool_call]\nnam = "y"', "did you mean 'name'"), ('messages = "x"\nsession = "y"', "link = true"),
])  # fmt: skip
def test_a_wrong_mapping_is_refused_by_its_field(tmp_path, text, words):
    with pytest.raises(ConfigError) as caught:
        load(str(mapping(tmp_path, text)))
    assert words in str(caught.value)


def test_a_mapping_that_is_not_there_and_one_with_a_format(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml"):
        choose_format(ExtractConfig(run=tmp_path, logs=("x",), map=str(tmp_path / "none.toml")))
    with pytest.raises(ConfigError, match="leave one out"):
        ExtractConfig(run=tmp_path, logs=("x",), map=str(mapping(tmp_path, CHAT)), format="openai")


@pytest.mark.parametrize(("text", "steps"), [
    ("a", ("a",)), ("a.b", ("a", "b")), ("a[0].b", ("a", 0, "b")), ('a."b.c"[-1]', ("a", "b.c", -1)),
    ('"a b"', ("a b",)), ("a[0][1]", ("a", 0, 1)),
])  # fmt: skip
def test_paths(text, steps):
    assert parse_path(text, "x") == steps


@pytest.mark.parametrize("text", ["", ".", "a.", ".a.", "a b", "a[x]", "a]", 'a"b"', None, 5])
def test_what_is_no_path(text):
    with pytest.raises(ConfigError):
        parse_path(text, "x")


def test_a_path_that_leads_nowhere_is_null():
    assert value_at({"a": [1]}, ("a", 0)) == 1
    assert [value_at({"a": [1]}, p) for p in (("a", 1), ("a", -2), ("b",), ("a", "x"), (0,), None)] == [None] * 6


def test_the_plan_pins_what_the_mapping_says_and_not_its_file(tmp_path):
    log = jsonl(tmp_path / "log.jsonl", ROW)
    fields = mapping(tmp_path, CHAT)
    run(tmp_path / "run", log, map=str(fields))
    assert len(manifest(tmp_path / "run", "extract")["plan"]["config"]["map"]) == 16
    other = tmp_path / "other.toml"
    other.write_text("# the same\n" + CHAT)
    run(tmp_path / "run", log, map=str(other))
    fields.write_text(CHAT.replace('"meta.model"', '"model"'))
    with pytest.raises(ConfigError, match=r"config\.map"):
        run(tmp_path / "run", log, map=str(fields))


def test_workers_read_a_session_per_line(tmp_path):
    """The reader that is made from a mapping can be sent to other processes."""
    log, fields = jsonl(tmp_path / "log.jsonl", *[ROW] * 40), str(mapping(tmp_path, CHAT))
    run(tmp_path / "one", log, map=fields, part_mb=1e-3)
    run(tmp_path / "two", log, map=fields, part_mb=1e-3, workers=2)
    assert tables(tmp_path / "one") == tables(tmp_path / "two")


def test_shards_and_workers_give_the_same(tmp_path):
    rows = [line(f"c{n % 7}", n, "user" if n // 7 % 2 == 0 else "assistant", f"t{n}") for n in range(70)]
    log, fields = jsonl(tmp_path / "log.jsonl", *rows), str(mapping(tmp_path, MESSAGES))
    run(tmp_path / "one", log, map=fields, part_mb=1e-3)
    run(tmp_path / "two", log, map=fields, part_mb=1e-3, shard="1/2")
    run(tmp_path / "two", log, map=fields, part_mb=1e-3, shard="0/2", workers=2)
    assert tables(tmp_path / "one") == tables(tmp_path / "two")
