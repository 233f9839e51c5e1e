"""An HTTP server for one page. It listens on this machine only and answers only GET and HEAD."""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pogm._system.errors import UsageError
from pogm._system.unexpected import report_unexpected
from pogm.report.page import policy

LOOPBACK = "127.0.0.1"
PORT = 6007
TRIES = 20  # number of ports that are tried
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server(ThreadingHTTPServer):
    """Server that answers with the result of ``page``, which is called by one request at a time."""

    daemon_threads = True

    def __init__(self, page: Callable[[], str], port: int) -> None:
        rules = f"{policy(live=True)}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        super().__init__((LOOPBACK, port), _Handler)
        self.headers = {"Content-Security-Policy": rules, **HEADERS}
        self._page, self._lock = page, threading.Lock()
        self._reported = ""  # the last error of the page

    @property
    def address(self) -> str:
        """Address of the page, for a browser."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def page(self) -> str:
        """Return the current page. An error is printed once: a browser asks every few seconds."""
        with self._lock:
            try:
                return self._page()
            except Exception as error:
                if repr(error) != self._reported:
                    self._reported = repr(error)
                    report_unexpected(error, "the page of the board")
                raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a client that sends garbage or closes its connection is not a problem of the board."""


def open_server(page: Callable[[], str], port: int | None = None) -> Server:
    """Return a server at a port; without a port, at 6007 or the next free one.

    Raises:
        UsageError: If the port is not valid or not free.
        MissingPackageError: If a package that pages need is not installed.
    """
    if port is not None and not 0 <= port <= 65535:
        raise UsageError(f"Expected --port from 0 to 65535; found {port}. Leave it out.")
    ports = range(PORT, PORT + TRIES) if port is None else (port,)
    for number in ports:
        try:
            return Server(page, number)
        except OSError as error:
            reason = error.strerror
    taken = f"port {ports[0]}" if port is not None else f"ports {ports[0]} to {ports[-1]}"
    raise UsageError(f"Expected a free port; found that {taken} cannot be used: {reason}. Choose another with --port.")


class _Handler(BaseHTTPRequestHandler):
    """Handler of requests. It does not open files, and answers do not repeat any text of a request."""

    server: Server
    server_version, sys_version = "pogm", ""
    timeout = 10  # seconds to receive a request

    def do_GET(self) -> None:
        if not self._is_local():  # another name that resolves to this address (DNS rebinding)
            self._answer(HTTPStatus.FORBIDDEN, "This page is served only as http://127.0.0.1 and http://localhost.")
        elif self.path.partition("?")[0] != "/":
            self._answer(HTTPStatus.NOT_FOUND, "There is only one page: /")
        else:
            self._answer(*self._page())

    do_HEAD = do_GET  # noqa: N815

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # any other method
            return lambda: self._answer(HTTPStatus.METHOD_NOT_ALLOWED, "This page can only be read.")
        raise AttributeError(name)

    def _is_local(self) -> bool:
        port = self.server.server_port
        names = ("localhost", LOOPBACK)
        return self.headers.get("Host") in {f"{name}:{port}" for name in names} | (set(names) if port == 80 else set())

    def _page(self) -> tuple[HTTPStatus, str, str]:
        try:
            return HTTPStatus.OK, self.server.page(), "text/html"
        except Exception:  # the next request may succeed
            return (
                HTTPStatus.INTERNAL_SERVER_ERROR,
                "The page could not be rendered; the terminal shows the error.",
                "text/plain",
            )

    def _answer(self, status: HTTPStatus, text: str, kind: str = "text/plain") -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be parsed, without its text."""
        self._answer(HTTPStatus(code), "This request is not valid.")

    def log_message(self, *_: Any) -> None:
        """Do not log: a page sends a request every few seconds."""
