"""Local HTTP server that gives wrong, truncated or redirected answers, as a test requires."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler


class Handler(BaseHTTPRequestHandler):
    """Request handler that calls the answer function of the path and records the request."""

    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        site.requests.append((self.path, self.headers.get("Range"), self.headers.get("If-Range")))
        site.answers[self.path](self)

    def give(self, body: bytes, status: int = 200, *, claim: int | None = None, **headers: str) -> None:
        """Send a body; `claim` replaces its length in the header."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if claim is None else claim))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class Site:
    """Answer functions by path, and the requests so far."""

    def __init__(self, port: int):
        self.root = f"http://127.0.0.1:{port}"
        self.answers: dict[str, Callable[[Handler], None]] = {}
        self.requests: list[tuple[str, str | None, str | None]] = []

    def put(self, path: str, answer: Callable[[Handler], None]) -> str:
        self.answers[path] = answer
        return self.root + path


def serve_ranges(body: bytes, tag: str | None = None) -> Callable[[Handler], None]:
    """Return a correct answer that supports ranges, and If-Range if there is a tag."""

    def answer(request: Handler) -> None:
        extra = {"ETag": tag} if tag else {}
        wanted, condition = request.headers.get("Range"), request.headers.get("If-Range")
        if wanted is None or condition not in (None, tag):
            return request.give(body, **extra)
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            return request.give(b"", 416, Content_Range=f"bytes */{len(body)}")
        return request.give(body[start:], 206, Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}", **extra)

    return answer


def answer_in_turn(*answers: Callable[[Handler], None]) -> Callable[[Handler], None]:
    """Return an answer that uses the given answers one after the other, then always the last one."""
    left = list(answers)
    return lambda request: (left.pop(0) if len(left) > 1 else left[0])(request)
