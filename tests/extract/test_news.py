"""News of logs that grow: what the nights extract together is what one extract of everything would."""

import gzip
import json
import os
import random
import subprocess
import sys
import zipfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from growing_logs import World
from small_logs import chat, jsonl, tables

from opdkit.config.extract import ExtractConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract import stage
from opdkit.extract.known_turns import record_turns
from opdkit.extract.news import NEWS, News, collect_news, commit_news
from opdkit.store.joined_turns import LOGGED, joined_turns
from opdkit.store.reading import part_count

FORMATS = ("openai", "pi", "claude_code", "openclaw_rl", "open_webui")
Turn = tuple[str, str, str | None]  # (session, content, skip reason)


def turns_of(run: Path) -> list[Turn]:
    """The turns of a run that may be trained on, and those that were read before, by their content."""
    rows = []
    for part in range(part_count(run, "extract")):
        for joined in joined_turns(run, part, LOGGED, reviews={}):
            turn, end = joined.turn, joined.index + 1 + joined.turn["next_count"]
            content = json.dumps([joined.session["messages"][:end], joined.index, turn["decision"]])
            if turn["skip_reason"] in (None, "read before"):
                rows.append((joined.session_id.partition("#")[0], content, turn["skip_reason"]))
    return rows


class Nights:
    """A HOME: its ledger, a folder of news and a run per night, and steps that a kill may come between."""

    def __init__(self, home: Path, logs: Path, part_mb: float) -> None:
        self.home, self.logs, self.ledger, self.part_mb = home, logs, home / "ledger.sqlite", part_mb
        self.number = 0
        self.read: defaultdict[str, Counter[str]] = defaultdict(Counter)  # session -> turns that some night trained on
        self.now: dict[str, Counter[str]] = {}  # session -> its turns as the last night has them

    def steps(self) -> Any:
        """Yield after each step of a night; the first half of it can be done again at any time."""
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
        """Run a night that is killed between any two steps, and begun again."""
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
                assert not new or not (self.read[session] & new) or "@" not in session
                self.read[session] += new
                self.now[session] = new + before
                assert all(self.read[session][turn] >= n for turn, n in self.now[session].items())
        self.number += 1

    def total(self) -> Counter[str]:
        return sum(self.now.values(), Counter())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", FORMATS)
def test_all_nights_together_are_one_extract_of_everything(tmp_path, kind, seed):
    """Files are appended to in the middle of a line, rotated, packed, rewritten; nights are killed at any place."""
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
    """One night up to its commit."""
    folder = home / f"night-{night}"
    news = collect_news(home / "ledger.sqlite", [str(logs)] if isinstance(logs, Path) else logs, folder, **options)
    if news.night:
        commit_news(home / "ledger.sqlite", folder)
    return news, folder


def texts(folder: Path) -> list[str]:
    """The lines that a night extracts."""
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def call(name: str, *texts: str, **more: Any) -> bytes:
    """A line of openclaw_rl: a prompt of all texts but the last, which is the reply."""
    *prompt, reply = chat(*texts)["messages"]
    return (
        json.dumps({"session_id": name, "messages": prompt, "response_text": reply["content"]} | more).encode() + b"\n"
    )


def bytes_read() -> int:
    """Bytes that this process has read from files so far."""
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


def test_a_session_that_goes_on_keeps_its_id_and_only_its_new_turns_are_trainable(tmp_path):
    """Its earlier lines lie in a file that was rotated and packed; another session is left alone."""
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


def test_records_on_one_line_belong_to_many_sessions(tmp_path):
    """A page of stored completions: a session of it that goes on brings its own records and no others."""

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


@pytest.mark.parametrize("log", ["-", "hf:some/data", "nowhere.jsonl", "table.jsonl"])
def test_inputs_that_cannot_be_followed_are_named(tmp_path, log, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("table.jsonl").write_text('{"unknown": 1}\n')
    with pytest.raises(ConfigError, match=log):
        collect(tmp_path, [log], 0)


@pytest.mark.parametrize("name", ["claude_code", "openclaw_rl", "pi_openclaw", "sweagent", "glaive", "taubench"])
def test_real_logs_that_grow_over_five_nights(tmp_path, shared_data, name):
    """Line by line; a night ends anywhere in a line."""
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
