"""Text of each token of a reply, for people. Needs neither torch nor transformers: `opdkit show` answers at once.

A character may span several tokens. It is shown on the token that completes it. A token that completes no character
shows its bytes, and so does a token whose bytes are not UTF-8:

    "5", " €" as three tokens      5 ⟨e2⟩ ⟨82⟩ ...            the last one reads "€"
"""

import functools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opdkit.config.fields import JSON
from opdkit.console import warn
from opdkit.errors import OpdkitError
from opdkit.model.folder import find_file
from opdkit.store.plans import identify_file, manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TextsOf = Callable[[Sequence[int]], list[str]]  # token ids -> their texts
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FILE = "tokenizer.json"


class TokenTexts:
    """Texts of token ids under one tokenizer."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self.tokenizer = tokenizer
        kind = json.loads(tokenizer.decoder.__getstate__()) if tokenizer.decoder else {}
        kinds = {kind.get("type"), *(inner.get("type") for inner in kind.get("decoders", ()))}
        self._by_bytes = "ByteLevel" in kinds
        self._by_pieces = not kinds.isdisjoint({"ByteFallback", "Metaspace"})
        self._added = {i: token.content for i, token in tokenizer.get_added_tokens_decoder().items()}

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Return one text per id; control tokens as they are written, an id that the tokenizer lacks as ⟨id⟩."""
        return spread([self.piece(i) for i in ids])

    def piece(self, token_id: int) -> bytes:
        """Return the bytes of a token."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self.tokenizer.id_to_token(token_id)
        if token is None:
            return f"⟨{token_id}⟩".encode()
        if self._by_bytes:
            return b"".join(_map_characters().get(c, c.encode()) for c in token)
        if self._by_pieces:
            match = _BYTE.fullmatch(token)
            return bytes.fromhex(match[1]) if match else token.replace("▁", " ").encode()
        text: str = self.tokenizer.decode([token_id], skip_special_tokens=False)
        return text.encode()


def spread(pieces: Sequence[bytes]) -> list[str]:
    """Return the text of the joined pieces, spread over them: a character goes to the piece with its last byte.

    Bytes that are not UTF-8 are shown one by one. A piece that completes no character shows all its bytes.

    >>> spread([b"5 ", b"\\xe2", b"\\x82", b"\\xac!", b"\\xff"])
    ['5 ', '⟨e2⟩', '⟨82⟩', '€!', '⟨ff⟩']
    """
    data = b"".join(pieces)
    owner = [n for n, piece in enumerate(pieces) for _ in piece]
    texts = [""] * len(pieces)
    position = 0
    while position < len(data):
        try:
            valid, wrong = data[position:].decode(), 0
        except UnicodeDecodeError as error:
            valid, wrong = data[position : position + error.start].decode(), error.end - error.start
        for character in valid:
            position += len(character.encode())
            texts[owner[position - 1]] += character
        for byte in data[position : position + wrong]:
            texts[owner[position]] += f"⟨{byte:02x}⟩"
            position += 1
    return [text or "".join(f"⟨{byte:02x}⟩" for byte in piece) for text, piece in zip(texts, pieces, strict=True)]


def load_texts(run: Path) -> TextsOf:
    """Return a function: token ids of a run's targets -> texts. Without the teacher's tokenizer, warn and show ids."""
    try:
        return open_texts(manifest(run, "teacher")["plan"]["inputs"]["model"])
    except OpdkitError as error:
        warn(str(error))
        return lambda ids: [f"⟨{i}⟩" for i in ids]


def open_texts(identity: JSON) -> TokenTexts:
    """Open the tokenizer of a model as a manifest identifies it (`identify_model`).

    Raises OpdkitError if the file is not on this machine, cannot be read, or has changed since the ids were written.
    """
    from tokenizers import Tokenizer  # imported here: a run without targets needs none

    if (path := find_file(identity["name"], _FILE)) is None:
        raise OpdkitError(f"{identity['name']} has no {_FILE} on this machine, so tokens are shown as ids")
    then = identity.get("files", {}).get(_FILE)
    if then is not None and then != identify_file(path):
        raise OpdkitError(f"{path} has changed since the teacher stage read it, so tokens are shown as ids")
    try:
        return TokenTexts(Tokenizer.from_file(str(path)))
    except Exception as error:  # the library lets all exceptions of its parser through
        raise OpdkitError(f"{path} cannot be read ({error}), so tokens are shown as ids") from error


@functools.cache
def _map_characters() -> dict[str, bytes]:
    """Return the alphabet of byte-level BPE: printable Latin-1 stands for itself, the other 68 bytes for U+0100 on.

    (Radford et al. 2019, `bytes_to_unicode` of GPT-2.)
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(b): bytes([b]) for b in printable} | {chr(0x100 + n): bytes([b]) for n, b in enumerate(others)}
