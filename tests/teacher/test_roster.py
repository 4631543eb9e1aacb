"""opdkit/teacher/roster.py and behavior.py: names, weights, routes, and who wrote the log."""

import json
import re

import pytest

from opdkit.errors import ConfigError
from opdkit.stages import TeacherConfig
from opdkit.teacher.behavior import counted_as, is_another, off_policy, student_names, weights_name
from opdkit.teacher.roster import parse_teachers, parse_weights, routed


@pytest.mark.parametrize(("given", "expected"), [
    ([], {}),
    (["models/7b"], {"models/7b": "models/7b"}),
    (["big=models/72b", "models/7b"], {"big": "models/72b", "models/7b": "models/7b"}),
    (["a.b-c_1=x=y"], {"a.b-c_1": "x=y"}),
    (["./a=b", "/abs/a=b"], {"./a=b": "./a=b", "/abs/a=b": "/abs/a=b"}),  # a name holds no slash
])  # fmt: skip
def test_teachers_have_names(given, expected):
    assert parse_teachers(given) == expected


@pytest.mark.parametrize(("options", "message"), [
    ({"teacher": ("a=x", "a=y")}, "two are named 'a'"),
    ({"teacher": ("x", "x")}, "two are named 'x'"),
    ({"teacher": ("",)}, "is empty"),
    ({"teacher": ("a=x",), "teacher_weight": ("b=1",)}, "no teacher is named 'b'"),
    ({"teacher_weight": ("b=1",)}, "there is no --teacher at all"),
    ({"teacher": ("a=x",), "teacher_weight": ("a",)}, "NAME=WEIGHT"),
    ({"teacher": ("a=x",), "teacher_weight": ("a=0",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_weight": ("a=-1",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_weight": ("a=nan",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_weight": ("a=inf",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_weight": ("a=much",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_weight": ("a=1", "a=2")}, "twice"),
    ({"teacher_route": "tier"}, "nothing to choose from"),
    ({"teacher": ("a=x",), "teacher_route": "tier", "teacher_weight": ("a=1",)}, "picks one of them"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_before_anything_runs(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        TeacherConfig(run=tmp_path, model="m", **options)


def test_weights_are_shares():
    assert parse_weights([], ["a", "b"]) == {"a": 0.5, "b": 0.5}
    assert parse_weights(["b=3"], ["a", "b"]) == {"a": 0.25, "b": 0.75}
    assert parse_weights(["models/x=y=3"], ["models/x=y"]) == {"models/x=y": 1.0}


@pytest.mark.parametrize(("metadata", "expected"), [
    (None, None), ("{}", None), ("not json", None), ("[1]", None), ('{"tier": null}', None),
    ('{"tier": "gold"}', "gold"), ('{"tier": 2}', "2"), ('{"tier": true}', "true"), ("[" * 100_000, None),
])  # fmt: skip
def test_a_route_reads_one_field(metadata, expected):
    assert routed(metadata, "tier") == expected


def test_the_student_is_known_by_its_folder_and_by_its_own_name(tmp_path):
    folder = tmp_path / "Qwen3-4B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"_name_or_path": "acme/Assistant"}))
    names = student_names(f"{folder}/", {})
    for logged in (None, "", "qwen3-4b", "Qwen/Qwen3-4B", str(folder), "assistant", "hosted/acme/assistant"):
        assert not is_another(logged, names), logged
    for logged in ("Qwen3-8B", "assistant-2", "4b"):
        assert is_another(logged, names), logged
    assert not is_another("Qwen3-4B", student_names("Qwen/Qwen3-4B", {}))  # a name on the hub


def test_weights_have_a_name_of_their_own(tmp_path):
    """The folder of every training is called model: only the digest tells one round from the next."""
    files = {"config.json": "2:ab", "model.safetensors": "9:cd", "tokenizer.json": "7:ef"}
    name = weights_name(f"{tmp_path}/train/model/", files)
    assert re.fullmatch(r"model@[0-9a-f]{12}", name)
    names = student_names(f"{tmp_path}/other", files | {"tokenizer.json": "8:00"})
    assert not is_another(name, names)  # the same weights elsewhere
    for other in ({"model.safetensors": "9:ce"}, {"config.json": "3:ab"}):
        assert is_another(name, student_names(f"{tmp_path}/train/model", files | other))
    assert weights_name("Qwen/Qwen3-4B", {}) == "Qwen/Qwen3-4B"  # on the hub
    assert is_another("someone@example", student_names("someone", {}))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"_name_or_path": 3}', "\ufeff{}"])
def test_a_damaged_configuration_has_no_name(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert student_names(str(tmp_path), {}) == {tmp_path.name.casefold()}


def test_other_models_are_said_with_their_counts():
    extra = {counted_as("a (1)"): 3, counted_as("b"): 10, counted_as("c"): 1, counted_as("d" * 500): 1, "votes": 7}
    message = off_policy(extra, "mine")
    assert "15 sessions" in message
    assert "b (10), a (1) (3), c (1) and 1 more" in message
    assert off_policy({"votes": 7}, "mine") is None
    assert len(counted_as("d" * 500)) < 120
