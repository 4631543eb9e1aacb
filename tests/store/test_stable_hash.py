"""Tests that seeds and draws never change, since they decide rows and weights."""

import hashlib
import json

from opdkit.model.random_streams import make_random_stream
from opdkit.store.stable_hash import stable_hash
from opdkit.store.turn_ids import is_held_out


def test_one_text_is_hashed_as_it_is_and_several_parts_as_json():
    whole = int.from_bytes(hashlib.sha256(b"holdout:a:1").digest(), "big")
    assert stable_hash("holdout:a:1") == whole
    assert stable_hash("holdout:a:1", bits=64) == whole >> 192 < 2**64
    digest = hashlib.sha256(json.dumps([7, "é:1", "hint", 2]).encode()).digest()
    assert stable_hash(7, "é:1", "hint", 2, bits=63) == int.from_bytes(digest[:8], "big") >> 1


def test_seeds_that_were_used_before():
    """Other values would change replies, votes and held-out sessions."""
    assert stable_hash(0, "chat.jsonl:17:3", "reward", 1, bits=31) == 539_679_796
    assert make_random_stream(3, "chat.jsonl:17:3", 0).initial_seed() == 7_785_693_306_348_384_297
    assert [n for n in range(40) if is_held_out(f"chat.jsonl:{n}", 0.1)] == [0, 2, 7, 12, 14, 18, 32, 34]
