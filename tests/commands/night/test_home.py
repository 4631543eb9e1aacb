"""Tests of the home of a series of nights: the promoted model, the nights it learned from, and the lock."""

import errno
import json
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from opdkit.commands.night.forget import read_forgotten
from opdkit.commands.night.home import KEPT, PROMOTED, WAITS, Home
from opdkit.commands.night.models import run as models
from opdkit.config.fields import JSON
from opdkit.config.night import ModelsConfig
from opdkit.console import WordConsole
from opdkit.errors import ConfigError, OpdkitError


def make_night(home: Home, number: int, decision: str, parent: int, learns: list[int], *, model: bool = True) -> None:
    night = home.night(number)
    night.log.mkdir(parents=True)
    night.write({"night": number, "began": "2026-01-01", "parent": parent, "learns": learns, "earlier": [],
                 "decision": decision, "sentence": "So it is."})  # fmt: skip
    if model:
        night.model.mkdir(parents=True)
        (night.model / "config.json").write_text(json.dumps({"night": number}))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home: 1 was promoted, 2 waited, 3 learned from 2 and 3 and was kept, 4 from 2 to 4 and was promoted."""
    home = Home(tmp_path / "home")
    make_night(home, 1, PROMOTED, 0, [1])
    home.promote(1, by="night")
    make_night(home, 2, WAITS, 1, [2], model=False)
    make_night(home, 3, KEPT, 1, [2, 3])
    make_night(home, 4, PROMOTED, 1, [2, 3, 4])
    home.promote(4, by="night")
    return home


def test_the_link_is_a_model_folder_whatever_is_promoted(home: Home) -> None:
    for number in (1, 4):
        home.promote(number, by="hand")
        assert json.loads((home.path / "promoted" / "config.json").read_text()) == {"night": number}
        assert home.find_promoted() == number
    home.promote(0, by="hand")
    assert home.find_promoted() == 0
    assert not (home.path / "promoted").exists()
    assert [line["night"] for line in home.read_promotions()] == [1, 4, 1, 4, 0]


def test_a_copied_home_keeps_its_promotion_or_says_that_it_is_lost(home: Home, tmp_path: Path) -> None:
    moved = Home(tmp_path / "another home")
    shutil.copytree(home.path, moved.path, symlinks=True)
    (moved.path / "promoted").unlink()
    (moved.path / "promoted").symlink_to(home.night(4).model.absolute())
    assert moved.find_promoted() == 4, "rsync and backups can make links absolute"
    copy = Home(tmp_path / "a copy")
    shutil.copytree(home.path, copy.path)  # as cp -L and scp: the link becomes a folder
    for refused in (
        copy.find_promoted,
        lambda: copy.promote(1, by="hand"),
        lambda: copy.find_pending(copy.list_nights()),
    ):
        with pytest.raises(OpdkitError, match=r"remove it.*opdkit models '.*a copy' --promote N"):
            refused()
    shutil.rmtree(copy.path / "promoted")
    copy.promote(4, by="hand")
    assert copy.find_promoted() == 4
    (copy.path / "promoted").unlink()
    (copy.path / "promoted").symlink_to(tmp_path)
    with pytest.raises(OpdkitError, match="not a link to the model"):
        copy.find_promoted()
    copy.promote(1, by="hand")
    assert copy.find_promoted() == 1


@pytest.mark.parametrize("colour", [None, "1"])
def test_models_in_a_pipe_are_tab_separated_and_whole(
    home: Home, colour: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FORCE_COLOR, which many CI services set, does not make a pipe a terminal."""
    if colour:
        monkeypatch.setenv("FORCE_COLOR", colour)
    home.night(4).write(home.night(4).record | {"began": "2026-01-02T03:00:00+00:00", "turns": 1200, "replayed": 120})
    models(ModelsConfig(home=home.path))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split("\t") == ["night", "began (UTC)", "parent", "learned from", "new turns", "replayed turns",
                                "decision", "promoted"]  # fmt: skip
    assert rows[3].split("\t") == ["4", "2026-01-02 03:00", "1", "2, 3, 4", "1,200", "120", "promoted", "now"]
    assert len(rows) == 4


def test_models_as_json_have_no_colours(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    console = WordConsole(force_terminal=True, color_system="truecolor")
    monkeypatch.setattr("opdkit.commands.night.models.stdout", console)
    home.night(4).write(home.night(4).record | {"sentence": "見て"})
    models(ModelsConfig(home=home.path, json=True))
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out)[3]["sentence"] == "見て"


def test_on_a_terminal_the_promoted_model_comes_first(
    home: Home, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    models(ModelsConfig(home=home.path))
    first = capsys.readouterr().out.partition("parent")[0]
    assert "0004/train/model" in first
    assert "So it is." in first
    models(ModelsConfig(home=home.path, promote=0))
    assert "before the first night" in capsys.readouterr().out.partition("parent")[0]


def test_a_promotion_that_was_killed_is_done_again_and_noted_once(home: Home) -> None:
    home.promote(4, by="night")
    assert [line["night"] for line in home.read_promotions()] == [1, 4]
    with (home.path / "promotions.jsonl").open("a") as out:
        out.write('{"time": "2026-0')  # the disk was full
    assert [line["night"] for line in home.read_promotions()] == [1, 4]


def test_a_model_has_learned_from_its_parents_nights_too(home: Home) -> None:
    assert home.list_learned(4) == [1, 2, 3, 4]
    assert home.find_pending(home.list_nights()) == []
    home.promote(1, by="hand")
    assert home.find_pending(home.list_nights()) == [2, 3, 4], (
        "what a model that is gone has learned is to be learned again"
    )
    home.promote(0, by="hand")
    assert home.find_pending(home.list_nights()) == [1, 2, 3, 4]


def test_what_was_given_up_stays_out_once_a_later_night_is_promoted(home: Home) -> None:
    make_night(home, 5, WAITS, 4, [5], model=False)
    make_night(home, 6, PROMOTED, 4, [6])
    home.promote(6, by="night")
    make_night(home, 7, WAITS, 6, [7], model=False)
    assert home.find_pending(home.list_nights()) == [7], "night 5 was given up when night 6 was trained"
    home.promote(4, by="hand")
    assert home.find_pending(home.list_nights()) == [5, 6, 7]


def test_going_back_is_to_what_was_promoted_when_the_night_began(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    for night, began in ((4, "2999-01-01"), (3, "2026-01-02")):
        home.night(night).write(home.night(night).record | {"began": began})
    home.promote(3, by="hand")
    home.go_back(home.night(4))
    assert home.find_promoted() == 3, "by hand, before night 4"
    assert [line["night"] for line in home.read_promotions()] == [1, 3]
    home.promote(1, by="hand")
    home.go_back(home.night(3))
    assert home.find_promoted() == 1
    assert [(line["night"], line["by"]) for line in home.read_promotions()] == [(1, "night")]
    assert "night 3 was promoted by hand" in capsys.readouterr().err
    home.go_back(home.night(1))
    assert (home.find_promoted(), home.read_promotions()) == (0, [])


def test_going_back_names_a_model_that_was_removed(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    for night, removed, used in ((5, 4, "of night 1"), (2, 1, "before the first night")):
        shutil.rmtree(home.night(removed).model)
        home.go_back(home.night(night))
        warned = capsys.readouterr().err
        assert f"the model of night {removed} was removed" in warned
        assert used in warned


def test_only_models_that_are_there_can_be_promoted(home: Home) -> None:
    for number in (2, 9):
        with pytest.raises(OpdkitError, match=f"night {number} has no model"):
            home.promote(number, by="hand")
    assert home.find_promoted() == 4


def test_models_lists_promotes_and_goes_back(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    models(ModelsConfig(home=home.path, json=True))
    rows = json.loads(capsys.readouterr().out)
    assert [(row["night"], row["promoted"], row["model"] is None) for row in rows] == [
        (1, False, False), (2, False, True), (3, False, False), (4, True, False)]  # fmt: skip
    models(ModelsConfig(home=home.path, back=True))
    assert home.find_promoted() == 1, "the parent of night 4, not the night before"
    models(ModelsConfig(home=home.path, back=True))
    assert home.find_promoted() == 0
    with pytest.raises(OpdkitError, match="none before it"):
        models(ModelsConfig(home=home.path, back=True))
    models(ModelsConfig(home=home.path, promote=3))
    assert home.find_promoted() == 3
    with pytest.raises(ConfigError, match="--back"):
        ModelsConfig(home=home.path, back=True, promote=1)
    with pytest.raises(OpdkitError, match="has no nights"):
        models(ModelsConfig(home=home.path / "elsewhere"))


def test_a_damaged_record_is_named(home: Home) -> None:
    (home.night(3).folder / "night.json").write_text("{")
    with pytest.raises(OpdkitError, match=r"0003/night\.json is damaged"):
        _ = home.night(3).record
    (home.path / "options").mkdir()
    files = {"options/options.json": lambda: home.read_options(home.path / "options"),
             "forgotten.json": lambda: read_forgotten(home)}  # fmt: skip
    for name, read in files.items():
        (home.path / name).write_text('{"set": [],}')
        with pytest.raises(OpdkitError, match=f"{name} is damaged"):
            read()
    (home.night(1).folder / "night.json").unlink()
    with pytest.raises(OpdkitError, match=r"0001 has no night\.json.*--promote N"):
        home.find_pending([])


def _hold(path: Path, held: "multiprocessing.synchronize.Event") -> None:
    with Home(path).lock():
        held.set()
        multiprocessing.Event().wait(60)


def test_nights_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for number in (9999, 10_000, 2):
        make_night(home, number, WAITS, 0, [number], model=False)
    assert [night.number for night in home.list_nights()] == [2, 9999, 10_000]


def test_two_nights_at_once_are_impossible_and_a_kill_leaves_no_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held = context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held))
    other.start()
    try:
        assert held.wait(60)
        with pytest.raises(OpdkitError, match="another `opdkit night`"), Home(tmp_path).lock():
            pass
    finally:
        other.kill()
        other.join()
    with Home(tmp_path).lock():
        pass


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(OpdkitError, match="locks"), Home(tmp_path).lock():
        pass


@pytest.mark.parametrize(("changed", "is_candidate"), [
    ({}, True),
    ({"gate": {"ship": False}}, False),  # more tests would not help
    ({"gate": None}, False),  # nothing was learned
    ({"parent": 0}, False),
    ({"decision": PROMOTED}, False),
])  # fmt: skip
def test_a_model_is_tested_again_only_if_it_may_be_better_than_the_promoted_one(
    tmp_path: Path, changed: JSON, is_candidate: bool
) -> None:
    home = Home(tmp_path / "home")
    make_night(home, 1, PROMOTED, 0, [1])
    home.promote(1, by="night")
    make_night(home, 2, KEPT, 1, [2])
    make_night(home, 3, WAITS, 1, [3], model=False)
    make_night(home, 4, "", 1, [2, 3, 4], model=False)
    tried, night = home.night(2), home.night(4)
    night.write(night.record | {"earlier": [1, 2, 3, 4]})
    record = tried.record | {"gate": {"ship": True}} | changed
    tried.write({name: value for name, value in record.items() if value is not None})
    assert home.find_candidate(night) == (tried if is_candidate else None)
    home.promote(2, by="night", during=4)
    assert home.find_candidate(night) == (tried if is_candidate else None), "as before the kill"
    assert home.find_promoted_by(night) == 2
    home.promote(1, by="hand")
    home.promote(2, by="hand")
    assert home.find_candidate(night) is None, "whoever promoted it, somebody took it back"
