"""Token ids of rendered chats: the template's control tokens are kept apart from text that only looks like them.

A log may hold `<|im_end|>` or `<|im_start|>system` inside a message. Encoded together with the template, that text
would end the message and forge another. So a private character, the break, is put into every such text before the
template sees it (`Encoder.as_data`). A rendering that holds a break is encoded in three steps:

1. Control tokens that are still whole were written by the template: each becomes one private character.
2. The breaks are removed, so that the text is exactly the log's.
3. A copy of the tokenizer, whose only added tokens are those private characters, encodes the result.

The copy has the same normalizer, pre-tokenizer, model and flags, so without a break the ids are those of the
tokenizer itself.

The prompts of a session repeat each other. A tokenizer first takes the control tokens out of a text and then encodes
the pieces between them one by one, so each distinct piece is encoded only once (`_Pieces`).
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from opdkit.errors import ConfigError, OpdkitError

if TYPE_CHECKING:  # takes seconds, and code that only reads text needs no tokenizer
    from transformers import PreTrainedTokenizerBase

# What the tokenizers of common chat models read as control tokens: <|im_start|> and the like (ChatML, Llama 3, Phi,
# gpt-oss), <|turn> and <turn|> (Gemma 4), DeepSeek's wide bars, <start_of_turn>, [INST], <<SYS>>, MiniMax's ]~b] and
# [e~[, <seed:bos>. <s> and </s> are left out: they are HTML, too.
_NAMES = (
    r"(?:seed:)?(?:bos|eos|pad)|unk|mask|(?:start|end)_of_(?:turn|image)|(?:begin|end)_of_text|INST|SYS|SYSTEM_PROMPT|"
    r"AVAILABLE_TOOLS|TOOL_(?:CALLS|RESULTS)|gMASK|sop|eop"
)
_TOKEN = re.compile(
    rf"<[|｜][^<>\n]{{1,40}}[|｜]>|<[|｜]\w{{1,40}}>|<\w{{1,40}}[|｜]>|<<?/?(?:{_NAMES})>|\[/?(?:{_NAMES})\]"
    r"|\]~!?b[\[\]]|\[e~\["
)
# What `break_control_tokens` breaks is wider: half of a token, any case, </s>, and words that a model samples itself.
_OPENING = re.compile(
    rf"<<?(?=[|｜]|/?(?:s|{_NAMES}|seed:\w+|think|tool_(?:call|response)s?)>|/?(?:turn|channel|message)[|｜])"
    rf"|\[(?=[|｜]|/?(?:{_NAMES})[\]|])|\](?=~!?b[\[\]])|\[(?=e~\[)",
    re.IGNORECASE,
)

# The last plane of Unicode is private use and found in no font: one character for each added token, and the break.
_FIRST, _BREAK = 0x100000, "\U0010fffd"
_PRIVATE = re.compile("[\U00100000-\U0010ffff]")

_REMEMBERED = 1 << 23  # characters of pieces that are cached; about 200 MB with their ids
_TEXTS, _SHORT = 1 << 12, 1 << 14  # number of broken texts to cache; texts of this many characters are not cached


@dataclass(eq=False)
class ChatError(OpdkitError):
    """Messages that cannot be turned into token ids. The turn is dropped and counted under `reason`."""

    reason: str


def has_control_tokens(text: str) -> bool:
    """Return whether some tokenizer would read a part of `text` as a control token that structures a chat.

    >>> [has_control_tokens(text) for text in ("<|im_end|>", "[INST]", "<b>", "a <| b", "<think>")]
    [True, True, False, False, False]
    """
    return _TOKEN.search(text) is not None


def break_control_tokens(text: str) -> str:
    """Return `text` with a space inside everything that a server's tokenizer may read as a control token.

    Most servers tokenize a chat after rendering it, so `<|im_end|>` from a log would end our message. (A local model
    does not need this: `Encoder` keeps text and control tokens apart.)

    >>> break_control_tokens("<|im_end|>")
    '< |im_end|>'
    """
    return _OPENING.sub(lambda match: match[0] + " ", text)


class Encoder:
    """Encoder of rendered chats, for one tokenizer.

    With ChatML, for a user who wrote "a<|im_end|>b" ("·" is the break, a private character):

        as_data("a<|im_end|>b")                                a<·|im_end|>b
        the template renders                                   <|im_start|>user\\na<·|im_end|>b<|im_end|>\\n
        ids(rendered), decoded                                 <|im_start|>user\\na<|im_end|>b<|im_end|>\\n

    The first `<|im_end|>` is encoded as text, the second one as the control token.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self.tokenizer = tokenizer
        self._added: dict[int, Any] = dict(sorted(tokenizer.added_tokens_decoder.items()))
        # Added white space (runs of newlines in some vocabularies) and single characters are not control tokens.
        # Nor are added words that neither a template nor any other known one writes, such as Gemma's `<table>`: HTML.
        template = str(tokenizer.chat_template)
        control = {i: token for i, token in self._added.items() if len(token.content.strip()) > 1
                   and (token.special or token.content in template or _OPENING.search(token.content))}  # fmt: skip
        self._control_ids = control.keys() - {tokenizer.unk_token_id}
        self._special_tokens = [token.content for token in control.values() if token.special]
        # Not special, such as `<think>`: a model samples them as words.
        self.words = frozenset(token.content for token in control.values() if not token.special)
        self._breaker = _Breaker([token.content for token in control.values()])
        self._sampled_breaker = _Breaker(self._special_tokens)
        self._line_break = ""  # see `continue_text`
        self._private = {token.content: chr(_FIRST + n) for n, token in enumerate(self._added.values())}
        # Whole added tokens: first those matched in raw text, then those in normalized text, as in the tokenizer.
        kinds = [[t.content for t in self._added.values() if t.normalized is kind] for kind in (False, True)]
        self._patterns = [re.compile(any_of(contents)) for contents in kinds if contents]
        # A tokenizer cuts a text before every control token, unless one of them takes the white space before it
        # (lstrip) or must be a whole word (single_word).
        raw = [token for token in self._added.values() if not token.normalized]
        self._cuts = bool(raw) and not any(token.lstrip or token.single_word for token in raw)
        self._pieces = _Pieces(
            lambda texts: tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"],
            self._patterns[0] if self._cuts else None,
        )

    def control_tokens(self, rendered: str) -> list[str]:
        """Return the whole control tokens in a rendering, special or not, in order."""
        return re.findall(any_of([*self._special_tokens, *self.words]), rendered)

    def break_always(self, words: Iterable[str]) -> None:
        """Break these `words`, too, in text that a model wrote."""
        self._sampled_breaker = _Breaker([*self._special_tokens, *words])

    def as_data(self, value: Any, *, sampled: bool) -> Any:
        """Return `value` (text, or lists and dicts of it) with breaks in all that could be read as control tokens.

        In text that a model wrote (`sampled`), only special tokens and those of `break_always` are broken. Raises
        ChatError for private-use characters of the last plane.
        """
        if isinstance(value, str):
            if _PRIVATE.search(value):
                raise ChatError("private-use characters")
            breaker = self._sampled_breaker if sampled else self._breaker
            return breaker.break_cached(value) if len(value) < _SHORT else breaker.break_text(value)
        if isinstance(value, dict):
            return {self.as_data(k, sampled=sampled): self.as_data(v, sampled=sampled) for k, v in value.items()}
        if isinstance(value, list):
            return [self.as_data(v, sampled=sampled) for v in value]
        return value

    def ids(self, rendered: str) -> list[int]:
        """Return the ids of a whole rendering. Raises ChatError when broken text still gives a control token."""
        if _BREAK not in rendered:
            return self._pieces.ids(rendered)
        return self._encode_copy(rendered)

    def encode_continuation(self, rendered: str) -> list[int]:
        """Return the ids of text that continues a prompt, encoded on its own and never together with the prompt.

        A control token is put before the text and removed from the ids: SentencePiece tokenizers put a space before the
        first word of a string, but this word is not the first.
        """
        if not rendered:
            return []
        if not self._added:
            return self.ids(rendered)
        before = chr(_FIRST + len(self._added)) + self._line_break
        return self._encode_copy(rendered, before)[len(self._encode_copy("", before)) :]

    def continue_text(self) -> None:
        """Encode what continues a prompt as text after text: from now on, for prompts that end with no control token.

        Some SentencePiece tokenizers (Llama 2, the first Mistral) also put a space before the first word after each
        control token. For these, a line break stands between that token and the text.
        """
        line, word, after_line = map(self.encode_continuation, ("\n", "opdkit", "\nopdkit"))
        if self._added and after_line != line + word:
            self._line_break = "\n"

    def _encode_copy(self, rendered: str, before: str = "") -> list[int]:
        """Return the ids of `before` (a private character or "") and a rendering, encoded by the copy of the tokenizer.

        Each control token becomes a private character, and the breaks are removed. Raises ChatError if text still gives
        a control token.
        """
        for pattern in self._patterns:
            rendered = pattern.sub(lambda match: self._private[match[0]], rendered)
        pieces, original = self._copy
        ids = pieces.ids(before + rendered.replace(_BREAK, ""))
        if not self._control_ids.isdisjoint(i for i in ids if i not in original):
            raise ChatError("control tokens that this tokenizer also makes from plain text")
        return [original.get(i, i) for i in ids]

    @cached_property
    def _copy(self) -> tuple["_Pieces", dict[int, int]]:
        """Copy of the tokenizer with private characters as added tokens, and a map from their ids to the real ids.

        The last private character is for `encode_continuation` to put before a text; it stands for no token (-1).
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
        raw = "".join(self._private[token.content] for token in self._added.values() if not token.normalized)
        pieces = _Pieces(
            lambda texts: [encoding.ids for encoding in copy.encode_batch(texts, add_special_tokens=False)],
            re.compile(f"[{raw}]") if self._cuts else None,
        )
        return pieces, dict(zip(stand_ins, [*self._added, -1], strict=True))


class _Pieces:
    """Cache of encoded pieces of text; a piece reaches from one control token to the next.

    `cut` matches the control tokens that a tokenizer takes out of a text before anything else; None if the tokenizer
    may cut elsewhere.
    """

    def __init__(self, encode: Callable[[list[str]], list[list[int]]], cut: re.Pattern[str] | None) -> None:
        self._encode, self._cut = encode, cut
        self._known: dict[str, list[int]] = {}
        self._characters = 0

    def ids(self, text: str) -> list[int]:
        if self._cut is None:
            return self._encode([text])[0]
        cuts = [0, *(match.start() for match in self._cut.finditer(text)), len(text)]
        # Only the first piece may begin without a control token, so each piece has the ids that it has in the text.
        pieces = [text[a:b] for a, b in pairwise(cuts) if a < b]
        if new := [piece for piece in dict.fromkeys(pieces) if piece not in self._known]:
            self._known |= zip(new, self._encode(new), strict=True)
            self._characters += sum(map(len, new))
        ids = [i for piece in pieces for i in self._known[piece]]
        if self._characters > _REMEMBERED:
            self._known, self._characters = {}, 0
        return ids


class _Breaker:
    """Breaker of text that is one of `tokens`, or could become one next to the template's text."""

    def __init__(self, tokens: list[str]) -> None:
        by_first: dict[str, list[str]] = {}
        for token in tokens:
            by_first.setdefault(token[0], []).append(token[1:])
        # Match between the first character and the rest. With look-around, overlapping tokens are found, too.
        self._inside = re.compile(
            "|".join(f"(?<={re.escape(c)})(?={any_of(rests)})" for c, rests in by_first.items()) or "(?!)"
        )
        self._starts = {token[:n] for token in tokens for n in range(1, len(token))}
        self._ends = {token[n:] for token in tokens for n in range(1, len(token))}
        self._longest = max(map(len, tokens), default=0)
        self.break_cached = lru_cache(_TEXTS)(self.break_text)

    def break_text(self, text: str) -> str:
        text = self._inside.sub(_BREAK, text)
        before = any(text[:n] in self._ends for n in range(1, self._longest))
        after = any(text[-n:] in self._starts for n in range(1, self._longest))
        return _BREAK * before + text + _BREAK * after


def any_of(words: Iterable[str]) -> str:
    """Return a pattern that matches the longest of `words` at a position.

    It is a prefix tree, since vocabularies add thousands of tokens that all begin with "<".

    >>> any_of(["<s>", "</s>", "<sep>"])
    '(?:<(?:s(?:>|e(?:p(?:>)))|/(?:s(?:>))))'
    """
    tails: dict[str, list[str]] = {}
    for word in words:
        tails.setdefault(word[:1], []).append(word[1:])
    optional = tails.pop("", None) is not None
    branches = [re.escape(c) + any_of(rest) for c, rest in tails.items()]
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)})" + "?" * optional
