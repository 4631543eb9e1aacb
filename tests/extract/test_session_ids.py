"""Tests of logged session ids that are not unique or look like paths, and of sessions in several files."""

from small_logs import jsonl, run

from opdkit.store.reading import read_all


def test_logged_ids_become_unique_ones(tmp_path):
    """Sessions with the same logged id get different ids, even if a logged id looks like our numbering."""

    def record(session, text):
        return {"session_id": session, "turn": 1, "messages": [{"role": "user", "content": text}], "response_text": "a",
                "prompt_text": "", "tool_calls": None, "next_state": {"role": "user", "content": "ok"}}  # fmt: skip

    one = jsonl(tmp_path / "one.jsonl", record("s", "x"), record("s#2", "y"), record("s", "z"), record("s%232", "q"))
    two = jsonl(tmp_path / "two.jsonl", record("s", "w"), record(None, "v"), record("x" * 5_000, "u"))
    header = {"type": "session", "id": "p", "timestamp": "t"}
    events = [{"type": "message", "message": {"role": r, "content": "x"}} for r in ("user", "assistant", "user")]
    pi = jsonl(tmp_path / "pi.jsonl", header, *events, header, *events, header | {"id": None}, *events)
    run(tmp_path / "run", one, two, pi, part_mb=1e-4)
    ids = [s["session_id"] for s in read_all(tmp_path / "run", "sessions")]
    assert ids[:6] == ["one:s", "one:s#2", "one:s#3", "one:s%232", "one:s%25232", "two:unknown"]
    assert ids[7:] == ["pi:p", "pi:p#2", "pi:line9"]
    assert len(set(ids)) == len(ids)
    assert len(ids[6]) < 300


def test_records_of_one_session_may_lie_in_several_files(tmp_path):
    user = [{"role": "user", "content": f"u{i}"} for i in range(3)]
    first = {"session_id": "s", "turn": 1, "messages": [user[0]], "response_text": "a0", "next_state": user[1]}
    reply = {"role": "assistant", "content": "a0"}
    second = {"session_id": "s", "turn": 2, "messages": [user[0], reply, user[1]], "response_text": "a1",
              "next_state": user[2]}  # fmt: skip
    logs = jsonl(tmp_path / "b.jsonl", second), jsonl(tmp_path / "a.jsonl", first)
    run(tmp_path / "run", *logs)
    (session,) = read_all(tmp_path / "run", "sessions")
    assert [m["content"] for m in session["messages"]] == ["u0", "a0", "u1", "a1", "u2"]
    assert (session["session_id"], session["source"]) == ("b:s", str(logs[1]))


def test_a_logged_id_names_no_file(tmp_path):
    """An id that is a path or has control characters is only text in a table; nothing is written outside the run."""
    ids = ["../../../escape", "/tmp/absolute", "..", "a\x00b", "C:\\\\x", "con", "x/../y", "\x1b[31m", "a:b#1"]
    log = jsonl(tmp_path / "in" / "log.jsonl", *(
        {"session_id": name, "turn": 1, "messages": [{"role": "user", "content": "u"}], "response_text": f"r{n}",
         "next_state": {"role": "user", "content": "v"}} for n, name in enumerate(ids)))  # fmt: skip
    before = set(tmp_path.rglob("*"))
    run(tmp_path / "in" / "run", log)
    written = set(tmp_path.rglob("*")) - before
    assert all((tmp_path / "in" / "run") in (p, *p.parents) for p in written)
    assert not any("escape" in str(p) or "absolute" in str(p) for p in written)
    assert len({s["session_id"] for s in read_all(tmp_path / "in" / "run", "sessions")}) == len(ids)
