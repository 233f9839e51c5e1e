"""A server on this machine that lies, cuts, redirects and dies as a test tells it to."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler


class Answering(BaseHTTPRequestHandler):
    """Hands every request to what the test put at its path, and notes what was asked."""

    def do_GET(self) -> None:
        site: Site = self.server.site  # type: ignore[attr-defined]
        site.asked.append((self.path, self.headers.get("Range"), self.headers.get("If-Range")))
        site.answers[self.path](self)

    def give(self, body: bytes, status: int = 200, *, claim: int | None = None, **headers: str) -> None:
        """Send a body; ``claim`` is the length to claim instead of its own."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if claim is None else claim))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Site:
    """What the server answers at each path, and what it was asked."""

    def __init__(self, port: int):
        self.root = f"http://127.0.0.1:{port}"
        self.answers: dict[str, Callable[[Answering], None]] = {}
        self.asked: list[tuple[str, str | None, str | None]] = []

    def put(self, path: str, answer: Callable[[Answering], None]) -> str:
        self.answers[path] = answer
        return self.root + path


def ranged(body: bytes, tag: str | None = None) -> Callable[[Answering], None]:
    """An honest answer, which serves ranges, and honours If-Range where it has a tag."""

    def answer(request: Answering) -> None:
        extra = {"ETag": tag} if tag else {}
        wanted, condition = request.headers.get("Range"), request.headers.get("If-Range")
        if wanted is None or condition not in (None, tag):
            return request.give(body, **extra)
        start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start >= len(body):
            return request.give(b"", 416, Content_Range=f"bytes */{len(body)}")
        return request.give(body[start:], 206, Content_Range=f"bytes {start}-{len(body) - 1}/{len(body)}", **extra)

    return answer


def in_turn(*answers: Callable[[Answering], None]) -> Callable[[Answering], None]:
    """The first answer to the first request, and so on; the last one from then on."""
    left = list(answers)
    return lambda request: (left.pop(0) if len(left) > 1 else left[0])(request)
