"""Request logs of LiteLLM: its StandardLoggingPayload, as callbacks and buckets get it, and rows of LiteLLM_SpendLogs.

The prompt of a row is in `proxy_server_request`, the request as the proxy got it. If the proxy redacted a text, the
call is rejected (REDACTED); if it shortened a text, the call is kept but not trainable (SHORTENED).
"""

from opdkit.chat.conversation import JSON, Unreadable
from opdkit.chat.messages import first_text, read_tools
from opdkit.extract.formats.chains import NO_CALL, Call, call_reader, read_prompt, read_reply, require_prompt
from opdkit.extract.formats.reader import LeftOut
from opdkit.extract.formats.spans import drop_empty, parse_text
from opdkit.extract.mapping import value_at

SHORTENED = "shortened by the proxy"
REDACTED = "redacted by the proxy"
_FIELDS = frozenset(("call_type", "startTime", "endTime"))
_NO_CHAT = ("embedding", "image", "transcription", "speech", "moderation", "rerank", "text_completion", "file", "batch")
_KEPT = ("id", "request_id", "litellm_call_id", "session_id", "trace_id", "startTime", "model_group", "user",
         "end_user", "request_tags", "team_id", "status", "cache_hit")  # fmt: skip


def recognises(record: JSON) -> bool:
    """Return whether the record is of one call, with cost and times, and has a field for the prompt."""
    has_prompt = "messages" in record or "proxy_server_request" in record
    return has_prompt and record.keys() >= _FIELDS and ("spend" in record or "response_cost" in record)


def read_call(record: JSON) -> Call | LeftOut:
    """Read one call. Raises Unreadable."""
    kind = record.get("call_type")
    if isinstance(kind, str) and any(name in kind for name in _NO_CHAT):
        return LeftOut(NO_CALL)
    sent = parse_text(record.get("proxy_server_request"))
    request = value_at(sent, ("body",)) or sent
    request = request if isinstance(request, dict) else {}
    items = require_prompt(parse_text(record.get("messages")) or request.get("messages") or request.get("input"),
                         "the log has no prompt; `store_prompts_in_spend_logs: true` keeps it")  # fmt: skip
    output = parse_text(record.get("response"))
    if output in (None, {}, ""):
        raise Unreadable("no reply", first_text(record.get("error_str"), record.get("status")) or "no response")
    # Anthropic's API has `system`, OpenAI's Responses API has `instructions`.
    systems = request.get("system"), request.get("instructions"), value_at(record, ("model_parameters", "instructions"))
    prompt = read_prompt(items, next(filter(None, systems), None))
    reply, note = read_reply(output)
    texts = [text for m in (*prompt, reply) for text in (m["content"], *(c["arguments"] for c in m["tool_calls"]))]
    if any(text and "redacted-by-litellm" in text for text in texts):
        raise Unreadable(REDACTED)
    if any(text and "litellm_truncated" in text for text in texts):
        note.skip_reason = SHORTENED
    tools = value_at(record, ("model_parameters", "tools")) or request.get("tools")
    logged = drop_empty({key: record.get(key) for key in _KEPT})
    model = first_text(record.get("model"), request.get("model"))
    return Call(prompt, reply, note, model=model, tools=read_tools(tools), logged=logged)


READER = call_reader("litellm", recognises, read_call, closer_than=("openai", "anthropic"))
