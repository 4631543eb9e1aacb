"""A private Slurm for tests on this host: munged, slurmctld and two slurmd with their own key, ports and folders."""

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"  # Debian's folders for daemons, which an ordinary PATH lacks
NODES = ("one", "two")
HANGS = 300.0  # seconds per wait: enough for a busy machine; only prevents waiting for ever
T = TypeVar("T")


def missing() -> str | None:
    """Return why no Slurm can run here, or None if Slurm is installed."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"no Slurm here: {', '.join(absent)} not installed (Debian: slurm-wlm, munge)" if absent else None


class UnavailableError(Exception):
    """Slurm is not installed, or does not start here; the message has the reason, or the end of the logs."""


class Cluster:
    """Private Slurm; a call runs a command against it, with `environment`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        # Jobs inherit it. With the fault handler, `report` can make a job that hangs print its stack.
        own = {"SLURM_CONF": str(home / "slurm.conf"), "PATH": PATH, "PYTHONFAULTHANDLER": "1"}
        self.environment = os.environ | own
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __call__(self, *command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=600, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def states(self) -> dict[str, str]:
        """Return job or array task (7, 8_0) -> its state and reason."""
        lines = self("squeue", "--array", "--states=all", "--noheader", "--format=%i|%T %r").splitlines()
        return dict(line.split("|", 1) for line in lines)

    def report(self, run: Path) -> str:
        """Return what explains a failed wait: jobs, processes of `run`, the jobs' logs, the ends of Slurm's own logs.

        It kills the processes with SIGABRT, so that each prints its stack to its job's log.
        """
        report = [self("squeue", "--states=all"), self("scontrol", "show", "job")]
        processes = [(pid, words) for pid, words in command_lines() if str(run) in " ".join(words)]
        for pid, words in processes:
            report.append(f"{pid}: {' '.join(words)}")
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(pid, signal.SIGABRT)
        time.sleep(2 if processes else 0)
        logs = [(path, 20_000) for path in sorted([*(run / "slurm" / "logs").glob("*"), *run.glob("*.log")])]
        logs += [(path, 4_000) for path in sorted(self.home.glob("*.log"))]
        report += [f"--- {path.name}\n{path.read_text(errors='replace')[-most:]}" for path, most in logs]
        return "\n".join(report)

    def start(self) -> None:
        for folder in ("state", *(f"spool-{node}" for node in NODES)):
            (self.home / folder).mkdir()
        key = self.home / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        (self.home / "slurm.conf").write_text(self._configuration(), encoding="utf-8")
        (self.home / "gres.conf").write_text("Name=gpu File=/dev/null\n", encoding="utf-8")  # to allocate and count
        (self.home / "cgroup.conf").write_text(f"CgroupPlugin={self._cgroup()}\n", encoding="utf-8")
        self._daemon("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.home}/munge.socket",
                     f"--pid-file={self.home}/munged.pid", f"--log-file={self.home}/munged.log",
                     f"--seed-file={self.home}/munged.seed")  # fmt: skip
        self._until(lambda: (self.home / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        self._until(lambda: self._idle() == len(NODES), "slurmctld, slurmd")

    def stop(self) -> None:
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, UnavailableError):
            self("scancel", f"--user={getpass.getuser()}")
            self._until(lambda: not self("squeue", "--noheader").strip(), "squeue", 10)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=10)
            daemon.kill()

    def _configuration(self) -> str:
        host, ports = socket.gethostname().split(".")[0], free_ports(1 + len(NODES))
        user = getpass.getuser()
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={os.cpu_count()} RealMemory=500 "
            "Gres=gpu:1"
            for node, port in zip(NODES, ports[1:], strict=True)
        )
        return f"""\
ClusterName=opdkit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={self.home}/munge.socket,cred_expire=5
StateSaveLocation={self.home}/state
SlurmdSpoolDir={self.home}/spool-%n
SlurmctldPidFile={self.home}/slurmctld.pid
SlurmdPidFile={self.home}/slurmd-%n.pid
SlurmctldLogFile={self.home}/slurmctld.log
SlurmdLogFile={self.home}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
JobRequeue=1
KillWait=5
SchedulerParameters=bf_interval=1,batch_sched_delay=0,sched_interval=2
GresTypes=gpu
{nodes}
PartitionName=main Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""

    def _cgroup(self) -> str:
        version = re.search(r"\d+", subprocess.run(["sbatch", "-V"], capture_output=True, text=True, env=os.environ | {
            "PATH": PATH}, check=False).stdout)  # fmt: skip
        if version and int(version[0]) >= 23:
            return "disabled"
        return "cgroup/v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "cgroup/v1"

    def _daemon(self, *command: str) -> None:
        with (self.home / f"{command[0]}-{len(self._daemons)}.out").open("wb") as out:
            self._daemons.append(subprocess.Popen(command, stdout=out, stderr=out, env=self.environment))

    def _idle(self) -> int:
        done = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, env=self.environment,
                              timeout=600, check=False)  # fmt: skip
        return done.stdout.split().count("idle")

    def _until(self, condition, what: str, seconds: float = 300) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end or any(daemon.poll() is not None for daemon in self._daemons):
                tails = [path.read_text(errors="replace")[-300:] for path in sorted(self.home.glob("*.out"))]
                raise UnavailableError(f"{what} did not start: " + " | ".join(tails))
            time.sleep(0.2)


def until(slurm: Cluster, run: Path, condition: Callable[[], T], what: str) -> T:
    """Wait for the condition; if it never holds, fail with all that is known about the jobs and `run`."""
    end = time.monotonic() + HANGS
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {HANGS} s for: {what}\n{slurm.report(run)}"
        time.sleep(0.2)
    return found


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def command_lines() -> Iterator[tuple[int, list[str]]]:
    """Yield the pid of each process of this host and the words of its command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has just ended
            yield int(path.parent.name), path.read_bytes().decode(errors="replace").split("\0")


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Yield a running Slurm and remove it after the block. Raise UnavailableError with the reason if it cannot run."""
    if reason := missing():
        raise UnavailableError(reason)
    home = Path(tempfile.mkdtemp(prefix="opdkit-slurm-", dir="/tmp"))  # a socket's path must be short
    found = Cluster(home)
    try:
        found.start()
        yield found
    finally:
        found.stop()
        shutil.rmtree(home, ignore_errors=True)
