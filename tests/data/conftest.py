"""Fixtures of the tests of data."""

import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from patchreorder.data.folders import list_images
from patchreorder.data.generated import write_photos
from patchreorder.data.shard_writer import write


@pytest.fixture
def empty_cache(tmp_path, monkeypatch) -> Path:
    """The folder of an empty cache, without a mirror or a proxy."""
    monkeypatch.setenv("PATCHREORDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("PATCHREORDER_MIRROR", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def server():
    """A web server on this machine; fill its `pages` with path -> content or (status, headers)."""
    pages, asked, received = {}, [], []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            received.append(self.headers)
            page = pages.get(self.path, (404, {}))
            status, headers = (200, {}) if isinstance(page, bytes) else page
            self.send_response(status)
            for item in headers.items():
                self.send_header(*item)
            self.end_headers()
            if isinstance(page, bytes):
                self.wfile.write(page)

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as web:
        threading.Thread(target=web.serve_forever, args=[0.01], daemon=True).start()
        web.pages, web.asked, web.headers = pages, asked, received
        web.url = f"http://127.0.0.1:{web.server_port}"
        yield web
        web.shutdown()


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Four class folders of seven images; do not change them."""
    return write_photos(tmp_path_factory.mktemp("photos"), classes=4, images=7, size=(24, 16))


@pytest.fixture(scope="module")
def sharded(photos, tmp_path_factory) -> Path:
    """The same images in six shards of five, the last of three; do not change them."""
    return write(list_images(photos), tmp_path_factory.mktemp("sharded") / "out", size=5).folder


@pytest.fixture
def sharded_copy(sharded, tmp_path) -> Path:
    return shutil.copytree(sharded, tmp_path / "copy")
