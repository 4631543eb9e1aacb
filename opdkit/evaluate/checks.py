"""Held-out prompts, the checks that a reply to each must pass, and echoes of hints in replies.

A file of prompts has one JSON object per line:

    {"id": "r1", "domain": "dates", "prompt": "When is it?", "check": {"match": ["\\\\d{4}-\\\\d{2}-\\\\d{2}"]}}
    {"id": "r2", "domain": "tone", "messages": [...], "tools": [...], "check": {"judge": "It does not apologise."}}

`match`: every pattern matches (Python's re.search); `absent`: no pattern matches. Both may be given, and
`"ignore_case": true`. `^` and `$` match at the ends of the whole reply unless a pattern begins with `(?m)`.
`judge`: a criterion that a judge model votes on; it may mention a `hint`, or the good reply of a log (`praised`), which
the judge then reads, too. `id` (default: the line) and `domain` (the tables group rows by it) may be left out.
`"corrected": true` says that the logs correct replies like this one, `false` that they do not, so that training should
change nothing there. The scores group all `true` rows as "corrected" and all `false` rows as "uncorrected". Prompts
with the same `session` (a text) count as one where chance is estimated: they are from one conversation. Other fields of
a row are ignored.

An echo is a reply that mentions a hint that nobody gave: a model may learn it from a teacher that had read one. There
are three kinds, each of which counts only if the prompt gives no reason for it:

- a marker: `[HINT_START]`, `[HINT_END]`, or the line that introduces a hint in the teacher's prompt, with or without
  its brackets; not if the prompt has the same marker.
- a phrase that credits the user with a hint ("based on your hint", "as you hinted"); not if the prompt itself mentions
  hints (or instructions, for the phrase about those). English only. The word alone is ordinary ("type hints", "a hint
  of lemon"), so a phrase must name who gave it.
- a whole hint of the run, word for word, of at least five words, or ten characters in a script without spaces; not if
  the prompt has it too.

The share before training shows how often ordinary replies look like echoes; training added the difference.
"""

import json
import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from opdkit.chat.conversation import Unreadable
from opdkit.chat.messages import message, read_messages, read_tools
from opdkit.config.fields import JSON, PythonFunction, did_you_mean
from opdkit.config.wording import DEFAULTS
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.words import NEGATION, specific_words
from opdkit.store.digests import file_digest
from opdkit.store.plans import manifest

# Domains that the scores add: everything, and what the logs correct or do not.
ALL, CORRECTED, UNCORRECTED = "all", "corrected", "uncorrected"
POOLED = {ALL: "everything", CORRECTED: "what the logs correct", UNCORRECTED: "what the logs do not correct"}
PROBES = ("push_back", "planted_error")
_OF_JUDGE = ("judge", "hint", "praised")
_FIELDS = ("match", "absent", "ignore_case", *_OF_JUDGE)


@dataclass(frozen=True)
class Patterns:
    """Check that all of `match` and none of `absent` match."""

    match: tuple[re.Pattern[str], ...]
    absent: tuple[re.Pattern[str], ...]

    def passes(self, text: str) -> bool:
        """Return True for a reply that passes. An empty reply fails: it would satisfy every `absent`."""
        matches = all(p.search(text) for p in self.match) and not any(p.search(text) for p in self.absent)
        return matches and bool(text.strip())


@dataclass(frozen=True)
class FunctionCheck:
    """Check by a Python function of the reply and the row of its prompt, with all of its fields."""

    function: PythonFunction
    row: JSON

    def passes(self, text: str) -> bool:
        """Return True for a reply that passes. An empty one fails. Raises OpdkitError for an answer that is no bool."""
        passed = self.function.call(text, self.row) if text.strip() else False
        if not isinstance(passed, bool):
            raise OpdkitError(f"{self.function} returned {passed!r} for prompt {self.row['id']}; it must return a bool")
        return passed


@dataclass(frozen=True)
class Keeps:
    """Check that a reply keeps to what was right, half of whose words it repeats. `claim`: it may also not take it up.

    Both are words that say something. What a reply only denies ("It is not Paris") it does not repeat.
    """

    own: frozenset[str]
    claim: frozenset[str] = frozenset()

    def passes(self, text: str) -> bool:
        """Return True for a reply that has half of the words of its own, or else not half of those of the claim.

        An empty reply fails.
        """
        if not _fold(text)[1]:
            return False
        words = key_words(text, affirmed=True)
        gives_in = 2 * len(words & self.claim) >= len(self.claim)
        return 2 * len(words & self.own) >= len(self.own) or not gives_in


@dataclass(frozen=True)
class Criterion:
    """Criterion that a judge model votes on, and the hint or the praised reply that it mentions."""

    text: str
    hint: str | None = None
    praised: str | None = None


@dataclass(frozen=True)
class HeldOutPrompt:
    """Row of the file of prompts."""

    id: str
    domain: str
    messages: list[JSON]  # `message` of tables.toml
    tools: str | None
    check: Patterns | FunctionCheck | Criterion | Keeps
    corrected: bool | None = None  # the logs correct such replies; None: unknown
    probe: str | None = None  # what it probes, of PROBES; None: a prompt of the file
    session: str | None = None  # the prompts of one session count as one where chance is estimated

    @property
    def unit(self) -> Hashable:
        """Return what the prompt counts as where chance is estimated."""
        return unit_of(self.id, self.session)

    def domains(self) -> tuple[str, ...]:
        """Return the domains that the prompt counts in: its own, and those that group several."""
        pooled = () if self.corrected is None else (CORRECTED if self.corrected else UNCORRECTED,)
        return (ALL, *pooled, self.domain)

    def text(self) -> str:
        """Return all text that a reply may repeat: messages, calls, thinking, and the tool definitions."""
        texts = [(m["content"], m["reasoning"], *(c["arguments"] for c in m["tool_calls"])) for m in self.messages]
        return "\n".join(text for text in (*chain.from_iterable(texts), self.tools) if text)


def unit_of(prompt_id: str, session: str | None) -> Hashable:
    """Return what a prompt counts as where chance is estimated: its session, which is no prompt's id, or itself."""
    return session or (prompt_id,)


def read_text(flag: str, path: Path) -> str:
    """Return the text of the file that `flag` names. Raises ConfigError when it cannot be read, or is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{flag} {path} is not UTF-8 text: {error}") from error


def evaluated_prompts(run: Path, remedy: str, file: str | None = None) -> dict[str, HeldOutPrompt]:
    """Return the prompts that a run was evaluated on, by id, from `file` or from where eval read them.

    Raises OpdkitError, which ends with `remedy`, where the file is gone or another one.
    """
    document = manifest(run, "eval")
    options, path = (
        document["plan"]["config"] | document["plan"]["inputs"],
        Path(file or document["configuration"]["prompts"]),
    )
    if not path.is_file() or file_digest(path) != options["prompts"]:
        raise OpdkitError(f"{path} is not the file of prompts that {run} was evaluated on: {remedy}")
    # The replies were checked: a function only stands for the checks that the rows lack.
    check = PythonFunction(read_prompts) if "check" in options else None
    return {prompt.id: prompt for prompt in read_prompts(path, options["max_prompts"], check)}


def read_prompts(path: Path, limit: int | None = None, check: PythonFunction | None = None) -> list[HeldOutPrompt]:
    """Return the first `limit` prompts of a file; `check` is for those without a check of their own.

    Raises ConfigError, with file and line, at the first bad row.
    """
    prompts: dict[str, HeldOutPrompt] = {}
    for number, line in enumerate(read_text("--prompts", path).split("\n"), start=1):  # splitlines() would break JSON
        if not line.strip():
            continue
        try:
            prompt = _prompt(json.loads(line), number, check)
            if prompt.id in prompts:
                raise ValueError(f"the id {prompt.id!r} appears twice")
        except (ValueError, RecursionError, Unreadable) as error:  # JSONDecodeError is a ValueError
            detail = f"{error.reason}: {error.detail}" if isinstance(error, Unreadable) else str(error)
            raise ConfigError(f"--prompts {path}, line {number}: {detail}") from error
        prompts[prompt.id] = prompt
    if not prompts:
        raise ConfigError(f"--prompts {path} holds no prompts")
    return list(prompts.values())[:limit]


def _prompt(row: Any, line: int, function: PythonFunction | None) -> HeldOutPrompt:
    """Return one row as a prompt. Raises ValueError or Unreadable."""
    if not isinstance(row, dict):
        raise ValueError(f"not a JSON object, but a {type(row).__name__}")
    row = {"id": f"line-{line}", "domain": "prompts"} | row
    for name in ("id", "domain", "session"):
        if name in row and not (isinstance(row[name], str) and row[name]):
            raise ValueError(f"{name!r} must be a text that is not empty")
    if row["domain"] in POOLED:
        raise ValueError(f"the domain {row['domain']!r} means {POOLED[row['domain']]} in the tables; use another name")
    corrected = row.get("corrected", False)
    if not isinstance(corrected, bool):
        raise ValueError("'corrected' must be true or false")
    messages, tools = _messages(row), read_tools(row.get("tools"))
    check = FunctionCheck(function, row) if function and row.get("check") is None else _check(row.get("check"))
    session = row.get("session")
    return HeldOutPrompt(row["id"], row["domain"], messages, tools, check, row.get("corrected"), session=session)


def _messages(row: JSON) -> list[JSON]:
    """Return the messages of `prompt` or `messages`. Raises ValueError or Unreadable."""
    if ("prompt" in row) == ("messages" in row):
        raise ValueError("exactly one of 'prompt' (text) and 'messages' is needed")
    if "prompt" in row:
        if isinstance(row["prompt"], list):
            raise ValueError("'prompt' must be a text; a list of messages goes into 'messages'")
        if not isinstance(row["prompt"], str) or not row["prompt"].strip():
            raise ValueError("'prompt' must be a text that is not empty")
        return [message("user", row["prompt"])]
    if not isinstance(row["messages"], list) or not row["messages"]:
        raise ValueError("'messages' must be a list that is not empty")
    messages, _ = read_messages(row["messages"])
    if messages[-1]["role"] == "assistant":
        raise ValueError("the last message is from the assistant: there is nothing to reply to")
    return messages


def _check(check: Any) -> Patterns | Criterion:
    """Return the check of a row. Raises ValueError."""
    if not isinstance(check, dict) or not check:
        raise ValueError('\'check\' is needed: {"match": [...], "absent": [...]} or {"judge": "criterion"}')
    unknown = next((name for name in check if name not in _FIELDS), None)
    if unknown is not None:
        raise ValueError(f"'check' has no field {unknown!r}; {did_you_mean(unknown, _FIELDS)}")
    if not check.keys().isdisjoint(_OF_JUDGE):
        are_texts = all(isinstance(text, str) and text.strip() for text in check.values())
        if "judge" not in check or not check.keys() <= set(_OF_JUDGE) or not are_texts:
            raise ValueError("a 'judge' check has one criterion as text, a 'hint' or a 'praised' reply as text if the "
                             "criterion mentions it, and no other field")  # fmt: skip
        return Criterion(check["judge"], check.get("hint"), check.get("praised"))
    return read_patterns(check)


def read_patterns(check: JSON) -> Patterns:
    """Return the check of a row that has patterns. Raises ValueError."""
    if not isinstance(check.get("ignore_case", False), bool):
        raise ValueError("'ignore_case' must be true or false")
    flags = re.IGNORECASE if check.get("ignore_case") else re.NOFLAG
    compiled: dict[str, list[re.Pattern[str]]] = {"match": [], "absent": []}
    for name in compiled:
        patterns = check.get(name, [])
        if not isinstance(patterns, list) or not all(isinstance(p, str) for p in patterns):
            raise ValueError(f"{name!r} must be a list of patterns")
        for pattern in patterns:
            try:
                compiled[name].append(re.compile(pattern, flags))
            except (re.error, OverflowError) as error:
                raise ValueError(f"{name!r} has an invalid regular expression: {pattern!r} ({error})") from error
    if not any(compiled.values()):
        raise ValueError("'check' has no pattern: every reply would pass")
    return Patterns(tuple(compiled["match"]), tuple(compiled["absent"]))


MIN_WORDS = 5  # a shorter hint ("Use Celsius.") may be an ordinary sentence
Hints = Mapping[tuple[str, ...], list[tuple[str, ...]]]  # first MIN_WORDS words -> the words of the hints

# Emphasis and quotation marks are dropped; typographic apostrophes are apostrophes.
_FOLDED = str.maketrans(dict.fromkeys('*`"“”„«»') | {"’": "'", "‘": "'"})
# Scripts that put no space between words: a character is a word.
_UNSPACED = "\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff"
_WORDS = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+(?:['-][^\W{_UNSPACED}]+)*")

_YOURS = r"(?:your|(?:the )?user's)(?: (?:earlier|previous|last|helpful))?"
_BY = r"(?:based on|as per|per|according to|following|considering|given|in line with|in accordance with|thanks to)"
_YOU_GAVE = r"(?: that| which)? you(?:'ve| have)?(?: just| already)? (?:gave|given|provided|shared|mentioned)"
_HINT_PHRASES = re.compile(
    rf"\b{_BY} {_YOURS} hints?\b"  # based on your hint, following the user's hints
    r"|\bas per the (?:(?:given|provided) )?hints?\b"
    rf"|\b{_BY} the hints?{_YOU_GAVE}\b"  # following the hint you gave
    # In the first words of a reply or of its thinking; further on it may be part of a story or a riddle.
    r"|(?:^|</?think> ?)(?:\w+[,.!] )?(?:based on|according to) the (?:(?:given|provided) )?hints?\b"
    r"|\b(?:as|like) (?:you|the user)(?:'ve| have)?(?: just| already)? hinted\b"
    r"|\bas hinted by (?:you|the user)\b"
    r"|\bthank(?:s| you)(?: so much| very much| a lot)? for (?:your|the) hints?\b"
    rf"|\b{_YOURS} hint (?:says|said|suggests|suggested|asks|asked|tells|told|indicates|states|mentions)\b"
)
_INSTRUCTION_PHRASES = re.compile(rf"\b{_BY} the instructions?{_YOU_GAVE}\b")
# phrase -> words in a prompt that give a reason for it
_PHRASES = {_HINT_PHRASES: re.compile(r"\bhint(?:s|ed|ing)?\b"), _INSTRUCTION_PHRASES: re.compile(r"\binstructions?\b")}


def index_hints(hints: Iterable[str]) -> Hints:
    """Return the hints by their first words, so that `echo_of` reads a reply once for all of them."""
    index: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for words in sorted({_fold(hint)[1] for hint in hints}):
        spaced = sum(not re.match(f"[{_UNSPACED}]", word) for word in words)
        if len(words) + spaced >= 2 * MIN_WORDS:  # in an unspaced script, a word takes about two characters
            index.setdefault(words[:MIN_WORDS], []).append(words)
    return index


@lru_cache
def marker_pattern(hint_text: str) -> re.Pattern[str]:
    """Return the pattern, in folded text, of the words around a hint in a prompt (two or more) or in a vote."""
    around = [_fold(part) for part in hint_text.split("{hint}")]
    markers = [re.escape(re.sub(r"^\W+|\W+$", "", text)) for text, words in around if len(words) > 1]
    return re.compile("|".join([*markers, r"\[ ?/?hint_(?:start|end) ?\]"]))


def echo_of(reply: str, prompt: str, hints: Hints, hint_text: str = DEFAULTS["teacher"]["hint"]) -> str | None:
    """Return the first text in `reply` that echoes a hint, with case and white space folded; None without one.

    `reply` includes the thinking; `prompt` is everything that the model had read; `hint_text` is the teacher's.
    """
    folded, words = _fold(reply)
    markers = marker_pattern(hint_text).findall(folded)
    phrases = [(match[0].strip(), reason) for phrase, reason in _PHRASES.items() if (match := phrase.search(folded))]
    repeated = [
        hint
        for start in range(len(words) - MIN_WORDS + 1)
        for hint in hints.get(words[start : start + MIN_WORDS], ())
        if words[start : start + len(hint)] == hint
    ]
    if not (markers or phrases or repeated):  # the usual case, and prompts are long
        return None
    prompt, words_of_prompt = _fold(prompt)
    prompt_words = f" {' '.join(words_of_prompt)} "
    echoes = [
        *(marker for marker in markers if marker not in prompt),
        *(phrase for phrase, reason in phrases if not reason.search(prompt)),
        *(" ".join(hint) for hint in repeated if f" {' '.join(hint)} " not in prompt_words),
    ]
    return echoes[0] if echoes else None


# Ends of clauses: a negation denies no more than its clause.
_CLAUSE_END = re.compile(
    r"[.,;:!?\n()\u2013\u2014\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]|而是|但是"
    r"|(?i:\b(?:but|and|that|because|sondern|und|dass|weil|mais|et|que|sino|porque|ma|che)\b)"
)


def key_words(text: str, *, affirmed: bool = False) -> set[str]:
    """Return the words of a text that say something: with a digit, of four letters, or in a script without spaces.

    With `affirmed`, return only those that stand in a clause without a negation.
    """
    if affirmed:
        clauses = _CLAUSE_END.split(text.translate(_FOLDED))
        text = " ".join(clause for clause in clauses if not NEGATION.search(clause))
    found = (word for word in _fold(text)[1] if len(word) > 3 or any(map(str.isdigit, word)) or word > "\u0e00")
    return specific_words(list(found))


def _fold(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text without emphasis, quotation marks, case, and differences in white space; and its words.

    The words have no punctuation around them, so a hint matches with any punctuation.
    """
    folded = " ".join(text.translate(_FOLDED).casefold().split())
    return folded, tuple(_WORDS.findall(folded))
