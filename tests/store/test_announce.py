"""Tests of what a command says before it loads models: a dry run without --measure loads no weights."""

from pathlib import Path
from typing import Any

import pytest

from opdkit.config.doctor import DoctorConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.store.announce import announce_models


@pytest.mark.parametrize(
    ("options", "loaded"),
    [({}, "m and t"), ({"dry_run": True}, "the tokenizer of m and t"), ({"dry_run": True, "measure": 8}, "m and t")],
)
def test_a_dry_run_says_that_it_loads_the_tokenizer(
    options: dict[str, Any], loaded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    announce_models("teacher", TeacherConfig(run=Path("run"), model="m", teacher=("t",), **options))
    announce_models("doctor", DoctorConfig(model="m"))
    assert capsys.readouterr().err.splitlines() == [
        f"teacher: loading torch and {loaded} ...",
        "doctor: loading torch and the tokenizer of m ...",
    ]
