"""Tests that the examples in docs/logs.md are of the formats that they name, and that its mappings read them."""

import re
from pathlib import Path

import pytest

from opdkit.chat.conversation import Conversation
from opdkit.extract.formats import READERS
from opdkit.extract.formats.detect import detect
from opdkit.extract.formats.mapped import make_mapped_reader
from opdkit.extract.formats.reader import Line
from opdkit.extract.mapping import load

PAGE = (Path(__file__).parents[1] / "docs" / "logs.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)


def lines(block: str) -> list[Line]:
    texts = [f'{{"messages":{text}}}' if text.startswith("[") else text for text in block.splitlines()]
    return [Line("log", n, text.encode()) for n, text in enumerate(texts, 1)]


@pytest.mark.parametrize("name", list(READERS))
def test_the_example_of_each_format_is_one(name):
    (block,) = blocks(name, "json")
    assert detect(lines(block)) == name
    (told,) = READERS[name].read(lines(block))
    assert isinstance(told, Conversation)
    assert any(m["role"] == "assistant" for m in told.messages) or name == "anthropic"
    assert f"`{name}`" in PAGE


def test_the_mappings_read_their_examples(tmp_path):
    mappings, rows = blocks("Your own: mapped", "toml"), blocks("Your own: mapped", "json")
    assert len(mappings) == len(rows) == 4
    for mapping, block in zip(mappings, rows, strict=True):
        (tmp_path / "fields.toml").write_text(mapping)
        (told,) = make_mapped_reader(load(str(tmp_path / "fields.toml"))).read(lines(block))
        assert isinstance(told, Conversation)
        assert told.messages[0] | {"role": "user", "content": "hi"} == told.messages[0]
