"""`patchreorder play`: addresses, warnings and errors."""

import socket
import sys

import pytest

from patchreorder.__main__ import main
from patchreorder.playground import app, server


def test_another_address_needs_a_flag(capsys, monkeypatch):
    monkeypatch.setattr(server, "listen", lambda host, port: pytest.fail("it listens"))
    assert main(["play", "--host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err == (
        "patchreorder: host (0.0.0.0) would let other machines in: add --expose if you want that\n"
    )
    assert main(["play", "--port", "65536"]) == 2
    assert "port (65536) must be from 0 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_command_prints_the_address_and_warns(capsys, monkeypatch, host):
    pytest.importorskip("fastapi")
    monkeypatch.setenv("COLUMNS", "300")
    listen, ports, settings = server.listen, [], {}

    def serve(playground, listening):
        ports.append(listening.getsockname()[1])
        listening.close()

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setattr(server, "open_browser", lambda address: pytest.fail("it opens a browser"))
    monkeypatch.setattr(app, "create_app", lambda **given: settings.update(given))
    monkeypatch.setattr(server, "listen", lambda host, port: listen("127.0.0.1", port))  # never exposed by a test
    exposed = host == "0.0.0.0"
    assert main(["play", "--port", "0", "--no-browser", "--host", host, *(["--expose"] if exposed else [])]) == 0
    printed = capsys.readouterr().out
    assert f"http://{'localhost' if exposed else host}:{ports[0]}/" in printed
    assert ("Warning" in printed) == exposed == settings["any_address"]


def test_a_taken_port_is_named(capsys):
    pytest.importorskip("fastapi")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["play", "--port", str(port)]) == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in capsys.readouterr().err


def test_a_missing_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["play"]) == 2
    assert capsys.readouterr().err == (
        "patchreorder: the playground needs fastapi and uvicorn: pip install 'patchreorder[play]'\n"
    )
