"""Seeds, draws and orders that depend on names alone: the same in every process, shard and run."""

import hashlib
import json


def stable_hash(*parts: str | int, bits: int = 256) -> int:
    """Return the first `bits` of the SHA-256 of the parts. One text is hashed as is, several parts as a JSON list."""
    text = parts[0] if len(parts) == 1 and isinstance(parts[0], str) else json.dumps(parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()) >> (256 - bits)
