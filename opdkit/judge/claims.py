"""Claims of hints, contradictions between them, and groups of hints that ask for similar things. Pure.

A hint makes claims: a word, and whether it is wanted. "Use Python, not Java" claims (python, True) and (java, False);
"be brief" and "not so long" claim the same. No model is asked: a paraphrase in other words makes other claims.
"""

import re
from collections.abc import Iterable

from opdkit.judge.words import FILLER, LEAD, NEGATION, OPPOSITES, drop_judgements, find_specific_words, split_terms

Claims = frozenset[tuple[str, bool]]

_CLAUSE = re.compile(r"[.,;:!?](?=\s|\Z)|[。，、；：！？]|\bbut\b")


def find_claims(hint: str) -> Claims:
    """Return a hint's claims, without words that any hint could contain; all of its words if no others are left.

    >>> sorted(find_claims("Please use Celsius, not miles."))
    [('celsiu', True), ('kilometer', True)]
    """
    claims = set[tuple[str, bool]]()
    for clause in _CLAUSE.split(LEAD.sub("", hint.replace("’", "'"))):
        for place, piece in enumerate(NEGATION.split(clause)):
            for word in find_specific_words(split_terms(drop_judgements(piece))) - FILLER:
                about, wanted = OPPOSITES.get(word, (word, True))
                claims.add((about.removesuffix("s") if len(about) > 3 else about, wanted == (place == 0)))
    return frozenset(claims or {(word, True) for word in split_terms(hint) or [hint]})


def group_alike(texts: Iterable[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    """Group (hint, count) pairs that ask for similar things; groups and their members are sorted by count, descending.

    This is looser than the export of rules, since its reader sees all wordings. A hint joins the first group whose most
    common hint denies none of its claims and shares enough of them. Enough is half of the claims of the one that makes
    fewer, and at least two unless it makes one.
    """
    groups: list[tuple[Claims, list[tuple[str, int]]]] = []
    for text, number in sorted(texts, key=lambda one: (-one[1], one[0])):
        claims = find_claims(text)
        for first, members in groups:
            denied = any((word, not wanted) in first for word, wanted in claims)
            fewer, shared = min(len(claims), len(first)), len(claims & first)
            if not denied and 2 * shared >= fewer and shared >= min(fewer, 2):
                members.append((text, number))
                break
        else:
            groups.append((claims, [(text, number)]))
    return sorted((members for _, members in groups), key=lambda members: -sum(number for _, number in members))


def choose_wording(counts: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Return hint -> the most common hint of its group, from (hint, count) pairs."""
    return {text: members[0][0] for members in group_alike(counts) for text, _ in members}


def contradicts(a: Claims, b: Claims) -> bool:
    """Return whether one hint wants all that the other denies, and at most one of them makes further claims."""
    denied = frozenset((word, wanted) for word, wanted in a if (word, not wanted) in b)
    unwanted = [{word for word, wanted in claims if not wanted} for claims in (a, b)]
    is_whole = any(own and own <= {word for word, _ in denied} for own in unwanted)
    rest_a, rest_b = a - denied, b - {(word, not wanted) for word, wanted in denied}
    return is_whole and (rest_a <= rest_b or rest_b <= rest_a)
