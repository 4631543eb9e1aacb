"""Several processes for the parts of a stage: real processes, real failures."""

import os
import signal
import threading
import time
from functools import partial

import pytest
from worker_jobs import failing, slow, touching

from opdkit.errors import ConfigError, OpdkitError
from opdkit.extract.workers import Workers


def test_every_part_is_done_once_and_all_processes_work(tmp_path):
    with Workers(2, touching) as workers:
        assert sorted(workers.do(tmp_path, range(5))) == list(range(5))
    assert len({path.read_text() for path in tmp_path.iterdir()} - {str(os.getpid())}) == 2


def test_more_processes_than_parts_and_no_part_at_all(tmp_path):
    with Workers(2, touching) as workers:
        assert list(workers.do(tmp_path, [7])) == [7]
    with Workers(1, touching) as workers:
        assert list(workers.do(tmp_path, [])) == []


@pytest.mark.parametrize(("how", "kind", "message"), [
    ("killed", OpdkitError, r"a worker process was killed by signal 9 at part 2.*fewer --workers"),
    ("said", ConfigError, "part 2 is wrong"),
    ("not to be pickled", RuntimeError, "Odd: part 2 is odd"),
])  # fmt: skip
def test_a_failure_is_never_swallowed(tmp_path, how, kind, message):
    """pitfall 26: a worker swallows a write error and reports success."""
    with Workers(1, partial(failing, how)) as workers, pytest.raises(kind, match=message) as caught:
        list(workers.do(tmp_path, range(5)))
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["0", "1"]
    if how == "said":
        assert "in compute" in caught.value.__notes__[0]


def test_who_is_stopped_cleans_up(tmp_path, request):
    """Ctrl-C, or the failure of another process: no half-written file, and no process left."""

    def interrupt() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.01)
        begun.extend(int(path.suffix[1:]) for path in tmp_path.iterdir())
        os.kill(os.getpid(), signal.SIGINT)

    begun: list[int] = []
    # A shell that runs the tests in the background has them ignore Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    watch = threading.Thread(target=interrupt)
    watch.start()
    with pytest.raises(KeyboardInterrupt), Workers(2, slow) as workers:
        list(workers.do(tmp_path, [0, 1]))
    watch.join()
    assert list(tmp_path.iterdir()) == []
    for process in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
