"""A PostgreSQL server of its own for tests, from PyPI's `pgserver`: started, killed and restarted."""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PASSWORD = "s3cr%t word"
ENCODED = "s3cr%25t%20word"


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


class Server:
    """A server process on a port of this machine. It asks for a password; its user is postgres."""

    def __init__(self, folder: Path, **settings: str) -> None:
        pytest.importorskip("psycopg")
        self.programs = Path(pytest.importorskip("pgserver").__file__).parent / "pginstall/bin"
        self.folder, self.data, self.port, self.process = folder, folder / "data", free_port(), None
        self.settings = settings
        self.user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses root
        if self.user:
            os.chown(folder, pwd.getpwnam(self.user).pw_uid, pwd.getpwnam(self.user).pw_gid)
        (folder / "password").write_text(PASSWORD)
        (folder / "password").chmod(0o644)
        self._do(
            "initdb", "-D", self.data, "-U", "postgres", "-A", "scram-sha-256", "--pwfile", folder / "password", "-N"
        )
        self.start()

    def _do(self, program, *given):
        command = [str(self.programs / program), *map(str, given)]
        done = subprocess.run(command, user=self.user, cwd=self.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    @property
    def url(self) -> str:
        """With the password."""
        return f"postgresql://postgres:{ENCODED}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "shared_buffers": "32MB",
            "max_wal_size": "64MB",
            "dynamic_shared_memory_type": "mmap",
            **self.settings,
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.data, *options],
                user=self.user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        import psycopg

        for _ in range(300):
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self.url, connect_timeout=2).close()
                return
            assert self.process.poll() is None, (self.folder / "log").read_text()
            time.sleep(0.1)
        raise AssertionError((self.folder / "log").read_text())

    def kill(self) -> None:
        """As a power failure: all its processes at once, without a shutdown."""
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True).stdout.split()
        for pid in (self.process.pid, *map(int, found)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # a fast shutdown
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def execute(self, *commands: str) -> list:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            found = [connection.execute(command) for command in commands]
            return found[-1].fetchall() if found[-1].description else []


@contextlib.contextmanager
def running_server(**settings: str):
    """A server, stopped at the end; in a folder of its own, which its user can read."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o755)
    try:
        server = Server(folder, **settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
