"""Tests of which chat-template arguments hold if an earlier stage recorded some."""

from pathlib import Path

import pytest
from runs import talk, write_extract

from opdkit.config.teacher import TeacherConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store.part_writer import Stage
from opdkit.store.tables import TARGETS
from opdkit.store.template_args import choose_template_args

ON, OFF = ("enable_thinking=true",), ("enable_thinking=false",)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run whose teacher stage recorded an argument."""
    run = write_extract(tmp_path / "run", {"s": talk("hi", "hello")})
    Stage.open(TeacherConfig(run=run, model="m", template_arg=OFF), "teacher", [TARGETS], parts=1)
    return run


@pytest.mark.parametrize(
    ("given", "binding", "holding"), [((), True, OFF), (OFF, True, OFF), ((), False, OFF), (ON, False, ON)]
)
def test_what_is_recorded_holds_unless_the_stage_samples_for_itself(run, given, binding, holding) -> None:
    assert choose_template_args(run, "teacher", given, binding=binding) == holding


def test_another_argument_is_refused_where_it_binds(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"--template-arg .*true.*teacher.*false"):
        choose_template_args(run, "teacher", ON)


def test_a_stage_that_recorded_none_or_that_is_not_there(run: Path) -> None:
    assert choose_template_args(run, "extract", ON) == ON  # extract of a log records none
    assert choose_template_args(run, "train", ON, binding=False) == ON
    with pytest.raises(OpdkitError, match="train"):
        choose_template_args(run, "train", ON)
