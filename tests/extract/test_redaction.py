"""Tests that nothing that `opdkit extract --redact` writes holds what was redacted."""

import json

import pytest
from redaction_kinds import KINDS, cases, is_left
from small_logs import chat, jsonl, run, tables

from opdkit.errors import ConfigError, OpdkitError
from opdkit.store.joined_turns import LOGGED, joined_turns

MAIL, KEY, PHONE = "bob.b@example.com", "ghp_" + "a1B2" * 9, "+1 415 555 2671"
SECRETS = f"{MAIL} {KEY} {PHONE}"


def hostile_chat(n: int) -> dict:
    """Return a conversation with secrets in every field that a log has."""
    call = {
        "id": f"call {MAIL}",
        "function": {"name": "mail", "arguments": json.dumps({"to": [f"x\n{MAIL}"], MAIL: KEY})},
    }
    twice = {  # a key that is there twice
        "id": "again",
        "function": {"name": "mail", "arguments": f'{{"to": "{MAIL}", "to": "x"}}'},
    }
    return {"messages": [
        {"role": "system", "content": SECRETS},
        {"role": "user", "content": SECRETS, "name": MAIL},
        {"role": "assistant", "content": f"sent {n}", "reasoning_content": SECRETS, "tool_calls": [call, twice],
         "token_ids": [1, 2], "logprobs": [-0.1, -0.2], "finish_reason": MAIL},
        {"role": "tool", "content": json.dumps({"to": MAIL}), "tool_call_id": f"call {MAIL}", "name": MAIL},
        {"role": "assistant", "content": "done", "token_ids": [3], "logprobs": [-0.3]},
        {"role": "user", "content": f"thanks {PHONE}"},
    ], "model": MAIL, "tools": [{"name": "mail", "description": SECRETS}], "user": {MAIL: [SECRETS]}}  # fmt: skip


def record(session: str, text: str) -> dict:
    return {"session_id": session, "turn": 1, "messages": [{"role": "user", "content": text}], "response_text": "ok",
            "next_state": {"role": "user", "content": "no"}}  # fmt: skip


@pytest.fixture
def logs(tmp_path):
    bad = [{"messages": [{"role": MAIL, "content": SECRETS}]}, f'{{"x": "{SECRETS}'.encode() + b"\n",
           b'{"a": "' + b"\xf0\x9f\x98\x80" * 1_985 + MAIL.encode() + b"\n", f"{SECRETS}\n".encode("utf-16"),
           b'{"a": "bob.b\\u0040example.com"\n']  # fmt: skip
    jsonl(tmp_path / "logs" / "chat.jsonl", *(hostile_chat(n) for n in range(6)), *bad)
    jsonl(tmp_path / "logs" / "records.jsonl", record(MAIL, "a"), record("eve@example.com", "b"), record("plain", "c"))
    header = {"type": "session", "id": MAIL, "timestamp": "t", "cwd": f"/home/{MAIL}"}
    said = [{"type": "message", "message": {"role": r, "content": SECRETS}} for r in ("user", "assistant", "user")]
    jsonl(tmp_path / "logs" / "events.jsonl", header, *said)
    voice = {"sender": "critic", "text": f"{'x' * 70} {MAIL}", "uuid": "m1"}
    jsonl(tmp_path / "logs" / "claude.jsonl", {"uuid": "c1", "chat_messages": [voice]})
    return tmp_path / "logs"


@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_that_is_written_holds_a_secret(tmp_path, logs, workers, capfd):
    """This holds for sessions, metadata, arguments, ids, rejected text, the manifest and the terminal."""
    summary = run(tmp_path / "run", logs, redact=True, workers=workers, part_mb=0.004)
    written = json.dumps(tables(tmp_path / "run")) + (tmp_path / "run/extract/manifest.json").read_text()
    shown = capfd.readouterr()
    for secret in ("example.com", KEY[:20], "415 555", "bob"):
        assert secret not in written + shown.out + shown.err
    counts = summary.counters.labels("redacted")
    assert counts.keys() == {"email", "key", "phone"}
    assert all(n >= 6 for n in counts.values())
    assert f"redacted ({counts['email']} email" in summary.text()


def test_placeholders_are_stable_and_ids_stay_apart(tmp_path, logs):
    run(tmp_path / "run", logs, redact=True)
    found = tables(tmp_path / "run")
    ids = [s["session_id"] for s in found["sessions"]]
    assert ids[6:] == ["events:[email]~1", "records:[email]~2", "records:[email]~3", "records:plain"]
    assert len({t["turn_id"] for t in found["turns"]}) == len(found["turns"])
    user, reply, tool = found["sessions"][0]["messages"][1:4]
    assert (user["content"], user["name"]) == ("[email] [key] [phone]", "[email]")
    assert json.loads(reply["tool_calls"][0]["arguments"]) == {"to": ["x\n[email]"], "[email]": "[key]"}
    assert (reply["tool_calls"][0]["id"], tool["tool_call_id"]) == ("call [email]", "call [email]")
    # Sampled tokens spell out the text, so they are dropped for replies that were redacted, and only for these.
    first, second = found["turns"][:2]
    assert (first["response_token_ids"], first["behavior_logprobs"], first["finish_reason"]) == (None, None, "[email]")
    assert second["response_token_ids"] == [3]


@pytest.mark.parametrize(("opening", "closing"), [('{"a": ', "}"), ("[", "]")])
@pytest.mark.parametrize("field", ["metadata", "arguments"])
def test_what_is_nested_too_deeply_costs_its_session(tmp_path, field, opening, closing):
    deep = opening * 900 + "1" + closing * 900
    call = {"id": "c", "function": {"name": "f", "arguments": deep}}
    told = {"messages": [{"role": "user", "content": "u"}, {"role": "assistant", "tool_calls": [call]}]}
    if field == "metadata":
        told = f'{{"messages": [{{"role": "user", "content": "u"}}], "metadata": {deep}}}\n'.encode()
    run(tmp_path / "run", jsonl(tmp_path / "log.jsonl", told, hostile_chat(1)), redact=True)
    found = tables(tmp_path / "run")
    assert [r["reason"] for r in found["rejected"]] == ["nested too deeply"]
    assert len(found["sessions"]) == 1


@pytest.mark.parametrize("dry_run", [False, True])
def test_names_of_logs_are_redacted_and_stay_apart(tmp_path, dry_run, capsys):
    logs = tmp_path / "logs"
    # A night names logs like the last one.
    for name in (MAIL, "eve@example.com", f"call of {PHONE}", "+14155552671", "chat@12"):
        jsonl(logs / f"{name}.jsonl", chat("u", "a", "v"), b"{\n")
    run(tmp_path / "run", logs, redact=True, dry_run=dry_run)
    shown = capsys.readouterr()
    assert "example.com" not in shown.out + shown.err
    assert "555" not in shown.out + shown.err
    if not dry_run:
        found = tables(tmp_path / "run")
        assert [s["session_id"] for s in found["sessions"]] == [
            "[phone]:1", "[email]:1", "call_of_[phone]:1", "chat@12:1", "[email]-2:1"]  # fmt: skip
        assert "example.com" not in json.dumps(found)
        assert "555" not in json.dumps(found)
        assert found["sessions"][3]["source"] == str(logs / "chat@12.jsonl")


def test_sessions_of_one_line_stay_apart(tmp_path):
    """A batch of spans holds the sessions of two users on one line."""
    names = ("bob", "eve")
    spans = [
        {"name": "chat", "spanId": name, "attributes": [
            {"key": key, "value": {"stringValue": value}} for key, value in {
                "session.id": f"{name}@example.com", "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": f"I am {name}.", "llm.output_messages.0.message.role":
                "assistant", "llm.output_messages.0.message.content": f"Hello {name}."}.items()]}
        for name in names
    ]  # fmt: skip
    log = jsonl(tmp_path / "log.jsonl", {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]})
    run(tmp_path / "run", log, redact=True)
    found = list(joined_turns(tmp_path / "run", 0, LOGGED))
    assert len({turn.turn_id for turn in found}) == 2
    assert [turn.session["messages"][1]["content"] for turn in found] == ["Hello bob.", "Hello eve."]


def test_turns_are_those_of_the_log_as_it_was(tmp_path):
    """Retries are found in the text before redaction, since two addresses become the same placeholder."""
    log = jsonl(tmp_path / "log.jsonl", {"messages": [
        {"role": "user", "content": "I am a@example.com"}, {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "I am b@example.com"}]})  # fmt: skip
    run(tmp_path / "run", log, redact=True)
    (turn,) = tables(tmp_path / "run")["turns"]
    assert (turn["trainable"], turn["skip_reason"]) == (True, None)


def test_an_edit_that_redaction_makes_equal_to_the_reply_is_none(tmp_path):
    reply = {"role": "assistant", "content": "To: a@x.com", "decision": {"edited": "To: b@x.com"}}
    log = jsonl(tmp_path / "log.jsonl", *({"messages": [{"role": "user", "content": "write"}, reply, *after]}
                                          for after in ([{"role": "user", "content": "thanks"}], [])))  # fmt: skip
    summary = run(tmp_path / "run", log, redact=True)
    found = [(t["decision"], t["trainable"], t["skip_reason"]) for t in tables(tmp_path / "run")["turns"]]
    assert found == [(None, True, None), (None, False, "no next state")]
    assert not summary.counters.labels("decisions")


def test_it_is_part_of_the_plan_and_off_by_default(tmp_path, logs):
    run(tmp_path / "run", logs)
    assert MAIL in json.dumps(tables(tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"config\.redact: false -> true"):
        run(tmp_path / "run", logs, redact=True)
    with pytest.raises(ConfigError, match=r"config\.redact_pattern"):
        run(tmp_path / "run", logs, redact_pattern=("name=bob",))


def test_own_patterns_without_the_others(tmp_path, logs):
    summary = run(tmp_path / "run", logs, redact_pattern=("name=bob\\.b",))
    assert tables(tmp_path / "run")["sessions"][0]["messages"][1]["name"] == "[name]@example.com"
    assert "name" in summary.counters.labels("redacted")
    assert "email" not in summary.counters.labels("redacted")


def test_a_pattern_that_never_ends_stops_the_command_and_writes_nothing(tmp_path, monkeypatch):
    from opdkit.extract import redact_rules

    monkeypatch.setattr(redact_rules, "SECONDS", 0.2)
    log = jsonl(tmp_path / "log.jsonl", {"messages": [{"role": "user", "content": "ab " * 2_000 + "?"}]})
    with pytest.raises(OpdkitError, match="--redact-pattern words took more than"):
        run(tmp_path / "run", log, redact_pattern=(r"words=(?:\w+\s?)+$",))
    assert not list((tmp_path / "run").rglob("*.parquet"))


def test_a_log_with_one_secret_of_every_kind_per_line(tmp_path):
    texts = [case for kind in KINDS for case in list(cases(kind))[:2]]
    log = jsonl(tmp_path / "log.jsonl", *({"messages": [
        {"role": "user", "content": text}, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "no"}]}
        for text, _ in texts))  # fmt: skip
    run(tmp_path / "run", log, redact=True)
    written = [row["messages"][0]["content"] for row in tables(tmp_path / "run")["sessions"]]
    left = [text for (_, secrets), text in zip(texts, written, strict=True) if any(is_left(s, text) for s in secrets)]
    assert left == []
