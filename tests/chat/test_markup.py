"""Tests of opdkit/chat/markup.py: thinking, calls and end markers in the text of a reply."""

import pytest

from opdkit.chat.markup import (
    final_answer,
    has_broken_call,
    opens_thinking,
    split_calls,
    split_reply,
    split_thinking,
    visible,
)


@pytest.mark.parametrize(("text", "thinking", "rest"), [
    ("<think>\na\n</think>\n\nb", "a", "b"),
    ("<think>\n\n</think>\n\nb", None, "b"),
    ("a</think>b", "a", "b"),  # the template put the opening tag into the prompt
    ("<think>never closed", "never closed", ""),
    ("b", None, "b"),
    ("say <think> and </think>", None, "say <think> and </think>"),
])  # fmt: skip
def test_thinking_lies_apart(text, thinking, rest):
    assert split_thinking(text) == (thinking, rest)


def test_calls_in_markup():
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert split_calls(f"text\n{call}\n{call}") == ("text", [{"id": "", "name": "f", "arguments": '{"a":1}'}] * 2)
    for broken in ("<tool_call>{", "<tool_call>{}</tool_call>", "<tool_call>f()</tool_call>"):
        assert split_calls(broken) == (broken, [])
        assert has_broken_call(f"text {broken}")
    assert not has_broken_call(f"text\n{call}")


@pytest.mark.parametrize(("body", "is_broken"), [
    ("\n<function=f>\n<parameter=a>\n1\n2\n</parameter>\n</function>\n", False), ("<function=f>\n</function>", False),
    ("f\n<arg_key>a</arg_key>\n<arg_value>1\n2</arg_value>\n", False), ("f", False),
    ("f<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key><arg_value></arg_value>", False),
    ("\n<function=f>\n<parameter=a>\n1\n</function>\n", True), ("<function=>\n</function>", True),
    ("<function=f>", True), ("f<arg_key>a</arg_key><arg_value>1", True), ("f<arg_key>a<arg_value>1</arg_value>", True),
    ("f a", True), ("", True),
])  # fmt: skip
def test_a_call_in_another_form_than_json_is_not_broken(body: str, is_broken: bool) -> None:
    """As the templates of Qwen3-Coder, Qwen3.5, Nemotron 3 and GLM write it, without and with line breaks."""
    assert has_broken_call(f"text <tool_call>{body}</tool_call>") is is_broken
    assert has_broken_call(f"text <tool_call>{body}</tool_call>\n<tool_call>{body}")


def test_hostile_markup_takes_no_more_than_linear_time():
    text = "<tool_call> " * 200_000 + "</tool_call>"
    assert split_calls(text) == (text, [])
    assert split_thinking("<think>" * 200_000)[1] == ""
    assert split_thinking("\n" * 500_000) == (None, "\n" * 500_000)  # from a model that loops
    for end in ("<|im_end|>\n", "</s>"):
        assert split_reply(end * 100_000 + "x") == (None, end * 100_000 + "x", [])
        assert split_reply("x" + end * 100_000) == (None, "x", [])


def test_a_reply_without_its_end_markers():
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert split_reply(f"<think>a</think>b {call}<|im_end|>\n<|endoftext|>") == (
        "a", "b", [{"id": "", "name": "f", "arguments": "{}"}]
    )  # fmt: skip
    assert split_reply("b</s> c") == (None, "b</s> c", [])


@pytest.mark.parametrize(("text", "opened", "answer"), [
    ("b", False, ("b", False)),
    ("b", True, ("b", True)),  # the prompt opened the thinking, and nothing closed it
    ("a</think>b", True, ("b", False)),
    ("<think>a</think>b</think>c", False, ("c", False)),
    ("<think>a", False, ("<think>a", True)),
    ("a</think>b<think>c", False, ("b<think>c", True)),
])  # fmt: skip
def test_the_answer_is_what_follows_the_last_closing_tag(text, opened, answer):
    assert final_answer(text, opened) == answer


@pytest.mark.parametrize(("reply", "thinking", "seen"), [
    ("plain", False, "plain"), ("<think>no</think>\n\nyes", False, "yes"), ("so </think> yes", True, "yes"),
    ("<think>never ends", False, ""), ("never ends", True, ""), ("<think>a</think>b<think>c", False, ""),
    ("<seed:think>no</seed:think>yes", False, "yes"), ("<mm:think>never ends", False, ""),
    ("[THINK]no[/THINK]yes", False, "yes"), ("[THINK]never ends", False, ""),
    ("<|START_THINKING|>no<|END_THINKING|><|START_TEXT|>yes", False, "yes"), ("no<|END_THINKING|>yes", True, "yes"),
    ("<|START_THINKING|>never ends", False, ""), ("<|START_RESPONSE|>yes", False, "yes"),
    ("Use the <think> tag before it.", False, "Use the <think> tag before it."), ("so [THINK]", False, "so [THINK]"),
    ("\n<think>never ends", False, ""), ("so <think>", True, ""), ("so <|channel>", False, ""),
])  # fmt: skip
def test_what_is_judged_is_what_the_reader_sees(reply, thinking, seen) -> None:
    """The judge sees only what follows the thinking, since a draft inside the thinking is not the reply."""
    assert visible(reply, thinking) == seen


@pytest.mark.parametrize("opening", ["<think>", "<seed:think>", "[THINK]", "<|START_THINKING|>", "<|channel>thought"])
def test_what_a_prompt_leaves_open(opening: str) -> None:
    assert opens_thinking(f"assistant\n{opening}\n")
    assert not opens_thinking(f"{opening}<|im_end|>\nassistant\n")
    assert not opens_thinking("assistant\n")
