"""Tests that presets pass only arguments that a family's chat template reads, on the templates that trl ships."""

import json
from pathlib import Path

import pytest
from packaging.version import Version

from opdkit.commands.doctor.model import arguments
from opdkit.config.fields import parse_pairs
from opdkit.config.presets import PRESETS

TEMPLATES = {
    "qwen2.5": ["qwen2_5"], "qwen3": ["qwen3", "qwen3_5_think"], "qwen3-thinking": ["qwen3", "qwen3_5_think"],
    "qwen3-2507": ["qwen3_instruct_2507"], "llama3": ["llama3_1", "llama3_2"], "gpt-oss": ["gptoss"],
    "deepseek-r1": ["deepseek_r1_distill"], "glm4": ["glm4moe"], "glm4-thinking": ["glm4moe"],
    "nemotron3": ["nemotron_3_nano", "nemotron_3_super"], "gemma3": ["gemma3"], "gemma4": ["gemma4"],
    "phi3": ["phi3", "phi3_5"],
}  # fmt: skip
TRL = Version("1.16")  # this trl has all of TEMPLATES: a file that a later one lacks has another name there


def test_every_preset_is_checked():
    assert set(TEMPLATES) == set(PRESETS)


@pytest.mark.parametrize(("preset", "template"), [(p, t) for p, names in TEMPLATES.items() for t in names])
def test_the_template_reads_what_the_preset_says(preset, template):
    trl = pytest.importorskip("trl", reason="trl ships the published chat templates: pip install trl")
    path = Path(trl.__file__).parent / "chat_templates" / f"{template}.jinja"
    if not path.exists() and Version(trl.__version__) < TRL:
        pytest.skip(f"this trl has no {path.name}")
    known = arguments(path.read_text(encoding="utf-8"))
    given = parse_pairs(PRESETS[preset].template_arg, "--template-arg")
    assert set(given) <= known, "an option that the template never looks at"
    if not given:
        assert not known & {"enable_thinking", "reasoning_effort", "thinking"}, "the template wants to be told"


def test_arguments_of_a_template():
    text = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking %}x{% endif %}"
    assert arguments(text) == {"enable_thinking"}
    assert arguments("{%- generation -%}{{ x }}{%+ endgeneration%}") == {"x"}, "a tag that only transformers knows"
    assert json.dumps(sorted(arguments("{% set a = 1 %}{{ a }}{{ date_string }}"))) == '["date_string"]'
