"""Tests of what a scheduler's signals do to a command, with a real process and real signals."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from runs import talk, write_extract

from opdkit.config.judge import JudgeConfig
from opdkit.errors import OpdkitError
from opdkit.store import stopping
from opdkit.store.part_writer import Stage
from opdkit.store.tables import VERDICTS

WORKER = """
import signal
import sys
import typer
from opdkit.store import stopping
from opdkit.cli import errors_as_exit_codes
from opdkit.store.stopping import raise_if_requested, count_finished, listen_for_signals

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it

def work():
    with listen_for_signals():
        for part in range(3):
            raise_if_requested()
            print("begin", part, flush=True)
            sys.stdin.readline()
            print("end", part, flush=True)
            count_finished()

try:
    with errors_as_exit_codes(debug=False, command="judge"):
        work()
except typer.Exit as end:
    sys.exit(end.exit_code)
"""


class Worker:
    """Process that computes three parts; each part ends when the test calls `go_on`."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)  # fmt: skip

    def reads(self, line: str) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == f"{line}\n"

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> tuple[str, str]:
        out, errors = self.process.communicate(timeout=600)
        return out, errors


def test_usr1_ends_after_the_part_under_way() -> None:
    worker = Worker()
    worker.reads("begin 0")
    worker.go_on()
    worker.reads("end 0")
    worker.reads("begin 1")
    worker.process.send_signal(signal.SIGUSR1)
    worker.go_on()
    worker.reads("end 1")
    out, errors = worker.end()
    assert (out, worker.process.returncode) == ("", stopping.TRY_AGAIN), errors
    assert "finished parts are kept" in errors


def test_ctrl_c_drops_the_part_under_way_with_its_own_exit_code() -> None:
    worker = Worker()
    worker.reads("begin 0")
    worker.process.send_signal(signal.SIGINT)
    out, errors = worker.end()
    assert (out, worker.process.returncode) == ("", 130), errors


def test_term_drops_the_part_under_way() -> None:
    worker = Worker()
    worker.reads("begin 0")
    worker.process.send_signal(signal.SIGTERM)
    out, errors = worker.end()
    assert (out, worker.process.returncode) == ("", stopping.TRY_AGAIN), errors


def test_out_of_time_before_the_first_part_is_an_error() -> None:
    """Otherwise a scheduler would start the command again forever."""
    worker = Worker()
    worker.reads("begin 0")
    worker.process.send_signal(signal.SIGUSR1)
    worker.process.send_signal(signal.SIGTERM)
    out, errors = worker.end()
    assert (out, worker.process.returncode) == ("", 1)
    assert "give it more time" in errors


def stop_after(parts: int) -> None:
    """Act as a stage that is asked to stop after it has finished `parts` parts."""
    with stopping.listen_for_signals():
        for _ in range(parts):
            stopping.count_finished()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert stopping.is_requested()
        stopping.raise_if_requested()


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_in_steps_both_signals_only_ask(number: signal.Signals) -> None:
    """A process must not leave a step in which other processes take part, however many signals it gets."""
    with stopping.listen_for_signals(), stopping.stop_after_step():
        for _ in range(2):
            os.kill(os.getpid(), number)
        assert stopping.is_requested()


def test_no_step_done_is_an_error_too() -> None:
    def train() -> None:
        with stopping.listen_for_signals(), stopping.stop_after_step():
            os.kill(os.getpid(), signal.SIGTERM)
            stopping.raise_if_requested()

    with pytest.raises(OpdkitError, match=r"one step was finished.*--batch-turns"):
        train()


def test_a_part_that_others_write_too_is_begun_all_the_same(tmp_path) -> None:
    """The processes of a group stop together; a process that stopped alone would leave the others waiting."""
    write_extract(tmp_path / "run", {"s": talk("do it", "done", "thanks")})
    config = JudgeConfig(run=tmp_path / "run", judge="rules", shard="0/1")
    stage = Stage.open(config, "judge", [VERDICTS], parts=1, upstream=["extract"])
    with stopping.listen_for_signals():
        os.kill(os.getpid(), signal.SIGUSR1)
        with stage.writing(0, may_stop=False):
            pass
        assert stage.is_done(0)
        with pytest.raises(stopping.Stopped), stage.writing(0):
            pytest.fail("it was asked to stop")


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Handle Ctrl-C as Python does, since the shell that runs the tests may have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, stopping.Stopped)])
@pytest.mark.usefixtures("ctrl_c")
def test_a_swallowed_signal_is_raised_again(number: int, kind: type[BaseException], is_last: bool) -> None:
    """pyarrow swallows such a signal while it imports pandas."""

    def work() -> None:
        with stopping.listen_for_signals():
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), number)
            if not is_last:
                stopping.is_requested()
                pytest.fail("it was asked to stop")

    with pytest.raises(KeyboardInterrupt) as raised:
        work()
    assert raised.type is kind
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not stopping.is_requested()


@pytest.mark.usefixtures("ctrl_c")
def test_an_ignored_ctrl_c_stays_ignored() -> None:
    """nohup relies on this."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stopping.listen_for_signals():
        os.kill(os.getpid(), signal.SIGINT)


def test_the_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)
    with pytest.raises(stopping.Stopped):
        stop_after(parts=1)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)) == before
    stopping.raise_if_requested()  # one request stops once


def test_another_thread_listens_to_nothing() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with stopping.listen_for_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]


def test_a_forked_worker_leaves_it_to_its_parent() -> None:
    with stopping.listen_for_signals():
        child = os.fork()
        if not child:
            os.kill(os.getpid(), signal.SIGUSR1)  # a child does not listen to this signal
            if not stopping.is_requested():
                os.kill(os.getpid(), signal.SIGTERM)
            os._exit(3)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGTERM


def test_no_progress_is_said_as_an_error_of_the_run() -> None:
    with pytest.raises(OpdkitError, match="part-mb"):
        stop_after(parts=0)
