"""Tests of the worker processes that compute the parts of a stage, with real processes and real failures."""

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import worker_jobs
from worker_jobs import dawdle, fail, meet, prepare, touch

from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.workers import Workers


def test_every_part_is_done_once_and_all_processes_work(tmp_path):
    with Workers(2, prepare) as workers:
        assert sorted(workers.compute(partial(meet, tmp_path), range(5))) == list(range(5))
    assert len({path.read_text() for path in tmp_path.iterdir()} - {str(os.getpid())}) == 2


def test_more_processes_than_parts_and_no_part_at_all(tmp_path):
    with Workers(2, prepare) as workers:
        assert list(workers.compute(partial(touch, tmp_path), [7])) == [7]
    with Workers(1, prepare) as workers:
        assert list(workers.compute(partial(touch, tmp_path), [])) == []


@pytest.mark.parametrize(("how", "kind", "message"), [
    ("killed", OpdkitError, r"a worker process was killed by signal 9 at part 2.*fewer --workers"),
    ("said", ConfigError, "part 2 is wrong"),
    ("not to be pickled", RuntimeError, "Odd: part 2 is odd"),
])  # fmt: skip
def test_a_failure_is_never_swallowed(tmp_path, how, kind, message):
    """A worker's error reaches the caller, and no part after the failed part is computed."""
    with Workers(1, prepare) as workers, pytest.raises(kind, match=message) as caught:
        list(workers.compute(partial(fail, tmp_path, how), range(5)))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0", "1"]
    if how == "said":
        assert "in fail" in str(caught.value.__cause__)  # the traceback in the worker


@pytest.mark.parametrize("as_file", [True, False])
def test_a_script_without_a_main_guard_reads_what_to_do(tmp_path, as_file):
    """The processes run the script again; from a heredoc, they do not find it."""
    text = ("from worker_jobs import prepare\nfrom opdkit.extract.workers import Workers\n"
            "with Workers(1, prepare) as workers:\n    list(workers.compute(abs, [0]))\n")  # fmt: skip
    (tmp_path / "script.py").write_text(text)
    paths = os.pathsep.join([*sys.path, str(Path(worker_jobs.__file__).parent)])
    words = [sys.executable, tmp_path / "script.py" if as_file else "-"]
    done = subprocess.run(words, input=text, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert "__main__" in done.stderr.splitlines()[-1]


def test_who_is_stopped_cleans_up(tmp_path, request):
    """Ctrl-C leaves no half-written file and no process."""

    def interrupt() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        begun.extend(int(path.suffix[1:]) for path in tmp_path.iterdir())
        os.kill(os.getpid(), signal.SIGINT)

    begun: list[int] = []
    # A shell that runs the tests in the background makes them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    watch = threading.Thread(target=interrupt)
    watch.start()
    with pytest.raises(KeyboardInterrupt), Workers(2, prepare) as workers:
        list(workers.compute(partial(dawdle, tmp_path), [0, 1]))
    watch.join()
    assert list(tmp_path.iterdir()) == []
    for process in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


ORPHANING = """
import sys
from functools import partial
from pathlib import Path
from worker_jobs import dawdle, prepare
from opdkit.extract.workers import Workers
if __name__ == "__main__":
    with Workers(2, prepare) as workers:
        list(workers.compute(partial(dawdle, Path(sys.argv[1])), [0]))
"""


def test_no_process_outlives_the_first_one(tmp_path):
    """If the first process is killed, both the worker that computes and the worker that waits end."""
    (tmp_path / "script.py").write_text(ORPHANING)
    work = tmp_path / "work"
    work.mkdir()
    path = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(__file__).parents[2])])
    first = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", work], env=os.environ | {"PYTHONPATH": path}, start_new_session=True
    )
    while not list(work.iterdir()):
        time.sleep(0.01)
    first.kill()
    first.wait()
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        try:
            os.killpg(first.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        os.killpg(first.pid, signal.SIGKILL)
        pytest.fail("a worker process is still there")
    assert not list(work.iterdir())
