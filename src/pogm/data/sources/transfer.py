"""One attempt to download a file over https, which resumes an interrupted attempt."""

import http.client
import re
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from email.message import Message
from itertools import chain
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from pogm._system.errors import UsageError, shorten
from pogm._system.fault_injection import fault_point
from pogm._system.files import open_own_file, read_json, readable_json, write_atomic

ByteProgress = Callable[[int, int | None], None]  # called with the bytes so far, and in total if it is known

CHUNK = 1 << 20
LOOPBACK = ("127.0.0.1", "::1", "localhost")
TEMPORARY_STATUSES = (408, 425, 429, 500, 502, 503, 504)  # another attempt may succeed
PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*(<[?!][^>]*>\s*)*(<!doctype html|<html|<head|<body)", re.IGNORECASE)
MOST_BYTES = 200 << 30  # of a file without a published size
TITLE = re.compile(rb"<title[^>]*>([^<]{1,100})", re.IGNORECASE)


class RefusedError(Exception):
    """This mirror does not have the file; another attempt would not help."""


class InterruptedTransferError(Exception):
    """The transfer failed, but another attempt may succeed."""


def transfer(
    address: str, part: Path, *, size: int | None, trust_part: bool, progress: ByteProgress | None, timeout: float
) -> bool:
    """Download an address into a file, and resume if the file has content already.

    Args:
        address: Address of the file.
        part: Path of the partial file.
        size: Expected size in bytes, if it is known.
        trust_part: Resume from any content of `part`, because the hash is known and will be verified. Otherwise resume
            only if the server confirms by an entity tag that its file is the same.
        progress: Called at the start of the attempt, and after every chunk.
        timeout: Seconds without a byte.

    Returns:
        True if the download was resumed.

    Raises:
        RefusedError: If this mirror cannot give the file.
        InterruptedTransferError: If another attempt may succeed.
        IntegrityError: If a link or something else is in place of the partial file.
    """
    refuse_insecure(address)
    note = part.with_name(part.name + ".json")
    tag = _read_tag(note, address)
    have = part.stat().st_size if part.exists() and (trust_part or tag) else 0
    headers = {"User-Agent": "pogm", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
        if tag:
            headers["If-Range"] = tag
    try:
        response = _open(Request(address, headers=headers), timeout)
    except _RangeError as error:
        if error.total == have:
            return True  # the file was complete already
        part.unlink()
        raise InterruptedTransferError(f"no byte {have} in its file, which has changed") from error

    with response:
        start, total = _read_start(response, part, have, tag)
        if size is not None and total is not None and total != size:
            raise RefusedError(f"a file of {total} bytes, not {size}")
        most = MOST_BYTES if size is None else size
        chunks = _read_chunks(response)
        first = next(chunks, b"")
        if not first and not total:
            raise RefusedError("an empty answer")
        if not start and (PAGE.match(first) or response.headers.get_content_type() == "text/html"):
            raise RefusedError(f"a web page instead of the file{_read_title(first)}")
        wanted = size if total is None else total
        with open(part, "ab" if start else "wb", opener=open_own_file) as file:
            # Written only now: after a crash, the note must not describe content of an older response.
            etag = _strong_tag(response.headers.get("ETag"))
            write_atomic(note, readable_json({"address": address, "tag": etag}))
            body = chain([first] if first else [], chunks)
            done = _write_chunks(body, file, start, most, lambda count: progress(count, wanted) if progress else None)
    if done > most:
        part.unlink()
        raise RefusedError(f"more than the expected {most} bytes")
    if wanted is not None and done < wanted:
        raise InterruptedTransferError(f"the connection was closed after {done} of {wanted} bytes")
    return start > 0


def _read_start(response: Any, part: Path, have: int, tag: str | None) -> tuple[int, int | None]:
    """Return the position in the file at which the answer begins, and the size of the file if it is known.

    Args:
        response: The answer.
        part: The partial file, which is deleted if the answer belongs to another one.
        have: Size of the partial file.
        tag: Entity tag of the partial file, if it is known.
    """
    if response.status not in ((200, 206) if have else (200,)):
        raise RefusedError(f"status {response.status} ({response.reason})")
    given = response.headers
    start = have if response.status == 206 else 0
    changed = tag and given.get("ETag") not in (tag, None)
    if start and (changed or not (given.get("Content-Range") or "").startswith(f"bytes {have}-")):
        part.unlink()
        raise InterruptedTransferError("another range than requested")
    return start, _read_total(given, start)


def _write_chunks(
    chunks: Iterable[bytes], file: IO[bytes], start: int, most: int, progress: Callable[[int], None]
) -> int:
    """Write chunks until the file has more than ``most`` bytes; return its size, which begins with ``start``."""
    done = start
    progress(done)  # an attempt begins
    for chunk in chunks:
        fault_point("write")
        file.write(chunk)
        done += len(chunk)
        if done > most:
            break
        progress(done)
    return done


def refuse_insecure(address: str) -> None:
    """Raise a `RefusedError` for an address without https; http is allowed for this machine."""
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(address)):
        raise RefusedError(f"an address without https ({address}), which was not contacted")
    if not parts.hostname or parts.port == 0:  # an invalid port raises a ValueError
        raise RefusedError(f"an address without a host or a port ({shorten(address)})")


class Redirects(HTTPRedirectHandler):
    """Handler that follows redirections to https only, and to this machine only from this machine."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> Request | None:
        """Return the next request, if it is allowed."""
        refuse_insecure(newurl)
        if _is_loopback(newurl) and not _is_loopback(req.full_url):
            raise RefusedError(f"a redirection to this machine ({newurl}), which was not followed")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


class _RangeError(Exception):
    """The requested range is beyond the end of the file; `total` is its size, if the server states it."""

    def __init__(self, total: int | None):
        super().__init__()
        self.total = total


def _open(request: Request, timeout: float) -> Any:
    no_proxy = [ProxyHandler({})] if _is_loopback(request.full_url) else []
    try:
        return build_opener(Redirects, *no_proxy).open(request, timeout=timeout)
    except HTTPError as error:
        with error:
            if error.code == 416:
                raise _RangeError(_parse_int(r"bytes \*/(\d{1,18})$", error.headers.get("Content-Range"))) from error
            kind = InterruptedTransferError if error.code in TEMPORARY_STATUSES else RefusedError
            raise kind(f"status {error.code} ({error.reason})") from error
    except URLError as error:
        kind = RefusedError if isinstance(error.reason, ssl.SSLCertVerificationError) else InterruptedTransferError
        raise kind(f"no connection ({error.reason})") from error
    except (ValueError, OverflowError, http.client.InvalidURL) as error:  # of an address or a header that is malformed
        raise RefusedError(f"a malformed redirection or answer ({_describe(error)})") from error
    except (OSError, http.client.HTTPException) as error:
        raise InterruptedTransferError(f"no answer ({_describe(error)})") from error


def _read_chunks(response: Any) -> Iterator[bytes]:
    """Yield the body in chunks. Network errors are converted here, so that disk errors can be told apart."""
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise InterruptedTransferError(f"the connection was closed ({_describe(error)})") from error
        if not chunk:
            return
        yield chunk


def _read_total(headers: Message, start: int) -> int | None:
    if start:
        return _parse_int(r"bytes \d+-\d+/(\d{1,18})$", headers.get("Content-Range"))
    return _parse_int(r"(\d{1,18})$", headers.get("Content-Length"))


def _parse_int(pattern: str, text: str | None) -> int | None:
    found = re.match(pattern, text or "")
    return int(found[1]) if found else None


def _read_tag(note: Path, address: str) -> str | None:
    """Return the entity tag that belongs to the partial content from this address."""
    with suppress(OSError, UsageError):
        known = read_json(note)
        if isinstance(known, dict) and known.get("address") == address:
            return _strong_tag(known.get("tag"))
    return None


def _strong_tag(tag: Any) -> str | None:
    """Return a strong entity tag; None for a weak one (W/...), which does not guarantee the same bytes."""
    return tag if isinstance(tag, str) and tag.startswith('"') else None


def _is_loopback(address: str) -> bool:
    return urlsplit(address).hostname in LOOPBACK


def _read_title(page: bytes) -> str:
    found = TITLE.search(page)
    text = found[1].decode(errors="replace") if found else ""
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return f" ({words!r})" if words else ""


def _describe(error: Exception) -> str:
    return str(error) or type(error).__name__
