"""Finish reasons: why a policy stopped writing a reply, in the words of the servers and libraries that log it.

No other module knows them. Extract, judge, train, rollout and export call `is_cut_off`; chat templates, judge and
export call `is_incomplete`, which also covers replies that an error or a filter ended.
"""

from functools import lru_cache

# Only the letters and digits of a reason are compared: see `_normalise`.
CUT_OFF = (
    "length",  # OpenAI chat, vLLM, SGLang, TGI, Ollama, Mistral, Vercel AI SDK, pi
    "max_tokens",  # Anthropic, Bedrock, Gemini and Cohere as MAX_TOKENS
    "max_output_tokens",  # OpenAI responses: incomplete_details.reason
    "max_completion_tokens",  # gateways that log the name of OpenAI's parameter
    "max_new_tokens",  # gateways that log the name of the parameter of transformers and TGI
    "max_length",  # transformers pipelines
    "model_length",  # Mistral: the context of the model
    "model_context_window_exceeded",  # Anthropic, Bedrock
    "context_length_exceeded",  # gateways
    "error_limit",  # Cohere: the context of the model
    "limit",  # llama.cpp: stop_type
    "stopped_limit",  # llama.cpp before stop_type
    "token_limit",  # watsonx
    "reason_max_len",  # xAI
    "reason_max_context",  # xAI
)
INTERRUPTED = (
    "abort",  # vLLM, SGLang
    "aborted",  # pi
    "cancelled",  # OpenAI responses, watsonx
    "canceled",
    "user_cancel",  # Cohere
    "error",  # OpenRouter, Cohere, watsonx, Vercel AI SDK
    "error_toxic",  # Cohere: its filter
    "network_error",  # Z.ai
    "timeout",  # Cohere
    "time_limit",  # watsonx
    "not_finished",  # watsonx
    "incomplete",  # OpenAI responses: status
    "insufficient_system_resource",  # DeepSeek
    "content_filter",  # OpenAI, Azure, Vercel AI SDK; Google's server as "content_filter: RECITATION"
    "content_filtered",  # Bedrock
    "guardrail_intervened",  # Bedrock
    "refusal",  # Anthropic: its classifiers stop the model
    "sensitive",  # Z.ai
    "safety",  # this one and the next five: Gemini
    "recitation",
    "language",
    "blocklist",
    "prohibited_content",
    "spii",
)


@lru_cache(maxsize=1024)
def is_cut_off(reason: str | None) -> bool:
    """Return whether a reply with this logged finish reason was cut off by a token limit.

    The end of such a reply was not sampled, so nothing may be learned from where it stops. Case, punctuation and the
    name of an enum do not matter. For an unknown reason, return False.

    >>> [is_cut_off(reason) for reason in ("length", "MAX_TOKENS", "FinishReason.MAX_TOKENS", "stop", None)]
    [True, True, True, False, False]
    """
    return reason is not None and _normalise(reason) in _CUT_OFF_KEYS


@lru_cache(maxsize=1024)
def is_incomplete(reason: str | None) -> bool:
    """Return whether a reply with this finish reason was cut off, or interrupted by an abort, an error or a filter.

    >>> [is_incomplete(reason) for reason in ("length", "abort", "content_filter: SPII", "stop", None)]
    [True, True, True, False, False]
    """
    return is_cut_off(reason) or (reason is not None and _normalise(reason) in _INTERRUPTED_KEYS)


def _normalise(reason: str) -> str:
    """Return letters and digits, in lower case: "FinishReason.MAX_TOKENS" -> "maxtokens", "error: x" -> "error"."""
    name = reason.partition(":")[0].rpartition(".")[2]
    return "".join(character for character in name.casefold() if character.isalnum())


_CUT_OFF_KEYS, _INTERRUPTED_KEYS = (frozenset(map(_normalise, reasons)) for reasons in (CUT_OFF, INTERRUPTED))
