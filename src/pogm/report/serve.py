"""A page on this machine alone: it can be asked for and read, and there is nothing else to ask for."""

import sys
import threading
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from pogm._system.errors import UsageError
from pogm.report.page import policy

HERE = "127.0.0.1"
PORT = 6007
TRIES = 20  # ports after the first
HEADERS = {
    "Content-Security-Policy": f"{policy(live=True)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Answers with what ``page`` gives, which one request at a time may call."""

    daemon_threads = True

    def __init__(self, page: Callable[[], str], port: int) -> None:
        super().__init__((HERE, port), _Handler)
        self._page, self._turn = page, threading.Lock()

    @property
    def address(self) -> str:
        """Address of the page, for a browser."""
        return f"http://{HERE}:{self.server_port}/"

    def page(self) -> str:
        """The page as it is now."""
        with self._turn:
            return self._page()


def open_server(page: Callable[[], str], port: int | None = None) -> Server:
    """A server at this port; without one, at ours or the next that is free."""
    if port is not None and not 0 <= port <= 65535:
        raise UsageError(f"Expected --port from 0 to 65535; found {port}. Leave it out.")
    ports = range(PORT, PORT + TRIES) if port is None else (port,)
    for number in ports:
        try:
            return Server(page, number)
        except OSError as error:
            why = error.strerror
    taken = f"port {ports[0]}" if port is not None else f"ports {ports[0]} to {ports[-1]}"
    raise UsageError(f"Expected a free port; found {taken} not to be had: {why}. Choose another with --port.")


class _Handler(BaseHTTPRequestHandler):
    """No path of a request touches the file system, and nothing a request says is said again."""

    server: Server
    server_version, sys_version = "pogm", ""
    timeout = 10  # seconds for a request to come

    def do_GET(self) -> None:
        if not self._from_here():  # a name that somebody makes point here, to read what a browser here can
            self._answer(HTTPStatus.FORBIDDEN, "This page is for http://127.0.0.1 and http://localhost.")
        elif urlsplit(self.path).path != "/":
            self._answer(HTTPStatus.NOT_FOUND, "There is only one page here: /")
        else:
            self._answer(*self._page())

    do_HEAD = do_GET  # noqa: N815

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # any other method
            return lambda: self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "This page can only be read.")
        raise AttributeError(name)

    def _from_here(self) -> bool:
        port = self.server.server_port
        names = ("localhost", HERE)
        return self.headers.get("Host") in {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())

    def _page(self) -> tuple[HTTPStatus, str, str]:
        try:
            return HTTPStatus.OK, self.server.page(), "text/html"
        except Exception:  # the next look may find what this one did not
            traceback.print_exc(file=sys.stderr)
            return HTTPStatus.INTERNAL_SERVER_ERROR, "The page could not be made; the terminal says why.", "text/plain"

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Say nothing: a page asks every few seconds."""
