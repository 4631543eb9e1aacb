"""An `opdkit` that starts at once: a server has imported torch and forks one process per command.

    with warm_opdkit() as folder:  # put it first on PATH
        subprocess.run(["opdkit", "teacher", ...])

Importing torch and transformers takes five seconds of a command's six on a small run. The command itself is the real
one, in a process of its own, with the caller's arguments, folder, environment and streams. The client hands these to
the server over a Unix socket and ends with the command's exit code. A client that is killed takes its
command with it: the server kills the command when the connection closes. No other signal is passed on.
"""

import array
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

# Runs without site-packages: 15 ms to start.
_CLIENT = """#!{python} -IS
import array, json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
server.connect({address!r})
call = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
server.sendmsg([len(call).to_bytes(8, "big")], rights)
server.sendall(call)
sys.exit(int(server.recv(16) or b"1"))
"""
_IMPORTED = (
    "opdkit.extract.stage",
    "opdkit.judge.local",
    "opdkit.judge.endpoint",
    "opdkit.teacher.stage",
    "opdkit.train.stage",
    "opdkit.evaluate.stage",
    "opdkit.rollout.stage",
)


@contextlib.contextmanager
def warm_opdkit() -> Iterator[Path]:
    """Yield a folder that holds an `opdkit` command served by a process that has torch imported."""
    with tempfile.TemporaryDirectory(prefix="opdkit-") as name:  # a socket's path has at most 107 characters
        folder = Path(name)
        address = str(folder / "socket")
        client = folder / "opdkit"
        client.write_text(_CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
        client.chmod(0o755)
        with subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            try:
                yield folder
            finally:
                server.terminate()


def _serve(address: str) -> None:
    import importlib

    for module in _IMPORTED:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen()
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:  # one process per call waits for its command and reports the exit code
            code = _run(connection)
            with contextlib.suppress(BrokenPipeError):
                connection.sendall(str(code).encode())
            os._exit(0)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _run(connection: socket.socket) -> int:
    """Fork the command with the caller's streams, folder and environment; return its exit code."""
    streams = array.array("i")
    size, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * streams.itemsize))
    for _level, _kind, data in ancillary:
        streams.frombytes(data)
    call = b""
    while len(call) < int.from_bytes(size, "big"):
        call += connection.recv(1 << 16)
    words, folder, environment = json.loads(call)
    command = os.fork()
    if command == 0:
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = ["opdkit", *words]
        code: object = 1
        try:
            from opdkit.cli import main

            main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)
    ended = os.pidfd_open(command)
    if ended not in select.select([ended, connection], [], [])[0]:  # the client has gone
        os.kill(command, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])


if __name__ == "__main__":
    # From the command line only `tests` is on the path, and the package's own folder is wanted.
    sys.path[0] = str(Path(__file__).parents[1])
    _serve(sys.argv[1])
