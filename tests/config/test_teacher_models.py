"""Tests of teachers on the command line: names, shares and routes."""

import pytest

from opdkit.config.teacher import TeacherConfig
from opdkit.config.teacher_models import parse_shares, parse_teachers, read_routed_name
from opdkit.errors import ConfigError


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
    ({"teacher": ("a=x",), "teacher_share": ("b=1",)}, "no teacher is named 'b'"),
    ({"teacher_share": ("b=1",)}, "there is no --teacher at all"),
    ({"teacher": ("a=x",), "teacher_share": ("a",)}, "NAME=SHARE"),
    ({"teacher": ("a=x",), "teacher_share": ("a=0",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_share": ("a=-1",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_share": ("a=nan",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_share": ("a=inf",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_share": ("a=much",)}, "above 0"),
    ({"teacher": ("a=x",), "teacher_share": ("a=1", "a=2")}, "twice"),
    ({"teacher_route": "tier"}, "nothing to choose from"),
    ({"teacher": ("a=x",), "teacher_route": "tier", "teacher_share": ("a=1",)}, "picks one of them"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_before_anything_runs(tmp_path, options, message):
    with pytest.raises(ConfigError, match=message):
        TeacherConfig(run=tmp_path, model="m", **options)


@pytest.mark.parametrize(("options", "samples"), [
    ({}, 1),
    ({"teacher": ("x",)}, 1),
    ({"teacher": ("a=x", "b=y"), "teacher_route": "tier"}, 1),
    ({"teacher": ("a=x", "b=y")}, 0),
    ({"device_map": "auto"}, 0),
    ({"tensor_parallel": True}, 0),
    ({"teacher_samples": 0}, 0),
    ({"teacher_samples": 3}, 3),
])  # fmt: skip
def test_a_reply_is_sampled_wherever_one_model_on_one_device_reads_the_hint(tmp_path, options, samples):
    """The plan holds this number, because device placement, which decides it, is not part of the plan."""
    config = TeacherConfig(run=tmp_path, model="m", **options)
    assert (config.samples, config.plan()["teacher_samples"]) == (samples, samples)


def test_weights_are_shares():
    assert parse_shares([], ["a", "b"]) == {"a": 0.5, "b": 0.5}
    assert parse_shares(["b=3"], ["a", "b"]) == {"a": 0.25, "b": 0.75}
    assert parse_shares(["models/x=y=3"], ["models/x=y"]) == {"models/x=y": 1.0}


@pytest.mark.parametrize(("metadata", "expected"), [
    (None, None), ("{}", None), ("not json", None), ("[1]", None), ('{"tier": null}', None),
    ('{"tier": "gold"}', "gold"), ('{"tier": 2}', "2"), ('{"tier": true}', "true"), ("[" * 100_000, None),
])  # fmt: skip
def test_a_route_reads_one_field(metadata, expected):
    assert read_routed_name(metadata, "tier") == expected
    assert read_routed_name(metadata, "metadata.tier") == expected, "as --filter and --by write it"
