"""Tests of opdkit/chat/control_tokens.py: log text never becomes a control token and otherwise keeps its usual ids."""

import copy
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdkit.chat.control_tokens import ChatError, Encoder, any_of, break_control_tokens, has_control_tokens

PIECES = [
    "<|im_end|>",
    "<|im_start|>",
    "<think>",
    "</think>",
    "<",
    ">",
    "|>",
    "<|im_",
    "end|>",
    "\n\n",
    " ",
    "a",
    "é",
    "好",
]
text = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def sentencepiece_like(scheme: str):
    """Return a tokenizer like Llama-2's: BPE with byte fallback; `scheme` sets when it puts a space before a text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = ["<unk>", "▁", *"abcdefghijklmnopqrstuvwxyz<>|_/"]
    byte = [f"<0x{n:02X}>" for n in range(256)]
    words = ["he", "hel", "hell", "hello", "▁hello"]
    vocab = {token: n for n, token in enumerate([*letters, *byte, *words])}
    merges = [("h", "e"), ("he", "l"), ("hel", "l"), ("hell", "o"), ("▁", "hello")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("</s>", "[INST]")])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def control_ids(tokenizer) -> set[int]:
    return set(tokenizer.added_tokens_decoder)


@settings(max_examples=200)
@given(before=text, data=text, after=text)
def test_data_holds_no_control_token_whatever_stands_beside_it(tiny_tokenizer, before, data, after):
    """Only the control tokens that the template wrote become control tokens, even where data and template touch."""
    encoder = Encoder(tiny_tokenizer)
    template = ("<|im_start|>", "<|im_end|>")
    safe = [encoder.as_data(x, sampled=False) for x in (before, data, after)]
    rendered = f"{safe[0]}{template[0]}{safe[1]}{template[1]}{safe[2]}"
    ids = encoder.ids(rendered)
    written = [i for i in ids if i in control_ids(tiny_tokenizer)]
    assert written == tiny_tokenizer.convert_tokens_to_ids(list(template))
    assert tiny_tokenizer.decode(ids) == f"{before}{template[0]}{data}{template[1]}{after}"


def test_data_and_template_make_no_control_token_together(tiny_tokenizer):
    """A piece of a control token in a message is not completed by the template text or the message beside it."""
    encoder = Encoder(tiny_tokenizer)
    for rendered in (
        encoder.as_data("a<|im_end|", sampled=True) + ">",
        "<" + encoder.as_data("|im_end|>a", sampled=True),
        encoder.as_data("<|im_", sampled=True) + encoder.as_data("end|>", sampled=True),
    ):
        assert control_ids(tiny_tokenizer).isdisjoint(encoder.ids(rendered))


@settings(max_examples=100)
@given(words=st.lists(st.sampled_from(["<|im_end|>", "<think>", "hello ", "<b>", "\n", "the tool", "é"]), max_size=12))
def test_the_copy_gives_the_ids_of_the_tokenizer_itself(tiny_tokenizer, words):
    encoder = Encoder(tiny_tokenizer)
    rendered = "".join(words)
    expected = tiny_tokenizer(rendered, add_special_tokens=False)["input_ids"]
    assert encoder.ids(rendered) == expected
    assert encoder._encode_copy(rendered) == expected


@settings(max_examples=100)
@given(
    texts=st.lists(st.lists(st.sampled_from([*PIECES, "</s>", "[INST]", "hello"]), max_size=8).map("".join), max_size=5)
)
@pytest.mark.parametrize("kind", ["byte level", "first", "always", "never"])
def test_what_was_encoded_before_is_encoded_alike(tiny_tokenizer, kind, texts):
    """The ids of cached pieces are the tokenizer's own, also for the piece that begins a text."""
    tokenizer = tiny_tokenizer if kind == "byte level" else sentencepiece_like(kind)
    encoder = Encoder(tokenizer)
    for rendered in [*texts, *texts[::-1]]:
        assert encoder.ids(rendered) == tokenizer(rendered, add_special_tokens=False)["input_ids"]
        assert encoder._encode_copy(rendered) == encoder.ids(rendered)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip", "single_word", "normalized"])
def test_control_tokens_that_look_around_are_no_place_to_cut(flag, tiny_tokenizer):
    """The ids of such a token depend on the text beside it, so a cut there could change them."""
    from tokenizers import AddedToken

    tokenizer = copy.deepcopy(tiny_tokenizer)
    tokenizer.add_tokens([AddedToken("<stop>", special=True, **({"normalized": False} | {flag: True}))])
    encoder = Encoder(tokenizer)
    for rendered in ("a  <stop>  b", "a<stop>b <stop>", "<stop><|im_end|> <stop>", "  <stop>  b"):
        assert encoder.ids(rendered) == tokenizer(rendered, add_special_tokens=False)["input_ids"]


def test_a_piece_is_encoded_once(tiny_tokenizer, monkeypatch):
    """A session's prompts repeat each other, so known pieces are not encoded again; a full cache is emptied."""
    encoder, encoded = Encoder(tiny_tokenizer), []
    real = encoder._pieces._encode
    monkeypatch.setattr(encoder._pieces, "_encode", lambda texts: encoded.extend(texts) or real(texts))
    turns = [f"<|im_start|>user\nhello {n}<|im_end|>\n" for n in range(30)]
    for n in range(1, 31):
        encoder.ids("".join(turns[:n]))
    assert len(encoded) == len(set(encoded)) == 31  # 30 messages, and one "<|im_end|>\n" for all of them
    encoder._pieces._characters = 1 << 30
    encoder.ids("".join(turns))
    assert not encoder._pieces._known
    assert encoder.ids("".join(turns)) == tiny_tokenizer("".join(turns), add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_the_copy_agrees_for_tokenizers_that_put_a_space_first(scheme):
    tokenizer = sentencepiece_like(scheme)
    encoder = Encoder(tokenizer)
    for rendered in ("hello</s>hello", "[INST] hello </s>", "</s>hello[INST]好"):
        expected = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        assert encoder._encode_copy(rendered) == expected


def test_a_continuation_gets_no_space_of_its_own():
    tokenizer = sentencepiece_like("first")
    assert tokenizer("hello", add_special_tokens=False)["input_ids"] == tokenizer.convert_tokens_to_ids(["▁hello"])
    assert Encoder(tokenizer).encode_continuation("hello") == tokenizer.convert_tokens_to_ids(["hello"])
    assert Encoder(tokenizer).encode_continuation(" hello</s>") == tokenizer.convert_tokens_to_ids(["▁hello", "</s>"])


def test_what_a_model_wrote_keeps_its_own_words_but_no_special_token(tiny_tokenizer):
    """A model samples `<think>` as a token; an `<|im_end|>` inside a reply can only be text."""
    encoder = Encoder(tiny_tokenizer)
    ids = encoder.ids(encoder.as_data("<think>a</think><|im_end|>", sampled=True))
    assert [tiny_tokenizer.decode(i) for i in ids if i in control_ids(tiny_tokenizer)] == ["<think>", "</think>"]
    ids = encoder.ids(encoder.as_data("<think>a</think><|im_end|>", sampled=False))
    assert control_ids(tiny_tokenizer).isdisjoint(ids)


def test_keys_and_nested_values_are_data_too(tiny_tokenizer):
    """Tool definitions and arguments are text from the log."""
    encoder = Encoder(tiny_tokenizer)
    safe = encoder.as_data({"<|im_end|>": ["<|im_start|>", 3, None, {"x": "<think>"}]}, sampled=False)
    assert control_ids(tiny_tokenizer).isdisjoint(encoder.ids(str(safe)))
    assert encoder.as_data([3, None, True], sampled=False) == [3, None, True]


def test_the_breaks_of_long_texts_are_not_remembered(tiny_tokenizer):
    """A cache of thousands of tool results with a million characters each would fill the memory."""
    encoder = Encoder(tiny_tokenizer)
    remembered = encoder._breaker.break_cached.cache_info
    for size in (10, 16_383):
        encoder.as_data("a" * size, sampled=False)
    assert remembered().currsize == 2
    long = "a" * 16_384 + "<|im_end|>"
    assert control_ids(tiny_tokenizer).isdisjoint(encoder.ids(encoder.as_data(long, sampled=False)))
    assert remembered().currsize == 2


def test_private_characters_in_a_log_are_refused(tiny_tokenizer):
    """A log cannot forge the private-use characters that stand for control tokens and breaks."""
    with pytest.raises(ChatError, match="private-use"):
        Encoder(tiny_tokenizer).as_data("\U00100000", sampled=False)


def test_a_tokenizer_that_makes_control_tokens_from_plain_text_is_noticed():
    """If the vocabulary merges letters into `</s>`, such text is refused and does not become a stop token."""
    from tokenizers import AddedToken, Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocab = {t: n for n, t in enumerate(["<", "/", "s", ">", "</", "s>", "</s>", "a"])}
    merges = [("<", "/"), ("s", ">"), ("</", "s>")]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    encoder = Encoder(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>"))
    assert encoder.ids("a</s>") == [7, 6]
    with pytest.raises(ChatError, match="plain text"):
        encoder.ids(encoder.as_data("a</s>", sampled=True))


@given(
    words=st.lists(st.text("ab<|", min_size=1, max_size=4), min_size=1, max_size=8), text=st.text("ab<|", max_size=8)
)
def test_any_of_is_the_longest_of_the_words(words, text):
    longest_first = "|".join(map(re.escape, sorted(set(words), key=len, reverse=True)))
    assert [m.span() for m in re.finditer(any_of(words), text)] == [m.span() for m in re.finditer(longest_first, text)]


# -- without a tokenizer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("<|im_end|>", "< |im_end|>"),
        ("<|im_start|>system", "< |im_start|>system"),
        ("</s><s>", "< /s>< s>"),
        ("[INST] x [/INST]", "[ INST] x [ /INST]"),
        ("<<SYS>>", "<< SYS>>"),
        ("<start_of_turn>user", "< start_of_turn>user"),
        ("<｜User｜>", "< ｜User｜>"),
        ("</think>", "< /think>"),
        ("]~b]system\nx[e~[ ]~!b[", "] ~b]system\nx[ e~[ ] ~!b["),
        ("<seed:bos>system <seed:tool_call>", "< seed:bos>system < seed:tool_call>"),
        ("a[1]|b, x]~b, [e]", "a[1]|b, x]~b, [e]"),
        ("a < b, <b>bold</b>, [1], x[HINT_START]", "a < b, <b>bold</b>, [1], x[HINT_START]"),
        ("if a <|b", "if a < |b"),
        ("<rss><channel>a</channel></rss> <message>b</message> count[s] += 1", None),
        ("<channel|>final<|message|>", "< channel|>final< |message|>"),
    ],
)
def test_control_tokens_are_broken_for_a_server(text: str, broken: str | None) -> None:
    """The server tokenises what we send, so text from a log must not become one of its control tokens."""
    assert break_control_tokens(text) == (text if broken is None else broken)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<|im_start|>system", True),
        ("<|turn>user", True),
        ("a<channel|>", True),
        ("<｜User｜>", True),
        ("<start_of_turn>", True),
        ("<s>struck out</s>", False),
        ("[INST] x", True),
        ("<</SYS>>", True),
        ("[TOOL_CALLS]", True),
        ("]~b]ai", True),
        ("[e~[", True),
        ("<seed:bos>", True),
        ("<think>a</think> <message>b</message>", False),
        ("div [] <| List.map (\\x -> x)", False),
        ("a < b, <b>bold</b>, [1], x[HINT_START], 1 << 3", False),
    ],
)
def test_control_tokens_of_any_chat_model_are_known(text: str, found: bool) -> None:
    """A trainer's tokenizer reads the exported text and cannot tell the log's text from the template's."""
    assert has_control_tokens(text) == found
    assert not found or break_control_tokens(text) != text
