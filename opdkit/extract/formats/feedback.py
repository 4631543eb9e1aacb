"""Scores, labels and comments that people gave to replies, as chat front ends and tracing services log them."""

import re
from collections.abc import Iterable
from typing import Any

from opdkit.chat.conversation import JSON, Note
from opdkit.chat.messages import first_text

_LABELS = {
    **dict.fromkeys(("thumbsup", "good", "positive", "up", "like", "correct"), 1),
    **dict.fromkeys(("thumbsdown", "bad", "negative", "down", "dislike", "incorrect"), -1),
}
_SCORES = {1.0: 1, 0.0: -1, -1.0: -1}
# In names of scores for which more is worse: a 1 is not a thumbs-up.
_FAULT = re.compile(r"toxic|hallucin|bias|harm|error|fail|fault|spam|unsafe|profan|refus|bad|wrong|incorrect|dislike"
                    r"|down|negative|risk|leak|pii", re.IGNORECASE)  # fmt: skip


def read_rating(score: Any, label: Any = None) -> int | None:
    """Return a rating as 1 or -1: a score of 1 (up), 0 or -1 (both down), or else a label such as `thumbs-up`.

    None for any other score, since the log does not say on which scale it is. A score may be a label, too.
    """
    ratings = [_SCORES.get(score)] if isinstance(score, (bool, int, float)) else []
    for name in (score, label):
        if isinstance(name, str):
            ratings.append(_LABELS.get("".join(c for c in name.lower() if c not in " -_")))
    return next((rating for rating in ratings if rating is not None), None)


def add_feedback(note: Note, given: Iterable[JSON]) -> None:
    """Add people's feedback on a reply to its note. An entry may have `name`, `score`, `label`, `comment`, `edited`.

    If ratings differ, there is none. The score of a fault is ignored: 1 for "toxicity" is not a thumbs-up.
    """
    ratings: set[int | None] = set()
    texts: dict[str, list[str]] = {"comment": [], "label": [], "edited": []}
    for entry in given:
        score = None if _FAULT.search(str(entry.get("name"))) else entry.get("score")
        ratings.add(read_rating(score, entry.get("label")))
        for key, own in texts.items():
            own += filter(None, [first_text(entry.get(key))])
    ratings.discard(None)
    note.add_decision(
        rating=ratings.pop() if len(ratings) == 1 else None,
        comment="\n".join(texts["comment"]),
        tags=texts["label"],
        edited=texts["edited"][-1] if texts["edited"] else None,
    )
