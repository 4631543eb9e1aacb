"""Build a small export of every format that has a single producer, with counts made by hand (`COUNTED`).

The shapes follow the producers' code:

- codex: openai/codex, `RolloutLine` and `ResponseItem` of codex-rs/protocol (0.98), the recorder of
  codex-rs/core/src/rollout.rs (0.2, bare items), `saveRollout` of the TypeScript client (0.1, one object).
- litellm: `StandardLoggingPayload` and `LiteLLM_SpendLogs` of litellm 1.80.0 and 1.109.1; logged/litellm-* was written
  by 1.80.0 itself.
- openai_stored: the API reference of chat completions (list, and messages of one), as of 2026.
- langsmith: `Run` and `Feedback` of langsmith 0.15.0; logged/langchain-core-* was written by langchain-core 1.7.2.
- otel (Phoenix): `Span` and `SpanAnnotation` of arize-phoenix-client 3.5.0, traces of phoenix-cli (`px trace`).
- claude_ai: the export of 2026 as its users describe it; Anthropic publishes no description.
- librechat: useExportConversation.ts and useBuildMessageTree.ts, feedback.ts of data-provider (0.8).
- anythingllm: server/utils/helpers/chat/convertTo.js and `workspace_chats` of prisma/schema.prisma (1.8).
"""

import json
from typing import Any

JSON = dict[str, Any]


def item(kind: str, **payload: Any) -> JSON:
    return {"timestamp": "2026-01-02T03:04:05.678Z", "type": kind, "payload": payload}


def said(role: str, text: str) -> JSON:
    part = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": part, "text": text}]}


def codex() -> list[JSON]:
    """Return two branches: 5 replies (2 of them only a tool call), and 1 more that was rolled back."""
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "look first"}], "content": None,
               "encrypted_content": "gAAA"}  # fmt: skip
    shell = {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "c1"}
    patch = {"type": "custom_tool_call", "status": "completed", "name": "apply_patch", "input": "*** Begin Patch",
             "call_id": "c2"}  # fmt: skip
    exec_ = {"type": "exec", "command": ["make"], "timeout_ms": None, "working_directory": None, "env": None}
    local = {"type": "local_shell_call", "call_id": "c3", "status": "completed", "action": exec_}
    items: list[JSON] = [
        item("session_meta", id="0199", cwd="/w", originator="codex_cli_rs", cli_version="0.98.0", source="cli",
             model_provider="openai", base_instructions={"text": "You are Codex."}),
        *(item("response_item", **body) for body in (
            said("developer", "The sandbox is read-only."),
            said("user", "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>"),
        )),
        item("turn_context", cwd="/w", model="gpt-5-codex", approval_policy="never"),
        *(item("response_item", **body) for body in (
            said("user", "Fix the test."),
            thought, said("assistant", "Looking."), shell,
            {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
            patch, {"type": "custom_tool_call_output", "call_id": "c2", "output": "Done."},
            {"type": "ghost_snapshot", "ghost_commit": {"id": "f00"}},
            local, {"type": "function_call_output", "call_id": "c3", "output": [{"type": "input_text", "text": "ok"}]},
            said("assistant", "Fixed."),
        )),
        item("event_msg", type="agent_message", message="Fixed."),
        item("response_item", **said("user", "And the docs.")),
        item("response_item", **said("assistant", "I deleted them.")),
        item("event_msg", type="thread_rolled_back", num_turns=1),
        item("compacted", message="They fixed a test.", replacement_history=[]),
        item("response_item", **said("user", "Extend the docs.")),
        item("response_item", **said("assistant", "Extended.")),
        item("response_item", **said("user", "Thanks.")),
    ]  # fmt: skip
    return items


def codex_bare() -> list[JSON]:
    """Return one branch of 2 replies, the first with a call, as the recorder wrote it in 2025."""
    return [
        {"id": "5973", "timestamp": "2025-05-07T17:24:21.123Z", "instructions": "Use tabs."},
        said("user", "List the files."),
        {"type": "function_call", "name": "shell", "arguments": '{"command":["ls"]}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": '{"output":"a.py","metadata":{"exit_code":0}}'},
        {"record_type": "state", "previous_response_id": None},
        said("assistant", "One file: a.py."),
    ]


def codex_document() -> list[JSON]:
    """Return the session of `codex_bare` as the first client wrote it."""
    header, *items = codex_bare()
    return [{"session": header, "items": [entry for entry in items if "type" in entry]}]


def litellm() -> list[JSON]:
    """Return one conversation of 2 calls, a failed call, an embedding, and a call whose text was redacted."""

    def payload(number: int, messages: Any, response: Any, **more: Any) -> JSON:
        return {"id": f"chatcmpl-{number}", "trace_id": f"t{number}", "call_type": "acompletion", "response_cost": 0.1,
                "startTime": 1.0 + number, "endTime": 2.0 + number, "model": "gpt-4o", "messages": messages,
                "response": response, "model_parameters": {}, "status": "success"} | more  # fmt: skip

    def choices(text: str) -> JSON:
        return {"object": "chat.completion", "choices": [
            {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": text}}]}  # fmt: skip

    first = [{"role": "user", "content": "Capital of France?"}]
    second = [*first, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Peru?"}]
    hidden = "redacted-by-litellm"
    return [
        payload(1, first, choices("Paris.")), payload(2, second, choices("Lima.")),
        payload(3, first, {}, status="failure", error_str="Timeout"),
        payload(4, "text", {"object": "list"}, call_type="aembedding"),
        payload(5, [{"role": "user", "content": hidden}], choices(hidden)),
    ]  # fmt: skip


def openai_stored() -> list[JSON]:
    """Return one conversation of 2 completions, the second with parts, and one completion without its prompt."""

    def completion(number: int, reply: JSON, **more: Any) -> JSON:
        return {"object": "chat.completion", "id": f"chatcmpl-{number}", "model": "gpt-4o", "created": number,
                "request_id": f"req_{number}", "tool_choice": None, "input_user": None, "metadata": {"shop": "s"},
                "choices": [{"index": 0, "message": {"role": "assistant"} | reply, "finish_reason": "stop",
                             "logprobs": None}]} | more  # fmt: skip

    def stored(number: int, place: int, role: str, content: Any, parts: Any = None) -> JSON:
        return {"id": f"chatcmpl-{number}-{place}", "role": role, "content": content, "name": None,
                "content_parts": parts}  # fmt: skip

    picture = [{"type": "text", "text": "And this?"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    return [
        completion(1, {"content": "A cat."}, messages=[stored(1, 0, "user", "What is this?")]),
        completion(2, {"content": "A dog."}, messages={"object": "list", "data": [
            stored(2, 0, "user", "What is this?"), stored(2, 1, "assistant", "A cat."),
            stored(2, 2, "user", None, picture)]}),
        completion(3, {"content": "lost"}),
    ]  # fmt: skip


def _lc(name: str, **fields: Any) -> JSON:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": fields}


def _run(number: int, kind: str, inputs: Any, outputs: Any, **more: Any) -> JSON:
    return {"id": f"r{number}", "name": "ChatOpenAI", "run_type": kind, "start_time": f"2026-01-01T00:00:0{number}",
            "inputs": inputs, "outputs": outputs, "trace_id": "t", "dotted_order": f"{number}", "parent_run_id": None,
            "extra": {"metadata": {"thread_id": "th", "ls_model_name": "gpt-4o"}}} | more  # fmt: skip


def langsmith() -> list[JSON]:
    """Return one thread of 3 LLM calls: praised; calling a tool, with an edit and a comment; not rated.

    The first is inside a chain run, which has the thumb that a person gave the trace. The tool's run stands alone.
    """

    def answer(**fields: Any) -> JSON:
        body = _lc("AIMessage", type="ai", response_metadata={"finish_reason": "stop"}, **fields)
        return {"generations": [[{"text": fields["content"], "type": "ChatGeneration", "message": body}]]}

    start = [_lc("SystemMessage", content="Be brief.", type="system"), _lc("HumanMessage", content="Hi", type="human")]
    call = {"name": "weather", "args": {"city": "Lima"}, "id": "c1", "type": "tool_call"}
    second = [*start, _lc("AIMessage", content="Hello.", type="ai"), _lc("HumanMessage", content="Lima?", type="human")]
    third = [*second, _lc("AIMessage", content="", type="ai", tool_calls=[call]),
             _lc("ToolMessage", content="sunny", type="tool", tool_call_id="c1")]  # fmt: skip
    thumb = {"key": "thumb", "score": 1, "value": None, "comment": None, "feedback_source": {"type": "api"}}
    judged = {"key": "correctness", "score": 0, "feedback_source": {"type": "model"}}
    edit = {"key": "note", "score": 0, "comment": "Too short.", "correction": "It is sunny in Lima.",
            "feedback_source": {"type": "app"}}  # fmt: skip
    return [
        _run(1, "chain", {"input": "Hi"}, {"output": "Hello."}, feedback=[thumb, judged], child_runs=[
            _run(2, "llm", {"messages": [start]}, answer(content="Hello."))]),
        _run(3, "llm", {"messages": [second]}, answer(content="", tool_calls=[call]), feedback=[edit]),
        _run(4, "llm", {"messages": [third]}, answer(content="Sunny.")),
        _run(5, "tool", {"input": "Lima"}, {"output": "sunny"}),
    ]  # fmt: skip


def phoenix() -> list[JSON]:
    """Return a trace of `px trace`: a root and 2 calls, the first with a person's thumb down and a model's score."""

    def span(name: str, attributes: JSON, **more: Any) -> JSON:
        return {"name": name, "context": {"trace_id": "t", "span_id": name}, "span_kind": "LLM", "parent_id": "root",
                "start_time": "2026-01-01T00:00:00Z", "status_code": "OK", "attributes": attributes} | more  # fmt: skip

    def said_at(place: str, role: str, text: str) -> JSON:
        return {f"llm.{place}.message.role": role, f"llm.{place}.message.content": text}

    first = said_at("input_messages.0", "user", "Hi")
    again = said_at("input_messages.1", "assistant", "Hello.") | said_at("input_messages.2", "user", "Shorter.")
    thumb = {"name": "thumb", "annotator_kind": "HUMAN", "span_id": "a",
             "result": {"label": "thumbs-down", "score": 0, "explanation": "Too long."}}  # fmt: skip
    judge = {"name": "quality", "annotator_kind": "LLM", "result": {"label": "good", "score": 1, "explanation": "fine"}}
    return [{"traceId": "t", "status": "OK", "spans": [
        span("root", {"input.value": "Hi"}, span_kind="CHAIN", parent_id=None),
        span("a", first | said_at("output_messages.0", "assistant", "Hello."), annotations=[thumb, judge]),
        span("b", first | again | said_at("output_messages.0", "assistant", "Hi.")),
    ]}]  # fmt: skip


def claude_ai() -> list[JSON]:
    """Return a tree of 2 branches (a regenerated reply) and 6 messages, and 2 messages in the form of older exports."""
    root = "00000000-0000-4000-8000-000000000000"

    def message(uuid: str, sender: str, parent: str | None, *blocks: Any, **more: Any) -> JSON:
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        return {"uuid": uuid, "text": "\n".join(texts), "content": list(blocks), "sender": sender, "attachments": [],
                "files": [], **({} if parent is None else {"parent_message_uuid": parent})} | more  # fmt: skip

    def text(value: str) -> JSON:
        return {"type": "text", "text": value, "citations": []}

    attached = [{"file_name": "notes.txt", "file_size": 9, "file_type": "txt", "extracted_content": "Our notes."}]
    used = {"type": "tool_use", "id": "tu1", "name": "web_search", "input": {"query": "tides"}}
    result = {"type": "tool_result", "tool_use_id": "tu1", "name": "web_search", "content": [
        {"type": "knowledge", "title": "Tides", "text": "High at noon."}]}  # fmt: skip
    return [
        {"uuid": "c1", "name": "Tides", "created_at": "2026-01-01T00:00:00Z", "account": {"uuid": "a"},
         "chat_messages": [
             message("m1", "human", root, text("When is high tide?"), attachments=attached),
             message("m2", "assistant", "m1", text("I do not know.")),
             message("m3", "assistant", "m1", {"type": "thinking", "thinking": "search"}, text("Let me look."), used,
                     result, text("At noon.")),
             message("m4", "human", "m3", {"type": "voice_note", "title": "Note", "text": "Thanks."})]},
        {"uuid": "c2", "name": "", "created_at": "2024-01-01T00:00:00Z", "chat_messages": [
            {"uuid": "o1", "text": "Hi", "sender": "human", "attachments": [], "files": []},
            {"uuid": "o2", "text": "Hello.", "sender": "assistant", "attachments": [], "files": []}]},
    ]  # fmt: skip


def librechat(nested: bool = True) -> list[JSON]:
    """Return a tree of 2 branches: 2 user messages, 3 replies (1 by an agent), a thumb up, a thumb down with a tag."""

    def message(name: str, parent: str, by_user: bool, text: str = "", **more: Any) -> JSON:
        return {"messageId": name, "conversationId": "c", "parentMessageId": parent, "isCreatedByUser": by_user,
                "sender": "User" if by_user else "Agent", "text": text, "error": False} | more  # fmt: skip

    tool = {"id": "t1", "name": "clock", "args": '{"zone":"UTC"}', "type": "tool_call", "output": "12:00"}
    parts = [None, {"type": "think", "think": "ask the clock"}, {"type": "text", "text": "One moment."},
             {"type": "tool_call", "tool_call": tool}, {"type": "text", "text": {"value": "It is noon."}}]  # fmt: skip
    down = {"rating": "thumbsDown", "tag": {"key": "inaccurate", "direction": "thumbsDown"}, "text": "It is one."}
    rows = [
        message("u1", "00000000-0000-0000-0000-000000000000", True, "What time is it?"),
        message("a1", "u1", False, "No idea.", model="gpt-4o", feedback=down),
        message("a2", "u1", False, model="agent_1", content=parts, finish_reason="stop",
                feedback={"rating": "thumbsUp", "tag": "accurate_reliable"}),
        message("u2", "a2", True, "And in Lima?"),
        message("a3", "u2", False, "Seven.", model="gpt-4o"),
    ]  # fmt: skip
    export = {"conversationId": "c", "endpoint": "agents", "title": "Time", "exportAt": "12:00:00", "branches": True,
              "recursive": nested}  # fmt: skip
    if not nested:
        return [export | {"messages": rows}]
    by_name = {row["messageId"]: row | {"children": []} for row in rows}
    for row in by_name.values():
        if row["parentMessageId"] in by_name:
            by_name[row["parentMessageId"]]["children"].append(row)
    return [export | {"messages": [by_name["u1"]]}]


def anythingllm() -> list[JSON]:
    """Return the JSON export: ann's 2 chats in one workspace (rated up, then down), out of order, and 1 of the API."""

    def chat(number: int, user: str, prompt: str, response: str, rating: str) -> JSON:
        return {"id": number, "prompt": prompt, "response": response, "sent_at": "2026-01-01T00:00:00Z",
                "attachments": [], "workspace": "docs", "username": user, "rating": rating}  # fmt: skip

    return [chat(3, "ann", "And tests?", "None.", "BAD"), chat(1, "ann", "Where are the docs?", "In docs/.", "GOOD"),
            chat(2, "API", "ping", "pong", "--")]  # fmt: skip


def anythingllm_table() -> list[JSON]:
    """Return rows of `workspace_chats`: 2 chats of one thread, the second with a thumb up, and 1 of another thread."""

    def row(number: int, thread: int, prompt: str, text: str, score: bool | None) -> JSON:
        return {"id": number, "workspaceId": 1, "prompt": prompt, "response": json.dumps({"text": text, "sources": []}),
                "include": True, "user_id": 2, "thread_id": thread, "api_session_id": None, "feedbackScore": score,
                "createdAt": 1767225600000 + number}  # fmt: skip

    return [row(1, 7, "a", "b", None), row(2, 8, "other", "thread", None), row(3, 7, "c", "d", True)]


def librechat_flat() -> list[JSON]:
    """Return the export of `librechat` with all messages in one list."""
    return librechat(nested=False)


# Builder -> (format, number of messages per session, ratings of the replies per session, reasons of rejected records,
# number of records left out)
COUNTED: dict[Any, tuple[str, list[int], list[list[int | None]], list[str], int]] = {
    codex: ("codex", [14, 13], [[None] * 5, [None] * 5], [], 0),
    codex_bare: ("codex", [4], [[None] * 2], [], 0),
    codex_document: ("codex", [4], [[None] * 2], [], 0),
    litellm: ("litellm", [4], [[None] * 2], ["no reply", "redacted by the proxy"], 1),
    openai_stored: ("openai_stored", [4], [[None] * 2], ["no messages"], 0),
    langsmith: ("langsmith", [7], [[1, -1, None]], [], 2),
    phoenix: ("otel", [4], [[-1, None]], [], 1),
    claude_ai: ("claude_ai", [5, 2, 2], [[None, None], [None], [None]], [], 0),
    librechat: ("librechat", [6, 2], [[None, 1, None], [-1]], [], 0),
    librechat_flat: ("librechat", [6, 2], [[None, 1, None], [-1]], [], 0),
    anythingllm: ("anythingllm", [4, 2], [[1, -1], [None]], [], 0),
    anythingllm_table: ("anythingllm", [4, 2], [[None, 1], [None]], [], 0),
}
