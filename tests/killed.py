"""A process that is killed at one exact point: when it calls a function, or right after the call."""

import os
import signal
from collections.abc import Callable
from typing import Any


def killed(
    work: Callable[[], Any], owner: Any, name: str, *, when: Callable[..., bool] = lambda *_: True, after: bool = False
) -> None:
    """Run `work` in a forked process until it calls `owner.name` with arguments for which `when` holds.

    SIGKILL ends the process there (`after`: once the call has returned), so nothing is cleaned up. A fork can inherit
    a lock that another thread holds and hang: it is then ended after 90 s and started again, three tries in all.
    """
    for _ in range(3):
        code = _run_killed(work, owner, name, when, after)
        if code != -signal.SIGALRM:
            break
    assert code == -signal.SIGKILL, f"{name} was not called"


def _run_killed(work: Callable[[], Any], owner: Any, name: str, when: Callable[..., bool], after: bool) -> int:
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(90)
        original = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            if after or not when(*args):
                result = original(*args, **options)
            if when(*args):
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(owner, name, call)
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
