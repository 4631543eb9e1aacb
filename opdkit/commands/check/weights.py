"""Checks of the trained model: that its files are those that training wrote, and fit together. Loads no model."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from opdkit.config.fields import JSON
from opdkit.store.plans import identify_model

_NEEDED = ("config.json", "tokenizer.json")
# dtype -> (unsigned integer of its width, mask of its exponent). A number with all exponent bits set is not finite.
_EXPONENTS = {"F64": ("<u8", 0x7FF << 52), "F32": ("<u4", 0xFF << 23), "BF16": ("<u2", 0xFF << 7),
              "F16": ("<u2", 0x1F << 10)}  # fmt: skip
_CHUNK = 1 << 24  # numbers checked at once


def check_folder(folder: Path, pinned: JSON, *, deep: bool) -> Iterator[tuple[str, str]]:
    """Yield (file, what is wrong) for a model folder.

    `pinned` is what training recorded about its files: sizes and digests (for large weights, digests of blocks); {} if
    it recorded nothing. `deep` reads all weights, to find numbers that are not finite.
    """
    if not folder.is_dir():
        yield folder.name, "the folder is gone"
        return
    files = identify_model(str(folder))["files"]
    for name in sorted(pinned.keys() | files.keys()):
        if name not in files:
            yield name, "gone"
        elif pinned and files[name] != pinned.get(name):
            yield name, "not the file that training wrote" if name in pinned else "training did not write it"
        else:
            yield from ((name, what) for what in _check_file(folder / name, deep))
    for name in _NEEDED if folder.name == "model" else ():  # the folder of an adapter has neither
        if name not in files and name not in pinned:
            yield name, "missing, so that the model cannot be loaded"
    if not any(name.endswith(".safetensors") for name in files.keys() | pinned.keys()):
        yield folder.name, "there are no weights: no *.safetensors"


def _check_file(path: Path, deep: bool) -> Iterator[str]:
    try:
        if path.suffix == ".json":
            document = json.loads(path.read_text(encoding="utf-8"))
            if path.name.endswith(".safetensors.index.json"):
                lost = {f for f in document["weight_map"].values() if not (path.parent / f).is_file()}
                yield from (f"names {name}, which does not exist" for name in sorted(lost))
        elif path.suffix == ".safetensors":
            tensors, start = read_header(path)
            if deep:
                yield from _find_not_finite(path, tensors, start)
    except (OSError, ValueError, KeyError, TypeError) as error:
        yield f"cannot be read: {error}"


def read_header(path: Path) -> tuple[JSON, int]:
    """Return the tensors of a safetensors file (name -> dtype, shape, data_offsets), and the offset of their data.

    The format is: 8 bytes with the length n of the header, n bytes of JSON, data. Raises ValueError if the size of the
    file does not match its header.
    """
    size = path.stat().st_size
    with path.open("rb") as handle:
        first = handle.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else size
        if 8 + length > size:
            raise ValueError("cut short, or not a safetensors file")
        tensors: JSON = json.loads(handle.read(length))
    tensors.pop("__metadata__", None)
    end = max((t["data_offsets"][1] for t in tensors.values()), default=0)
    if 8 + length + end != size:
        raise ValueError(f"{size:,} bytes, its header describes {8 + length + end:,}")
    return tensors, 8 + length


def _find_not_finite(path: Path, tensors: JSON, start: int) -> Iterator[str]:
    """Yield a message for each tensor with a number that is not finite."""
    for name, tensor in tensors.items():
        if tensor["dtype"] not in _EXPONENTS or tensor["data_offsets"][0] == tensor["data_offsets"][1]:
            continue
        kind, exponent = _EXPONENTS[tensor["dtype"]]
        low, high = tensor["data_offsets"]
        count = (high - low) // np.dtype(kind).itemsize
        bits: NDArray[np.unsignedinteger] = np.memmap(path, kind, "r", start + low, (count,))
        if any((bits[i : i + _CHUNK] & exponent == exponent).any() for i in range(0, count, _CHUNK)):
            yield f"{name} holds numbers that are not finite"


def read_vocabulary_size(document: JSON) -> int | None:
    """Return the vocabulary size of the model that a teacher stage scored; None if unknown or the folder changed."""
    identity = document["plan"]["inputs"].get("model", {})
    folder = Path(identity.get("name", ""))
    config = folder / "config.json"
    if not config.is_file() or identify_model(str(folder)).get("files") != identity.get("files"):
        return None
    options = json.loads(config.read_text(encoding="utf-8"))
    size = options.get("vocab_size", options.get("text_config", {}).get("vocab_size"))
    return size if isinstance(size, int) else None
