"""Rules of a system prompt: the hints of a run, with similar hints merged, most requested first. Pure functions.

No model compares the hints, so a paraphrase in other words becomes another rule.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from opdkit.config.fields import JSON
from opdkit.judge.claims import Claims, contradicts, find_claims

Hint = tuple[str, str, str]  # (text, turn id, session)

NEAR = 4  # two hints are one rule if at most 1 in NEAR claims of the longer one is not in the shorter one
EXAMPLES = 5  # wordings and turns to list per rule


def is_near(a: Claims, b: Claims) -> bool:
    """Return True if one makes all claims of the other and only few more, so that no word replaces another word.

    None of the additional claims may be a number: in Chinese, "24 hours" has all characters of "12 hours" and one more.
    """
    shorter, longer = sorted((a, b), key=len)
    more = longer - shorter
    is_few = shorter <= longer and NEAR * len(more) <= len(longer)
    return is_few and not any(word.isnumeric() for word, _ in more)


def merge_hints(hints: Iterable[Hint]) -> list[tuple[Claims, list[Hint]]]:
    """Merge equal hints, then near ones. Return the rules with their hints, sorted by `_rank`: most sessions first."""
    equal, merged = defaultdict[Claims, list[Hint]](list), dict[Claims, list[Hint]]()
    for text, turn_id, session in hints:
        equal[find_claims(text)].append((" ".join(text.split()), turn_id, session))
    numbers = {claims: n for n, claims in enumerate(sorted(equal, key=lambda claims: _rank(equal[claims])))}
    counts = Counter(claim for claims in equal for claim in claims)
    by_rarest, by_rare = (defaultdict[tuple[str, bool], list[Claims]](list) for _ in range(2))  # claim -> rules
    for claims in numbers:
        # The longer of two near rules makes at most 1 in NEAR claims that the shorter lacks, so the shorter's rarest
        # claim is one of these rare claims of the longer.
        rare = sorted(claims, key=lambda claim: (counts[claim], claim))[: len(claims) // NEAR + 1]
        candidates = [*by_rare[rare[0]], *(rule for claim in rare for rule in by_rarest[claim])]
        near = [rule for rule in candidates if is_near(claims, rule)]
        merged.setdefault(min(near, key=numbers.__getitem__, default=claims), []).extend(equal[claims])
        for claim in rare if claims in merged else ():
            by_rare[claim].append(claims)
        if claims in merged:
            by_rarest[rare[0]].append(claims)
    return sorted(merged.items(), key=lambda rule: _rank(rule[1]))


def _rank(hints: Sequence[Hint]) -> tuple[int, int, int, str]:
    """Return the sort key of a rule. The last item is its text: the most frequent wording, the shortest on a tie."""
    wordings = Counter(text for text, _, _ in hints)
    _, length, text = min((-number, len(wording), wording) for wording, number in wordings.items())
    return -len({session for _, _, session in hints}), -len(hints), length, text


def write_prompt_and_evidence(rules: Sequence[tuple[Claims, list[Hint]]]) -> tuple[str, list[JSON]]:
    """Return the system prompt, and a row per rule about who asks for it. Both name contradictions, but settle none."""
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
