"""Tests of which model wrote the log, and whether it is the student."""

import json
import re

import pytest

from opdkit.model.behavior_policy import describe_off_policy, find_unusable_reason, is_other_model, list_student_names
from opdkit.model.folder import name_weights


def test_the_student_is_known_by_its_folder_and_by_its_own_name(tmp_path):
    folder = tmp_path / "Qwen3-4B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"_name_or_path": "acme/Assistant"}))
    names = list_student_names(f"{folder}/", {})
    for logged in (None, "", "qwen3-4b", "Qwen/Qwen3-4B", str(folder), "assistant", "hosted/acme/assistant"):
        assert not is_other_model(logged, names), logged
    for logged in ("Qwen3-8B", "assistant-2", "4b"):
        assert is_other_model(logged, names), logged
    assert not is_other_model("Qwen3-4B", list_student_names("Qwen/Qwen3-4B", {}))  # a name on the hub


def test_weights_have_a_name_of_their_own(tmp_path):
    """Every training's folder is called model, so only the digest tells the models of two rounds apart."""
    files = {"config.json": "2:ab", "model.safetensors": "9:cd", "tokenizer.json": "7:ef"}
    name = name_weights(f"{tmp_path}/train/model/", files)
    assert re.fullmatch(r"model@[0-9a-f]{12}", name)
    names = list_student_names(f"{tmp_path}/other", files | {"tokenizer.json": "8:00"})
    assert not is_other_model(name, names)  # the same weights elsewhere
    for other in ({"model.safetensors": "9:ce"}, {"config.json": "3:ab"}):
        assert is_other_model(name, list_student_names(f"{tmp_path}/train/model", files | other))
    assert name_weights("Qwen/Qwen3-4B", {}) == "Qwen/Qwen3-4B"  # on the hub
    assert is_other_model("someone@example", list_student_names("someone", {}))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"_name_or_path": 3}', "\ufeff{}"])
def test_a_damaged_configuration_has_no_name(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert list_student_names(str(tmp_path), {}) == {tmp_path.name.casefold()}


def test_other_models_are_said_with_their_counts():
    message = describe_off_policy({"a (1)": 3, "b": 10, "c": 1, "d" * 50: 1}, "mine")
    assert "15 sessions" in message
    assert "b (10), a (1) (3), c (1) and 1 more" in message
    assert "--served-as" in message  # for the name under which a server runs the student
    assert describe_off_policy({}, "mine") is None


@pytest.mark.parametrize(("logprobs", "ids", "reason"), [
    ([-0.5, 0.0], [1, 2], None),
    ([0.0, 0.0], [1, 2], "filler"),
    ([-0.0] * 40, [1] * 40, "filler"),
    ([0.0], [1], None),  # one token can be certain: a greedy "yes"
    ([0.0, 0.0], [1], "other tokens"),
    ([-0.5, -0.5], None, "other tokens"),
    ([-0.5, 0.5], [1, 2], "not log-probs"),
    ([-0.5, float("nan")], [1, 2], "not log-probs"),
])  # fmt: skip
def test_log_probs_that_cannot_be_used_say_why(logprobs, ids, reason):
    found = find_unusable_reason(logprobs, ids)
    assert (found is None) == (reason is None)
    assert reason is None or reason in found
