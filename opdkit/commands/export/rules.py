"""Rules of a system prompt: the hints of a run, merged by what they say, those that most sessions ask for first. Pure.

No model is asked: a paraphrase in other words is another rule.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from opdkit.config.fields import JSON
from opdkit.judge.claims import Claims, contradicts, find_claims

Hint = tuple[str, str, str]  # its text, turn id, session

NEAR = 4  # hints are one rule when the longer one makes at most one claim in so many beyond those of the shorter one
EXAMPLES = 5  # wordings and turns that are named of each rule


def is_near(a: Claims, b: Claims) -> bool:
    """Return whether one makes all claims of the other and few more, so that no word stands in place of another.

    No number may be among those more: in Chinese, "24 hours" has every character of "12 hours", and one of its own.
    """
    shorter, longer = sorted((a, b), key=len)
    more = longer - shorter
    is_few = shorter <= longer and NEAR * len(more) <= len(longer)
    return is_few and not any(word.isnumeric() for word, _ in more)


def merge_hints(hints: Iterable[Hint]) -> list[tuple[Claims, list[Hint]]]:
    """Return the rules, each with its hints, that of most sessions first: equal hints are merged, then near ones."""
    equal, merged = defaultdict[Claims, list[Hint]](list), dict[Claims, list[Hint]]()
    for text, turn_id, session in hints:
        equal[find_claims(text)].append((" ".join(text.split()), turn_id, session))
    numbers = {claims: n for n, claims in enumerate(sorted(equal, key=lambda claims: _rank(equal[claims])))}
    holders = defaultdict[tuple[str, bool], list[Claims]](list)  # claim -> the rules that make it
    for claims in numbers:
        # A near rule lacks at most one claim in NEAR, so it makes one of these.
        rarest = sorted(claims, key=lambda claim: (len(holders[claim]), claim))[: len(claims) // NEAR + 1]
        near = [rule for claim in rarest for rule in holders[claim] if is_near(claims, rule)]
        merged.setdefault(min(near, key=numbers.__getitem__, default=claims), []).extend(equal[claims])
        for claim in claims if claims in merged else ():
            holders[claim].append(claims)
    return sorted(merged.items(), key=lambda rule: _rank(rule[1]))


def _rank(hints: Sequence[Hint]) -> tuple[int, int, int, str]:
    """Return what rules are sorted by, the text last: the most frequent wording, of several the shortest."""
    wordings = Counter(text for text, _, _ in hints)
    _, length, text = min((-number, len(wording), wording) for wording, number in wordings.items())
    return -len({session for _, _, session in hints}), -len(hints), length, text


def write_prompt_and_evidence(rules: Sequence[tuple[Claims, list[Hint]]]) -> tuple[str, list[JSON]]:
    """Return the system prompt, and per rule who asks for it. Both name contradictions, and settle none."""
    lines, rows = list[str](), list[JSON]()
    for number, (claims, hints) in enumerate(rules, start=1):
        others = {n: _rank(said)[3] for n, (claimed, said) in enumerate(rules, start=1) if contradicts(claims, claimed)}
        sessions, turns, _, text = _rank(hints)
        wordings, turn_ids = Counter(hint[0] for hint in hints), [hint[1] for hint in hints]
        rows.append({"rule": number, "text": text, "sessions": -sessions, "turns": -turns, "contradicts": list(others),
                     "wordings": dict(wordings.most_common(EXAMPLES)), "turn_ids": turn_ids[:EXAMPLES]})  # fmt: skip
        disputed = f" (Others ask for the opposite: {' '.join(others.values())})" if others else ""
        lines.append(f"- {text}{disputed}\n")
    return "".join(lines), rows
