"""One attempt to get one file over https, which goes on where the last one was cut."""

import http.client
import re
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from pogm._system.errors import UsageError
from pogm._system.fault_injection import fault_point
from pogm._system.files import read_json, readable_json, write_whole

Progress = Callable[[int, int | None], None]  # bytes there so far, bytes in all where the server says so

CHUNK = 1 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")
PASSING = (408, 425, 429, 500, 502, 503, 504)  # statuses that another attempt may not meet
PAGE = re.compile(rb"\s*(<!doctype html|<html)", re.IGNORECASE)
TITLE = re.compile(rb"<title[^>]*>([^<]{1,100})", re.IGNORECASE)


class RefusedError(Exception):
    """This mirror does not have the file; asking again would not help."""


class InterruptedTransferError(Exception):
    """The transfer failed in a way that may pass."""


def transfer(
    address: str, part: Path, *, size: int | None, trusting: bool, progress: Progress | None, timeout: float
) -> bool:
    """Fetch an address into a file, after what the file holds already; whether it went on from there.

    ``trusting``: what the file holds may come from anywhere, since its hash is known and will be checked. Otherwise it
    is only added to where the server vouches, by an entity tag, that it still has the same content.
    """
    refuse_insecure(address)
    note = part.with_name(part.name + ".json")
    tag = _tag_of(note, address)
    have = part.stat().st_size if part.exists() and (trusting or tag) else 0
    headers = {"User-Agent": "pogm", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag:
            headers["If-Range"] = tag
    try:
        response = _open(Request(address, headers=headers), timeout)
    except _RangeError as error:
        if error.total == have:
            return True  # there was nothing left to send
        part.unlink()
        raise InterruptedTransferError(f"no byte {have} in its file, which has changed") from error

    with response:
        given = response.headers
        start = have if response.status == 206 else 0
        total = _total(given, start)
        changed = tag and given.get("ETag") not in (tag, None)
        if start and (changed or not (given.get("Content-Range") or "").startswith(f"bytes {have}-")):
            part.unlink()
            raise InterruptedTransferError("another range than was asked for")
        if size is not None and total is not None and total != size:
            raise RefusedError(f"a file of {total} bytes, not {size}")

        chunks = _chunks(response)
        first = next(chunks, b"")
        if not start and (PAGE.match(first) or given.get_content_type() == "text/html"):
            raise RefusedError(f"a web page instead of the file{_title(first)}")
        with open(part, "ab" if start else "wb") as file:
            # Only now: a note that outlives a crash must not vouch for what an older answer left in the part.
            write_whole(note, readable_json({"address": address, "tag": _strong(given.get("ETag"))}))
            done = start
            while first:
                fault_point("write")
                file.write(first)
                done += len(first)
                if size is not None and done > size:
                    break
                if progress:
                    progress(done, total)
                first = next(chunks, b"")
    if size is not None and done > size:
        part.unlink()
        raise RefusedError(f"more than the {size} bytes expected")
    wanted = size if total is None else total
    if wanted is not None and done < wanted:
        raise InterruptedTransferError(f"the connection cut after {done} of {wanted} bytes")
    return start > 0


def refuse_insecure(address: str) -> None:
    """Refuse whatever is not https; this machine itself may be asked over http."""
    scheme = urlsplit(address).scheme
    if scheme != "https" and not (scheme == "http" and _is_loopback(address)):
        raise RefusedError(f"an address without https ({address}), which was not contacted")


class Redirects(HTTPRedirectHandler):
    """Follows redirections to https only, and to this machine only from this machine."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """The next request, if it may be made."""
        refuse_insecure(newurl)
        if _is_loopback(newurl) and not _is_loopback(req.full_url):
            raise RefusedError(f"a redirection to this machine ({newurl}), which was not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


class _RangeError(Exception):
    """The server has nothing at or after the byte asked for; how much it has, where it says so."""

    def __init__(self, total: int | None):
        super().__init__()
        self.total = total


def _open(request: Request, timeout: float) -> Any:
    around = [ProxyHandler({})] if _is_loopback(request.full_url) else []
    try:
        return build_opener(Redirects, *around).open(request, timeout=timeout)
    except HTTPError as error:
        with error:
            if error.code == 416:
                raise _RangeError(_number(r"bytes \*/(\d+)$", error.headers.get("Content-Range"))) from error
            kind = InterruptedTransferError if error.code in PASSING else RefusedError
            raise kind(f"status {error.code} ({error.reason})") from error
    except URLError as error:
        kind = RefusedError if isinstance(error.reason, ssl.SSLCertVerificationError) else InterruptedTransferError
        raise kind(f"no connection ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise InterruptedTransferError(f"no answer ({_words(error)})") from error


def _chunks(response: Any) -> Iterator[bytes]:
    """The body in pieces. Errors of the network become ours here, so that those of the disk remain themselves."""
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise InterruptedTransferError(f"the connection cut ({_words(error)})") from error
        if not chunk:
            return
        yield chunk


def _total(headers: Message, start: int) -> int | None:
    if start:
        return _number(r"bytes \d+-\d+/(\d+)$", headers.get("Content-Range"))
    return _number(r"(\d+)$", headers.get("Content-Length"))


def _number(pattern: str, text: str | None) -> int | None:
    found = re.match(pattern, text or "")
    return int(found[1]) if found else None


def _tag_of(note: Path, address: str) -> str | None:
    """The entity tag under which this address gave what is there so far."""
    with suppress(OSError, UsageError):
        known = read_json(note)
        if isinstance(known, dict) and known.get("address") == address:
            return _strong(known.get("tag"))
    return None


def _strong(tag: Any) -> str | None:
    """A tag that promises the same bytes; a weak one (W/...) promises only the same meaning."""
    return tag if isinstance(tag, str) and tag.startswith('"') else None


def _is_loopback(address: str) -> bool:
    return urlsplit(address).hostname in LOOPBACK


def _title(page: bytes) -> str:
    found = TITLE.search(page)
    text = found[1].decode(errors="replace") if found else ""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f" ({words!r})" if words else ""


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
