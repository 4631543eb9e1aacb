"""`opdkit forget`: nights are as if somebody's sessions had never been read."""

import json
from pathlib import Path

import pytest
from night_logs import night_options as options
from sample_world import DATA

from opdkit.commands.night.command import run, run_forget
from opdkit.commands.night.forget import find_sessions
from opdkit.commands.night.home import Home
from opdkit.config.night import ForgetConfig, NightConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.store.reading import has_stage, read_all

SECRET = "my locker code is 7719"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Logs of four users, in turn; u3 says a secret in each session, from the 40th on."""
    lines = (DATA / "logs" / "openai.jsonl").read_bytes().splitlines()
    rows = [json.loads(line) for line in lines if line.endswith(b"}")]
    for n, row in enumerate(rows):
        row["user"] = f"u{n % 4}" if n >= 40 else "u0"
        if row["user"] == "u3":
            row["messages"][0]["content"] = f"{SECRET}. {row['messages'][0]['content']}"
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    (tmp_path / "logs").mkdir()
    return tmp_path


def do_nights(folder: Path, config: NightConfig, *ends: int) -> None:
    rows = json.loads((folder / "rows.json").read_text())
    for end in ends:
        (folder / "logs" / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:end]))
        run(config)


def files_with(text: str, folder: Path) -> list[Path]:
    """Files that hold a text, in tables too."""
    found = [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
    for night in Home(folder).nights():
        for place in (night.log, night.folder):
            tables = [name for name, stage in (("sessions", "extract"), ("verdicts", "judge"), ("replies", "eval"))
                      if has_stage(place, stage)]  # fmt: skip
            found += [place / name for name in tables if text in json.dumps(list(read_all(place, name)), default=str)]
    return found


def test_a_user_leaves_the_log_of_every_night(folder: Path) -> None:
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 30, 60, 90)
    home = Home(config.home)
    before = [len(list(read_all(night.log, "sessions"))) for night in home.nights()]
    assert files_with(SECRET, config.home), "the test would show nothing"
    first = (home.night(1).folder / "night.json").read_bytes()
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))
    assert files_with(SECRET, config.home) == []
    assert (home.night(1).folder / "night.json").read_bytes() == first, "nights before are left alone"
    after = [len(list(read_all(night.log, "sessions"))) for night in home.nights()]
    assert [b - a for b, a in zip(before, after, strict=True)] == [0, 5, 7]
    do_nights(folder, config, 110)
    assert files_with(SECRET, config.home) == [], "nor does a later night read them"
    assert len(home.nights()) == 4
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))  # nothing is left to do
    with pytest.raises(OpdkitError, match=r"metadata\.usr"):
        run_forget(ForgetConfig(home=config.home, where=("metadata.usr=u3",)))


def test_news_that_a_failed_night_has_not_read_is_not_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 30)
    monkeypatch.setattr("opdkit.commands.night.steps.run_stage", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        do_nights(folder, config, 60)
    monkeypatch.undo()
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u0",)))
    rows = json.loads((folder / "rows.json").read_text())[:60]
    left = [len(list(read_all(night.log, "sessions"))) for night in Home(config.home).nights()]
    assert sum(left) == sum(row["user"] != "u0" for row in rows)


@pytest.mark.parametrize("by_night", [False, True])
def test_a_forget_that_was_killed_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch, by_night: bool) -> None:
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 60, 90)
    from opdkit.commands.night import forget

    rewrite, calls = forget.rewrite, list[int]()

    def killed(*args: object) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        rewrite(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(forget, "rewrite", killed)
    where = ForgetConfig(home=config.home, where=("metadata.user=u3",))
    with pytest.raises(KeyboardInterrupt):
        run_forget(where)
    if by_night:
        run(config)  # cron comes first
    else:
        run_forget(where)
    assert files_with(SECRET, config.home) == []
    assert all(night.record["decision"] for night in Home(config.home).nights())
    assert find_sessions(Home(config.home).night(2), [["metadata.user=u3"]]) == []


@pytest.mark.slow
def test_weights_and_tables_are_those_of_nights_that_never_saw_the_user(folder: Path) -> None:
    config, other = options(folder), options(folder, home=folder / "never")
    do_nights(folder, config, 80)
    where = ("metadata.user=u3",)
    run_forget(ForgetConfig(home=config.home, where=where))
    Home(other.home).path.mkdir()
    (other.home / "forgotten.json").write_text(json.dumps([{"where": list(where), "done": True}]))
    do_nights(folder, other, 80)
    ours, theirs = Home(config.home), Home(other.home)
    assert ours.promoted() == theirs.promoted()
    for one, two in zip(ours.nights(), theirs.nights(), strict=True):
        assert (one.model / "model.safetensors").read_bytes() == (two.model / "model.safetensors").read_bytes()
        for table in ("sessions", "turns", "verdicts", "targets", "replies"):
            rows = [json.dumps(list(read_all(night.folder, table)), default=str) for night in (one, two)]
            assert rows[0].replace(str(config.home), "") == rows[1].replace(str(other.home), "")
    assert files_with(SECRET, config.home) == []


def test_what_is_to_be_forgotten_must_be_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--where"):
        ForgetConfig(home=tmp_path, where=())
    with pytest.raises(ConfigError, match="--where"):
        ForgetConfig(home=tmp_path, where=("user is u3",))
    with pytest.raises(OpdkitError, match="has no nights"):
        run_forget(ForgetConfig(home=tmp_path, where=("metadata.user=u3",)))
