"""Hints that the votes on a turn wrote, and what became of each, in words. Filter and choice are those of hints.py."""

from opdkit.chat.openai_form import Message
from opdkit.config.fields import JSON
from opdkit.judge import hints

CHOSEN = "chosen"
_REJECTED = {
    "empty_judgement": "says nothing to act on",
    "too_short": "too short",
    "too_long": "too long",
    "leak": "quotes what came next",
}
_NO_CHOICE = {
    "no_quorum": "accepted, but fewer than half of the votes are valid",
    "outvoted": "accepted, but as many votes or more say that there is nothing to learn",
}
_LOST = {
    "consensus": "accepted, but has less in common with the other votes than the chosen one",
    "longest": "accepted, but shorter than the chosen one",
    "shortest": "accepted, but longer than the chosen one",
    "score": "accepted, but less specific for its length than the chosen one",
}
_CARRIED = "carried over with the turn that this reply answers again, not chosen"


def explain_candidates(messages: list[Message], turn: JSON, verdict: JSON, config: JSON) -> list[JSON]:
    """Return [{"hint", "status"}], each text once: the chosen one, then the accepted ones, then the rejected ones.

    `turn` and `verdict` are rows as extract and judge wrote them, `messages` those of the turn's session, `config` the
    judge's in the stage's manifest.
    """
    votes = [(vote["decision"], vote["hint"]) for vote in verdict["hint_votes"]]
    chosen, accepted = verdict["hint"], verdict["hints"]
    written = [hint.strip() for decision, hint in votes if decision == 1 and hint]
    # The sort is stable: accepted hints keep the order of the verdict, rejected ones that of the votes.
    texts = sorted(dict.fromkeys([*accepted, *written]), key=lambda text: (text != chosen, text not in accepted))
    if "hint_select" not in config:  # a run of fresh replies: its verdicts carry hints, and no votes on them
        return [{"hint": text, "status": CHOSEN if text == chosen else _CARRIED} for text in texts]
    select, max_chars = config["hint_select"], config["max_hint_chars"]
    next_state = hints.unquotable_text(config["judge"], messages, turn["message_index"], turn["next_count"])
    choice = hints.choose(votes, next_state, select=select, max_chars=max_chars)
    rows = []
    for text in texts:
        rejection = hints.rejection(text, next_state, max_chars=max_chars)
        if text == chosen:
            status = CHOSEN
        elif rejection is not None:
            status = _REJECTED[rejection]
        elif text not in choice.hints:
            status = "has the same words as another one"
        else:
            status = _NO_CHOICE.get(choice.status) or _LOST[select]
        rows.append({"hint": text, "status": status})
    return rows
