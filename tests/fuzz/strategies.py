"""Hypothesis strategies for the records of every log format: mostly of the right shape, otherwise anything."""

import json

from hypothesis import strategies as st

TEXT = st.sampled_from(
    ["", " ", "hi", "no, the other", "<think>hm</think>ok", "<tool_call>{", "\x00", "é\u2028", "\ud800"]
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


def mostly(good):
    """Return a strategy that gives a value of the right shape 19 times out of 20, and anything otherwise."""
    return st.integers(0, 19).flatmap(lambda n: ANYTHING if n == 19 else good)


def some(**fields):
    """Return a strategy for an object with any of these fields."""
    return st.fixed_dictionaries({}, optional=fields)


def whole(**fields):
    return st.fixed_dictionaries(fields)


BLOCK = some(type=st.sampled_from(["text", "image_url", "tool_result", "tool_use", "thinking", "toolCall", "odd"]),
             text=mostly(TEXT), thinking=mostly(TEXT), id=mostly(TEXT), name=mostly(TEXT), content=mostly(TEXT),
             arguments=mostly(st.just({"a": 1})), input=ANYTHING)  # fmt: skip
CONTENT = mostly(TEXT | st.none() | st.lists(BLOCK | TEXT, max_size=3))
CALL = some(id=mostly(TEXT), function=mostly(whole(name=mostly(TEXT), arguments=mostly(TEXT))), name=mostly(TEXT))
ROLE = mostly(st.sampled_from(["user", "assistant", "system", "tool", "developer", "function"]))
MESSAGE = mostly(st.builds(dict.__or__, whole(role=ROLE, content=CONTENT), some(
    tool_calls=mostly(st.lists(CALL, max_size=2)), name=mostly(TEXT), tool_call_id=mostly(TEXT),
    reasoning_content=mostly(TEXT), function_call=mostly(CALL), finish_reason=mostly(st.just("length")),
    logprobs=mostly(st.lists(st.floats(max_value=0), max_size=2)),
    token_ids=mostly(st.lists(st.integers(0, 9), max_size=2)))))  # fmt: skip
MESSAGES = mostly(st.lists(MESSAGE, max_size=5))
OPENAI = st.builds(dict.__or__, whole(messages=MESSAGES), some(
    model=mostly(TEXT), tools=ANYTHING, reward=ANYTHING, turn_type=mostly(st.just("side")), choices=mostly(
        st.lists(mostly(some(message=MESSAGE, finish_reason=ANYTHING, logprobs=ANYTHING)), max_size=1))))  # fmt: skip
SHAREGPT = st.builds(dict.__or__, whole(conversations=mostly(st.lists(mostly(some(
    **{"from": mostly(st.sampled_from(["human", "gpt", "system", "function_call", "observation"]))}, value=CONTENT)),
    max_size=5))), some(tools=ANYTHING, system=mostly(TEXT), id=ANYTHING))  # fmt: skip
RECORD = st.builds(dict.__or__, whole(session_id=mostly(TEXT), messages=MESSAGES, response_text=mostly(TEXT)), some(
    turn=mostly(st.integers(1, 3)), prompt_text=mostly(TEXT), tool_calls=mostly(st.none() | st.lists(CALL, max_size=2)),
    next_state=mostly(MESSAGE), votes=ANYTHING))  # fmt: skip
IDENT = st.sampled_from(["a", "b", "c", "d"])
KIND = st.sampled_from(["message", "message", "session", "compaction", "custom_message", "branch_summary", "label"])
PI_ROLE = st.sampled_from(["user", "assistant", "toolResult", "bashExecution", "custom"])
EVENT = st.builds(dict.__or__, whole(type=mostly(KIND)), some(
    id=mostly(IDENT), parentId=mostly(IDENT | st.none()), timestamp=TEXT, modelId=mostly(TEXT), summary=mostly(TEXT),
    content=CONTENT, message=mostly(whole(role=mostly(PI_ROLE), content=CONTENT))))  # fmt: skip
SOURCE = mostly(some(type=st.just("base64"), media_type=mostly(st.just("image/png")), data=TEXT))
CLAUDE_BLOCK = some(type=st.sampled_from(["text", "tool_use", "tool_result", "thinking", "image", "document"]),
                    text=mostly(TEXT), thinking=mostly(TEXT), id=mostly(IDENT), tool_use_id=mostly(IDENT),
                    name=mostly(TEXT), input=ANYTHING, content=mostly(TEXT), source=SOURCE,
                    is_error=ANYTHING)  # fmt: skip
CLAUDE_CONTENT = mostly(TEXT | st.lists(CLAUDE_BLOCK, max_size=3))
CLAUDE_MESSAGE = whole(role=mostly(st.sampled_from(["user", "assistant"])), content=CLAUDE_CONTENT)
CLAUDE_KIND = mostly(st.sampled_from(["user", "assistant", "system", "summary"]))
CLAUDE_EVENT = st.builds(dict.__or__, whole(type=CLAUDE_KIND), some(
    uuid=mostly(IDENT), parentUuid=mostly(IDENT | st.none()), logicalParentUuid=mostly(IDENT), sessionId=mostly(IDENT),
    isSidechain=mostly(st.booleans()), isMeta=mostly(st.booleans()), isCompactSummary=mostly(st.booleans()),
    summary=mostly(TEXT), subtype=mostly(st.just("compact_boundary")), timestamp=TEXT, message=mostly(some(
        id=mostly(IDENT), role=mostly(st.sampled_from(["user", "assistant"])), content=CLAUDE_CONTENT,
        model=mostly(TEXT), stop_reason=mostly(st.just("max_tokens"))))))  # fmt: skip
ANTHROPIC = st.builds(dict.__or__, whole(messages=mostly(st.lists(mostly(CLAUDE_MESSAGE), max_size=4))), some(
    system=mostly(TEXT | st.lists(CLAUDE_BLOCK, max_size=2)), model=mostly(TEXT), tools=ANYTHING, response=mostly(some(
        type=st.just("message"), content=CLAUDE_CONTENT, stop_reason=mostly(TEXT), usage=ANYTHING))))  # fmt: skip
CLINE_TEXT = mostly(st.sampled_from(
    ["<feedback>no</feedback>", "[read_file] Result:", "<environment_details></environment_details>",
     "[TASK RESUMPTION] ", "x\n[Response interrupted by user]"]))  # fmt: skip
CLINE_MESSAGE = some(role=ROLE, content=CLINE_TEXT | st.lists(mostly(some(type=st.just("text"), text=CLINE_TEXT))),
                     type=st.just("reasoning"), isSummary=ANYTHING, ts=ANYTHING, modelInfo=ANYTHING)  # fmt: skip
CLINE = whole(messages=mostly(st.lists(mostly(CLAUDE_MESSAGE | CLINE_MESSAGE), max_size=4)))
PART = mostly(TEXT | some(text=mostly(TEXT), thought=ANYTHING, functionCall=mostly(CALL), functionResponse=mostly(
    some(id=mostly(TEXT), response=ANYTHING)), inlineData=ANYTHING))  # fmt: skip
PARTS = mostly(TEXT | st.lists(PART, max_size=3))
GEMINI_CALL = mostly(some(id=mostly(IDENT), name=mostly(TEXT), args=ANYTHING, result=PARTS))
GEMINI_KIND = mostly(st.sampled_from(["user", "gemini", "info"]))
GEMINI_MESSAGE = st.builds(dict.__or__, some(id=mostly(IDENT), type=GEMINI_KIND), some(
    timestamp=TEXT, content=PARTS, thoughts=mostly(st.lists(mostly(some(subject=ANYTHING, description=TEXT)))),
    toolCalls=mostly(st.lists(GEMINI_CALL, max_size=2)), model=ANYTHING))  # fmt: skip
GEMINI_HEADER = st.builds(dict.__or__, whole(sessionId=mostly(IDENT), projectHash=TEXT), some(
    messages=mostly(st.lists(mostly(GEMINI_MESSAGE), max_size=3)), kind=mostly(st.just("subagent"))))  # fmt: skip
GEMINI_CLI = GEMINI_MESSAGE | GEMINI_HEADER | whole(history=mostly(st.lists(
    mostly(whole(role=mostly(st.sampled_from(["user", "model"])), parts=PARTS)), max_size=3))) | some(**{
        "$rewindTo": mostly(IDENT), "$set": mostly(GEMINI_HEADER)})  # fmt: skip
HISTORY_ITEM = st.builds(dict.__or__, whole(role=ROLE, content=CONTENT, agent=TEXT), some(
    is_demo=mostly(st.booleans()), thought=mostly(TEXT), action=mostly(TEXT), tool_call_ids=mostly(
        st.lists(mostly(TEXT), max_size=2)), tool_calls=mostly(st.lists(CALL, max_size=2))))  # fmt: skip
STEP = some(response=mostly(TEXT), observation=mostly(TEXT), action=mostly(TEXT), query=MESSAGES)
SWEAGENT = st.builds(dict.__or__, some(history=mostly(st.lists(mostly(HISTORY_ITEM), max_size=5))), some(
    trajectory=mostly(st.lists(mostly(STEP), max_size=3)), info=ANYTHING, replay_config=mostly(TEXT)))  # fmt: skip
WILDCHAT = st.builds(dict.__or__, whole(conversation_hash=TEXT, conversation=MESSAGES), some(
    model=mostly(TEXT), language=ANYTHING, toxic=ANYTHING, hashed_ip=TEXT))  # fmt: skip
ONE_OR_TWO = whole(conversation_id=TEXT, conversation=MESSAGES) | whole(
    conversation_a=MESSAGES, conversation_b=MESSAGES
)
LMSYS = st.builds(dict.__or__, ONE_OR_TWO, some(
    model=mostly(TEXT), model_a=mostly(TEXT), winner=mostly(st.sampled_from(["model_a", "b", "tie"])),
    openai_moderation=mostly(st.lists(ANYTHING, max_size=2))))  # fmt: skip
OUTPUT = mostly(TEXT | MESSAGE | st.lists(MESSAGE, max_size=1))
OBSERVATION = st.builds(dict.__or__, whole(
    type=mostly(st.sampled_from(["GENERATION", "GENERATION", "SPAN"])), traceId=mostly(IDENT), input=mostly(
        TEXT | MESSAGES | whole(messages=MESSAGES)), output=OUTPUT), some(
    sessionId=mostly(IDENT), model=mostly(TEXT), level=mostly(st.just("ERROR")), metadata=ANYTHING))  # fmt: skip
LANGFUSE = OBSERVATION | whole(id=IDENT, sessionId=mostly(IDENT), observations=mostly(
    st.lists(mostly(OBSERVATION), max_size=3)))  # fmt: skip
PART = some(type=st.sampled_from(["text", "reasoning", "tool_call", "tool_call_response", "blob"]), id=mostly(IDENT),
            content=mostly(TEXT), name=mostly(TEXT), arguments=ANYTHING, response=ANYTHING, modality=TEXT)  # fmt: skip
PARTED = mostly(whole(role=ROLE, parts=mostly(st.lists(PART, max_size=3))))
PARTED_LIST = mostly(st.lists(PARTED, min_size=1, max_size=3).map(json.dumps) | st.lists(PARTED, max_size=3))
WRAPPED = mostly(st.lists(whole(message=MESSAGE), max_size=3))
ATTRIBUTES = some(**{
    "llm.input_messages": WRAPPED, "llm.output_messages": WRAPPED, "gen_ai.input.messages": PARTED_LIST,
    "gen_ai.output.messages": PARTED_LIST, "gen_ai.prompt.0.role": ROLE, "gen_ai.prompt.0.content": CONTENT,
    "gen_ai.completion.0.content": CONTENT, "session.id": mostly(IDENT), "llm.model_name": mostly(TEXT),
    "llm.tools.0.tool.json_schema": mostly(TEXT), "gen_ai.system_instructions": ANYTHING, "": ANYTHING, "0": ANYTHING,
})  # fmt: skip
OTLP_VALUE = st.builds(lambda v: {"stringValue": v if isinstance(v, str) else json.dumps(v)}, ANYTHING | PARTED_LIST)
OTLP_KEY = st.sampled_from(["gen_ai.input.messages", "gen_ai.output.messages", "session.id", "x"])
OTLP_ATTRIBUTES = mostly(st.lists(mostly(whole(key=OTLP_KEY, value=OTLP_VALUE)), max_size=4))
SPAN = st.builds(dict.__or__, whole(name=TEXT, spanId=IDENT, attributes=mostly(ATTRIBUTES | OTLP_ATTRIBUTES)), some(
    traceId=mostly(IDENT), start_time=ANYTHING, context=ANYTHING, events=mostly(st.lists(mostly(some(
        name=st.sampled_from(["gen_ai.user.message", "gen_ai.choice", "gen_ai.tool.message"]), attributes=mostly(
            some(content=CONTENT, message=ANYTHING, tool_calls=ANYTHING)))), max_size=3))))  # fmt: skip
SPAN_LISTS = mostly(st.lists(mostly(whole(spans=mostly(st.lists(mostly(SPAN), max_size=2)))), max_size=2))
OTEL = SPAN | whole(resourceSpans=mostly(st.lists(mostly(whole(scopeSpans=SPAN_LISTS)), max_size=2)))
WHO = mostly(st.sampled_from(["user", "bot", "note", "human", "system"]))
MAPPED_MESSAGE = mostly(whole(who=WHO, said=mostly(st.lists(CONTENT, min_size=1, max_size=2))))
MAPPED_MESSAGES = mostly(st.lists(MAPPED_MESSAGE, max_size=4))
MAPPED = st.builds(dict.__or__, whole(chat=mostly(whole(turns=MAPPED_MESSAGES))), some(
    meta=mostly(some(model=mostly(TEXT), at=ANYTHING)), tools=ANYTHING, other=ANYTHING))  # fmt: skip
MAPPED_PAIR = st.builds(dict.__or__, whole(p=mostly(TEXT | MAPPED_MESSAGES), r=mostly(TEXT | MAPPED_MESSAGE)), some(
    n=mostly(some(text=mostly(TEXT | MAPPED_MESSAGES))), s=mostly(TEXT), other=ANYTHING))  # fmt: skip
MAPPED_SAID = whole(id=mostly(IDENT), n=mostly(st.integers(0, 9)), role=ROLE, text=CONTENT)
MAPPED_LINE = st.builds(dict.__or__, MAPPED_SAID, some(
    tool_calls=mostly(st.lists(some(f=mostly(TEXT)), max_size=2)), other=ANYTHING))  # fmt: skip
MAPPED_LINK = st.builds(dict.__or__, whole(id=mostly(IDENT), p=MESSAGES, r=OUTPUT), some(other=ANYTHING))
ITEM = mostly(some(
    type=st.sampled_from(["message", "reasoning", "function_call", "function_call_output", "local_shell_call",
                          "web_search_call", "ghost_snapshot", "turn_aborted", "thread_rolled_back", "odd"]),
    role=ROLE, content=CONTENT, id=mostly(IDENT), call_id=mostly(IDENT), name=mostly(TEXT), arguments=ANYTHING,
    output=ANYTHING, summary=ANYTHING, num_turns=mostly(st.integers(0, 3)), model=ANYTHING))  # fmt: skip
CODEX_KIND = mostly(st.sampled_from(["session_meta", "response_item", "response_item", "event_msg", "compacted"]))
CODEX = whole(timestamp=TEXT, type=CODEX_KIND, payload=ITEM) | ITEM | whole(
    session=mostly(whole(id=IDENT, timestamp=TEXT)), items=mostly(st.lists(ITEM, max_size=4)))  # fmt: skip
CHOICES = mostly(some(choices=mostly(st.lists(mostly(some(message=MESSAGE, finish_reason=ANYTHING)), max_size=1)),
                      output=mostly(st.lists(ITEM, max_size=2)), content=CONTENT))  # fmt: skip
LITELLM = st.builds(dict.__or__, whole(
    call_type=mostly(st.sampled_from(["completion", "aembedding"])), startTime=ANYTHING, endTime=ANYTHING,
    spend=ANYTHING, messages=mostly(MESSAGES | st.just("{}")), response=mostly(CHOICES | CHOICES.map(json.dumps))),
    some(proxy_server_request=mostly(whole(messages=MESSAGES).map(json.dumps)), session_id=ANYTHING, model=ANYTHING,
         model_parameters=ANYTHING))  # fmt: skip
STORED_ONE = st.builds(dict.__or__, whole(object=mostly(st.just("chat.completion")), metadata=ANYTHING), some(
    messages=mostly(MESSAGES | whole(data=MESSAGES)), choices=mostly(st.lists(mostly(some(message=MESSAGE)))),
    model=ANYTHING))  # fmt: skip
STORED = STORED_ONE | whole(object=st.just("list"), data=mostly(st.lists(mostly(STORED_ONE), max_size=2)))
LC_KIND = mostly(st.sampled_from(["human", "ai", "system", "tool", "odd"]))
LC_MESSAGE = mostly(MESSAGE | whole(lc=st.just(1), kwargs=mostly(some(
    type=LC_KIND, content=CONTENT, tool_calls=mostly(st.lists(CALL, max_size=2)), additional_kwargs=ANYTHING,
    response_metadata=ANYTHING))))  # fmt: skip
RUN = st.builds(dict.__or__, whole(
    run_type=mostly(st.sampled_from(["llm", "llm", "chain"])), trace_id=IDENT,
    inputs=mostly(whole(messages=mostly(st.lists(mostly(st.lists(LC_MESSAGE, max_size=3)), max_size=1)))),
    outputs=mostly(whole(generations=mostly(st.lists(mostly(st.lists(mostly(some(message=LC_MESSAGE, text=TEXT)),
                                                                     max_size=1)), max_size=1))))), some(
    extra=mostly(some(metadata=mostly(some(thread_id=mostly(IDENT))), invocation_params=ANYTHING)), error=ANYTHING,
    feedback=mostly(st.lists(mostly(some(score=ANYTHING, value=ANYTHING, comment=ANYTHING)))),
    feedback_stats=mostly(whole(a=ANYTHING))))  # fmt: skip
LANGSMITH = st.builds(dict.__or__, RUN, some(child_runs=mostly(st.lists(mostly(RUN), max_size=2))))
CLAUDE_AI = whole(uuid=IDENT, chat_messages=mostly(st.lists(mostly(st.builds(dict.__or__, whole(
    sender=mostly(st.sampled_from(["human", "assistant"])), uuid=mostly(IDENT)), some(
    content=mostly(st.lists(CLAUDE_BLOCK, max_size=3)), text=mostly(TEXT), parent_message_uuid=mostly(IDENT),
    attachments=ANYTHING, files=ANYTHING))), max_size=4)))  # fmt: skip
LIBRE_PART = some(type=st.sampled_from(["text", "think", "tool_call", "error", "agent_update", "image_file"]),
                  text=ANYTHING, think=ANYTHING, tool_call=mostly(some(id=IDENT, name=TEXT, args=ANYTHING,
                                                                       output=mostly(TEXT))))  # fmt: skip
LIBRE_ONE = st.builds(dict.__or__, whole(messageId=mostly(IDENT), isCreatedByUser=mostly(st.booleans())), some(
    parentMessageId=mostly(IDENT), text=mostly(TEXT), content=mostly(st.lists(mostly(LIBRE_PART), max_size=3)),
    feedback=mostly(some(rating=mostly(st.just("thumbsUp")), tag=ANYTHING, text=ANYTHING)), error=ANYTHING,
    files=ANYTHING))  # fmt: skip
LIBRE_MESSAGE = st.builds(dict.__or__, LIBRE_ONE, some(children=mostly(st.lists(mostly(LIBRE_ONE), max_size=2))))
LIBRECHAT = whole(conversationId=IDENT, messages=mostly(st.lists(mostly(LIBRE_MESSAGE), max_size=3)))
ANYTHINGLLM = st.builds(
    dict.__or__,
    whole(prompt=mostly(TEXT), response=mostly(TEXT | whole(text=TEXT)), workspace=mostly(IDENT), sent_at=ANYTHING),
    some(
        id=mostly(st.integers(0, 2**70)),
        username=mostly(IDENT),
        rating=mostly(st.sampled_from(["GOOD", "BAD", "--"])),
        feedbackScore=mostly(st.booleans()),
        attachments=ANYTHING,
    ),
)
THOUGHT = some(summary=mostly(TEXT), content=mostly(TEXT))
GPT_KINDS = ["text", "multimodal_text", "code", "execution_output", "thoughts", "reasoning_recap", "odd",
             "user_editable_context"]  # fmt: skip
GPT_CONTENT = mostly(some(content_type=mostly(st.sampled_from(GPT_KINDS)), text=mostly(TEXT), parts=mostly(
    st.lists(ANYTHING, max_size=2)), thoughts=mostly(st.lists(mostly(THOUGHT))), user_profile=TEXT))  # fmt: skip
GPT_MESSAGE = mostly(st.none() | some(author=mostly(whole(role=ROLE)), content=GPT_CONTENT, metadata=mostly(some(
    is_visually_hidden_from_conversation=ANYTHING, model_slug=mostly(TEXT), finish_details=ANYTHING)), status=TEXT,
    recipient=mostly(st.sampled_from(["all", "python"]))))  # fmt: skip
GPT_NODE = mostly(some(parent=mostly(IDENT | st.none()), message=GPT_MESSAGE))
CHATGPT = whole(conversation_id=mostly(IDENT), current_node=mostly(IDENT), mapping=mostly(
    st.dictionaries(IDENT, GPT_NODE))) | whole(conversation_id=mostly(IDENT), id=mostly(IDENT), rating=mostly(
        st.sampled_from(["thumbs_up", "thumbsDown"])), content=mostly(TEXT))  # fmt: skip
RATING = mostly(some(rating=mostly(st.sampled_from([1, -1])), comment=mostly(TEXT), reason=mostly(TEXT),
                     tags=mostly(st.lists(TEXT, max_size=2))))  # fmt: skip
UI_TEXT = TEXT | st.sampled_from(['<details type="reasoning">> hm</details>ok', '<details type="tool_calls" name="f">'])
UI_ROLE = mostly(st.sampled_from(["user", "assistant"]))
UI_LINKED = whole(role=UI_ROLE, content=mostly(UI_TEXT), parentId=mostly(IDENT | st.none()))
UI_MESSAGE = mostly(st.builds(dict.__or__, UI_LINKED, some(
    originalContent=mostly(UI_TEXT), annotation=RATING, error=ANYTHING, done=ANYTHING, files=ANYTHING, models=ANYTHING,
    output=mostly(st.lists(mostly(some(type=mostly(st.sampled_from(["message", "function_call", "reasoning"])),
                                       content=CONTENT, name=TEXT)), max_size=3)))))  # fmt: skip
UI_CHAT = whole(id=mostly(IDENT), chat=mostly(some(models=ANYTHING, params=ANYTHING, history=mostly(
    whole(messages=mostly(st.dictionaries(IDENT, UI_MESSAGE)), currentId=mostly(IDENT))))))  # fmt: skip
OPEN_WEBUI = UI_CHAT | whole(type=st.just("rating"), data=RATING, meta=mostly(whole(
    chat_id=mostly(IDENT), message_id=mostly(IDENT))), snapshot=mostly(whole(chat=mostly(UI_CHAT))))  # fmt: skip
RECORDS = {"openai": OPENAI, "anthropic": ANTHROPIC, "sharegpt": SHAREGPT, "openclaw_rl": RECORD, "pi": EVENT,
           "claude_code": CLAUDE_EVENT, "sweagent": SWEAGENT, "wildchat": WILDCHAT, "lmsys": LMSYS,
           "langfuse": LANGFUSE, "otel": OTEL, "chatgpt": CHATGPT, "open_webui": OPEN_WEBUI, "mapped": MAPPED,
           "codex": CODEX, "litellm": LITELLM, "openai_stored": STORED, "langsmith": LANGSMITH,
           "claude_ai": CLAUDE_AI, "librechat": LIBRECHAT, "anythingllm": ANYTHINGLLM, "cline": CLINE,
           "gemini_cli": GEMINI_CLI,
           "mapped pairs": MAPPED_PAIR, "mapped sessions": MAPPED_LINE, "mapped links": MAPPED_LINK}  # fmt: skip
BOM = b"\xef\xbb\xbf"
JUNK_LINES = (b"# comment", b"// comment", b"{", b"[]", b"null", b"1", b'"text"', b'{"a": NaN}', b"\xff\xfe", b"{}{}",
              b'{"messages":' + b"[" * 2_000, b'{"a":1,"a":2}', b'{"type":"session"}')  # fmt: skip
JUNK = st.sampled_from([*JUNK_LINES, b"", b" \t", BOM])
