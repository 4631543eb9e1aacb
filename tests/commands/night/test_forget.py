"""Tests of `opdkit forget`: afterwards the nights are as if a user's sessions had never been read."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from night_logs import night_options as options
from sample_world import DATA

from opdkit.commands.check.stage import examine
from opdkit.commands.check.stage import run as check
from opdkit.commands.night.command import run, run_forget
from opdkit.commands.night.forget import find_sessions, is_described, make_entry, read_forgotten
from opdkit.commands.night.home import Home
from opdkit.config.check import CheckConfig
from opdkit.config.fields import JSON
from opdkit.config.night import ForgetConfig, NightConfig
from opdkit.errors import ConfigError, OpdkitError
from opdkit.judge.kept_answers import KeptAnswers, drop_answers
from opdkit.judge.votes import Answer, Question, VoteRequest
from opdkit.store.atomic import host_name
from opdkit.store.logged_fields import LoggedFields
from opdkit.store.plans import has_stage
from opdkit.store.reading import part_path, read_all
from opdkit.store.reviews import ReviewLog, decision, read_reviews_in_force

SECRET = "my locker code is 7719"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write rows: the first 40 are of u0, later ones of u0 to u3 in turn; u3 tells a secret in each session."""
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


def do_nights_and_fail(folder: Path, config: NightConfig, end: int, more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a night, and another night that fails before it has read its news."""
    do_nights(folder, config, end)
    with monkeypatch.context() as patched:
        patched.setattr("opdkit.commands.night.steps.run_stage", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            do_nights(folder, config, more)


def files_with(text: str, folder: Path) -> list[Path]:
    """Return the files, and the tables, that contain a text."""
    found = [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
    for night in Home(folder).list_nights():
        for place in (night.log, night.folder):
            tables = [name for name, stage in (("sessions", "extract"), ("verdicts", "judge"), ("replies", "eval"))
                      if has_stage(place, stage)]  # fmt: skip
            found += [place / name for name in tables if text in json.dumps(list(read_all(place, name)), default=str)]
    return found


def test_a_user_leaves_the_log_of_every_night(folder: Path) -> None:
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 30, 60, 90)
    home = Home(config.home)
    before = [len(list(read_all(night.log, "sessions"))) for night in home.list_nights()]
    assert files_with(SECRET, config.home), "the test would show nothing"
    first = (home.night(1).folder / "night.json").read_bytes()
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))
    assert files_with(SECRET, config.home) == []
    assert (home.night(1).folder / "night.json").read_bytes() == first, "nights before are left alone"
    after = [len(list(read_all(night.log, "sessions"))) for night in home.list_nights()]
    assert [b - a for b, a in zip(before, after, strict=True)] == [0, 5, 7]
    do_nights(folder, config, 110)
    assert files_with(SECRET, config.home) == [], "nor does a later night read them"
    assert len(home.list_nights()) == 4
    left = config.home / "nights" / f".0009-0a0a0a0a-{host_name()}-{2**22 + 1}"  # of a removal that was killed
    left.mkdir()
    (left / "x.jsonl").write_text(SECRET)
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))  # nothing else is left to do
    assert files_with(SECRET, config.home) == []
    with pytest.raises(OpdkitError, match=r"metadata\.usr; did you mean 'metadata\.user'"):
        run_forget(ForgetConfig(home=config.home, where=("metadata.usr=u3",)))


def test_a_session_is_forgotten_in_nights_that_did_not_know_its_user_yet(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    said = [{"role": "user", "content": f"{SECRET}. How far is it?"}, {"role": "assistant", "content": "9 miles"},
            {"role": "user", "content": "No, please use kilometers."}]  # fmt: skip
    for night, (user, length, reply) in enumerate(((None, 1, "9 miles"), ("u-17", 3, "14 km")), 1):
        call = {"id": f"c{night}", "call_type": "acompletion", "startTime": f"2026-01-0{night} 00:00:00", "model": "m",
                "endTime": f"2026-01-0{night} 00:00:01", "spend": 0.1, "session_id": "s1", "end_user": user,
                "messages": said[:length], "response": {"choices": [
                    {"finish_reason": "stop", "message": {"role": "assistant", "content": reply}}]}}  # fmt: skip
        with (tmp_path / "logs" / "app.jsonl").open("a") as log:
            log.write(json.dumps(call) + "\n" + json.dumps(call | {"id": f"o{night}", "session_id": f"o{night}",
                      "end_user": "u-2", "messages": [{"role": "user", "content": f"hi {night}"}]}) + "\n")  # fmt: skip
        config = options(tmp_path, least_hints=1000)
        run(config)
    assert SECRET in json.dumps(list(read_all(Home(config.home).night(1).log, "sessions")))
    run_forget(ForgetConfig(home=config.home, where=("metadata.end_user=u-17",)))
    assert files_with(SECRET, config.home) == []
    assert [len(list(read_all(night.log, "sessions"))) for night in Home(config.home).list_nights()] == [1, 1]
    assert "sessions" not in read_forgotten(Home(config.home))[0], "nobody is named"


def test_a_session_is_forgotten_whatever_its_number_was_in_other_nights(tmp_path: Path) -> None:
    """Bob, Ann and Eve begin with the same words on two hosts; Eve's host comes first, but she asks last."""
    asks, hosts = "How far is it?", {"a": list[str](), "b": list[str]()}

    def log(host: str, user: str | None, *texts: str) -> None:
        roles = ("user", "assistant") * len(texts)
        *prompt, reply = ({"role": role, "content": text} for role, text in zip(roles, texts, strict=False))
        call = {"call_type": "acompletion", "startTime": 1.0, "endTime": 1.5, "response_cost": 0, "model": "m",
                "end_user": user, "messages": prompt,
                "response": {"choices": [{"finish_reason": "stop", "message": reply}]}}  # fmt: skip
        hosts[host].append(json.dumps(call | {"id": f"c{len(hosts[host])}"}) + "\n")
        (tmp_path / "logs" / f"{host}.jsonl").write_text("".join(hosts[host]))

    (tmp_path / "logs").mkdir()
    config = options(tmp_path, least_hints=1000)
    log("a", "eve", "Hi!", "Hello.")
    log("b", "bob", asks, "9 miles")
    log("b", None, asks, SECRET)
    run(config)
    log("a", "eve", asks, "14 km")
    log("b", "ann", asks, SECRET, "Which code?", "7719")
    run(config)
    home = Home(config.home)
    ids = [[row["session_id"] for row in read_all(night.log, "sessions")] for night in home.list_nights()]
    assert [name[-2:] for night in ids for name in night if "#" in name] == ["#2", "#2", "#3"]
    run_forget(ForgetConfig(home=config.home, where=("metadata.end_user=ann",)))
    assert files_with(SECRET, config.home) == []
    said = [sorted(row["messages"][1]["content"] for row in read_all(night.log, "sessions"))
            for night in home.list_nights()]  # fmt: skip
    assert said == [["9 miles", "Hello."], ["14 km", "9 miles"]], "those of others stay"


def test_a_forget_that_cannot_do_the_nights_again_removes_nothing(folder: Path) -> None:
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 60)
    home = Home(config.home)
    before = files_with(SECRET, config.home)
    for place in (home.path, home.night(1).folder):
        home.keep_options(place / "options", replace(config, model="nowhere/model"))
    with pytest.raises(OpdkitError, match="nowhere"):
        run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))
    assert files_with(SECRET, config.home) == before


def test_redacted_sessions_of_different_people_stay_apart(tmp_path: Path) -> None:
    """Placeholders are the same in each night, but the ids that hold them are not."""
    config, names = options(tmp_path, least_hints=1000, set=("extract.redact=true",)), list[str]()
    (tmp_path / "logs").mkdir()
    for name in ("ann", "bob", "eve"):
        row = {"session_id": f"{name}@example.com", "turn": 1, "messages": [{"role": "user", "content": name}],
               "response_text": "ok", "next_state": {"role": "user", "content": "no"}}  # fmt: skip
        for log in ("al@example.com", "chat"):
            with (tmp_path / "logs" / f"{log}.jsonl").open("a") as out:
                out.write(json.dumps(row | {"session_id": f"{log[:2]}-{row['session_id']}"}) + "\n")
        run(config)
        names += [row["session_id"] for row in read_all(Home(config.home).list_nights()[-1].log, "sessions")]
    assert len(names) == len(set(names)) == 6
    assert "example" not in json.dumps(names)


def test_news_that_a_failed_night_has_not_read_is_not_forgotten(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = options(folder, least_hints=1000)
    do_nights_and_fail(folder, config, 30, 60, monkeypatch)
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u0",)))
    rows = json.loads((folder / "rows.json").read_text())[:60]
    left = [len(list(read_all(night.log, "sessions"))) for night in Home(config.home).list_nights()]
    assert sum(left) == sum(row["user"] != "u0" for row in rows)


def test_a_user_who_is_only_in_news_that_is_not_read_yet(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = options(folder, least_hints=1000)
    do_nights_and_fail(folder, config, 40, 60, monkeypatch)
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))
    assert files_with(SECRET, config.home) == []


def test_a_log_without_the_user_is_whole_and_nobody_removes_its_parts(folder: Path) -> None:
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 60)
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))
    log = Home(config.home).night(1).log
    assert examine(log).findings == []
    part = part_path(log, "turns", 0)
    part.write_bytes(b"x" + part.read_bytes()[1:])
    assert not check(CheckConfig(run=log, recompute=True))
    assert part.exists(), "nothing could write it again"


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
        run(config)  # cron starts a night before forget is called again
    else:
        run_forget(where)
    assert files_with(SECRET, config.home) == []
    assert all(night.record["decision"] for night in Home(config.home).list_nights())
    assert not find_sessions(Home(config.home).night(2), [{"where": ["metadata.user=u3"]}])


def test_nights_are_done_again_with_their_own_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompts = folder / "prompts.jsonl"
    first, second = (json.dumps({"prompt": n, "corrected": True, "check": {"match": ["a"]}}) for n in "12")
    prompts.write_text(first)
    config = options(folder, least_hints=1000, prompts=str(prompts))
    do_nights(folder, config, 60)
    prompts.write_text(second)
    do_nights(folder, options(folder, least_hints=2000, prompts=str(prompts)), 90)
    (folder / "night.toml").unlink()
    prompts.unlink()
    capsys.readouterr()
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))
    home = Home(config.home)
    assert ["1,000" in night.record["sentence"] for night in home.list_nights()] == [True, False]
    kept = [home.read_options(night.folder / "options") for night in home.list_nights()]
    assert [one.least_hints for one in kept] == [1000, 2000]
    assert [Path(str(one.prompts)).read_text() for one in kept] == [first, second]
    assert all(one.home == config.home and one.config and one.config.exists() for one in kept)


def test_decisions_about_others_stay(folder: Path) -> None:
    """This includes decisions made together with some about the user, and decisions in the night's own run."""
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 60, 90)
    first, second = Home(config.home).list_nights()
    gone = list(find_sessions(first, [{"where": ["metadata.user=u3"]}]))
    turns = [row["turn_id"] for row in read_all(first.log, "turns")]
    theirs = next(name for name in turns if name.rpartition(":")[0] in gone)
    others = [name for name in turns if name.rpartition(":")[0] not in gone][:2]
    for run_ in (first.log, second.folder):
        ReviewLog(run_).append([decision(name, {"hint": SECRET}) for name in (others[0], theirs)])
        ReviewLog(run_).append([decision(others[1], {"reward": 1})])
    assert len(files_with("reward_decided", config.home)) == 2
    for run_ in (first.log, second.folder):
        path = run_ / "judge" / "reviews" / "decisions.jsonl"
        path.write_bytes(path.read_bytes() + b'{"turn_id": torn')
    run_forget(ForgetConfig(home=config.home, where=("metadata.user=u3",)))
    for run_ in (first.log, second.folder):
        assert set(read_reviews_in_force(run_)) == set(others)
        ReviewLog(run_).append([decision(others[0], {"reward": -1})])
        assert [review.turn_id for review in ReviewLog(run_).all_reviews()] == [*others, others[0]]


def test_what_was_made_from_a_log_goes_with_the_user(folder: Path) -> None:
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 30, 90)
    home = Home(config.home)
    before, night = home.list_nights()
    for place in ("export/rules.md", "report.html", ".failed/judge-0-of-1.json", "extract/.tmp/log",
                  "log/../extract/sessions/.part-0-0a0a0a0a-host-1"):  # fmt: skip
        for one in (before, night):
            path = one.log / place.replace("log/../", "")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SECRET if one is night else "others")
    os.utime(night.log / "extract/sessions/.part-0-0a0a0a0a-host-1", (0, 0))
    half = home.path / "nights" / "0003" / f".news-0a0a0a0a-{host_name()}-{2**22 + 1}"  # of a killed process
    half.mkdir(parents=True)
    (half / "chat@3.jsonl").write_text(SECRET)
    run_forget(ForgetConfig(home=home.path, where=("metadata.user=u3",)))
    assert files_with(SECRET, home.path) == []
    assert (before.log / "export" / "rules.md").exists(), "the user is not in this night"


def test_kept_answers_about_others_stay(tmp_path: Path) -> None:
    path = tmp_path / ".tmp" / "verdicts-00000.answers"
    answers = KeptAnswers(path, "plan")
    asked = [VoteRequest(Question(f"chat@1:{n}:1", "hint", []), n) for n in (1, 11, 2)]
    for request in asked:
        answers.add(request, Answer(SECRET if request.seed == 1 else "fine", "stop"))
    answers.close()
    drop_answers(tmp_path, ["chat@1:1"])
    assert SECRET not in path.read_text()
    assert [KeptAnswers(path, "plan").find(request) is None for request in asked] == [True, False, False]


def test_the_user_is_not_named_and_a_night_of_nobody_else_is_gone(folder: Path) -> None:
    rows = json.loads((folder / "rows.json").read_text())
    for n, row in enumerate(rows):
        row["user"] = "ann@example.org" if 60 <= n < 90 else n % 7
    (folder / "rows.json").write_text(json.dumps(rows))
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 60, 70)
    home = Home(config.home)
    run_forget(ForgetConfig(home=home.path, where=("metadata.user=ann@example.org",)))
    assert [night.number for night in home.list_nights()] == [1]
    do_nights(folder, config, 80)
    assert [night.number for night in home.list_nights()] == [1], "nor does it come back"
    do_nights(folder, config, 110)
    assert [len(list(read_all(night.log, "sessions"))) for night in home.list_nights()] == [60, 20]
    assert files_with("ann@example", home.path) == []
    run_forget(ForgetConfig(home=home.path, where=("metadata.user=3",)))  # a number in the log
    sessions = [row for night in home.list_nights() for row in read_all(night.log, "sessions")]
    assert {json.loads(row["metadata"])["user"] for row in sessions} == {0, 1, 2, 4, 5, 6}
    with closing(sqlite3.connect(home.ledger)) as ledger:
        assert ledger.execute("PRAGMA freelist_count").fetchone() == (0,)
    run_forget(ForgetConfig(home=home.path, where=("metadata.user=ann@example.org",)))
    assert len(read_forgotten(home)) == 2


def test_a_number_is_the_same_however_it_is_written() -> None:
    def described(where: str, user: object) -> bool:
        session = LoggedFields("s", "log", None, "openai", {"user": user})
        return is_described(session, make_entry([f"metadata.user={where}"], "salt"))

    same = [("17", 17), ("17", 17.0), ("17.0", 17), ("1.5", 1.5), ("17", "17"), ("true", True), ("a", ["b", "a"]),
            ("a", [["b", "a"], ["c"]])]  # fmt: skip
    for where, user in same:
        assert described(where, user), (where, user)
    for where, user in (("17", "17.0"), ("17", 18), ("1", True), ("a", "b"), ("nan", 1.0)):
        assert not described(where, user), (where, user)


def branched_chat(user: str, requests: list[str]) -> JSON:
    """Return a chat of Open WebUI whose first request was edited; each version of it begins a branch."""
    messages: list[JSON] = []
    for n, request in enumerate(requests):
        messages += [{"id": f"u{n}", "parentId": None, "role": "user", "content": request},
                     {"id": f"a{n}", "parentId": f"u{n}", "role": "assistant", "content": "42", "done": True},
                     {"id": f"v{n}", "parentId": f"a{n}", "role": "user", "content": "Thanks!"}]  # fmt: skip
    history = {
        "currentId": "v0",
        "messages": {one["id"]: {"childrenIds": [], "timestamp": 1} | one for one in messages},
    }
    return {"id": user, "user_id": user, "title": "", "updated_at": 1, "created_at": 1, "share_id": None,
            "archived": False, "pinned": False, "meta": {}, "folder_id": None,
            "chat": {"id": "", "title": "", "models": ["m"], "params": {}, "files": [], "history": history,
                     "messages": [], "tags": [], "timestamp": 1}}  # fmt: skip


def test_a_chat_with_branches_is_forgotten_and_the_night_of_others_stays(folder: Path) -> None:
    """The chat is one record of the log, but several sessions."""
    chats = [branched_chat("ann", ["What is 6 x 7?", "What is 6 times 7?"]), branched_chat("bob", ["And 21 x 2?"])]
    (folder / "logs" / "chats.json").write_text(json.dumps(chats))
    config = options(folder, least_hints=1000)
    run(config)
    home = Home(config.home)
    assert len(list(read_all(home.night(1).log, "sessions"))) == 3
    run_forget(ForgetConfig(home=home.path, where=("metadata.user_id=ann",)))
    (session,) = read_all(home.night(1).log, "sessions")
    assert "21 x 2" in session["messages"][0]["content"]
    run_forget(ForgetConfig(home=home.path, where=("metadata.user_id=bob",)))
    assert home.list_nights() == []


def test_nights_without_options_of_their_own_are_done_again_with_the_last_ones(folder: Path) -> None:
    """If there are no options at all, nothing is removed."""
    config = options(folder, least_hints=1000)
    do_nights(folder, config, 60, 90)
    home = Home(config.home)
    for night in home.list_nights():
        shutil.rmtree(night.folder / "options")
    (home.path / "options").rename(folder / "kept")
    before = [len(list(read_all(night.log, "sessions"))) for night in home.list_nights()]
    where = ForgetConfig(home=home.path, where=("metadata.user=u3",))
    with pytest.raises(OpdkitError, match="has no options"):
        run_forget(where)
    assert [len(list(read_all(night.log, "sessions"))) for night in home.list_nights()] == before
    (folder / "kept").rename(home.path / "options")
    run_forget(where)
    assert files_with(SECRET, config.home) == []


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
    assert ours.find_promoted() == theirs.find_promoted()
    for one, two in zip(ours.list_nights(), theirs.list_nights(), strict=True):
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
