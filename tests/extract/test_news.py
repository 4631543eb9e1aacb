"""Tests of the news of growing logs: all nights together extract what one extract of everything would."""

import gzip
import json
import os
import random
import resource
import subprocess
import sys
import zipfile
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from growing_logs import World
from small_logs import chat, jsonl, tables

from opdkit.config.extract import ExtractConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract import news as news_module
from opdkit.extract import stage
from opdkit.extract.formats import READERS
from opdkit.extract.inputs import growing
from opdkit.extract.known_turns import record_turns
from opdkit.extract.news import NEWS, News, collect_news, commit_news
from opdkit.store.joined_turns import LOGGED, joined_turns
from opdkit.store.reading import count_parts

FORMATS = ("openai", "pi", "claude_code", "openclaw_rl", "open_webui")
Turn = tuple[str, str, str | None]  # (session, content, skip reason)


def turns_of(run: Path) -> list[Turn]:
    """Return the trainable turns of a run, and those that an earlier night has read, each with its content."""
    rows = []
    for part in range(count_parts(run, "extract")):
        for joined in joined_turns(run, part, LOGGED, reviews={}):
            turn, end = joined.turn, joined.index + 1 + joined.turn["next_count"]
            content = json.dumps([joined.session["messages"][:end], joined.index, turn["decision"]])
            if turn["skip_reason"] in (None, "read before"):
                rows.append((joined.session_id.partition("#")[0], content, turn["skip_reason"]))
    return rows


class Nights:
    """HOME of `opdkit night`: its ledger, a folder of news and a run per night. A kill may come between two steps."""

    def __init__(self, home: Path, logs: Path, part_mb: float) -> None:
        self.home, self.logs, self.ledger, self.part_mb = home, logs, home / "ledger.sqlite", part_mb
        self.number = 0
        self.read: defaultdict[str, Counter[str]] = defaultdict(Counter)  # session -> turns that some night trained on
        self.now: dict[str, Counter[str]] = {}  # session -> its turns as the last night has them

    def steps(self) -> Any:
        """Yield after each step of a night; a night that was killed begins again with the first step."""
        folder, run = self.home / f"night-{self.number}", self.home / f"run-{self.number}"
        news = collect_news(self.ledger, [str(self.logs)], folder)
        assert (news == News()) == (not folder.exists())
        yield
        if not folder.exists():
            return
        commit_news(self.ledger, folder)
        yield
        config = ExtractConfig(run=run, logs=(str(folder),), part_mb=self.part_mb)
        stage.run(config, folder / NEWS)
        yield
        record_turns(self.ledger, run)
        yield

    def night(self, draw: random.Random) -> None:
        """Run a night that is killed between random steps and begun again until it is done."""
        done = False
        while not done:
            steps = self.steps()
            for _ in range(draw.randint(1, 6)):
                done = next(steps, "end") == "end"
        run = self.home / f"run-{self.number}"
        if (self.home / f"night-{self.number}").exists():
            found: defaultdict[str, list[Turn]] = defaultdict(list)
            for turn in turns_of(run):
                found[turn[0]].append(turn)
            for session, turns in found.items():
                new = Counter(content for _, content, skip in turns if skip is None)
                before = Counter(content for _, content, skip in turns if skip is not None)
                assert before <= self.read[session], "left out, and no night had it"
                assert not self.read[session] & new, "read twice"
                self.read[session] += new
                self.now[session] = new + before
                assert all(self.read[session][turn] >= n for turn, n in self.now[session].items())
        self.number += 1

    def total(self) -> Counter[str]:
        return sum(self.now.values(), Counter())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", FORMATS)
def test_all_nights_together_are_one_extract_of_everything(tmp_path, kind, seed):
    """Files are appended to in mid-line, rotated, compressed and rewritten, and nights are killed between steps."""
    (tmp_path / "home").mkdir()
    world = World(tmp_path / "logs", kind, seed)
    nights = Nights(tmp_path / "home", world.folder, 0.001)
    world.day()
    (world.folder / "empty.jsonl").touch()
    for number in range(6):
        world.day()
        if number == 5:
            for file in list(world.half):
                world.finish(file)
        world.note_night()
        nights.night(world.draw)
    stage.run(ExtractConfig(run=tmp_path / "all", logs=(str(world.everything(tmp_path / "everything")),)))
    at_once = Counter(content for _, content, _ in turns_of(tmp_path / "all"))
    assert nights.total() == at_once
    doubled = {turn: n for turns in nights.read.values() for turn, n in turns.items() if n > max(1, at_once[turn])}
    assert doubled == {}


def collect(home: Path, logs: Path | list[str], night: int, **options: Any) -> tuple[News, Path]:
    """Collect the news of one night and commit it; return the news and its folder."""
    folder = home / f"night-{night}"
    news = collect_news(home / "ledger.sqlite", [str(logs)] if isinstance(logs, Path) else logs, folder, **options)
    if news.night:
        commit_news(home / "ledger.sqlite", folder)
    return news, folder


def texts(folder: Path) -> list[str]:
    """Return the lines that a night extracts."""
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def call(name: str, *texts: str, **more: Any) -> bytes:
    """Return a line of openclaw_rl: the last text is the reply, the texts before it are the prompt."""
    *prompt, reply = chat(*texts)["messages"]
    return (
        json.dumps({"session_id": name, "messages": prompt, "response_text": reply["content"]} | more).encode() + b"\n"
    )


def bytes_read() -> int:
    """Return the number of bytes that this process has read from files so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


def test_the_last_line_waits_until_it_is_whole_and_is_taken_once(tmp_path):
    log = jsonl(tmp_path / "logs/chat.jsonl", chat("a", "b", "c"))
    half = json.dumps(chat("d", "e", "f")).encode()
    assert collect(tmp_path, log.parent, 0)[0] == News(1, 1, 1)
    for night, (more, records) in enumerate([(half[:20], 0), (half[20:], 1), (b"\n", 0), (half + b"\n", 1)], 1):
        with log.open("ab") as out:
            out.write(more)
        news, folder = collect(tmp_path, log.parent, night)
        assert news.records == records
        if records:
            assert texts(folder) == [half.decode()]
            assert [path.name for path in folder.glob("*.jsonl")] == [f"chat@{news.night}.jsonl"]


def test_a_night_without_news_opens_no_log_and_imports_nothing_heavy(tmp_path):
    for n in range(1_000):
        jsonl(tmp_path / f"logs/{n // 100}/log-{n}.jsonl", chat(f"u{n}", "a", "v"))
    assert collect(tmp_path, tmp_path / "logs", 0)[0].records == 1_000
    program = f"""
import sys
from dataclasses import replace
from pathlib import Path
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
from opdkit.extract.news import News, collect_news
home = Path({str(tmp_path)!r})
assert collect_news(home / "ledger.sqlite", [str(home / "logs")], home / "night-1") == News()
assert not [path for path in opened if "log-" in path]
assert not [name for name in ("torch", "transformers", "pyarrow", "pandas") if name in sys.modules]
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert not (tmp_path / "night-1").exists()


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts bytes as Linux does")
@pytest.mark.parametrize("kind", ["openai", "openclaw_rl"])
def test_the_bytes_read_grow_with_the_news_and_not_with_the_file(tmp_path, kind):
    filler = "x" * 50_000

    def line(n: int) -> bytes:
        if kind == "openai":
            return json.dumps(chat(f"{n} {filler}", "a", "b")).encode() + b"\n"
        return call(f"s{n}", f"{n} {filler}", "a", next_state={"role": "user", "content": "b"})

    log = jsonl(tmp_path / "logs/log.jsonl", *(line(n) for n in range(1_000)))
    collect(tmp_path, log.parent, 0)
    with log.open("ab") as out:
        out.write(b"".join(line(n) for n in range(1_000, 1_020)))
    assert log.stat().st_size > 50_000_000
    before = bytes_read()
    news, folder = collect(tmp_path, log.parent, 1)
    assert news.records == 20
    assert len(texts(folder)) == 20
    assert bytes_read() - before < 6_000_000  # the new megabyte is read, copied, and read by this test


@pytest.mark.parametrize("change", ["renamed", "packed", "copied and truncated", "in a zip"])
def test_a_rotated_log_is_known_by_what_it_holds(tmp_path, change):
    logs = tmp_path / "logs"
    log = jsonl(logs / "chat.jsonl", chat("a", "b", "c"), b"\n", chat("d", "e", "f"))
    collect(tmp_path, logs, 0)
    with log.open("ab") as out:
        out.write(json.dumps(chat("g", "h", "i")).encode() + b"\n")
    data = log.read_bytes()
    if change == "renamed":
        log.replace(logs / "chat-1.jsonl")
    elif change == "packed":
        (logs / "chat-1.jsonl.gz").write_bytes(gzip.compress(data))
        log.unlink()
    elif change == "copied and truncated":
        (logs / "chat-1.jsonl").write_bytes(data)
        log.write_bytes(b"")
    else:
        with zipfile.ZipFile(logs / "old.zip", "w") as archive:
            archive.writestr("chat.jsonl", data)
        log.unlink()
    with log.open("ab") as out:
        out.write(json.dumps(chat("j", "k", "l")).encode() + b"\n")
    news, folder = collect(tmp_path, logs, 1)
    assert sorted(texts(folder)) == [json.dumps(chat("g", "h", "i")), json.dumps(chat("j", "k", "l"))]
    assert (news.inputs, news.records) == (2, 2)
    assert collect(tmp_path, logs, 2)[0] == News()


def test_of_a_rewritten_log_only_other_lines_are_news_each_as_often_as_it_came(tmp_path):
    one, two, three = (chat(name, "b", "c") for name in "xyz")
    log = jsonl(tmp_path / "logs/chat.jsonl", one, one, two)
    collect(tmp_path, log.parent, 0)
    jsonl(log, three, one, one, one)
    assert sorted(texts(collect(tmp_path, log.parent, 1)[1])) == sorted(map(json.dumps, (one, three)))
    jsonl(log, two, three, one)
    os.utime(log, (1, 1))
    assert collect(tmp_path, log.parent, 2)[0] == News()
    with log.open("ab") as out:
        out.write(json.dumps(two).encode())
    assert texts(collect(tmp_path, log.parent, 3)[1]) == [json.dumps(two)]


def test_an_edit_in_the_middle_that_changes_no_length_is_seen(tmp_path):
    log = jsonl(tmp_path / "logs/chat.jsonl", *(chat("x" * 1_000, "a", f"{n:03}") for n in range(100)))
    collect(tmp_path, log.parent, 0)
    log.write_bytes(log.read_bytes().replace(b'"050"', b'"abc"'))
    os.utime(log, (1, 1))
    assert texts(collect(tmp_path, log.parent, 1)[1]) == [json.dumps(chat("x" * 1_000, "a", "abc"))]


def test_a_session_that_goes_on_keeps_its_id_and_only_its_new_turns_are_trainable(tmp_path):
    """Its earlier lines are in a file that was rotated and compressed; other sessions are not extracted again."""
    logs, ledger = tmp_path / "logs", tmp_path / "ledger.sqlite"
    log = jsonl(logs / "agent.jsonl", call("s", "u1", "a1"), call("t", "v1", "b1"), call("s", "u1", "a1", "u2", "a2"))
    ids: list[set[str]] = []
    for night in range(3):
        _, folder = collect(tmp_path, logs, night)
        run = tmp_path / f"run-{night}"
        stage.run(ExtractConfig(run=run, logs=(str(folder),), workers=1 + night), folder / NEWS)
        for _ in range(2):
            record_turns(ledger, run)
        found = tables(run)
        ids.append({row["session_id"] for row in found["sessions"]})
        skips = {row["turn_id"].removeprefix("agent:"): row["skip_reason"] for row in found["turns"]}
        if night == 0:
            assert skips == {"s:1": None, "s:3": "no next state", "t:1": "no next state"}
            (logs / "agent-1.jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
            log.unlink()
            jsonl(log, call("s", "u1", "a1", "u2", "a2", "u3", "a3"))
        elif night == 1:
            assert skips == {"s:1": "read before", "s:3": None, "s:5": "no next state"}
            with log.open("ab") as out:
                out.write(call("s", "u1", "a1", "u2", "a2", "u3", "a3", next_state={"role": "user", "content": "!"}))
        else:
            assert skips == {"s:1": "read before", "s:3": "read before", "s:5": None}
    assert ids == [{"agent:s", "agent:t"}, {"agent:s"}, {"agent:s"}]


def test_the_plan_pins_the_known_turns(tmp_path):
    log = jsonl(tmp_path / "logs/agent.jsonl", call("s", "u1", "a1", next_state={"role": "user", "content": "u2"}))
    _, folder = collect(tmp_path, log.parent, 0)
    config = ExtractConfig(run=tmp_path / "run", logs=(str(folder),))
    stage.run(config, folder / NEWS)
    stage.run(config, folder / NEWS)
    with pytest.raises(ConfigError, match="known turns"):
        stage.run(config)


def test_sessions_say_which_log_they_came_from(tmp_path, monkeypatch):
    """Filters name the log, so a session's source is the log and not the night's copy, also after a rotation."""
    monkeypatch.chdir(tmp_path)
    for night, log in enumerate(("logs/app.jsonl", "logs/app.jsonl.1")):
        for name in ("app", "web"):
            jsonl(tmp_path / "logs" / f"{name}.jsonl", *(chat(f"u{n}", f"a{n}", "no") for n in range(2 + night)))
        if night:
            Path("logs/app.jsonl").rename(log)
        _, folder = collect(tmp_path, ["logs"], night)
        run = tmp_path / f"run-{night}"
        stage.run(ExtractConfig(run=run, logs=(str(folder),), filter=("source=logs/app*",)), folder / NEWS)
        assert {row["source"] for row in tables(run)["sessions"]} == {log}


def test_records_on_one_line_belong_to_many_sessions(tmp_path):
    """If a session on a page of stored completions continues, only its records of the page are extracted again."""

    def completion(user: str, *texts: str) -> dict:
        *prompt, reply = chat(*texts)["messages"]
        return {"object": "chat.completion", "id": texts[-1], "messages": prompt, "choices": [{"message": reply}]}

    page = {"object": "list", "data": [completion("p", "u1", "a1"), completion("q", "v1", "b1")]}
    log = jsonl(tmp_path / "logs/page.jsonl", page)
    collect(tmp_path, log.parent, 0)
    with log.open("ab") as out:
        out.write(json.dumps(completion("p", "u1", "a1", "u2", "a2")).encode() + b"\n")
    _, folder = collect(tmp_path, log.parent, 1)
    assert [json.loads(line)["id"] for line in texts(folder)] == ["a1", "a2"]


def test_other_news_than_the_ledger_waits_for_is_refused(tmp_path):
    log = jsonl(tmp_path / "logs/chat.jsonl", chat("a", "b", "c"))
    ledger = tmp_path / "ledger.sqlite"
    for name in ("one", "two"):
        collect_news(ledger, [str(log)], tmp_path / name)
    for _ in range(2):
        commit_news(ledger, tmp_path / "one")
    with pytest.raises(OpdkitError, match="two"):
        commit_news(ledger, tmp_path / "two")


def test_a_damaged_ledger_is_named(tmp_path):
    log = jsonl(tmp_path / "logs/chat.jsonl", chat("a", "b", "c"))
    (tmp_path / "ledger.sqlite").write_text("no ledger" * 100)
    with pytest.raises(OpdkitError, match=r"ledger\.sqlite"):
        collect(tmp_path, log.parent, 0)


@pytest.mark.parametrize("log", ["-", "hf:some/data", "nowhere.jsonl", "table.jsonl", "pipe"])
def test_inputs_that_cannot_be_followed_are_named(tmp_path, log, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("table.jsonl").write_text('{"unknown": 1}\n')
    os.mkfifo("pipe")
    with pytest.raises(ConfigError, match=log):
        collect(tmp_path, [log], 0)


@pytest.mark.parametrize("name", ["claude_code", "openclaw_rl", "pi_openclaw", "sweagent", "glaive", "taubench"])
def test_real_logs_that_grow_over_five_nights(tmp_path, shared_data, name):
    """The nights together give what one extract of everything gives, even if a night ends inside a line."""
    sources = sorted((shared_data / name).rglob("*.jsonl"))[:3]
    (tmp_path / "home").mkdir()
    nights = Nights(tmp_path / "home", tmp_path / "logs", 0.1)
    nights.logs.mkdir()
    draw = random.Random(name)
    data = {
        nights.logs / f"{n}-{path.name}": path.read_bytes()[:400_000].rpartition(b"\n")[0]
        for n, path in enumerate(sources)
    }
    for number in range(1, 6):
        for path, text in data.items():
            path.write_bytes(text[: len(text) * number // 5])
        nights.night(draw)
    stage.run(ExtractConfig(run=tmp_path / "all", logs=(str(nights.logs),)))
    at_once = Counter(content for _, content, _ in turns_of(tmp_path / "all"))
    assert nights.total() == at_once
    assert at_once


def append(log: Path, *lines: Any) -> None:
    """Append lines to a log, given as bytes or as objects."""
    with log.open("ab") as out:
        for line in lines:
            out.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")


@pytest.mark.parametrize("change", ["moved away", "another file", "cut", "written anew", "appended"])
def test_a_log_that_is_rotated_while_it_is_read_stops_the_night(tmp_path, change, monkeypatch):
    log = jsonl(tmp_path / "logs/app.jsonl", chat("a", "b", "c"), chat("d", "e", "f"))
    find_records = news_module._Night.find_records_of_ids

    def change_and_go_on(night: Any) -> None:
        if change in ("moved away", "another file"):
            log.rename(tmp_path / "app-1.jsonl")
        if change in ("another file", "written anew"):
            jsonl(log, *[chat("x" * 50, "b", "c")] * 3)
        elif change == "cut":
            log.write_bytes(b"")
        elif change == "appended":
            append(log, chat("g", "h", "i"))
        find_records(night)

    with monkeypatch.context() as patch:
        patch.setattr(news_module._Night, "find_records_of_ids", change_and_go_on)
        if change == "appended":
            assert len(texts(collect(tmp_path, log.parent, 0)[1])) == 2
        else:
            with pytest.raises(OpdkitError, match=r"app\.jsonl"):
                collect(tmp_path, log.parent, 0)
            assert not (tmp_path / "night-0").exists()


@pytest.mark.parametrize("indent", [None, 1])
def test_a_packed_export_is_read(tmp_path, indent):
    (tmp_path / "logs").mkdir()
    export = json.dumps([chat("a", "b", "c"), chat("d", "e", "f")], indent=indent).encode()
    (tmp_path / "logs/export.json.gz").write_bytes(gzip.compress(export))
    news, folder = collect(tmp_path, tmp_path / "logs", 0)
    assert news.records == 2
    lines = (folder / "export@1.jsonl").read_bytes().strip().split(b"\n")
    assert [json.loads(line) for line in lines] == [chat("a", "b", "c"), chat("d", "e", "f")]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open files as Linux does")
def test_a_session_in_many_files_needs_few_open_ones(tmp_path):
    (tmp_path / "logs").mkdir()
    for n in range(150):
        (tmp_path / f"logs/call-{n:03}.jsonl").write_bytes(call("s", f"u{n}", "a"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 60, limits[1]))
    try:
        assert len(texts(collect(tmp_path, tmp_path / "logs", 0)[1])) == 150
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("odd", [{"health": "ok"}, b"# restarted\n", "of two formats"])
def test_the_format_of_a_log_is_detected_once(tmp_path, odd, capsys):
    """The new lines of a later night, taken alone, may look like another format or like none."""
    log = jsonl(tmp_path / "logs/app.jsonl", *(chat(f"u{n}", "a", "b") for n in range(25)))
    collect(tmp_path, log.parent, 0)
    if odd == "of two formats":
        odd = chat("d", "e", "f") | {"conversations": [{"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]}
    append(log, odd)
    _, folder = collect(tmp_path, log.parent, 1)
    stage.run(ExtractConfig(run=tmp_path / "run", logs=(str(folder),)), folder / NEWS)
    assert "logs/app.jsonl: openai\n" in capsys.readouterr().err


@pytest.mark.parametrize("problem", ["format", "two formats", "member"])
def test_what_could_not_be_read_is_looked_at_again(tmp_path, problem, capsys):
    (tmp_path / "logs").mkdir()
    jsonl(tmp_path / "logs/ok.jsonl", chat("a", "b", "c"))
    if problem == "format":
        jsonl(tmp_path / "logs/odd.jsonl", {"conv": "x"})
    elif problem == "two formats":
        jsonl(tmp_path / "logs/odd.jsonl", chat("d", "e", "f"), {"type": "session", "id": "s", "timestamp": "t"})
    else:
        with zipfile.ZipFile(tmp_path / "logs/odd.zip", "w") as archive:
            archive.writestr("a.jsonl", json.dumps(chat("d", "e", "f")))
        data = (tmp_path / "logs/odd.zip").read_bytes()
        (tmp_path / "logs/odd.zip").write_bytes(data.replace(b'"d"', b'"x"'))
    for night in range(2):
        collect(tmp_path, tmp_path / "logs", night)
        assert "odd" in capsys.readouterr().err
    if problem == "format":
        assert collect(tmp_path, tmp_path / "logs", 2, log_format="openai")[0].records == 1


def test_a_log_that_was_read_with_a_mapping_needs_it_again(tmp_path):
    log = jsonl(tmp_path / "logs/own.jsonl", chat("a", "b", "c"))
    collect(tmp_path, log.parent, 0, log_format=replace(READERS["openai"], name="map"))
    append(log, chat("d", "e", "f"))
    with pytest.raises(ConfigError, match=r"own\.jsonl.*--map"):
        collect(tmp_path, log.parent, 1)


@pytest.mark.parametrize("old", ["app.jsonl.1", "app.jsonl.1.gz", "app.jsonl-20261124", "app.jsonl.2026-11-24.gz",
                                 "app.jsonl.reset.2026-02-01T04-00-00.000Z"])  # fmt: skip
@pytest.mark.parametrize("is_folder", [True, False])
def test_a_rotated_log_is_followed_under_the_names_that_loggers_give(tmp_path, old, is_folder):
    log = jsonl(tmp_path / "logs/app.jsonl", chat("a", "b", "c"))
    logs = [str(log.parent if is_folder else log)]
    collect(tmp_path, logs, 0)
    append(log, chat("d", "e", "f"))
    data = log.read_bytes()
    (log.parent / old).write_bytes(gzip.compress(data) if old.endswith("gz") else data)
    jsonl(log, chat("g", "h", "i"))
    (log.parent / "app.jsonl.bak").write_bytes(data)
    assert sorted(texts(collect(tmp_path, logs, 1)[1])) == [json.dumps(chat(*names)) for names in ("def", "ghi")]


def test_a_log_that_was_rotated_and_has_no_new_line_yet_stops_no_night(tmp_path):
    log = jsonl(tmp_path / "app.jsonl", chat("a", "b", "c"))
    collect(tmp_path, log, 0)
    append(log, chat("d", "e", "f"))
    log.rename(rotated := tmp_path / "app.jsonl.1")
    assert texts(collect(tmp_path, log, 1)[1]) == [json.dumps(chat("d", "e", "f"))]
    assert collect(tmp_path, log, 2)[0] == News()
    rotated.unlink()
    with pytest.raises(ConfigError, match=r"app\.jsonl does not exist"):
        collect(tmp_path, log, 3)


def test_rotated_logs_are_read_from_the_oldest_on(tmp_path):
    logs = tmp_path / "logs"
    names = [*(f"app.jsonl.{n}" for n in (11, 2, 1)), "app.jsonl", "b.jsonl-20261123", "b.jsonl-20261124", "b.jsonl"]
    for n, name in enumerate(names):
        jsonl(logs / name, json.loads(call("s", f"u{n}", "a")))
    lines = texts(collect(tmp_path, logs, 0)[1])
    assert [json.loads(line)["messages"][0]["content"] for line in lines] == [f"u{n}" for n in range(len(names))]


def test_of_two_exports_of_one_time_the_later_one_counts(tmp_path):
    def export(**rating: str) -> dict:
        rated = {"feedback": rating} if rating else {}
        texts = [{"messageId": str(n), "parentMessageId": str(n - 1) if n else None, "isCreatedByUser": n % 2 == 0,
                  "text": f"text {n}"} | (rated if n == 1 else {}) for n in range(3)]  # fmt: skip
        return {"conversationId": "c", "messages": texts}

    jsonl(tmp_path / "logs/export-1.jsonl", export())
    collect(tmp_path, tmp_path / "logs", 0)
    jsonl(tmp_path / "logs/export-2.jsonl", export(rating="thumbsUp"))
    _, folder = collect(tmp_path, tmp_path / "logs", 1)
    stage.run(ExtractConfig(run=tmp_path / "run", logs=(str(folder),)), folder / NEWS)
    assert [turn["decision"]["rating"] for turn in tables(tmp_path / "run")["turns"]] == [1]


@pytest.mark.parametrize("error", [FileNotFoundError(2, "gone"), PermissionError(13, "not allowed")])
@pytest.mark.parametrize(("module", "step"), [(growing, "read_file_state"), (news_module, "open_sources")])
def test_a_file_of_a_folder_that_cannot_be_read_waits(tmp_path, error, module, step, monkeypatch, capsys):
    for name in ("a", "b"):
        jsonl(tmp_path / f"logs/{name}.jsonl", chat(name, "b", "c"))
    real = getattr(module, step)

    def fail(*args: Any) -> Any:
        if any("a.jsonl" in str(arg) for arg in args):
            raise error
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, step, fail)
        assert texts(collect(tmp_path, tmp_path / "logs", 0)[1]) == [json.dumps(chat("b", "b", "c"))]
    assert "a.jsonl" in capsys.readouterr().err
    assert texts(collect(tmp_path, tmp_path / "logs", 1)[1]) == [json.dumps(chat("a", "b", "c"))]


def test_an_empty_folder_has_no_news_and_is_named(tmp_path, capsys):
    """It may be the folder under which a disk is not mounted."""
    (tmp_path / "logs").mkdir()
    assert collect(tmp_path, tmp_path / "logs", 0)[0] == News()
    assert f"the folder {tmp_path / 'logs'} holds no" in capsys.readouterr().err


def pi(name: str | None, *texts: str) -> list[dict]:
    """Return the lines of a session of pi: its header, with `name` as the id if given, and its messages."""
    head = {"type": "session", "timestamp": "t"} | ({"id": name} if name else {})
    roles = ("user", "assistant") * len(texts)
    return [head] + [{"type": "message", "message": {"role": role, "content": text}}
                     for role, text in zip(roles, texts, strict=False)]  # fmt: skip


@pytest.mark.parametrize("case", ["without ids", "again"])
def test_a_session_of_pi_is_trained_on_once(tmp_path, case):
    """Sessions without ids are named after their line numbers, which count blank lines."""
    first = [b"\n", *pi(None, "u1", "a1", "u2"), b"\n", *pi(None, "v1", "b1", "v2")]
    more = pi(None, "-", "b2", "v3")[2:]
    if case == "again":
        first, more = [*pi("s", "u1", "a1", "u2"), *pi("t", "v1", "b1", "v2")], pi("s", "w1", "c1", "w2")
    log = tmp_path / "logs/pi.jsonl"
    log.parent.mkdir()
    ids: list[set[str]] = []
    new: Counter[str] = Counter()
    for night, lines in enumerate((first, more)):
        append(log, *lines)
        _, folder = collect(tmp_path, log.parent, night)
        run = tmp_path / f"run-{night}"
        stage.run(ExtractConfig(run=run, logs=(str(folder),)), folder / NEWS)
        record_turns(tmp_path / "ledger.sqlite", run)
        ids.append({row["session_id"] for row in tables(run)["sessions"]})
        new.update(content for _, content, skip in turns_of(run) if skip is None)
    stage.run(ExtractConfig(run=tmp_path / "all", logs=(str(log),)))
    assert new == Counter(content for _, content, _ in turns_of(tmp_path / "all"))
    assert ids[1] == {row["session_id"] for row in tables(tmp_path / "all")["sessions"]}


def test_records_that_were_edited_unseen_are_told(tmp_path, capsys):
    filler = [call(f"f{n}", "x" * 1_000, "y") for n in range(40)]
    log = jsonl(tmp_path / "logs/app.jsonl", *filler, call("s", "alice", "a1"), *filler)
    collect(tmp_path, log.parent, 0)
    log.write_bytes(log.read_bytes().replace(b"alice", b"xxxxx"))
    append(log, call("s", "alice", "a1", "u2", "a2"))
    assert len(texts(collect(tmp_path, log.parent, 1)[1])) == 1
    assert "app.jsonl was edited: 1 record of" in capsys.readouterr().err


@pytest.mark.parametrize("end", [b"\n", b'{"half'])
def test_an_edit_is_seen_in_a_file_that_ends_in_a_blank_or_half_line(tmp_path, end):
    log = jsonl(tmp_path / "logs/chat.jsonl", *(chat("x" * 1_000, "a", f"{n:03}") for n in range(100)), end)
    collect(tmp_path, log.parent, 0)
    log.write_bytes(log.read_bytes().replace(b'"050"', b'"abc"'))
    os.utime(log, (1, 1))
    assert texts(collect(tmp_path, log.parent, 1)[1]) == [json.dumps(chat("x" * 1_000, "a", "abc"))]


@pytest.mark.parametrize("kind", ["openai", "openclaw_rl"])
@pytest.mark.parametrize("how", ["copy", "link", "packed", "half packed"])
def test_a_copy_is_not_read_and_takes_the_place_of_what_it_copied(tmp_path, how, kind):
    def line(n: int) -> bytes:
        salt = random.Random(n).randbytes(2_000).hex()
        return call(f"s{n % 3}", salt, "a") if kind == "openclaw_rl" else json.dumps(chat(salt, "a", "b")).encode()

    logs = tmp_path / "logs"
    log = jsonl(logs / "app-1.jsonl", *(line(n).strip() + b"\n" for n in range(30)))
    collect(tmp_path, logs, 0)
    append(log, line(30).strip() + b"\n")  # the copy has what the last night has not seen
    data = log.read_bytes()
    packed = gzip.compress(data)
    copy = logs / ("app-1.jsonl.gz" if how.endswith("packed") else "copy.jsonl")
    if how == "link":
        copy.hardlink_to(log)
    else:
        copy.write_bytes({"copy": data, "packed": packed, "half packed": packed[: len(packed) // 2]}[how])
    news, folder = collect(tmp_path, logs, 1)
    assert (news.inputs, news.records) == (1, 1)
    assert len(set(texts(folder))) == len(texts(folder))
    if how == "half packed":
        copy.write_bytes(packed)
    assert collect(tmp_path, logs, 2)[0] == News()
    log.unlink()
    assert collect(tmp_path, logs, 3)[0] == News()
    jsonl(log, line(33).strip() + b"\n")
    assert len(texts(collect(tmp_path, logs, 4)[1])) == (1 if kind == "openai" else 12)  # all records of s0 are there


def test_logs_that_begin_alike_are_compared_without_opening_each_other(tmp_path, monkeypatch):
    """Only the copy of a log, and the log that continues one, need a closer look."""
    compared = list[int]()
    monkeypatch.setattr(news_module, "begins_with", lambda *args: compared.append(1) or growing.begins_with(*args))
    for n in range(20):
        jsonl(tmp_path / f"logs/{n:02}.jsonl", chat("The same words. " * 40 + "x" * (n % 7), f"a{n}", "b"))
    assert collect(tmp_path, tmp_path / "logs", 1)[0].records == 20
    assert not compared
    jsonl(tmp_path / "logs/copy.jsonl", (tmp_path / "logs/07.jsonl").read_bytes())
    jsonl(tmp_path / "logs/more.jsonl", (tmp_path / "logs/09.jsonl").read_bytes(), chat("c", "d", "e"))
    assert collect(tmp_path, tmp_path / "logs", 2)[0].records == 1
    assert 0 < sum(compared) < 8


@pytest.mark.parametrize("kind", ["openai", "openclaw_rl"])
def test_of_a_copy_with_more_lines_these_are_new(tmp_path, kind):
    lines = [call("s", f"u{n}", "a") if kind == "openclaw_rl" else json.dumps(chat(f"u{n}", "a", "b")).encode() + b"\n"
             for n in range(12)]  # fmt: skip
    for night in range(3):
        jsonl(tmp_path / f"logs/dump-{night}.jsonl", *lines[: 10 + night])
        news, folder = collect(tmp_path, tmp_path / "logs", night)
        assert news.records == (1 if night else 10)
        assert len(texts(folder)) == (10 + night if kind == "openclaw_rl" or not night else 1)
    for night in range(2):
        (tmp_path / f"logs/dump-{night}.jsonl").unlink()
    append(tmp_path / "logs/dump-2.jsonl", lines[0].replace(b"u0", b"u12"))
    news, folder = collect(tmp_path, tmp_path / "logs", 3)
    assert (news.records, len(texts(folder))) == (1, 13 if kind == "openclaw_rl" else 1)
