"""One turn as the file shows it whole: cut where it is very long, and said so."""

from collections.abc import Sequence

from opdkit.config.fields import JSON

BEFORE = 12  # messages before the reply
CHARS, REPLY_CHARS, RAW_CHARS = 3_000, 12_000, 800
TOKENS = 1_500


def fitted(view: JSON) -> JSON:
    """A turn view with the messages nearest to the reply, long texts cut, numbers rounded.

    Where something was left out, the message or target says how much in `cut`, the view in `earlier`.
    """
    index = view["message_index"]
    first = max(0, index - BEFORE)
    verdict = view["verdict"]
    return view | {
        "earlier": first,
        "messages": [_message(m, REPLY_CHARS if n == index else CHARS)
                     for n, m in enumerate(view["messages"]) if n >= first],
        "verdict": verdict and verdict | {name: [vote | {"raw": vote["raw"][:RAW_CHARS]} for vote in verdict[name]]
                                          for name in ("reward_votes", "hint_votes")},
        "targets": [_target(target) for target in view["targets"]],
    }  # fmt: skip


def _message(message: JSON, chars: int) -> JSON:
    cut = 0
    found = dict(message)
    for name in ("content", "reasoning"):
        text = message.get(name)
        if text is not None and len(text) > chars:
            cut += len(text) - chars
            found[name] = text[:chars]
    calls: Sequence[JSON] = message.get("tool_calls") or ()
    cut += sum(max(0, len(call["arguments"]) - chars) for call in calls)
    found["tool_calls"] = [call | {"arguments": call["arguments"][:chars]} for call in calls]
    return found | ({"cut": cut} if cut else {})


def _target(target: JSON) -> JSON:
    kept = [token | {name: _rounded(token[name]) for name in ("old", "teacher", "advantage")}
            for token in target["tokens"][:TOKENS]]  # fmt: skip
    left = len(target["tokens"]) - len(kept)
    return target | {"tokens": kept} | ({"cut": left} if left else {})


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
