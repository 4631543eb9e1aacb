"""Tests of the review server: it answers the page that it served to one person, and nobody else."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import webbrowser

import httpx
import pytest
from judged_runs import message, session, turn, verdict, write_run
from runs import talk, write_extract

from opdkit.commands.review.api import Api
from opdkit.commands.review.server import MAX_BODY, ReviewServer
from opdkit.commands.review.server import run as run_server
from opdkit.commands.review.spreadsheet import read_csv, write_csv
from opdkit.commands.turns.view import read_turn_view
from opdkit.config.judge import JudgeConfig
from opdkit.config.review import ReviewConfig
from opdkit.errors import OpdkitError
from opdkit.judge import stage as judge
from opdkit.store import reviews
from opdkit.store.reading import read_all


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    said = {f"s {n}/ü?": talk("How warm?", "75 F.", "No, in Celsius please.", "24 C.", "Thanks!") for n in range(2)}
    run = write_extract(tmp_path_factory.mktemp("server") / "run", said)
    judge.run(JudgeConfig(run=run, judge="rules", shard="0/1"))
    return run


@pytest.fixture(scope="module")
def running(judged):
    server = ReviewServer(Api(judged, "Ada"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def server(running, judged):
    """Yield the server without decisions. The decisions of a test are removed after it."""
    running.api = Api(judged, "Ada")
    yield running
    shutil.rmtree(reviews.reviews_dir(judged), ignore_errors=True)


@pytest.fixture(scope="module")
def transport():
    """Yield a shared transport: to set up connections takes longer than a request."""
    with httpx.HTTPTransport() as transport:
        yield transport


@pytest.fixture
def client(server, transport):
    headers = {"X-Opdkit-Token": server.token}
    address = f"http://127.0.0.1:{server.server_port}"
    return httpx.Client(base_url=address, headers=headers, transport=transport, trust_env=False, timeout=60)


TURN = "s 0/ü?:1"
GROUP = {"group": "Answer like this: in Celsius.", "action": "keep"}
SET = {"turn_id": TURN, "action": "set", "reward": 1, "hint": "Use Celsius.", "note": "clear"}


# -- decisions and the page -------------------------------------------------------------------------------------------


def test_a_decision_is_taken_shown_and_withdrawn(client, judged):
    answer = client.post("/api/reviews", json=SET).raise_for_status().json()
    assert answer["last"] == 0
    taken = answer["reviews"][TURN]
    assert {k: taken[k] for k in ("reward", "hint", "note", "reviewer")} == {
        "reward": 1, "hint": "Use Celsius.", "note": "clear", "reviewer": "Ada"}  # fmt: skip
    assert client.get("/api/reviews").json() == answer
    view = client.get("/api/turns/" + httpx.URL("", params={"x": TURN}).query.decode()[2:].replace("+", "%20")).json()
    assert view == json.loads(json.dumps(read_turn_view(judged, TURN)))
    assert (view["verdict"]["reward"], view["verdict"]["reward_status"], view["review"]) == (1, "reviewed", taken)
    struck = client.post("/api/reviews", json={"turn_id": TURN, "action": "strike", "seen": 0}).json()
    assert struck == {"last": 1, "reviews": {TURN: None}}


def test_what_is_absent_stays_and_null_is_decided(client):
    review = client.post("/api/reviews", json={"turn_id": TURN, "action": "set", "hint": None}).json()["reviews"][TURN]
    assert "reward" not in review
    assert review["hint"] is None


def test_the_page_is_the_report_with_this_server_s_token(client, server, judged):
    from opdkit.commands.report.page import make_page

    answer = client.get("/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.text == make_page(judged, review={"token": server.token, "reviewer": "Ada"})


def test_the_page_is_made_again_when_a_stage_has_written_or_somebody_decided(client, server, judged, monkeypatch):
    from opdkit.commands.report import page as module

    made = []
    monkeypatch.setattr(module, "make_page", lambda *_: f"page {made.append(1) or len(made)}")
    server._page = ([], b"")
    client.post("/api/reviews", json=SET).raise_for_status()
    assert [client.get("/").text for _ in range(2)] == ["page 1", "page 1"]
    client.post("/api/reviews", json=SET | {"seen": 0}).raise_for_status()
    assert [client.get("/").text for _ in range(2)] == ["page 2", "page 2"], "its figures count decisions"
    (judged / "judge" / "verdicts").touch()
    assert client.get("/").text == "page 3"
    server._page = ([], b"")


def test_files_that_vanish_while_the_page_looks_at_them_do_not_end_it(client, server, judged, monkeypatch):
    """A running stage may remove temporary files after the server has listed a folder and before it calls stat()."""
    from opdkit.commands.report import page as module

    monkeypatch.setattr(module, "make_page", lambda *_: "page")
    server._page = ([], b"")
    gone = judged / "judge" / "gone"
    gone.symlink_to("nowhere")
    assert client.get("/").text == "page"
    gone.unlink()
    server._page = ([], b"")


# -- foreign requests ---------------------------------------------------------------------------------------------

PATHS = ["/", "/api/reviews", "/api/turns/x", "/nothing"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", [None, "", "x", "ü", "x" * 32])
def test_nothing_is_said_to_who_does_not_know_the_token(server, path, token):
    headers = {} if token is None else {"X-Opdkit-Token": token.encode()}
    answer = httpx.get(f"http://127.0.0.1:{server.server_port}{path}", headers=headers, trust_env=False, timeout=60)
    assert answer.status_code == 403
    assert answer.json().keys() == {"error"}
    assert server.token not in answer.text


@pytest.mark.parametrize(("name", "value"), [
    ("Origin", "https://example.org"), ("Origin", "null"), ("Origin", "http://127.0.0.1:1"), ("Origin", ""),
    ("Host", "example.org"), ("Host", "127.0.0.1"), ("Host", "127.0.0.1.example.org:{port}"), ("Host", "evil:{port}"),
    ("Host", "127.0.0.1:"), ("Host", "127.0.0.1:1x"), ("Host", "localhost:{port}.example.org"),
    ("Host", "127.0.0.1:1@x"), ("Origin", "http://localhost:{port}"), ("Origin", "https://127.0.0.1:{port}"),
])  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_foreign_origin_or_host_is_refused_whatever_it_knows(client, server, judged, name, value, method):
    """Such a request comes from a page elsewhere in the same browser, or uses a name that was pointed at this host."""
    answer = client.request(method, "/api/reviews", headers={name: value.format(port=server.server_port)}, json=SET)
    assert (answer.status_code, f"foreign {name}" in answer.text) == (403, True)
    assert not reviews.reviews_dir(judged).exists()


def test_its_own_origin_and_the_token_in_the_address_will_do(server):
    own = {"Origin": f"http://localhost:{server.server_port}", "Host": f"localhost:{server.server_port}"}
    address = f"http://127.0.0.1:{server.server_port}/api/reviews"
    assert (
        httpx.get(address, params={"token": server.token}, headers=own, trust_env=False, timeout=60).status_code == 200
    )
    assert httpx.get(server.address.replace("/?", "/api/reviews?"), trust_env=False, timeout=60).is_success


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost:65535", "LOCALHOST:80"])
def test_a_tunnel_from_another_port_works_and_its_page_cannot_be_another_origin(client, host):
    own = {"Host": host, "Origin": f"http://{host.lower()}"}
    assert client.get("/api/reviews", headers=own).is_success
    assert client.get("/api/reviews", headers=own | {"Origin": "http://127.0.0.1:1"}).status_code == 403


def test_two_hosts_are_no_host(server):
    head = f"GET /api/reviews?token={server.token} HTTP/1.0\r\nHost: 127.0.0.1:{server.server_port}\r\n"
    assert exchanged(server, (head + "\r\n").encode()).startswith(b"HTTP/1.0 200")
    assert exchanged(server, (head + "Host: evil\r\n\r\n").encode()).startswith(b"HTTP/1.0 403")


@pytest.mark.parametrize(
    ("path", "status"), [("/api/reviews", 200), ("/api/reviews/set", 404), ("/", 200), ("/api/turns/x", 404)]
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"])
def test_nothing_but_a_post_changes_anything(client, judged, path, status, method):
    """A decision in the address is ignored, and other methods than GET are not known."""
    own = {"Origin": str(client.base_url).rstrip("/")}
    answer = client.request(method, path, headers=own, params=SET)
    assert answer.status_code == (status if method == "GET" else 501)
    assert not reviews.reviews_dir(judged).exists()


@pytest.mark.parametrize(
    "kind", ["application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x", ""]
)
def test_what_a_form_can_send_is_no_decision(client, judged, kind):
    answer = client.post("/api/reviews", content=json.dumps(SET), headers={"Content-Type": kind})
    assert answer.status_code == 415
    assert not reviews.reviews_dir(judged).exists()


def test_every_answer_says_that_it_is_not_to_be_kept_framed_or_guessed_at(client):
    for path in PATHS:
        headers = client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer", "the address holds the token"
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in headers


def test_it_listens_on_loopback_alone_and_tokens_differ(server, judged):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    other = ReviewServer(Api(judged, "Bob"))
    other.server_close()
    assert other.token != server.token
    assert len(server.token) >= 32


# -- invalid decisions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("document", "words"), [
    ([], "JSON object"), ({}, "turn_id is missing"), ({"turn_id": 5, "action": "set"}, "turn_id is missing"),
    (SET | {"rewad": 1}, "unknown field 'rewad'"), (SET | {"action": "undo"}, "action is 'undo'"),
    ({"turn_id": TURN}, "action is ''"), (SET | {"reward": 2}, "reward is 2"), (SET | {"reward": "1"}, "reward is '1'"),
    (SET | {"reward": True}, "reward is True"), (SET | {"reward": 1.0}, "reward is 1.0"), (SET | {"hint": ""}, "hint"),
    (SET | {"hint": ["x"]}, "hint must be text"), (SET | {"note": {}}, "note must be text"),
    (SET | {"action": "strike"}, "strike decides nothing"), (SET | {"turn_id": "s:1"}, "has no verdict"),
    (SET | {"hint": "\ud800 alone"}, "not Unicode"), (SET | {"turn_id": "\ud800"}, "turn"),
    (SET | {"chosen": "by me"}, "chosen is 'by me'"), (SET | {"seen": 7}, "seen is 7"),
    (SET | {"seen": "0"}, "seen is '0'"), (SET | {"seen": True}, "seen is True"),
    (GROUP | {"turn_id": TURN}, "unknown field 'turn_id'"), (GROUP | {"reward": 1}, "unknown field 'reward'"),
    ({"group": "nothing", "action": "keep"}, "'nothing'"), ({"group": ["x"], "action": "keep"}, "no group"),
    (GROUP | {"action": "set"}, "action is not"), (GROUP | {"action": "accept"}, "action is not"),
    (GROUP | {"action": "set", "hint": 5}, "hint must be text"),
    (GROUP | {"hint": None}, "action is not"), (GROUP | {"action": "set", "hint": " "}, "hint must be text"),
])  # fmt: skip
def test_what_is_no_decision_is_named_and_nothing_is_written(client, judged, document, words):
    answer = client.post("/api/reviews", content=json.dumps(document), headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert not reviews.reviews_dir(judged).exists()


def test_a_decision_that_the_disk_does_not_take_may_be_sent_again(client, judged):
    """The page sends a decision again after an answer of 500, and drops it after one of 400."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        answer = client.post("/api/reviews", json=SET)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (answer.status_code, "cannot grow" in answer.json()["error"]) == (500, True)
    assert reviews.read_reviews_in_force(judged) == {}
    client.post("/api/reviews", json=SET).raise_for_status()


@pytest.mark.parametrize(("body", "status"), [
    (b"", 400), (b"{", 400), (b"\xff", 400), (b"[" * 60_000, 400), (b" " * (MAX_BODY + 1), 413),
])  # fmt: skip
def test_what_is_no_json_is_refused(client, judged, body, status):
    answer = client.post("/api/reviews", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status
    assert not reviews.reviews_dir(judged).exists()


def test_a_body_without_its_length_or_cut_short_is_refused(server, judged):
    head = (f"POST /api/reviews?token={server.token} HTTP/1.0\r\nHost: 127.0.0.1:{server.server_port}\r\n"
            "Content-Type: application/json\r\n")  # fmt: skip
    for length, status in (("", 411), ("Content-Length: -1\r\n", 411), ("Content-Length: 999\r\n", 400)):
        answer = exchanged(server, (head + length + "\r\n").encode() + json.dumps(SET).encode())
        assert answer.startswith(f"HTTP/1.0 {status}".encode())
    assert not reviews.reviews_dir(judged).exists()


def exchanged(server, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port)) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.parametrize("path", ["/api/turns/nobody:1", "/api/turns/", "/api/turns/..%2f..%2fetc", "/favicon.ico"])
def test_what_is_not_there_is_not_found(client, path):
    assert client.get(path).status_code == 404


# -- concurrent use, groups, and the command --------------------------------------------------------------------------


def test_two_reviewers_at_once_lose_nothing(judged, server, client):
    """The later of two decisions is refused with the other reviewer's decision, and is then made again."""
    other = ReviewServer(Api(judged, "Bob"))
    threads = [threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})]
    notes = [f"{who} {n}" for n in range(10) for who in ("Ada", "Bob")]

    def decide(who, n):
        asked = server if who == "Ada" else other
        headers, seen = {"X-Opdkit-Token": asked.token}, -1
        address = f"http://127.0.0.1:{asked.server_port}/api/reviews"
        while True:
            answer = httpx.post(address, json=SET | {"note": f"{who} {n}", "seen": seen}, headers=headers,
                                trust_env=False, timeout=60)  # fmt: skip
            if answer.status_code != 409:
                return answer.raise_for_status()
            assert answer.json()["last"] > seen
            seen = answer.json()["last"]

    deciding = [threading.Thread(target=decide, args=note.split()) for note in notes]
    for thread in threads + deciding:
        thread.start()
    for thread in deciding:
        thread.join()
    kept = reviews.ReviewLog(judged).all_reviews()
    assert sorted(review.note for review in kept) == sorted(notes)
    assert {review.reviewer for review in kept} == {"Ada", "Bob"}
    assert client.get("/api/reviews").json()["reviews"][TURN]["note"] == kept[-1].note
    other.shutdown()
    other.server_close()


def test_a_page_that_is_out_of_date_gets_the_newer_decision_and_nothing_is_overwritten(judged, client):
    first = client.post("/api/reviews", json=SET).json()
    late = client.post("/api/reviews", json=SET | {"reward": -1, "seen": -1})
    assert late.status_code == 409
    assert late.json()["newer"] == first["reviews"]
    assert late.json()["last"] == 0
    assert reviews.read_reviews_in_force(judged)[TURN].reward == 1
    again = client.post("/api/reviews", json=SET | {"reward": -1, "seen": late.json()["last"]}).raise_for_status()
    assert again.json()["reviews"][TURN]["reward"] == -1
    undone = client.post("/api/reviews", json={"turn_id": TURN, "action": "strike", "seen": 0})
    assert (undone.status_code, undone.json()["newer"][TURN]["reward"]) == (409, -1)
    other_turn = client.post("/api/reviews", json=SET | {"turn_id": "s 1/ü?:1", "seen": -1}).raise_for_status().json()
    assert other_turn["reviews"].keys() == {TURN, "s 1/ü?:1"}, "and what else was decided since it looked"


def test_a_decision_keeps_how_its_turn_was_chosen_and_what_the_votes_said(judged, client):
    for n, chosen in enumerate(("uncertain", "random", None)):
        client.post("/api/reviews", json=SET | {"chosen": chosen, "seen": n - 1}).raise_for_status()
    kept = reviews.ReviewLog(judged).all_reviews()
    assert [(review.chosen, review.voted_reward) for review in kept] == [("uncertain", -1), ("random", -1), (None, -1)]


def test_a_group_of_hints_is_kept_reworded_struck_and_withdrawn_at_once(judged, client):
    hinted = {v["turn_id"]: v["hint"] for v in read_all(judged, "verdicts") if v["hint"]}
    (name,) = set(hinted.values())
    assert len(hinted) == 2
    group, (one, other) = {"group": name}, sorted(hinted)

    def decided(**fields):
        seen = client.get("/api/reviews").json()["last"]
        client.post("/api/reviews", json=group | {"seen": seen} | fields).raise_for_status()
        return {name: review.decided for name, review in reviews.read_reviews_in_force(judged).items()}

    client.post("/api/reviews", json={"turn_id": one, "action": "set", "reward": 0, "note": "hm"}).raise_for_status()
    assert decided(action="set", hint="  Use Celsius, always. ") == {
        one: {"reward": 0, "hint": "Use Celsius, always."}, other: {"hint": "Use Celsius, always."}
    }  # fmt: skip
    assert decided(action="set", hint=None) == {one: {"reward": 0, "hint": None}, other: {"hint": None}}
    assert decided(action="keep") == {one: {"reward": 0, "hint": name}, other: {"hint": name}}
    assert {r.turn_id: (r.chosen, r.note) for r in reviews.read_reviews_in_force(judged).values()} == {
        one: (None, "hm"), other: ("group", None)
    }  # fmt: skip
    assert decided(action="strike") == {one: {"reward": 0}}
    assert client.post("/api/reviews", json=group | {"action": "set", "hint": None, "seen": 0}).status_code == 409
    assert len(reviews.read_reviews_in_force(judged)) == 1


def test_a_voted_hint_may_be_longer_than_what_people_may_type(tmp_path):
    """A voted hint may hold a reply of any length that a person edited or kept. Page and sheet must accept it."""
    text, name = "A better answer. " * 300, "a:1"
    run = write_run(tmp_path / "run", [([session("a", message("user", "hi"), message("assistant", "ho"))],
                                        [turn(name)], [verdict(name, text, -1)])])  # fmt: skip
    api, group = Api(run, "Ada"), text[:600]
    assert api.decide({"group": group, "action": "keep"})["reviews"][name]["hint"] == text
    kept = {"turn_id": name, "action": "set", "reward": -1, "hint": text, "seen": 0}
    assert api.decide(kept)["reviews"][name]["reward"] == -1
    for typed in ({"group": group}, {"turn_id": name}):
        with pytest.raises(OpdkitError, match="hint must be text of at most"):
            api.decide(typed | {"action": "set", "hint": "Typed. " * 800, "seen": 1})
    sheet = tmp_path / "sheet.csv"
    write_csv(run, sheet)
    assert read_csv(run, sheet).same == 1
    sheet.write_text(sheet.read_text("utf-8-sig").replace("A better answer.,,,1", "A better answer.,Yes.,,1"))
    assert read_csv(run, sheet).changed == 1


def test_a_run_that_is_not_judged_has_nothing_to_review(tmp_path):
    run = write_extract(tmp_path / "run", {"s": talk("Hi", "Hello.", "Bye")})
    with pytest.raises(OpdkitError, match="opdkit judge"):
        Api(run, "Ada")


def test_a_port_that_is_taken_is_named(server, judged):
    with pytest.raises(OpdkitError, match=f"--port {server.server_port}"):
        ReviewServer(Api(judged, "Ada"), server.server_port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_prints_its_address_and_stops_when_asked(judged, number):
    command = [sys.executable, "-m", "opdkit", "review", str(judged), "--reviewer", "Eve"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        address = process.stdout.readline().strip()
        answer = httpx.post(address.replace("/?", "/api/reviews?"), json=SET, trust_env=False, timeout=60)
        assert answer.json()["reviews"][TURN]["reviewer"] == "Eve"
        process.send_signal(number)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
        shutil.rmtree(reviews.reviews_dir(judged), ignore_errors=True)
    assert (process.returncode, out) == (0, "")
    assert "decisions in force: 1" in err
    assert f"Next: `opdkit teacher {judged} " in err
    assert "Traceback" not in err
    port = httpx.URL(address).port
    assert re.search(rf"ssh -L {port}:127\.0\.0\.1:{port} \S+@\S+", err)
    assert address.partition("token=")[2] not in err, "no credentials in messages, which end up in logs"


def test_a_night_s_own_run_names_the_log_whose_decisions_later_nights_read(tmp_path, monkeypatch, capsys):
    night, log = tmp_path / "0001", tmp_path / "0001" / "log"
    for run in (log, night):
        judge.run(JudgeConfig(run=write_extract(run, {"s": talk("How warm?", "75 F.", "Thanks!")}), judge="rules"))
    path = night / "judge" / "manifest.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps(document | {"plan": document["plan"] | {"command": "night"}}))
    monkeypatch.setattr(webbrowser, "open", lambda _: os.kill(os.getpid(), signal.SIGINT) is None)
    for run in (night, log):
        run_server(ReviewConfig(run=run, open=True))
        assert (f"`opdkit review {log}`" in capsys.readouterr().err) == (run == night)
