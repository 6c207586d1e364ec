"""The socket and the web server."""

import socket
import time
import urllib.request

import pytest

from patchreorder.playground import server


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_addresses(host):
    assert server.is_loopback(host)


@pytest.mark.parametrize("host", ["192.168.0.1", "::", "0.0.0.0", "example.org"])
def test_addresses_that_other_machines_can_reach(host):
    assert not server.is_loopback(host)


def test_responses_are_sent_without_delay():
    with server.listen("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY only then


@pytest.mark.parametrize(("host", "name"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "localhost"), ("::1", "[::1]")])
def test_the_address_of_the_page(host, name):
    with server.listen("127.0.0.1", 0) as listening:
        port = listening.getsockname()[1]
        assert server.address_of(listening, host) == f"http://{name}:{port}/"


def test_slow_and_silent_clients_do_not_delay_others(address):
    port = int(address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as silent, socket.create_connection(("127.0.0.1", port)) as slow:
        silent.sendall(b"POST /api/answer HTTP/1.1\r\nhost: localhost\r\n")
        slow.sendall(
            b"POST /api/photos HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 100_000
        )
        time.sleep(0.1)
        with urllib.request.urlopen(f"{address}/api/about", timeout=10) as answer:
            assert answer.status == 200
