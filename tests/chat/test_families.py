"""Tests of opdkit/chat/template.py with small templates that behave as those of further model families do."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from chat_templates import CHATML, GEMMA, QWEN
from conftest import CHATML_TOKENS, CHATML_WORDS, build_tokenizer
from judged_runs import message
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from opdkit.chat.template import Chat, ChatError

CALL = {"id": "c1", "name": "search", "arguments": '{"query": "the file", "n": 3}'}
# A request, a call, its result, and a reply.
FOUND = [message("user", "hi"), message("assistant", None, tool_calls=[CALL]), message("tool", "found"),
         message("assistant", "Done.")]  # fmt: skip

# As Mistral's since version 3: the system message is in the last user message, and ids of calls have nine characters.
MISTRAL = """{%- set system = messages[0].content if messages[0].role == "system" else none %}
{%- for m in messages if m.role != "system" %}
    {%- if m.role == "user" %}
        {{- "[INST] " + (system + "\n\n" if system and loop.last else "") + m.content + "[/INST]" }}
    {%- elif m.role == "tool" %}{{- "[TOOL_RESULTS] " + m.content + "[/TOOL_RESULTS]" }}
    {%- elif m.tool_calls %}
        {%- for call in m.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception("ids of nine characters") }}{% endif %}
            {{- "[TOOL_CALLS] " + call.function.name + call.id + eos_token }}
        {%- endfor %}
    {%- else %}{{- " " + m.content + eos_token }}{%- endif %}
{%- endfor %}"""


def mistral() -> Chat:
    return Chat(build_tokenizer(MISTRAL, ("</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]")), {})


def test_a_system_message_that_only_the_last_user_message_holds() -> None:
    chat, talk = mistral(), [message("system", "Be brief."), message("user", "hi"), message("assistant", "0 Yes.")]
    assert chat.text(chat.prompt_ids(talk[:2])) == "[INST] Be brief.\n\nhi[/INST]"
    assert chat.text(chat.reply(talk, 2).ids) == " 0 Yes.</s>"
    assert chat.text(chat.reply(talk, 2, finish_reason="length").ids) == " 0 Yes."
    repeated = [*talk, message("user", "hi"), message("assistant", "No.")]  # the same header and text twice
    assert chat.text(chat.reply(repeated, 4).ids) == " No.</s>"


def test_ids_of_calls_have_the_length_that_the_template_takes() -> None:
    call = message("assistant", None, tool_calls=[CALL | {"id": "call_AbC-123456789"}])
    chat, talk = mistral(), [message("user", "hi"), call]
    assert chat.text(chat.reply(talk, 1).ids) == "[TOOL_CALLS] search123456789</s>"
    short = [talk[0], call | {"tool_calls": [CALL]}]
    assert chat.text(chat.reply(short, 1).ids) == "[TOOL_CALLS] search0000000c1</s>"


# What a generation prompt ends with; how an assistant message is written; what closes a thought that the prompt opens.
THOUGHTS = {
    "Gemma 4": ("<|channel>thought\n<channel|>", "{{ m.content }}", None),
    "DeepSeek-V3.2": ("<think></think>", "</think>{{ m.content }}", None),
    "Command R7B": ("<|START_THINKING|><|END_THINKING|>", "<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>", None),
    "DeepSeek-V3.1": ("<think>", "</think>{{ m.content }}", "</think>"),
    "GLM-4.7": ("<think>", "{{ '<think>' + m.reasoning_content if m.reasoning_content }}</think>{{ m.content }}",
                "</think>"),
    "MiniMax-M2": ("<think>\n", "{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' if m.reasoning_content }}"
                   "{{ m.content }}", "\n</think>\n\n"),
    "Command A": ("<|START_THINKING|>", "{{ '<|START_THINKING|>' + m.reasoning_content + '<|END_THINKING|>' if "
                  "m.reasoning_content }}<|START_TEXT|>{{ m.content }}<|END_TEXT|>", "<|END_THINKING|>"),
}  # fmt: skip
THOUGHT_TOKENS = ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>",
                  "<|END_TEXT|>", "<|channel>", "<channel|>")  # fmt: skip


@pytest.mark.parametrize("name", THOUGHTS)
@pytest.mark.parametrize("content", ["Yes.", "<b>Yes</b>", "0"])
def test_a_thought_that_only_the_prompt_holds(name: str, content: str) -> None:
    """The reply follows the prompt's empty thought; an open one is closed as the template would, outside the loss."""
    opened, said, closing = THOUGHTS[name]
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}" + said
        + "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n" + opened.replace("\n", "\\n") + "' }}{% endif %}"
    )  # fmt: skip
    chat = Chat(build_tokenizer(template, (*CHATML_TOKENS, *THOUGHT_TOKENS), CHATML_WORDS), {})
    talk = [message("user", "hi"), message("assistant", content), message("user", "Go."), message("assistant", "No.")]
    for index in (1, 3):
        reply, prompt = chat.reply(talk, index), chat.text(chat.prompt_ids(talk[:index]))
        masked, sampled = (chat.text([i for i, real in zip(reply.ids, reply.mask, strict=True) if real is kind])
                           for kind in (False, True))  # fmt: skip
        assert prompt.endswith("assistant\n" + opened)
        assert masked == (closing or "")
        assert sampled.startswith(("<|START_RESPONSE|>", "<|START_TEXT|>", talk[index]["content"]))
        assert talk[index]["content"] in sampled
        assert sampled.endswith(("<|im_end|>", "<|END_RESPONSE|>", "<|END_TEXT|>"))
        assert "think" not in sampled.lower()
    thought = [*talk[:1], talk[1] | {"reasoning": "Hm"}]
    if closing and name != "DeepSeek-V3.1":
        assert chat.text(chat.reply(thought, 1).ids).startswith("Hm" + closing)
        inline = [*talk[:1], message("assistant", "<think>\nHm")]
        assert chat.text(chat.reply(inline, 1, finish_reason="length").ids) == "Hm"
    else:  # the template leaves thinking out
        assert chat.reply(thought, 1) == chat.reply(talk, 1)


@pytest.mark.parametrize("opened", ["", "<think>"])
def test_an_empty_thought_in_place_of_the_logged_one_is_masked(opened: str) -> None:
    """DeepSeek-V3.1's template never writes thinking. Trained on, the empty block would teach not to think."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ '<think></think>' if m.role == 'assistant' }}"
        "{{ m.content }}<|im_end|>{% endfor %}{{ '<|im_start|>assistant\nOPENED' if add_generation_prompt }}"
    ).replace("OPENED", opened)
    chat = Chat(build_tokenizer(template, CHATML_TOKENS, CHATML_WORDS), {})
    reply = chat.reply([message("user", "hi"), message("assistant", "Yes", reasoning="Short.")], 1)
    assert chat.text([i for i, real in zip(reply.ids, reply.mask, strict=True) if real]) == "Yes<|im_end|>"
    assert chat.text(reply.ids) == "<think></think>Yes<|im_end|>".removeprefix(opened)


RESULT = (
    "{% for m in messages %}{% if m.role == 'tool' %}<|im_start|>tool\n{{ m.content }}RESULT{% else %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}{{ m.tool_calls[0].function.name if m.tool_calls }}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.mark.parametrize("end", [
    "{{ '<|im_end|>' if loop.last else '\n<|im_end|>\n' }}",  # Hermes's
    "{{ '<|im_end|>\n' if loop.last else '' }}",  # Bielik's
])  # fmt: skip
def test_a_result_that_ends_in_another_way_before_a_reply(end: str) -> None:
    chat = Chat(build_tokenizer(RESULT.replace("RESULT", end), CHATML_TOKENS), {})
    assert chat.text(chat.reply(FOUND, 3).ids) == "Done.<|im_end|>"
    assert chat.text(chat.reply([*FOUND[:3], FOUND[1]], 3).ids) == "search<|im_end|>"


def test_a_prompt_that_repeats_the_header_after_a_result() -> None:
    """Apertus's template continues the message with the call, but its generation prompt begins another one."""
    template = (
        "{% for m in messages %}{% if m.role == 'tool' %}[{{ m.content }}]{% elif m.role == 'user' %}<user>"
        "{{ m.content }}{% else %}{{ '<assistant>' if messages[loop.index0 - 1].role == 'user' }}"
        "{% if m.tool_calls %}<calls>{{ m.tool_calls[0].function.name }}<done>{% else %}{{ m.content }}<end>{% endif %}"
        "{% endif %}{% endfor %}{{ '<assistant>' if add_generation_prompt }}"
    )
    chat = Chat(build_tokenizer(template, ("<end>", "<user>", "<assistant>", "<calls>", "<done>")), {})
    assert chat.text(chat.prompt_ids(FOUND[:3])) == "<user>hi<assistant><calls>search<done>[found]<assistant>"
    assert chat.text(chat.reply(FOUND, 3).ids) == "Done.<end>"
    assert chat.text(chat.reply([*FOUND[:3], FOUND[1]], 3).ids) == "<calls>search<done>"


def test_a_call_without_a_header_is_no_reply_to_a_user() -> None:
    """DeepSeek-V3's template writes no header before calls of later turns: what it renders there is malformed."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}<user>{{ m.content }}{% elif m.role == 'tool' %}<out>"
        "{{ m.content }}{% else %}{{ '<assistant>' if not m.tool_calls or loop.index0 < 3 }}{{ m.content }}"
        "{% if m.tool_calls %}[call]{{ m.tool_calls[0].function.name }}{% endif %}<end>{% endif %}{% endfor %}"
        "{{ '<assistant>' if add_generation_prompt }}"
    )
    chat = Chat(build_tokenizer(template, ("<end>", "<user>", "<assistant>", "[call]", "<out>")), {})
    call = message("assistant", "", tool_calls=[CALL])
    talk = [message("user", "hi"), call, message("tool", "found"), message("assistant", "Done."),
            message("user", "again"), call]  # fmt: skip
    assert chat.text(chat.reply(talk, 1).ids) == "[call]search<end>"
    with pytest.raises(ChatError, match="continue"):
        chat.reply(talk, 5)


def test_a_question_that_is_asked_again_is_another_one() -> None:
    """Here prompts end with an empty thought, as Nemotron's without thinking do, and the second reply has one."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{{ '<think>' + "
        "m.reasoning_content + '</think>' if m.reasoning_content else '<think></think>' }}{% endif %}{{ m.content }}"
        "<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n<think></think>' if add_generation_prompt }}"
    )
    chat = Chat(build_tokenizer(template, CHATML_TOKENS, CHATML_WORDS), {})
    talk = [message("user", "Go on."), message("assistant", "One."), message("user", "Go on."),
            message("assistant", "Two.", reasoning="Hm.")]  # fmt: skip
    assert chat.text(chat.reply(talk, 1).ids) == "One.<|im_end|>"
    with pytest.raises(ChatError, match="continue"):
        chat.reply(talk, 3)


@pytest.mark.parametrize("text", [None, "I search."])
def test_a_stop_token_between_text_and_call_ends_no_reply(text: str | None) -> None:
    """GigaChat's template writes one behind the text, even if that is empty, and the call in another message."""
    template = (
        "{% for m in messages %}{{ m.role }}\n{{ m.content }}<|im_end|>"
        "{% for c in m.tool_calls or [] %}{{ '\\ncall\\n' + c.function.name }}{{ c.function.arguments | tojson }}"
        "<|im_end|>{% endfor %}{% endfor %}{{ 'assistant\n' if add_generation_prompt }}"
    )
    chat = Chat(build_tokenizer(template, CHATML_TOKENS), {})
    said = chat.reply([message("user", "hi"), message("assistant", text, tool_calls=[CALL])], 1)
    assert chat.text(said.ids).startswith(f"{text or ''}<|im_end|>\ncall\nsearch")
    assert chat.text(said.ids).endswith("}<|im_end|>")


def published(name: str, special: Sequence[str], eos: Sequence[str] = (), **template_args) -> Chat:
    """Return the Chat of a template that trl ships; `eos` are the stop tokens of the generation configuration."""
    trl = pytest.importorskip("trl", reason="trl ships the published chat templates: pip install trl")
    template = (Path(trl.__file__).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer = build_tokenizer(template, special, ("<think>", "</think>", "<tool_call>", "</tool_call>"))
    return Chat(tokenizer, template_args, tokenizer.convert_tokens_to_ids(list(eos)))


def test_a_reply_that_ends_with_the_next_header_has_that_header() -> None:
    """GLM's models stop at the header of the next message, and the template writes nothing after a last reply."""
    headers = ("<|user|>", "<|observation|>")
    chat = published("glm4moe", ("<|endoftext|>", *headers, "<|assistant|>", "<|system|>", "[gMASK]", "<sop>"),
                     ("<|endoftext|>", *headers), enable_thinking=False)  # fmt: skip
    talk = [message("user", "hi"), message("assistant", None, tool_calls=[CALL]),
            message("tool", "found", tool_call_id="c1"), message("assistant", "Done.")]  # fmt: skip
    assert chat.text(chat.reply(talk, 1).ids).endswith("</tool_call><|observation|>")
    assert chat.text(chat.reply(talk, 3).ids) == "\nDone.<|user|>"
    assert chat.text(chat.reply(talk, 3, finish_reason="length").ids) == "\nDone."
    assert chat.text([chat.end_id]) == "<|user|>"
    for index in (1, 3):  # the next prompt continues with that header
        ids = chat.prompt_ids(talk[:index]) + chat.reply(talk, index).ids
        assert chat.prompt_ids([*talk, message("user", "ok")][: index + 2])[: len(ids)] == ids


def test_a_final_reply_of_gpt_oss_follows_its_call() -> None:
    """The template leaves out the thinking before a call once the final reply is there."""
    chat = published("gptoss", ("<|return|>", "<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|call|>"))
    talk = [message("user", "hi"), message("assistant", None, reasoning="Search.", tool_calls=[CALL]),
            message("tool", "found", tool_call_id="c1"), message("assistant", "Done.")]  # fmt: skip
    assert "Search." in chat.text(chat.prompt_ids(talk[:3]))
    assert chat.text(chat.reply(talk, 3).ids) == "<|channel|>final<|message|>Done.<|return|>"
    final = "<|channel|>analysis<|message|>No sorry.<|end|><|start|>assistant<|channel|>final<|message|>42."
    assert chat.visible_text(final, chat.prompt_ids(talk[:1])) == "42."
    assert not chat.visible_text(final.partition("<|end|>")[0], chat.prompt_ids(talk[:1]))
    call = chat.text(chat.reply(talk, 1).ids[:-1])
    assert "the file" in chat.visible_text(call, chat.prompt_ids(talk[:1])), "a call is no thinking"


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_thinking_is_found_under_each_of_its_names(key: str) -> None:
    """Solar's template knows `reasoning`, and writes the thought as a message that ends with the reply's stop token."""
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.KEY %}{{ m.KEY }}<|im_end|><|im_start|>{% endif %}"
        "{{ m.content }}<|im_end|>{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ).replace("KEY", key)
    chat = Chat(build_tokenizer(template, CHATML_TOKENS), {})
    reply = chat.reply([message("user", "hi"), message("assistant", "Yes", reasoning="Short.")], 1)
    assert chat.text(reply.ids) == "Short.<|im_end|><|im_start|>Yes<|im_end|>"
    assert all(reply.mask)
    repeated = chat.reply([message("user", "hi"), message("assistant", "4", reasoning="2 + 2 = 4.")], 1)
    assert chat.text(repeated.ids) == "2 + 2 = 4.<|im_end|><|im_start|>4<|im_end|>"


def test_what_a_template_leaves_out_of_a_prompt_is_named() -> None:
    talk = FOUND[:3]
    bare = "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    assert Chat(build_tokenizer(bare, CHATML_TOKENS), {}).find_left_out(talk) == ["calls", "tool results"]
    assert Chat(build_tokenizer(bare, CHATML_TOKENS), {}).find_left_out(talk[:1]) == []
    assert Chat(build_tokenizer(QWEN, CHATML_TOKENS, CHATML_WORDS), {}).find_left_out(talk) == []


def test_what_a_template_for_requests_with_tools_writes_is_left_out_of_nothing() -> None:
    """Hermes 3 has two templates: the one for requests without tools knows no calls."""
    explained = "{{ '<|im_start|>system\n<tool_call>\n{NAME}\n</tool_call><|im_end|>\n' if tools }}" + QWEN
    chat = Chat(build_tokenizer({"default": CHATML, "tool_use": explained}, CHATML_TOKENS, CHATML_WORDS), {})
    talk = FOUND[:3]
    assert chat.find_left_out(talk) == []
    assert chat.tags_calls
    tools = '[{"name": "search"}]'
    assert "<tool_response>\nfound" in chat.text(chat.prompt_ids(talk, tools))
    assert '"name": "search", "arguments"' in chat.text(chat.reply(talk, 1, tools).ids)


def test_a_template_that_names_calls_by_their_ids_alone_leaves_out_their_names() -> None:
    by_id = ("{% for m in messages %}<|im_start|>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.id }}"
             "{{ c.function.arguments }}{% endfor %}<|im_end|>{% endfor %}")  # fmt: skip
    chat, talk = Chat(build_tokenizer(by_id, CHATML_TOKENS), {}), [message("user", "hi")]
    with pytest.raises(ChatError, match="leaves out the names of calls"):
        chat.reply([*talk, message("assistant", None, tool_calls=[CALL])], 1)
    named = CALL | {"id": "functions.search:0"}
    assert "functions.search:0" in chat.text(chat.reply([*talk, message("assistant", None, tool_calls=[named])], 1).ids)


@pytest.mark.parametrize("kind", ["first", "always", "prepend"])
@pytest.mark.parametrize("template", [
    CHATML,
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content + eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} "
    "{{ eos_token }}{% endif %}{% endfor %}",
])  # fmt: skip
def test_a_reply_begins_as_it_does_in_the_whole_text(kind: str, template: str) -> None:
    """SentencePiece: a space before the first word of all text, or also after each control token."""
    letters = ["<unk>", "▁", *map(chr, range(33, 127)), *(f"<0x{n:02X}>" for n in range(256))]
    merges = [("e", "s"), ("Y", "es"), ("▁", "Yes"), ("▁", "▁")]
    vocabulary = {token: n for n, token in enumerate([*letters, *map("".join, merges)])}
    backend = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True))
    if kind == "prepend":
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=kind, split=False)
    backend.add_special_tokens(["</s>", *CHATML_TOKENS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = template
    chat, talk = Chat(tokenizer, {}), [message("user", "hi"), message("assistant", "Yes.")]
    ids = chat.prompt_ids(talk[:1]) + chat.reply(talk, 1).ids
    assert tokenizer.apply_chat_template(talk, return_dict=False)[: len(ids)] == ids


def test_added_words_that_structure_no_chat_are_those_of_the_text() -> None:
    """Gemma's vocabulary has HTML tags as added words; a server reads them as such in any text."""
    tokenizer = build_tokenizer(
        GEMMA, ("<eos>", "<end_of_turn>", "<bos>", "<start_of_turn>"), ("<table>", "<think>"), bos="<bos>"
    )
    ids = Chat(tokenizer, {}).prompt_ids([message("user", "A <table> and <think> and <eos>.")])
    kept = [word for word in ("<table>", "<think>", "<eos>") if tokenizer.convert_tokens_to_ids(word) in ids]
    assert kept == ["<table>"]
