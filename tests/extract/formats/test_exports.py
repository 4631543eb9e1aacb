"""Tests of the readers for exports of front ends, tracing services and proxies, on the exports of exports.py."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from extract.formats import exports
from extract.formats.exports import COUNTED
from small_logs import jsonl, run, tables

from opdkit.chat.conversation import LEFT_OUT, Conversation, Unreadable
from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.formats import READERS
from opdkit.extract.formats.json_lines import parse
from opdkit.extract.formats.reader import LeftOut, Line
from opdkit.extract.formats.trees import EMPTY_CONVERSATION
from opdkit.extract.turns import turns
from opdkit.store.counters import read_counters

LOGGED = Path(__file__).parent / "logged"
builders = pytest.mark.parametrize("build", list(COUNTED), ids=lambda build: build.__name__)


def extract(folder: Path, *logs: Path, **options) -> dict[str, list[dict]]:
    """Return the tables, even if too little could be read; "left out" counts the records that were left out."""
    try:
        run(folder, *logs, **options)
    except OpdkitError as error:
        if isinstance(error, ConfigError) or "nothing to read" in str(error):
            raise
    found = tables(folder)
    dropped: Counter[str] = Counter()
    for path in sorted((folder / "extract" / "sessions").iterdir()):
        dropped.update(read_counters(path).dropped)
    return found | {"left out": sum(n for why, n in dropped.items() if why.startswith(LEFT_OUT))}


def ratings(found: dict, session: dict) -> list[int | None]:
    turns = [t for t in found["turns"] if t["session_id"] == session["session_id"]]
    return [t["decision"] and t["decision"]["rating"] for t in turns]


@builders
@pytest.mark.parametrize("array", [False, True])
def test_what_was_counted_by_hand(tmp_path, build, array):
    """No message is lost, in JSON lines or in an array, and the format is detected from the content."""
    name, messages, rated, aside, left_out = COUNTED[build]
    log = tmp_path / "export.json"
    if array:
        log.write_text(json.dumps(build(), indent=1))
    else:
        jsonl(log, *build())
    found = extract(tmp_path / "run", log)
    assert {s["format"] for s in found["sessions"]} == {name}
    assert [len(s["messages"]) for s in found["sessions"]] == messages
    assert [ratings(found, s) for s in found["sessions"]] == rated
    assert sorted(r["reason"] for r in found["rejected"]) == aside
    assert found["left out"] == left_out


@builders
def test_cut_at_every_fiftieth_byte(tmp_path, build):
    """A cut export never crashes its reader, gives only texts of the whole export, and keeps records before the cut."""
    name = COUNTED[build][0]
    data = b"".join(json.dumps(record).encode() + b"\n" for record in build())
    known = {m["content"] for m in _messages(tmp_path / "whole", data, name)}
    for end in range(50, len(data), 50):
        cut = data[:end]
        kept = {m["content"] for m in _messages(tmp_path / str(end), cut, name)}
        assert kept <= known
    assert kept or len(build()) == 1


def _messages(folder: Path, data: bytes, name: str) -> list[dict]:
    folder.mkdir()
    (folder / "log.jsonl").write_bytes(data)
    found = extract(folder / "run", folder / "log.jsonl", format=name)
    assert found["sessions"] or found["rejected"] or found["left out"]
    assert all(row["reason"] for row in found["rejected"])
    return [m for s in found["sessions"] for m in s["messages"]]


def _spoil(value, draw: random.Random):
    """Replace one value anywhere by a value of another type, and return the result."""
    odd = draw.choice([None, True, -1, 1e300, "x", "", [], {}, [[]], [None], {"a": []}, [{"type": []}], "0" * 99])
    place = value
    while isinstance(place, (dict, list)) and place:
        key = draw.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if not isinstance(place[key], (dict, list)) or not place[key] or draw.random() < 0.2:
            place[key] = odd
            return value
        place = place[key]
    return odd


@builders
def test_wrong_types_anywhere_are_set_aside(build):
    """No reader crashes on 400 exports with wrong values, and every record that it sets aside has a reason."""
    reader = READERS[COUNTED[build][0]]
    draw = random.Random(0)
    for _ in range(400):
        records = [_spoil(record, draw) if draw.random() < 0.6 else record for record in build()]
        lines = [Line("log", n, json.dumps(record).encode() + b"\n") for n, record in enumerate(records, 1)]
        pieces = []
        for line in lines:
            try:
                record = parse(line)
                assert reader.recognises(record) in (True, False)
                unfolded = [record] if reader.unfold is None else reader.unfold(record)
                pieces += [Line("log", line.number, json.dumps(piece).encode() + b"\n") for piece in unfolded]
                for piece in unfolded:
                    reader.id_of(piece)
            except Unreadable:
                continue
        for found in reader.read(pieces):
            assert (
                isinstance(found, LeftOut)
                or (isinstance(found, Conversation) and turns("s", found) is not None)
                or (found.reason and found.line)
            )


# -- one format each --------------------------------------------------------------------------------------------------


def read_export(folder: Path, records: list) -> dict[str, list[dict]]:
    return extract(folder / "run", jsonl(folder / "export.jsonl", *records))


def roles(session: dict) -> str:
    return " ".join(m["role"][0] for m in session["messages"])


U, A, V = ({"role": role, "content": text} for role, text in (("user", "hi"), ("assistant", "hello"), ("user", "no")))
PICTURE = [{"type": "image"}, {"type": "text", "text": "hello"}]
NOT_ONLY_TEXT = {
    "codex": [exports.item("session_meta", id="s"), exports.item("response_item", **exports.said("user", "hi")),
              exports.item("response_item", type="web_search_call"),
              exports.item("response_item", **exports.said("assistant", "hello")),
              exports.item("response_item", **exports.said("user", "no"))],
    "claude_code": [{"type": message["role"], "uuid": n, "parentUuid": str(int(n) - 1), "sessionId": "s",
                     "message": {"id": "m"} | message} for n, message in zip("123", (
                         U, A | {"content": [{"type": "server_tool_use", "name": "web_search"}, *PICTURE[1:]]}, V),
                     strict=True)],
    "pi": [{"type": "session", "id": "s", "timestamp": "t"},
           *({"type": "message", "message": message} for message in (U, A | {"content": PICTURE}, V))],
    "sharegpt": [{"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": PICTURE},
                                    {"from": "human", "value": "no"}], "system": "Be brief."}],
    "sweagent": [{"history": [U | {"agent": "main"}, A | {"content": PICTURE}, V]}],
    "langfuse": [{"id": "t", "projectId": "p", "scores": [{"name": "user-feedback", "value": 1}], "observations": [
        {"id": "o", "traceId": "t", "type": "GENERATION", "input": [U],
         "output": {"output": [{"type": "image_generation_call"}, exports.said("assistant", "hello")]}}]}],
    "anthropic": [{"system": "Be brief.", "messages": [U, A | {"content": PICTURE}, V]}],
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_ONLY_TEXT)
def test_a_reply_with_a_placeholder_is_no_text_of_the_policy(tmp_path, name):
    found = read_export(tmp_path, NOT_ONLY_TEXT[name])
    assert [s["format"] for s in found["sessions"]] == [name]
    reply = found["sessions"][0]["messages"][found["turns"][0]["message_index"]]
    assert reply["content"].startswith("[")
    assert [t["skip_reason"] for t in found["turns"]] == ["not only text"]


def test_a_codex_rollout(tmp_path):
    found = read_export(tmp_path, exports.codex())
    went_on, rolled_back = found["sessions"]
    assert went_on["session_id"] == "export:0199"
    assert roles(went_on) == "s s u u a t a t a t a u a u"
    assert roles(rolled_back) == "s s u u a t a t a t a u a"
    reply = went_on["messages"][4]
    assert (reply["reasoning"], reply["content"], reply["tool_calls"][0]["name"]) == ("look first", "Looking.", "shell")
    assert [m["tool_calls"][0]["name"] for m in went_on["messages"][6:9:2]] == ["apply_patch", "local_shell"]
    assert went_on["messages"][9]["content"] == "ok"
    assert (went_on["model"], json.loads(went_on["metadata"])["compacted_before"]) == ("gpt-5-codex", [11])
    assert "compacted_before" not in json.loads(rolled_back["metadata"])
    skips = [t["skip_reason"] for t in found["turns"]]
    assert skips[:5] == [None] * 5
    assert [t["message_index"] for t in found["turns"] if t["skip_reason"] is None] == [4, 6, 8, 10, 12]


def test_a_fork_repeats_its_parents_header_and_a_subagent_is_side(tmp_path):
    header, *rest = exports.codex()
    fork = exports.item("session_meta", id="new", forked_from_id="0199", source={"subagent": "review"})
    found = extract(tmp_path / "run", jsonl(tmp_path / "a.jsonl", fork, header, *rest, *exports.codex_bare()))
    assert [s["session_id"] for s in found["sessions"]] == ["a:new", "a:new#branch-2", "a:5973"]
    assert {t["skip_reason"] for t in found["turns"] if t["session_id"] == "a:new"} == {"side"}


def test_a_header_that_codex_repeats_within_a_rollout_begins_no_session(tmp_path):
    """Codex writes it again when the branch of git or the mode of its memory changes."""
    header, *rest = exports.codex()
    again = exports.item("session_meta", **header["payload"], memory_mode="disabled")
    plain = read_export(tmp_path / "plain", [header, *rest])
    found = read_export(tmp_path, [header, *rest[:6], again, *rest[6:], again])
    assert [s["session_id"] for s in found["sessions"]] == ["export:0199", "export:0199#branch-2"]
    assert [s["messages"] for s in found["sessions"]] == [s["messages"] for s in plain["sessions"]]
    assert found["turns"] == plain["turns"]


def test_a_rollout_that_only_names_its_history_has_no_whole_prompts(tmp_path):
    """Codex writes a fork, and what follows a rewind, without the history, since version 0.145."""
    header, *rest = exports.codex()
    for end, reason in ((0, None), (9, "history in another file")):
        base = header["payload"] | {"history_base": {"thread_id": "0198", "end_ordinal_exclusive": end}}
        found = read_export(tmp_path / str(end), [exports.item("session_meta", **base), *rest])
        assert {t["skip_reason"] for t in found["turns"] if t["next_count"]} == {reason, "duplicate"}


def test_copied_replies_of_a_subagent_are_not_trained_on_again(tmp_path):
    head = exports.item("session_meta", id="c", thread_source="subagent", subagent_history_start_ordinal=3)
    said = (("user", "Build it."), ("assistant", "I ask a helper."), ("user", "Test it."), ("assistant", "It fails."),
            ("user", "Then stop."))  # fmt: skip
    items = [head, *(exports.item("response_item", **exports.said(*turn)) for turn in said)]
    log = jsonl(tmp_path / "log.jsonl", *(item | {"ordinal": n} for n, item in enumerate(items)))
    assert [t["skip_reason"] for t in extract(tmp_path / "run", log, side=True)["turns"]] == ["duplicate", None]


def test_an_interrupted_turn_and_an_unreadable_line_of_a_rollout(tmp_path):
    aborted = exports.item("event_msg", type="turn_aborted", reason="interrupted")
    records = exports.codex()
    marker = exports.item("response_item", **exports.said("user", "<turn_aborted>\nThe user interrupted."))
    found = read_export(tmp_path, [*records[:-1], marker, aborted, records[-1]])
    assert found["turns"][4]["skip_reason"] == "aborted"
    damaged = [*records[:7], b'{"timestamp": "2026", "type": "response_item", "payl\n', *records[7:]]
    found = extract(tmp_path / "damaged", jsonl(tmp_path / "d.jsonl", *damaged))
    assert [r["line"] for r in found["rejected"]] == [8]
    assert found["turns"][0]["skip_reason"] == "unreadable line beside it"


def test_newer_lines_of_codex_that_hold_no_message_leave_no_gap(tmp_path):
    """As of 2026, codex-rs/history also writes state, token counts and messages between agents beside the items."""
    content = [{"type": "input_text", "text": "Message Type: FINAL_ANSWER"}, {"type": "encrypted_content"}]
    told = exports.item("response_item", type="agent_message", author="/root/a", recipient="/root", content=content)
    between = {"author": "/root/b", "recipient": "/root", "content": "Done.", "trigger_turn": True}
    records = exports.codex()
    more = [exports.item("world_state", full=True, state={}), exports.item("token_usage_record"),
            exports.item("inter_agent_communication_metadata", trigger_turn=True),
            exports.item("response_item", type="additional_tools", role="developer", tools=[])]  # fmt: skip
    records[6:6] = more
    records[-1:] = [told, exports.item("inter_agent_communication", **between), *more]
    found = read_export(tmp_path, records)
    assert not found["rejected"]
    assert [t["skip_reason"] for t in found["turns"]][:5] == [None] * 5
    last = [(m["role"], m["name"], m["content"]) for m in found["sessions"][0]["messages"][-2:]]
    encrypted = ("user", "/root/a", "Message Type: FINAL_ANSWER\n[encrypted_content]")
    assert last == [encrypted, ("user", "/root/b", "Done.")]
    unknown = exports.item("response_item", type="new_kind")
    found = extract(tmp_path / "unknown", jsonl(tmp_path / "u.jsonl", *records, unknown))
    assert [r["reason"] for r in found["rejected"]] == ["unknown item"]


@pytest.mark.parametrize("start", ["<goal_context>", '<codex_internal_context source="goal">', "<user_shell_command>"])
def test_what_codex_says_in_the_name_of_the_user_is_no_turn_of_the_user(tmp_path, start):
    """Codex may repeat such a message, and a rollback does not count it as a turn."""
    first, *rest = ("user", "Make it work."), ("assistant", "One step."), ("user", f"{start}\nGo on.")
    turns = [first, *rest, rest[0], rest[1], ("user", "Undo."), ("assistant", "Undone."), rest[1]]
    items = [exports.item("response_item", **exports.said(*turn)) for turn in turns]
    rolled_back = exports.item("event_msg", type="thread_rolled_back", num_turns=1)
    end = exports.item("response_item", **exports.said("user", "Thanks."))
    found = read_export(tmp_path, [exports.item("session_meta", id="s"), *items, rolled_back, end])
    assert [roles(session) for session in found["sessions"]] == ["u a u a u u", "u a u a u u a u"]
    assert [t["skip_reason"] for t in found["turns"]][:2] == [None, None]


def test_what_codex_says_of_a_review_is_no_reply(tmp_path):
    """Codex words the reply after a review. A rollback counts the message with the review as a turn."""
    review = ("user", "<user_action>\n  <action>review</action>"), ("assistant", "Review was interrupted.")
    turns = ("user", "Write it."), ("assistant", "Done."), *review, ("user", "Add docs."), ("assistant", "Added.")
    items = [exports.item("response_item", **exports.said(*turn)) for turn in (*turns, ("user", "Great."))]
    found = read_export(tmp_path, [exports.item("session_meta", id="s"), *items])
    assert [turn["skip_reason"] for turn in found["turns"]] == [None, "synthetic", None]
    rolled_back = exports.item("event_msg", type="thread_rolled_back", num_turns=1)
    found = read_export(tmp_path / "rolled", [exports.item("session_meta", id="s"), *items[:4], rolled_back, items[4]])
    assert [roles(session) for session in found["sessions"]] == ["u a u", "u a u a"]


@pytest.mark.parametrize("items", [None, 5, "ab"])
def test_one_object_whose_items_are_no_list_holds_none(tmp_path, items):
    whole, broken = exports.codex_document()[0], {"id": "s", "session": {}, "items": items}
    found = read_export(tmp_path, [whole, broken])
    assert [s["session_id"] for s in found["sessions"]] == [f"export:{whole['session']['id']}"]
    assert found["turns"]


def test_litellm_wrote_these(tmp_path):
    """Payloads and SpendLogs rows that litellm 1.80.0 itself wrote, with a mock provider, are read."""
    found = extract(tmp_path / "run", LOGGED / "litellm-1.80.0-payloads.jsonl")
    (session,) = found["sessions"]
    assert (roles(session), session["model"]) == ("s u a u a", "gpt-4o")
    assert session["messages"][-1]["tool_calls"][0]["arguments"] == '{"country": "Peru"}'
    assert json.loads(session["tools"])[0]["function"]["name"] == "look_up"
    assert [r["reason"] for r in found["rejected"]] == ["no reply"]
    found = extract(tmp_path / "rows", LOGGED / "litellm-1.80.0-spend-logs.jsonl")
    (session,) = found["sessions"]
    assert roles(session) == "u a u a"
    assert [t["skip_reason"] for t in found["turns"]] == [None, "shortened by the proxy"]
    ids = {r["session_id"] for r in json.loads(session["metadata"])["records"]}
    assert len(ids - {None}) == 2  # LiteLLM made one session id per call


def test_calls_of_other_interfaces_through_litellm(tmp_path):
    """Anthropic's calls have the system prompt beside the messages, OpenAI's Responses have items; both are read."""
    (first, *_) = exports.litellm()
    request = {"model": "claude", "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    row = {"request_id": "r", "spend": 0.1, "proxy_server_request": json.dumps(request), "messages": "{}"}
    answer = {"type": "message", "content": [{"type": "text", "text": "hello"}], "stop_reason": "max_tokens"}
    anthropic = {k: v for k, v in first.items() if k != "messages"} | row | {
        "call_type": "anthropic_messages", "response": json.dumps(answer)}  # fmt: skip
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
             {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ok"}]},
             {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}]  # fmt: skip
    responses = first | {
        "call_type": "aresponses",
        "messages": "hey",
        "response": {"output": items, "status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
    }
    instructed = responses | {"messages": "ho", "model_parameters": {"instructions": "Be brief."}}
    found = read_export(tmp_path, [anthropic, responses, instructed])
    assert [roles(s) for s in found["sessions"]] == ["s u a", "u a", "s u a"]
    assert [t["skip_reason"] for t in found["turns"]] == ["truncated"] * 3
    reply = found["sessions"][1]["messages"][1]
    assert (reply["reasoning"], reply["content"], reply["tool_calls"][0]["name"]) == ("hm", "ok", "f")


CALLED = {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"}
THOUGHT = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}


@pytest.mark.parametrize("output", [
    [CALLED, CALLED | {"call_id": "d"}], [exports.said("assistant", "I look."), CALLED], [THOUGHT, CALLED],
    [{"type": "mcp_list_tools", "tools": []}, CALLED],
    [exports.said("assistant", "I"), exports.said("assistant", "do")],
])  # fmt: skip
def test_a_reply_of_several_items_is_found_again_in_the_next_prompt(tmp_path, output):
    results = [{"type": "function_call_output", "call_id": i["call_id"], "output": "1"} for i in output if "name" in i]
    first = exports.litellm()[0] | {"call_type": "aresponses", "messages": [exports.said("user", "hi")],
                                    "response": {"output": output, "status": "completed"}}  # fmt: skip
    after = [*first["messages"], *output, *results, exports.said("user", "go on")]
    second = first | {"messages": after, "response": {"output": [exports.said("assistant", "done")]}}
    found = read_export(tmp_path, [first, second])
    (session,) = found["sessions"]
    assert roles(session) == f"u a {'t ' * len(results)}u a"
    assert [t["skip_reason"] for t in found["turns"]] == [None, "no next state"]


def test_a_page_of_stored_completions(tmp_path):
    found = read_export(tmp_path, [{"object": "list", "data": exports.openai_stored(), "has_more": False}])
    (session,) = found["sessions"]
    assert [m["content"] for m in session["messages"]] == ["What is this?", "A cat.", "And this?\n[image]", "A dog."]
    assert json.loads(session["metadata"])["records"][0]["metadata"] == {"shop": "s"}
    assert [r["reason"] for r in found["rejected"]] == ["no messages"]


def test_langchain_wrote_these(tmp_path):
    """Runs that langchain-core 1.7.2 and langsmith 0.15.0 wrote, with a model that answers from a list, are read."""
    found = extract(tmp_path / "run", LOGGED / "langchain-core-1.7.2-runs.jsonl")
    (session,) = found["sessions"]
    assert (roles(session), session["session_id"].endswith(":th-1")) == ("s u a u a", True)
    assert session["messages"][-1]["tool_calls"] == [
        {"id": "call_1", "name": "look_up", "arguments": '{"country":"Peru"}'}
    ]
    assert [t["finish_reason"] for t in found["turns"]] == ["stop", "tool_calls"]
    assert found["left out"] == 1


def test_feedback_of_people_in_langsmith(tmp_path):
    """A thumb on a trace rates its last call; scores by models do not count, nor do averages of several scores."""
    found = read_export(tmp_path, exports.langsmith())
    praised, edited, _ = (t["decision"] for t in found["turns"])
    assert (praised["rating"], praised["comment"]) == (1, None)
    assert (edited["rating"], edited["comment"], edited["edited"]) == (-1, "Too short.", "It is sunny in Lima.")
    for stats, rating in (
        ({"user_score": {"n": 1, "avg": 1.0, "comments": ["nice"], "sources": ['{"type":"api"}']}}, 1),
        ({"user_score": {"n": 2, "avg": 0.5, "comments": []}}, None),
        ({"judge": {"n": 1, "avg": 0.0, "sources": ['{"type":"auto_eval"}']}}, None),
        ({"a": {"n": 1, "avg": 1}, "b": {"n": 1, "avg": 0}}, None),
    ):
        folder = tmp_path / str(hash(str(stats)))
        last = exports.langsmith()[2] | {"feedback_stats": stats}
        (turn, *_) = (t for t in read_export(folder, [last])["turns"] if t["message_index"] == 6)
        assert (turn["decision"] or {"rating": None})["rating"] == rating


def test_a_thumb_on_a_trace_stays_beside_the_score_of_an_evaluator(tmp_path):
    root, *rest = exports.langsmith()
    judged = {"key": "conciseness", "score": 1, "feedback_source": {"type": "model"}}
    calls = [call | {"feedback": [judged], "feedback_stats": {"conciseness": {"n": 1, "avg": 1.0}}}
             for call in root["child_runs"]]  # fmt: skip
    found = read_export(tmp_path, [root | {"child_runs": calls}, *rest])
    assert found["turns"][0]["decision"]["rating"] == 1


def test_runs_of_other_wrappers(tmp_path):
    """wrap_openai logs plain requests and responses; older LangChain logs prompts and messages in other forms."""
    run_of = exports._run
    choice = {"message": {"role": "assistant", "content": "hello"}, "finish_reason": "length"}
    found = read_export(tmp_path, [
        run_of(1, "llm", {"messages": [{"role": "user", "content": "hi"}], "model": "m"}, {"choices": [choice]}),
        run_of(2, "llm", {"prompts": ["Once"]}, {"generations": [[{"text": " upon", "generation_info": {}}]]}),
        run_of(3, "llm", {"messages": [[{"type": "human", "data": {"content": "hey", "type": "human"}}]]},
               {"generations": [{"text": "ho", "message": {"type": "ai", "data": {"content": "ho", "type": "ai"}}}]}),
        run_of(4, "llm", {"messages": [[exports._lc("HumanMessage", content="x", type="human")]]}, None, error="E"),
    ])  # fmt: skip
    assert [[m["content"] for m in s["messages"]] for s in found["sessions"]] == [
        ["hi", "hello"], ["Once", " upon"], ["hey", "ho"]]  # fmt: skip
    assert found["turns"][0]["skip_reason"] == "truncated"
    assert [(r["reason"], r["detail"]) for r in found["rejected"]] == [("no reply", "E")]


def test_responses_of_openai_in_langsmith(tmp_path):
    """wrap_openai logs items with the system prompt beside them; LangChain keeps items as parts of a message."""
    run_of, asked = exports._run, exports._lc("HumanMessage", content="hey", type="human")
    parts = [THOUGHT, CALLED]
    called = exports._lc("AIMessage", content=parts, type="ai", tool_calls=[{"name": "f", "args": {}, "id": "c"}])
    result = {"type": "function_call_output", "call_id": "c", "output": "7"}
    found = read_export(tmp_path, [
        run_of(1, "llm", {"input": [exports.said("user", "hi"), *parts, result], "instructions": "Be brief."},
               {"output": [THOUGHT, exports.said("assistant", "hello")]}),
        run_of(2, "llm", {"messages": [[asked]]}, {"generations": [[{"text": "", "message": called}]]}),
    ])  # fmt: skip
    assert [roles(s) for s in found["sessions"]] == ["s u a t a", "u a"]
    for message in (found["sessions"][0]["messages"][2], found["sessions"][1]["messages"][1]):
        assert (message["content"], message["reasoning"], len(message["tool_calls"])) == (None, "hm", 1)
    assert [t["skip_reason"] for t in found["turns"]] == ["no record", "no next state", "no next state"]


def test_messages_of_langchain_js(tmp_path):
    """LangChain.js messages name their class and have no `type` field, so the role comes from the class."""
    lc, call = exports._lc, {"name": "f", "args": {}, "id": "c"}
    prompt = [
        lc("SystemMessage", content="Be brief."),
        lc("HumanMessage", content="hi"),
        lc("AIMessageChunk", content="", tool_calls=[call]),
        lc("ToolMessage", content="7", tool_call_id="c"),
    ]
    answer = {"generations": [[{"text": "seven", "message": lc("AIMessage", content="seven")}]]}
    (session,) = read_export(tmp_path, [exports._run(1, "llm", {"messages": [prompt]}, answer)])["sessions"]
    assert roles(session) == "s u a t a"
    assert session["messages"][2]["tool_calls"] == [{"id": "c", "name": "f", "arguments": "{}"}]


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_the_system_prompt_of_anthropic_in_langsmith(tmp_path, system):
    inputs = {"messages": [{"role": "user", "content": "hi"}], "system": system}
    output = {"role": "assistant", "content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"}
    (session,) = read_export(tmp_path, [exports._run(1, "llm", inputs, output)])["sessions"]
    assert [m["content"] for m in session["messages"]] == ["Be brief.", "hi", "hello"]


def test_rows_and_pages_of_phoenix(tmp_path):
    """A data frame as Parquet and a page of the REST API give the same messages and ratings as the trace."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (trace,) = exports.phoenix()
    whole = read_export(tmp_path, [trace])
    (down,) = (t["decision"] for t in whole["turns"] if t["decision"])
    assert (down["rating"], down["comment"], down["tags"]) == (-1, "Too long.", ["thumbs-down"])
    page = extract(tmp_path / "p", jsonl(tmp_path / "page.json", {"data": trace["spans"], "next_cursor": None}))
    rows = [
        {"name": s["name"], "span_kind": s["span_kind"], "context.span_id": s["context"]["span_id"],
         "attributes.llm.input_messages": [{"message.role": "user", "message.content": "Hi"}],
         "attributes.llm.output_messages": [{"message.role": "assistant", "message.content": "Hello."}],
         "annotations": json.dumps(s.get("annotations"))}
        for s in trace["spans"][1:2]
    ]  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "frame.parquet")
    frame = extract(tmp_path / "f", tmp_path / "frame.parquet")
    assert [s["messages"] for s in page["sessions"]] == [s["messages"] for s in whole["sessions"]]
    assert [t["decision"] for t in frame["turns"]] == [down]


def test_branches_of_claude_ai(tmp_path):
    found = read_export(tmp_path, exports.claude_ai())
    kept, regenerated, old = found["sessions"]
    assert [roles(s) for s in found["sessions"]] == ["u a t a u", "u a", "u a"]
    assert kept["messages"][0]["content"] == "Our notes.\nWhen is high tide?"
    assert (kept["messages"][1]["reasoning"], kept["messages"][2]["content"]) == ("search", "High at noon.")
    assert kept["messages"][-1]["content"] == "Thanks.", "said aloud"
    assert (kept["tree"], regenerated["tree"], old["tree"]) == ("export:c1", "export:c1", None)


def test_what_follows_an_unreadable_message_of_an_old_export_of_claude_ai_is_set_aside(tmp_path):
    """Otherwise a reply would be trained on without its question."""
    (*_, record) = exports.claude_ai()
    question = {"uuid": "o3", "sender": "human", "content": [{"type": None}]}
    record["chat_messages"] += [
        question,
        *({"uuid": name, "sender": sender, "text": name} for name, sender in (("o4", "assistant"), ("o5", "human"))),
    ]
    found = read_export(tmp_path, [record])
    assert [m["content"] for s in found["sessions"] for m in s["messages"]] == ["Hi", "Hello."]
    assert [(r["reason"], r["detail"].partition(":")[0]) for r in found["rejected"]] == [
        ("content of unknown shape", "message o3"),
        ("missing parent", "message o4, parent o3"),
        ("missing parent", "message o5, parent o4"),
    ]
    assert json.loads(found["rejected"][0]["raw"]) == question


def test_what_is_left_of_the_context_is_no_part_of_a_reply_of_claude_ai(tmp_path):
    records = exports.claude_ai()
    for item in records[0]["chat_messages"]:
        item["content"].append({"type": "token_budget", "remaining": 7})
    plain, found = read_export(tmp_path / "plain", exports.claude_ai()), read_export(tmp_path / "run", records)
    assert [s["messages"] for s in found["sessions"]] == [s["messages"] for s in plain["sessions"]]
    assert [t["skip_reason"] for t in found["turns"]] == [t["skip_reason"] for t in plain["turns"]]


def test_a_reply_of_claude_ai_that_the_user_stopped_is_aborted(tmp_path):
    """Conversations as the page loads them, which extensions save, have `stop_reason`."""
    (record, *_) = exports.claude_ai()
    record["chat_messages"][2]["stop_reason"] = "user_canceled"
    found = read_export(tmp_path, [record])
    kept = [turn for turn in found["turns"] if turn["session_id"] == "export:c1"]
    assert [turn["skip_reason"] for turn in kept] == [None, "aborted"]
    assert all(turn["decision"] is None for turn in found["turns"])  # nobody preferred half a reply


@pytest.mark.parametrize("nested", [True, False])
def test_the_prefix_of_a_librechat_conversation_is_its_system_prompt(tmp_path, nested):
    (record,) = exports.librechat(nested=nested)
    record["options"] = {"promptPrefix": "Be brief."}
    found, plain = read_export(tmp_path / "run", [record]), read_export(tmp_path / "plain", exports.librechat())
    for ours, theirs in zip(found["sessions"], plain["sessions"], strict=True):
        assert (ours["messages"][0]["role"], ours["messages"][0]["content"]) == ("system", "Be brief.")
        assert ours["messages"][1:] == theirs["messages"]
        assert ratings(found, ours) == ratings(plain, theirs)


def test_what_the_user_said_during_a_reply_of_librechat_is_a_message(tmp_path):
    """Labels and summaries for the client are no text of the reply; passages that the user quoted are in the prompt."""
    (record,) = exports.librechat_flat()
    call = {"id": "t", "name": "search", "args": "{}", "output": "result"}
    record["messages"][0]["quotes"] = ["Entropy grows.\nAlways."]
    record["messages"][2]["content"] = [
        {"type": "activity_label", "activity_label": "Searching"}, {"type": "summary", "summary": "Earlier: ..."},
        {"type": "text", "text": "Working."}, {"type": "tool_call", "tool_call": call},
        {"type": "steer", "steer": "No: physics."}, {"type": "text", "text": "Physics, then."}]  # fmt: skip
    found = read_export(tmp_path, [record])
    told = [(m["role"], m["content"]) for m in found["sessions"][0]["messages"]]
    assert told[:5] == [("user", "> Entropy grows.\n> Always.\n\nWhat time is it?"), ("assistant", "Working."),
                        ("tool", "result"), ("user", "No: physics."), ("assistant", "Physics, then.")]  # fmt: skip
    assert [turn["skip_reason"] for turn in found["turns"]][:2] == [None, None]


def test_a_message_of_librechat_with_quotes_and_no_text_is_set_aside(tmp_path):
    (record,) = exports.librechat_flat()
    record["messages"][0] |= {"quotes": ["a"], "text": 5}
    reasons = [row["reason"] for row in extract(tmp_path / "run", jsonl(tmp_path / "log.jsonl", record))["rejected"]]
    assert reasons[0] == "content of unknown shape"


def test_of_replies_of_several_agents_the_next_prompt_of_librechat_has_the_first(tmp_path):
    (record,) = exports.librechat_flat()
    agents = {"openAI__gpt-4o": "Noon.", "openAI__gpt-4o-mini____1": "Midnight."}
    record["messages"][2]["content"] = [
        {"type": "text", "text": text, "agentId": name, "groupId": 1} for name, text in agents.items()
    ]
    found = read_export(tmp_path, [record])
    assert [m["content"] for m in found["sessions"][0]["messages"]][1] == "Noon."
    assert found["turns"][0]["skip_reason"] == "one of several replies"


def test_thinking_that_librechat_kept_in_the_text_is_no_part_of_the_reply(tmp_path):
    """LibreChat's older clients for OpenAI and Anthropic wrote thinking into the text (`getStreamText`)."""
    (record,) = exports.librechat_flat()
    record["messages"][1]["text"] = ":::thinking\nNo clock.\nI say so.\n:::\n\nNo idea."
    record["messages"][4]["text"] = "It reads :::thinking\nno\n:::\n there."
    found = read_export(tmp_path, [record])
    (thought,) = [m for s in found["sessions"] for m in s["messages"] if m["content"] == "No idea."]
    assert thought["reasoning"] == "No clock.\nI say so."
    assert [m["content"] for m in found["sessions"][0]["messages"]][-1] == "It reads :::thinking\nno\n:::\n there."
    record["messages"][1]["text"] = ":::thinking\nNo clock.\n:::"  # cut off after the thinking
    found = extract(tmp_path / "cut", jsonl(tmp_path / "cut.jsonl", record))
    assert [t["skip_reason"] for t in found["turns"]].count("empty") == 1


def test_branches_and_thumbs_of_librechat(tmp_path):
    for name, build in (("nested", exports.librechat), ("flat", exports.librechat_flat)):
        found = read_export(tmp_path / name, build())
        kept, regenerated = found["sessions"]
        assert (roles(kept), roles(regenerated)) == ("u a t a u a", "u a")
        assert kept["messages"][1]["reasoning"] == "ask the clock"
        assert kept["messages"][1]["tool_calls"] == [{"id": "t1", "name": "clock", "arguments": '{"zone":"UTC"}'}]
        assert [m["content"] for m in kept["messages"][2:4]] == ["12:00", "It is noon."]
        down = found["turns"][-1]["decision"]
        assert (down["rating"], down["comment"], down["tags"]) == (-1, "It is one.", ["inaccurate"])
        assert next(t["decision"]["tags"] for t in found["turns"] if t["decision"]) == ["accurate_reliable"]


@pytest.mark.parametrize("nested", [True, False])
def test_who_goes_back_to_the_first_reply_of_librechat_kept_it(tmp_path, nested):
    """The export has the branches in the order of their beginnings, and the second reply was given up."""
    (record,) = exports.librechat(nested=nested)
    rows = record["messages"]
    if nested:
        first, second = rows[0]["children"]
        first["children"], second["children"] = second["children"], []
        first["children"][0]["parentMessageId"] = "a1"
        shown = [rows[0], first, *first["children"], *first["children"][0]["children"], second]
    else:
        rows[3]["parentMessageId"] = "a1"
        record["messages"] = shown = [*rows[:2], *rows[3:], rows[2]]
    for row, minute in zip(shown, (0, 1, 3, 4, 2), strict=True):
        row["createdAt"] = f"2026-01-01T00:0{minute}:00.000Z"
    kept, given_up = read_export(tmp_path, [record])["sessions"]
    assert (roles(kept), kept["messages"][1]["content"], roles(given_up)) == ("u a u a", "No idea.", "u a t a")


def test_what_is_nested_in_an_unreadable_message_of_librechat_is_set_aside(tmp_path):
    for ident in ("a2", None):
        (record,) = exports.librechat()
        reply = record["messages"][0]["children"][1]
        del reply["isCreatedByUser"]
        if ident is None:
            del reply["messageId"], reply["children"][0]["parentMessageId"]
        found = read_export(tmp_path / str(ident), [record])
        assert [roles(s) for s in found["sessions"]] == ["u a"]
        place = ident or "#2"
        assert [(r["reason"], r["detail"].partition(":")[0]) for r in found["rejected"]] == [
            ("message without a role", f"message {place}"),
            ("missing parent", f"message u2, parent {place}"),
            ("missing parent", "message a3, parent u2"),
        ]
        assert "u2" not in found["rejected"][0]["raw"]


def test_conversations_without_a_message_are_left_out(tmp_path):
    """This holds even if most conversations of an export are empty."""
    *_, whole = exports.claude_ai()
    empty = [{"uuid": name, "name": "", "chat_messages": []} for name in ("x", "y")]
    summary = run(tmp_path / "run", jsonl(tmp_path / "log.jsonl", *empty, whole))
    assert summary.counters.dropped == {EMPTY_CONVERSATION: 2}
    assert [len(s["messages"]) for s in tables(tmp_path / "run")["sessions"]] == [2]


@pytest.mark.parametrize("build", [
    exports.claude_ai, exports.librechat, exports.librechat_flat, exports.anythingllm, exports.anythingllm_table,
])  # fmt: skip
def test_front_ends_say_when_a_chat_was(tmp_path, build):
    (record, *_) = build()
    for n, message in enumerate(record.get("messages", [])):
        message |= {"createdAt": f"2026-01-0{n + 1}T00:00:00Z", "updatedAt": "2026-02-01T00:00:00Z"}
    log = jsonl(tmp_path / "export.jsonl", record)
    run(tmp_path / "run", log, filter=("time=2026-01-01",))
    assert tables(tmp_path / "run")["sessions"]


@pytest.mark.parametrize("build", [exports.claude_ai, exports.librechat_flat])
def test_circles_and_missing_parents_in_a_tree(tmp_path, build):
    (record, *_) = build()
    ident, parent = ("uuid", "parent_message_uuid") if "uuid" in record else ("messageId", "parentMessageId")
    items = record.get("chat_messages") or record["messages"]
    items[0] |= {parent: items[-1][ident]}
    found = read_export(tmp_path, [record])
    assert {r["reason"] for r in found["rejected"]} >= {"parents form a cycle"}
    (record, *_) = build()
    items = record.get("chat_messages") or record["messages"]
    del items[2]
    found = read_export(tmp_path / "missing", [record])
    assert "missing parent" in {r["reason"] for r in found["rejected"]}
    assert sum(len(s["messages"]) for s in found["sessions"]) == 2


@pytest.mark.parametrize("build", [exports.claude_ai, exports.librechat_flat])
def test_a_newer_export_continues_a_conversation_under_its_id(tmp_path, build):
    """The copy with the later date decides, in either order, and the session keeps its id."""
    (new, *_) = build()
    key, ident = ("chat_messages", "c1") if "uuid" in new else ("messages", "c")
    times = {"chat_messages": "updated_at", "messages": "exportAt"}[key]
    for number, message in enumerate(new[key]):
        message["createdAt"] = f"2026-01-0{number + 1}T00:00:00Z"
    new |= {times: "2026-01-09T00:00:00Z"}
    old = new | {key: new[key][:-1], times: "2026-01-08T00:00:00Z"}
    for n, records in enumerate(([old, new], [new, old])):
        found = read_export(tmp_path / str(n), records)
        assert {s["tree"] for s in found["sessions"]} == {f"export:{ident}"}
        assert sum(len(s["messages"]) for s in found["sessions"]) == sum(
            len(s["messages"]) for s in read_export(tmp_path / f"{n} new", [new])["sessions"]
        )
        assert found["rejected"] == []


def test_chats_of_anythingllm_are_in_the_order_of_their_ids(tmp_path):
    found = read_export(tmp_path, exports.anythingllm())
    assert [[m["content"] for m in s["messages"]] for s in found["sessions"]] == [
        ["Where are the docs?", "In docs/.", "And tests?", "None."], ["ping", "pong"]]  # fmt: skip
    found = read_export(
        tmp_path / "damaged", [*exports.anythingllm()[:2], exports.anythingllm()[1] | {"response": 5, "id": 2}]
    )
    assert found["turns"][0]["skip_reason"] == "unreadable line beside it"
    replies = ['{"answer": 42}', '["red", "blue"]']
    as_json = [chat | {"response": reply} for chat, reply in zip(exports.anythingllm(), replies, strict=False)]
    found = read_export(tmp_path / "json", as_json)
    assert [m["content"] for s in found["sessions"] for m in s["messages"] if m["role"] == "assistant"] == replies[::-1]
    found = read_export(tmp_path / "table", exports.anythingllm_table())
    assert [[m["content"] for m in s["messages"]] for s in found["sessions"]] == [
        ["a", "b", "c", "d"],
        ["other", "thread"],
    ]


def test_a_chat_of_anythingllm_in_two_exports_is_one(tmp_path):
    """Each export holds all chats so far, and the rating of a chat may be in one of the two exports only."""
    later = [row | {"rating": {3: "--"}.get(row["id"], row["rating"])} for row in exports.anythingllm()]
    for number, both in enumerate(([exports.anythingllm(), later], [later, exports.anythingllm()])):
        logs = [tmp_path / f"{number}-{name}.json" for name in "ab"]
        for log, records in zip(logs, both, strict=True):
            log.write_text(json.dumps(records))
        found = extract(tmp_path / f"run {number}", *logs)
        assert [[m["content"] for m in s["messages"]] for s in found["sessions"]] == [
            ["Where are the docs?", "In docs/.", "And tests?", "None."], ["ping", "pong"]]  # fmt: skip
        assert [ratings(found, s) for s in found["sessions"]] == [[1, -1], [None]]
        assert Counter(r["reason"] for r in found["rejected"]) == {"repeated record": 3}


def test_chats_of_anythingllm_that_were_reset_are_not_in_the_prompt_of_the_next(tmp_path):
    first, _, second = exports.anythingllm_table()
    refused, third = ({"id": n, "prompt": f"p{n}", "response": f"r{n}"} for n in (4, 5))
    rows = [first | {"include": False}, second, second | refused | {"include": 0}, second | third]
    found = read_export(tmp_path, rows)
    assert [[m["content"] for m in s["messages"]] for s in found["sessions"]] == [
        ["a", "b", "p4", "r4"], ["c", "d", "p5", "r5"]]  # fmt: skip
    assert len({s["session_id"].partition("#")[0] for s in found["sessions"]}) == 1
