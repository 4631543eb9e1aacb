"""Finish reasons: why a policy stopped writing a reply, in the words of the servers and libraries that log it.

The only place that knows them. Extract, judge, teacher, train, rollout and export ask `is_cut_off`.
"""

from functools import lru_cache

# Spellings are compared by their letters and digits alone: see `_key`.
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
    "limit",  # llama.cpp: stop_type
    "stopped_limit",  # llama.cpp before stop_type
    "token_limit",  # watsonx
    "reason_max_len",  # xAI
    "reason_max_context",  # xAI
)


@lru_cache(maxsize=1024)
def is_cut_off(reason: str | None) -> bool:
    """Return whether a reply with this logged finish reason was cut off by a token limit.

    The end of such a reply was not sampled, so nothing may be learned from where it stops. Case, punctuation and the
    name of an enum do not matter. An unknown reason is not a cut.

    >>> [is_cut_off(reason) for reason in ("length", "MAX_TOKENS", "FinishReason.MAX_TOKENS", "stop", None)]
    [True, True, True, False, False]
    """
    return reason is not None and _key(reason) in _CUT_OFF_KEYS


def _key(reason: str) -> str:
    """Return the letters and digits after the last dot, in lower case: "FinishReason.MAX_TOKENS" -> "maxtokens"."""
    return "".join(character for character in reason.rpartition(".")[2].casefold() if character.isalnum())


_CUT_OFF_KEYS = frozenset(_key(reason) for reason in CUT_OFF)
