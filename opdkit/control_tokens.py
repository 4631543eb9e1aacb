"""Rendered chats to token ids, with the control tokens of the template apart from text that only looks like them.

A log may hold `<|im_end|>` or `<|im_start|>system` inside a message. Encoded together with the template, that text
would end the message and forge another. So every such place in a message is broken by a private character before the
template sees it (`Encoder.as_data`), and a rendering that holds the character is encoded in three steps:

1. the control tokens that are still whole were written by the template: each becomes one private character,
2. the breaks are taken out again, so that the text is the log's, to the letter,
3. a copy of the tokenizer, whose added tokens are those private characters and nothing else, encodes the whole.

The copy has the same normalizer, pre-tokenizer, model and flags, so without a break the ids are those of the
tokenizer itself.
"""

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from opdkit.errors import ConfigError

# The last plane of Unicode is private use and found in no font: one character for each added token, and the break.
_FIRST, _BREAK = 0x100000, "\U0010fffd"
_PRIVATE = re.compile("[\U00100000-\U0010ffff]")


class UnsafeTextError(ValueError):
    """Text that cannot be kept apart from the template's control tokens."""


class Encoder:
    """Encodes what a chat template has rendered, under one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._added: dict[int, Any] = dict(sorted(tokenizer.added_tokens_decoder.items()))
        # Added whitespace (runs of newlines in some vocabularies) and single letters control nothing.
        control = {i: t for i, t in self._added.items() if len(t.content.strip()) > 1}
        self._control_ids = control.keys() - {tokenizer.unk_token_id}
        self._any = _Breaker([t.content for t in control.values()])
        self._special = _Breaker([t.content for t in control.values() if t.special])

    # -- before the template ----------------------------------------------------------------------------------------

    def as_data(self, value: Any, *, sampled: bool) -> Any:
        """`value` (text, or lists and dicts of it) with a break in whatever could be read as a control token.

        In what a model wrote (`sampled`) only the special tokens are broken: others, such as `<think>`, are words of
        its vocabulary that it really samples. Raises UnsafeTextError for private-use characters of the last plane.
        """
        if isinstance(value, str):
            if _PRIVATE.search(value):
                raise UnsafeTextError("private-use characters")
            return (self._special if sampled else self._any).broken(value)
        if isinstance(value, dict):
            return {self.as_data(k, sampled=sampled): self.as_data(v, sampled=sampled) for k, v in value.items()}
        if isinstance(value, list):
            return [self.as_data(v, sampled=sampled) for v in value]
        return value

    # -- after the template -----------------------------------------------------------------------------------------

    def ids(self, rendered: str) -> list[int]:
        """Token ids of a whole rendering. Raises UnsafeTextError when broken text still gives a control token."""
        if _BREAK not in rendered:
            ids: list[int] = self.tokenizer(rendered, add_special_tokens=False, verbose=False)["input_ids"]
            return ids
        return self._ids_of_copy(self._marked(rendered))

    def continuation_ids(self, rendered: str) -> list[int]:
        """Token ids of text that goes on from a prompt, encoded on its own and never together with the prompt.

        A control token goes before it and is taken off again: tokenizers of the SentencePiece kind put a space before
        the first word of a string, and this is not the first.
        """
        if not self._added:
            return self.ids(rendered)
        return self._ids_of_copy(chr(_FIRST + len(self._added)) + self._marked(rendered))[1:]

    @staticmethod
    def text(rendered: str) -> str:
        """A rendering as people read it, without the breaks."""
        return rendered.replace(_BREAK, "")

    def _marked(self, rendered: str) -> str:
        for pattern in self._patterns:
            rendered = pattern.sub(lambda match: self._private[match[0]], rendered)
        return rendered.replace(_BREAK, "")

    @cached_property
    def _private(self) -> dict[str, str]:
        """Each added token's text -> the character that stands for it."""
        return {token.content: chr(_FIRST + n) for n, token in enumerate(self._added.values())}

    @cached_property
    def _patterns(self) -> list[re.Pattern[str]]:
        """Whole added tokens: those matched on raw text first, then those on normalized text, as the tokenizer does."""
        kinds = ([t.content for t in self._added.values() if t.normalized is kind] for kind in (False, True))
        return [re.compile(any_of(contents)) for contents in kinds if contents]

    def _ids_of_copy(self, marked: str) -> list[int]:
        copy, original = self._copy
        ids: list[int] = copy.encode(marked, add_special_tokens=False).ids
        if not self._control_ids.isdisjoint(i for i in ids if i not in original):
            raise UnsafeTextError("control tokens that this tokenizer also makes from plain text")
        return [original.get(i, i) for i in ids]

    @cached_property
    def _copy(self) -> tuple[Tokenizer, dict[int, int]]:
        """The tokenizer with private characters for added tokens, and their ids in it -> the ids they stand for.

        One more private character stands at the end, for `continuation_ids`; it maps to nothing (-1).
        """
        definition = json.loads(self.tokenizer.backend_tokenizer.to_str())
        flags = {token["id"]: token for token in definition["added_tokens"]}
        tokens = [flags[i] | {"content": self._private[token.content]} for i, token in self._added.items()]
        anchor = {"id": 0, "content": chr(_FIRST + len(tokens)), "special": True, "normalized": False} | dict.fromkeys(
            ("single_word", "lstrip", "rstrip"), False
        )
        definition |= {"added_tokens": [*tokens, anchor]}
        definition |= dict.fromkeys(("truncation", "padding", "post_processor"))
        copy = Tokenizer.from_str(json.dumps(definition))
        stand_ins: list[Any] = [copy.token_to_id(token["content"]) for token in definition["added_tokens"]]
        if set(stand_ins) & set(copy.get_vocab(with_added_tokens=False).values()):
            raise ConfigError(f"the vocabulary of {self.tokenizer.name_or_path} has gaps that added tokens fall into")
        return copy, dict(zip(stand_ins, [*self._added, -1], strict=True))


class _Breaker:
    """Breaks text at whatever is one of `tokens`, or could become one beside what the template writes."""

    def __init__(self, tokens: list[str]) -> None:
        by_first: dict[str, list[str]] = {}
        for token in tokens:
            by_first.setdefault(token[0], []).append(token[1:])
        # Between the first character and the rest; look-around, so that overlapping occurrences are found too.
        self._inside = re.compile(
            "|".join(f"(?<={re.escape(c)})(?={any_of(rests)})" for c, rests in by_first.items()) or "(?!)"
        )
        self._starts = {token[:n] for token in tokens for n in range(1, len(token))}
        self._ends = {token[n:] for token in tokens for n in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)

    def broken(self, text: str) -> str:
        text = self._inside.sub(_BREAK, text)
        before = any(text[:n] in self._ends for n in range(1, self._longest))
        after = any(text[-n:] in self._starts for n in range(1, self._longest))
        return _BREAK * before + text + _BREAK * after


def any_of(words: Iterable[str]) -> str:
    """A pattern for the longest of `words` at a place, as a tree: vocabularies add thousands of tokens, all in "<"."""
    tails: dict[str, list[str]] = {}
    for word in words:
        tails.setdefault(word[:1], []).append(word[1:])
    optional = tails.pop("", None) is not None
    branches = [re.escape(c) + any_of(rest) for c, rest in tails.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + "?" * optional
