"""Fixtures for the tests of sources."""

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from faulty_server import Handler, Site


@pytest.fixture
def site() -> Iterator[Site]:
    """A local HTTP server with answers that the test chooses."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.site = Site(server.server_address[1])  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server.site  # type: ignore[attr-defined]
    server.shutdown()
    thread.join()
    server.server_close()
