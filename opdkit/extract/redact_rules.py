"""Redaction rules: gitleaks' list of secrets as it is published, and opdkit's own list.

gitleaks requires delimiters around a secret that prose does not have ("my key is X, thanks"). Here a key ends before
any character that keys do not contain, and a key with a distinctive prefix may also stand inside a word.
"""

import math
import re
import tomllib
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import regex

from opdkit.errors import OpdkitError
from opdkit.extract import checksums

SECONDS = 10.0  # time limit of a pattern on one text; a sound pattern takes microseconds
_FOLDER = Path(__file__).parent / "rules"
# gitleaks' rules that are not used: their time grows faster than the text, or they match code or ordinary words.
# rules/opdkit.toml has replacements.
_LEFT_OUT = set(
    "curl-auth-header curl-auth-user generic-api-key hashicorp-tf-password jwt kubernetes-secret-yaml pkcs12-file "
    "private-key vault-service-token".split()
)
_BEFORE, _AFTER = r"[\w.-]{0,50}?", r"""(?:[\x60'"\s;]|\\[nr]|$)"""
_PREFIX = re.compile(r"(?:\(\?i\))?\\b\(?(?:[\w\\.-]+[_-]|\(\?:sk\|rk\))")
_ESCAPE = re.compile(r'(?<!\\)\\++(?:(["/nrtfb])|u([0-9a-fA-F]{4}))')
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b"}
_FIELD = re.compile(r'(\\*"):\s?\Z')  # the end of a field's name; its quotation marks may be escaped
_compile_go = partial(regex.compile, flags=regex.V1 | regex.ASCII)  # as in Go: ASCII classes, flags end with the group


class Unescaped:
    """Text without the escapes of JSON, single or repeated, for the rules to search.

    The "n" in r"\\nAKIA" is part of an escape, not a letter before a key. So is the "c" in r"\\u003cAKIA", which is how
    Go writes "<AKIA". `place` maps a position in `text` to its position in the text as it was written.
    """

    def __init__(self, written: str) -> None:
        pieces, done = [], 0
        self._ends, self._removed = list[int](), [0]  # of each escape in `text`, and the characters removed so far
        for escape in _ESCAPE.finditer(written):
            letter, code = escape.groups()
            pieces += [written[done : escape.start()], chr(int(code, 16)) if code else _ESCAPED.get(letter, letter)]
            done = escape.end()
            self._removed.append(self._removed[-1] + len(escape[0]) - 1)
            self._ends.append(done - self._removed[-1])
        self.text = "".join([*pieces, written[done:]])

    def place(self, position: int) -> int:
        return position + self._removed[bisect_right(self._ends, position)]


def unescape(text: str) -> Unescaped | None:
    """Return the text without its escapes; None if it has none."""
    return Unescaped(text) if _ESCAPE.search(text) else None


@dataclass(frozen=True)
class Rule:
    """Pattern of one kind of secret. Every match, in lower case, holds one of `keywords`: these are fast to search."""

    name: str
    keywords: tuple[str, ...]
    source: str
    compile: Callable[[str], Any] = partial(re.compile, flags=re.ASCII)
    limited: str = ""  # the pattern's name in an error; "": the pattern has no time limit
    entropy: float = 0.0  # least bits per character of the secret
    check: Callable[[str], bool] | None = None
    is_whole: bool = False  # True: all of a match is replaced, not its first group

    @cached_property
    def pattern(self) -> Any:
        """Compile the pattern when a text first holds a keyword: compiling all patterns takes longer than most logs."""
        return self.compile(self.source)

    def is_secret(self, text: str) -> bool:
        shares = [count / len(text) for count in Counter(text).values()] if self.entropy else []
        entropy = -sum(share * math.log2(share) for share in shares)
        return entropy >= self.entropy and (self.check is None or self.check(text))

    def find(self, text: str) -> list[tuple[int, int]]:
        """Return (start, end) of each secret: the first group of a match that is not empty, else the whole match.

        Raises OpdkitError if a limited pattern takes longer than `SECONDS`.
        """
        if not (self.limited or self.pattern.search(text)):
            return []  # the usual case, without the setup below
        groups = () if self.is_whole else range(1, self.pattern.groups + 1)
        try:
            matches = self.pattern.finditer(text, **({"timeout": SECONDS} if self.limited else {}))
            spans = [match.span(next((g for g in groups if match[g]), 0)) for match in matches]
        except TimeoutError:
            raise OpdkitError(
                f"{self.limited} took more than {SECONDS:g} seconds on a text of {len(text):,} characters: "
                f"{self.source[:200]!r} tries too many ways to match. Write it without repetitions inside repetitions; "
                "nothing of this part was written"
            ) from None
        return [(start, end) for start, end in spans if self.is_secret(text[start:end])]

    def replace(self, text: str, counts: Counter[str], plain: Unescaped | None = None) -> str:
        """Return `text` with `[name]` for each secret, and count them. `plain` is `text` without its escapes.

        Both are searched: a password may hold what only looks like an escape. Of overlapping secrets, `plain`'s counts.
        """
        found = [(plain.place(start), plain.place(end)) for start, end in self.find(plain.text)] if plain else []
        apart = (s for s in self.find(text) if not (i := bisect_left(found, (s[1],))) or found[i - 1][1] <= s[0])
        pieces, done = list[str](), 0
        for start, end in sorted([*found, *apart]):
            # A secret right after a field's name is a number: its placeholder gets quotes, so that JSON stays JSON.
            field = _FIELD.search(text, max(0, start - 16), start)
            quote = field[1] if field else ""
            pieces += [text[done:start], f"{quote}[{self.name}]{quote}"]
            counts[self.name] += 1
            done = end
        return "".join([*pieces, text[done:]]) if pieces else text


@cache
def load_rules() -> tuple[Rule, ...]:
    """Read gitleaks' rules and opdkit's own, in the order in which they are applied."""
    shared, own = (tomllib.loads((_FOLDER / f"{name}.toml").read_text("utf-8")) for name in ("gitleaks", "opdkit"))
    rules = []
    for rule in shared["rules"]:
        if rule["id"] not in _LEFT_OUT:
            source = rule["regex"].replace(_BEFORE, "").replace(r"\z", r"\Z")
            if _PREFIX.match(source):
                source = source.replace(r"\b", "", 1).replace(_AFTER, "")
            source, limited = source.replace(_AFTER, r"(?![\w+/-]|\.\w)"), f"gitleaks' rule {rule['id']}"
            rules.append(Rule("key", tuple(rule["keywords"]), source, _compile_go, limited, rule.get("entropy", 0.0)))
    for rule in own["rules"]:
        check, entropy = getattr(checksums, rule.get("check", ""), None), rule.get("entropy", 0.0)
        rules.append(Rule(rule["name"], tuple(rule["keywords"]), rule["regex"], entropy=entropy, check=check))
    return tuple(rules)
