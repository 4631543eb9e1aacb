"""Every hint that a turn's votes wrote, and what became of it, in words. Filter and choice are those of hints.py."""

from collections.abc import Sequence

from opdkit.config.fields import JSON
from opdkit.judge import hints
from opdkit.judge.stage import Case

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
_CARRIED = "carried over with the turn that this reply answers anew, not chosen"


def candidates(case: Case, verdict: JSON, config: JSON) -> list[JSON]:
    """[{"hint", "status"}], each text once: the chosen one first, then the accepted ones, then the rejected ones.

    `verdict` is the row of tables.VERDICTS as the judge wrote it, `config` the judge's in the stage's manifest.
    """
    written = [vote["hint"].strip() for vote in verdict["hint_votes"] if vote["decision"] == 1 and vote["hint"]]
    texts = dict.fromkeys([*written, *verdict["hints"]])
    accepted = {hint: n for n, hint in enumerate(verdict["hints"])}
    ranked = sorted(texts, key=lambda text: (text != verdict["hint"], accepted.get(text, len(accepted))))
    statuses = _statuses(case, verdict, config, ranked)
    return [{"hint": text, "status": statuses[text]} for text in ranked]


def _statuses(case: Case, verdict: JSON, config: JSON, texts: Sequence[str]) -> dict[str, str]:
    if "hint_select" not in config:  # a run of fresh replies: its verdicts carry hints, and no votes on them
        return {text: CHOSEN if text == verdict["hint"] else _CARRIED for text in texts}
    votes, select, most = verdict["hint_votes"], config["hint_select"], config["max_hint_chars"]
    next_state = case.not_to_be_quoted(config["judge"])
    again = hints.choose([v["decision"] for v in votes], [v["hint"] for v in votes], next_state, select=select,
                         max_chars=most)  # fmt: skip

    def status(text: str) -> str:
        if text == verdict["hint"]:
            return CHOSEN
        reason = hints.rejection(text, next_state, max_chars=most)
        if reason is not None:
            return _REJECTED[reason]
        if text not in again.hints:
            return "has the same words as another one"
        return _NO_CHOICE.get(again.status) or _LOST[select]

    return {text: status(text) for text in texts}
