"""Tests of answers that are kept as they come: a killed process loses none, and no other plan reads them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from chaos_server import MODEL, SESSIONS, USAGE, VOTES, text_of
from http_server import Reply, completion, serving, unused_address
from runs import snapshot, write_extract

from opdkit.config.judge import JudgeConfig
from opdkit.errors import OpdkitError
from opdkit.judge.kept_answers import KeptAnswers
from opdkit.judge.stage import run
from opdkit.judge.votes import Answer, Question, Usage, VoteRequest
from opdkit.store.plans import manifest
from opdkit.store.reading import part_path, read_all
from opdkit.store.stopping import Stopped, listen_for_signals

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def extracted(tmp_path: Path) -> Path:
    return write_extract(tmp_path / "run", SESSIONS, per_part=12)


def config(path: Path, url: str, **options) -> JudgeConfig:
    defaults = {"judge_model": MODEL, "all_votes": True, "retries": 1, "timeout": 5.0, "concurrency": 4, "shard": "0/1"}
    return JudgeConfig(run=path, judge="endpoint", judge_url=url, **(defaults | options))


def said(body: dict) -> Reply:
    reply = completion(text_of(body))
    return Reply(body=reply.body | {"model": body["model"], "usage": USAGE})


def kept_file(path: Path) -> Path:
    return path / "judge" / ".tmp" / "verdicts-00000.answers"


def seeds_in(file: Path) -> list[int]:
    """Return the seeds of the answers in a file, except those in torn lines."""
    return [json.loads(line)[3] for line in file.read_bytes().split(b"\n") if line.endswith(b"]")]


def interrupt(path: Path, answers: int, **options) -> int:
    """Judge with a server that gives this number of `answers`, and only errors after them.

    Return how many answers were kept: those under way when the command ended are lost.
    """
    with (
        serving(lambda body, number: said(body) if number < answers else Reply(500, "")) as server,
        pytest.raises(OpdkitError, match="500"),
    ):
        run(config(path, server.url, **options))
    return len(seeds_in(kept_file(path))) if kept_file(path).exists() else 0


def judge_rest(path: Path, **options) -> list[int]:
    """Judge what is left; return the seeds of the requests, which name turn, question and vote."""
    with serving(lambda body, number: said(body)) as server:
        run(config(path, server.url, **options))
    return [body["seed"] for body in server.requests]


@pytest.mark.slow
def test_killed_processes_lose_no_answered_vote(extracted: Path, tmp_path: Path) -> None:
    """The command is killed at the 60th, 130th and 239th request; no answer that was kept is asked for again."""
    calm = write_extract(tmp_path / "calm", SESSIONS, per_part=12)
    judge_rest(calm)
    asked, lock, kept = Counter[int](), threading.Lock(), list[int]()
    kill_at = [60, 130, 239]
    running: list[subprocess.Popen] = []

    def script(body: dict, number: int) -> Reply:
        with lock:
            asked[body["seed"]] += 1
            if kill_at and number + 1 >= kill_at[0]:
                kill_at.pop(0)
                os.kill(running[-1].pid, signal.SIGKILL)
        return said(body)

    with serving(script) as server:
        command = [sys.executable, "-m", "opdkit", "judge", str(extracted), "--judge", "endpoint", "--judge-model",
                   MODEL, "--judge-url", server.url, "--concurrency", "4", "--all-votes"]  # fmt: skip
        for kill in range(4):
            before = asked.copy()
            running.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
            errors = running[-1].communicate(timeout=120)[1]
            assert not any(asked[seed] > before[seed] for seed in kept)
            if kill < 3:
                assert running[-1].returncode == -signal.SIGKILL, errors
                answered, kept = len(kept), seeds_in(kept_file(extracted))
                assert len(kept) > answered
                assert len(set(kept)) == len(kept) >= asked.total() - 4 * (kill + 1)  # those under way are lost
    assert running[-1].returncode == 0, errors
    assert len(asked) == VOTES
    assert asked.total() <= VOTES + 3 * 4
    assert list(read_all(extracted, "verdicts")) == list(read_all(calm, "verdicts"))
    assert not list((extracted / "judge" / ".tmp").iterdir())


def test_a_part_that_takes_longer_than_a_job_may_is_judged_in_several_jobs(extracted: Path) -> None:
    """If a scheduler stops the command within a part, the answers are kept, and the next job asks only for the rest."""

    def script(body: dict, number: int) -> Reply:
        if number == 60:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
        return said(body)

    with serving(script) as server, pytest.raises(Stopped), listen_for_signals():
        run(config(extracted, server.url))
    kept = len(seeds_in(kept_file(extracted)))
    assert kept > 0
    assert len(judge_rest(extracted)) == VOTES - kept


def test_the_tokens_that_the_server_counts_are_summed_whoever_asked(extracted: Path) -> None:
    kept = interrupt(extracted, 100)
    assert 96 <= kept <= 100, "four at once"
    assert len(judge_rest(extracted)) == VOTES - kept
    counted = {"prompt tokens": 100 * VOTES, "cached prompt tokens": 60 * VOTES, "completion tokens": 7 * VOTES}
    assert manifest(extracted, "judge")["usage"] == counted
    with serving(lambda body, number: said(body)) as server:
        before = snapshot(extracted / "judge/manifest.json")
        summary = run(config(extracted, server.url))
    assert {name: summary.counters.total(name) for name in counted} == counted
    assert snapshot(extracted / "judge/manifest.json") == before
    assert "24,000 prompt tokens" in summary.details()


def test_of_several_shards_the_last_one_records_the_tokens(tmp_path: Path) -> None:
    """A shard that sums the parts before the others end, but writes after them, would record too small a sum."""
    path = write_extract(tmp_path / "run", SESSIONS, per_part=6)
    assert 0 < len(judge_rest(path, shard="0/2")) < VOTES
    assert "usage" not in manifest(path, "judge")
    judge_rest(path, shard="1/2")
    assert manifest(path, "judge")["usage"]["prompt tokens"] == 100 * VOTES


def test_the_dry_run_leaves_out_what_was_answered(extracted: Path, capsys) -> None:
    kept, before = interrupt(extracted, 100), snapshot(extracted)
    run(config(extracted, unused_address(), dry_run=True))
    shown = " ".join(capsys.readouterr().out.split())
    assert f"requests {VOTES - kept}" in shown
    assert f"given before, and kept {kept}" in shown
    assert snapshot(extracted) == before


def test_a_torn_line_is_asked_for_again_and_harms_no_other(extracted: Path) -> None:
    interrupt(extracted, 50)
    file = kept_file(extracted)
    torn = seeds_in(file)[-1]
    file.write_bytes(file.read_bytes()[:-9])
    count = interrupt(extracted, 50)  # appends to the torn file
    known = set(seeds_in(file))
    assert 90 <= count == len(known)
    asked = judge_rest(extracted)
    assert len(asked) == VOTES - count
    assert not set(asked) & known
    assert torn in known | set(asked)


@pytest.mark.parametrize("options", [{"seed": 1}, {"judge_model": "another"}, {"temperature": 0.5}, {}], ids=str)
def test_another_plan_never_reads_them(options: dict, extracted: Path, tmp_path: Path) -> None:
    """Nor does the same plan if it is started again with --overwrite: its server may be another."""
    interrupt(extracted, 50)
    shutil.copy(kept_file(extracted), tmp_path / "answers")
    interrupt(extracted, 1, overwrite=True, **options)  # the trial question
    kept_file(extracted).parent.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "answers", kept_file(extracted))
    with serving(lambda body, number: Reply(body=completion(text_of(body)).body)) as server:
        run(config(extracted, server.url, **options))
    assert len(server.requests) == VOTES


def test_the_trial_question_is_one_request(extracted: Path) -> None:
    assert len(judge_rest(extracted, overwrite=True)) == VOTES + 1


def test_errors_are_not_answers(extracted: Path) -> None:
    """A prompt that did not fit is asked about again, as the next server may have a larger context."""
    too_long = Reply(400, {"error": {"message": "the prompt is longer than the context length"}})

    def script(body: dict, number: int) -> Reply:
        return Reply(500, "") if number >= 60 else too_long if "number 1" in str(body["messages"]) else said(body)

    with serving(script) as server, pytest.raises(OpdkitError, match="500"):
        run(config(extracted, server.url))
    assert 0 < len(seeds_in(kept_file(extracted))) < 60
    judge_rest(extracted)
    votes = [vote for row in read_all(extracted, "verdicts") for vote in row["reward_votes"]]
    assert {vote["error"] for vote in votes} == {None}


def test_a_file_of_a_part_that_is_done_is_removed(extracted: Path) -> None:
    """A process that is killed between the commit of a part and the removal leaves such a file."""
    interrupt(extracted, 50)
    left = kept_file(extracted).read_bytes()
    judge_rest(extracted)
    kept_file(extracted).write_bytes(left)
    written = part_path(extracted, "verdicts", 0).read_bytes()
    assert judge_rest(extracted) == []
    assert not kept_file(extracted).exists()
    assert part_path(extracted, "verdicts", 0).read_bytes() == written


def test_an_answer_is_read_as_it_was_written(tmp_path: Path) -> None:
    request = VoteRequest(Question("s:1", "hint", []), 7)
    for answer in (Answer("a\n\u2028\U0001f600 b", "stop"), Answer("", None, confidence=0.1, usage=Usage(3, 2, 1))):
        kept = KeptAnswers(tmp_path / f"file{answer.text[:1]}", "plan")
        kept.add(request, answer)
        os.close(kept.file)
        assert KeptAnswers(kept.path, "plan").find(request) == answer
        for other in (VoteRequest(Question("s:2", "hint", []), 7), VoteRequest(Question("s:1", "reward", []), 7),
                      VoteRequest(request.question, 8)):  # fmt: skip
            assert KeptAnswers(kept.path, "plan").find(other) is None
        assert KeptAnswers(kept.path, "another").find(request) is None


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": "9"}, {"prompt_tokens": -1, "completion_tokens": 2},
                                   {"prompt_tokens": True, "completion_tokens": 2}], ids=str)  # fmt: skip
def test_a_usage_that_makes_no_sense_is_no_usage(usage: object, extracted: Path) -> None:
    reply = completion(r"\boxed{1}")
    with serving(lambda body, number: Reply(body=reply.body | {"usage": usage})) as server:
        summary = run(config(extracted, server.url, votes=1))
    assert summary.counters.total("prompt tokens") == 0
    assert "usage" not in manifest(extracted, "judge")
