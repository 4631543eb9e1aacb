"""Tests of tokens as text for people: no replacement characters, and nothing lost."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_world import MODEL

from opdkit.commands.turns.token_text import TokenTexts, open_texts, spread
from opdkit.errors import OpdkitError
from opdkit.store.plans import identify_model


@pytest.fixture(scope="module")
def texts():
    return open_texts(identify_model(str(MODEL)))


def test_a_character_over_several_tokens_is_on_the_one_that_completes_it():
    assert spread([b"5 ", b"\xe2", b"\x82", b"\xac!", b"\xff"]) == ["5 ", "⟨e2⟩", "⟨82⟩", "€!", "⟨ff⟩"]


def test_a_token_that_ends_in_the_middle_of_a_character_shows_what_it_completes():
    assert spread([b"ab\xe2", b"\x82\xac", b""]) == ["ab", "€", ""]


@settings(max_examples=30)
@given(st.text(max_size=12), st.lists(st.integers(0, 40), max_size=6))
def test_cut_anywhere_the_texts_hold_every_character_once_and_in_order(text, cuts):
    data = text.encode()
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    found = spread([data[a:b] for a, b in pairwise(places)])
    shown = "".join(found)
    for character in text:
        assert character in shown
        shown = shown[shown.index(character) + 1 :]
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(found) or "\N{REPLACEMENT CHARACTER}" in text


@given(st.lists(st.binary(max_size=4), max_size=8))
def test_any_bytes_give_as_many_texts(pieces):
    assert len(spread(pieces)) == len(pieces)


@pytest.mark.parametrize("said", ["Grüße, 3 €, 日本語 and 👍🏽.", "def f():\n\treturn 'x'"])
def test_the_texts_of_a_tokenizer_join_to_what_it_encoded(texts, said):
    ids = texts.tokenizer.encode(said, add_special_tokens=False).ids
    shown = texts(ids)
    assert len(shown) == len(ids)
    assert "".join(text for text in shown if not text.startswith("⟨")) == said


def test_control_tokens_are_shown_as_they_are_written(texts):
    """A control token of the chat template is shown as its text, not left out."""
    end = texts.tokenizer.token_to_id("<|im_end|>")
    assert texts([end]) == ["<|im_end|>"]


def test_an_id_that_the_tokenizer_lacks_is_shown_as_itself(texts):
    assert texts([10**6]) == ["⟨1000000⟩"]


def test_bytes_and_spaces_of_sentence_pieces():
    from tokenizers import Tokenizer, decoders, models

    vocabulary = {"▁3": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3, "▁o": 4, "<unk>": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    assert TokenTexts(tokenizer)([0, 1, 2, 3, 4]) == [" 3", "⟨e2⟩", "⟨82⟩", "€", " o"]


def test_another_tokenizer_than_the_teacher_read_is_refused(tmp_path):
    identity = identify_model(str(MODEL))
    changed = identity | {"files": identity["files"] | {"tokenizer.json": "1:0"}}
    with pytest.raises(OpdkitError, match="has changed"):
        open_texts(changed)
    with pytest.raises(OpdkitError, match=r"no tokenizer\.json on this machine"):
        open_texts({"name": str(tmp_path), "files": {}})
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(OpdkitError, match="cannot be read"):
        open_texts({"name": str(tmp_path)})
