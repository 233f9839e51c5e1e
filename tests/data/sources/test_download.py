"""Test downloads from a local server with all kinds of faults."""

import dataclasses
import errno
import gzip
import hashlib
import os
import threading
from collections import Counter
from pathlib import Path
from urllib.request import Request

import pytest
from faulty_server import answer_in_turn, serve_ranges

from pogm._system import fault_injection
from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm._system.files import lock_folder
from pogm.data.sources import transfer as transfers
from pogm.data.sources.catalogue import PublishedFile, hash_file
from pogm.data.sources.download import UnverifiedWarning, download
from pogm.data.sources.transfer import Redirects, RefusedError

BODY = bytes(range(256)) * 40
HASH = hashlib.sha256(BODY).hexdigest()
NO_DELAYS = (0.0, 0.0)
PAGE = "https://example.org/data"


def make_file(*mirrors, sha256=HASH, size=None, **more):
    return PublishedFile("data.bin", mirrors, PAGE, sha256=sha256, size=size, **more)


def get(file, folder, **more):
    return download(file, folder, **{"delays": NO_DELAYS, "timeout": 5.0} | more)


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def get_error(file, folder, **more):
    """Return the message of the error; the file must not exist afterwards."""
    with pytest.raises(DataError) as caught:
        get(file, folder, **more)
    assert "data.bin" not in files(folder)
    return str(caught.value)


def test_download_is_complete_and_reports_progress(site, tmp_path):
    reported = []
    path = get(
        make_file(site.put("/a", serve_ranges(BODY))),
        tmp_path / "new" / "raw",
        progress=lambda *now: reported.append(now),
    )
    assert path.read_bytes() == BODY
    assert files(path.parent) == ["data.bin"]
    assert reported[-1] == (len(BODY), len(BODY))


def test_existing_valid_file_is_not_downloaded_again(site, tmp_path):
    file = make_file(site.put("/a", serve_ranges(BODY)))
    get(file, tmp_path)
    (tmp_path / "lock").unlink()
    get(file, tmp_path)
    assert len(site.requests) == 1
    assert os.listdir(tmp_path) == ["data.bin"]  # no lock either: the folder may be read-only


def test_existing_wrong_file_is_refused_and_not_deleted(site, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"mine")
    with pytest.raises(IntegrityError, match="Move it away") as caught:
        get(make_file(site.put("/a", serve_ranges(BODY))), tmp_path)
    assert HASH in str(caught.value)
    assert (tmp_path / "data.bin").read_bytes() == b"mine"
    assert site.requests == []


def test_second_mirror_is_tried_after_404(site, tmp_path):
    dead = site.put("/dead", lambda request: request.give(b"gone", 404))
    assert get(make_file(dead, site.put("/a", serve_ranges(BODY))), tmp_path).read_bytes() == BODY
    assert [path for path, _, _ in site.requests] == ["/dead", "/a"]


@pytest.mark.parametrize("status", [500, 503])
def test_server_error_is_retried(site, tmp_path, status):
    trouble = answer_in_turn(lambda request: request.give(b"", status), serve_ranges(BODY))
    assert get(make_file(site.put("/a", trouble)), tmp_path).read_bytes() == BODY


def test_delays_between_attempts(site, tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    message = get_error(
        make_file(site.put("/a", lambda request: request.give(b"", 503))), tmp_path, delays=(1.0, 4.0, 15.0)
    )
    assert slept == [1.0, 4.0, 15.0]
    assert len(site.requests) == 4
    assert "status 503" in message


def test_error_quotes_all_mirrors_and_explains_manual_download(site, tmp_path):
    gone = site.put("/gone", lambda request: request.give(b"", 404))
    page = site.put("/page", lambda request: request.give(b"<html>", Content_Type="text/html"))
    message = get_error(make_file(gone, page, "http://127.0.0.1:1/closed"), tmp_path)
    for part in (f"{gone}: status 404", f"{page}: a web page", "/closed: no connection", PAGE, HASH, str(tmp_path)):
        assert part in message
    assert "pogm data fetch" in message
    assert "pogm data prepare" in message
    assert files(tmp_path) == []


def test_wrong_hash_is_not_kept_and_not_retried(site, tmp_path):
    message = get_error(make_file(site.put("/a", serve_ranges(BODY[::-1]))), tmp_path)
    assert hashlib.sha256(BODY[::-1]).hexdigest() in message
    assert HASH in message
    assert len(site.requests) == 1
    assert "data.bin.part" not in files(tmp_path)


@pytest.mark.parametrize(("kind", "start"), [("text/html", b"<!-- hm -->"), ("application/zip", b"\n<!DOCTYPE html>")])
def test_web_page_instead_of_file_is_refused(site, tmp_path, kind, start):
    page = start + b"<html><head><title>Quota\x1b exceeded</title></head></html>"
    address = site.put("/a", lambda request: request.give(page, Content_Type=kind))
    message = get_error(make_file(address, sha256=None), tmp_path)
    assert "web page instead of the file ('Quota exceeded')" in message
    assert files(tmp_path) == []


def test_interrupted_download_is_resumed(site, tmp_path):
    cut = answer_in_turn(lambda request: request.give(BODY[:1000], claim=len(BODY)), serve_ranges(BODY))
    assert get(make_file(site.put("/a", cut)), tmp_path).read_bytes() == BODY
    assert [requested for _, requested, _ in site.requests] == [None, "bytes=1000-"]


def test_interrupted_attempts_are_repeated_while_they_make_progress(site, tmp_path):
    def close_early(request):
        start = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        status = 206 if start else 200
        span = {"Content_Range": f"bytes {start}-{len(BODY) - 1}/{len(BODY)}"} if start else {}
        request.give(BODY[start : start + 1000], status, claim=len(BODY) - start, **span)
        request.connection.close()

    assert get(make_file(site.put("/a", close_early)), tmp_path).read_bytes() == BODY
    assert len(site.requests) == -(-len(BODY) // 1000)


def test_partial_file_is_kept_for_next_call(site, tmp_path):
    address = site.put("/a", lambda request: request.give(BODY[:1000], claim=len(BODY)))
    message = get_error(make_file(address), tmp_path)
    assert f"closed after 1000 of {len(BODY)} bytes" in message
    assert (tmp_path / "data.bin.part").read_bytes() == BODY[:1000]
    site.put("/a", serve_ranges(BODY))
    site.requests.clear()
    assert get(make_file(address), tmp_path).read_bytes() == BODY
    assert site.requests == [("/a", "bytes=1000-", None)]
    assert files(tmp_path) == ["data.bin"]


def test_partial_file_is_completed_from_another_mirror_if_hash_is_known(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY[:1000])
    assert get(make_file(site.put("/b", serve_ranges(BODY))), tmp_path).read_bytes() == BODY
    assert site.requests == [("/b", "bytes=1000-", None)]


def test_server_without_ranges_is_read_from_start(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY[:1000])
    assert get(make_file(site.put("/a", lambda request: request.give(BODY))), tmp_path).read_bytes() == BODY


def test_wrong_range_is_refused(site, tmp_path):
    def wrong_range(request):
        request.give(BODY[500:], 206, Content_Range=f"bytes 500-{len(BODY) - 1}/{len(BODY)}")

    (tmp_path / "data.bin.part").write_bytes(BODY[:1000])
    assert (
        get(make_file(site.put("/a", answer_in_turn(wrong_range, serve_ranges(BODY)))), tmp_path).read_bytes() == BODY
    )
    assert [requested for _, requested, _ in site.requests] == ["bytes=1000-", None]


def test_complete_partial_file_is_kept_on_416(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY)
    assert get(make_file(site.put("/a", serve_ranges(BODY))), tmp_path).read_bytes() == BODY
    assert site.requests == [("/a", f"bytes={len(BODY)}-", None)]


def test_too_long_partial_file_is_deleted_on_416(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY + b"more")
    assert get(make_file(site.put("/a", serve_ranges(BODY))), tmp_path).read_bytes() == BODY
    assert [requested for _, requested, _ in site.requests] == [f"bytes={len(BODY) + 4}-", None]


def test_partial_file_of_other_content_is_downloaded_again(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    assert get(make_file(site.put("/a", serve_ranges(BODY))), tmp_path).read_bytes() == BODY
    assert [requested for _, requested, _ in site.requests] == ["bytes=1000-", None]


@pytest.mark.parametrize("honours", [True, False])
def test_file_changed_between_attempts_is_not_mixed(site, tmp_path, honours):
    new = BODY[::-1]

    def ignore_tag(request):  # a server that ignores If-Range and continues with the new file
        start = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        span = {"Content_Range": f"bytes {start}-{len(new) - 1}/{len(new)}"} if start else {}
        request.give(new[start:], 206 if start else 200, ETag='"new"', **span)

    later = serve_ranges(new, '"new"') if honours else ignore_tag
    cut = answer_in_turn(lambda request: request.give(BODY[:1000], claim=len(BODY), ETag='"old"'), later)
    with pytest.warns(UnverifiedWarning):
        path = get(make_file(site.put("/a", cut), sha256=None), tmp_path)
    assert path.read_bytes() == new
    assert site.requests[1] == ("/a", "bytes=1000-", '"old"')


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_no_resume_without_hash_or_strong_tag(site, tmp_path, tag):
    headers = {"ETag": tag} if tag else {}
    cut = answer_in_turn(lambda request: request.give(BODY[:1000], claim=len(BODY), **headers), serve_ranges(BODY))
    with pytest.warns(UnverifiedWarning):
        assert get(make_file(site.put("/a", cut), sha256=None), tmp_path).read_bytes() == BODY
    assert [requested for _, requested, _ in site.requests] == [None, None]


def test_wrong_size_is_refused_before_reading(site, tmp_path):
    message = get_error(make_file(site.put("/a", serve_ranges(BODY)), size=len(BODY) + 1), tmp_path)
    assert f"a file of {len(BODY)} bytes, not {len(BODY) + 1}" in message
    assert files(tmp_path) == []


def test_too_short_content_length_gives_wrong_hash(site, tmp_path):
    message = get_error(make_file(site.put("/a", lambda request: request.give(BODY, claim=1000))), tmp_path)
    assert "SHA-256" in message
    assert "data.bin.part" not in files(tmp_path)


def test_too_long_body_without_length_is_refused(site, tmp_path):
    def send_too_much(request):
        request.send_response(200)
        request.end_headers()
        request.wfile.write(BODY * 2)

    message = get_error(make_file(site.put("/a", send_too_much), size=len(BODY)), tmp_path)
    assert f"more than the expected {len(BODY)} bytes" in message
    assert "data.bin.part" not in files(tmp_path)


def test_local_redirection_is_followed(site, tmp_path):
    site.put("/a", serve_ranges(BODY))
    address = site.put("/old", lambda request: request.give(b"", 302, Location="/a"))
    assert get(make_file(address), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("elsewhere", ["http://example.org/data.bin", "ftp://example.org/data.bin"])
def test_redirection_to_insecure_address_is_refused_without_connecting(site, tmp_path, monkeypatch, elsewhere):
    connected = []
    connect = __import__("socket").create_connection
    monkeypatch.setattr(
        "socket.create_connection",
        lambda address, *rest, **more: connected.append(address[0]) or connect(address, *rest, **more),
    )
    message = get_error(make_file(site.put("/a", lambda request: request.give(b"", 302, Location=elsewhere))), tmp_path)
    assert f"without https ({elsewhere}), which was not contacted" in message
    assert set(connected) == {"127.0.0.1"}


def test_insecure_address_is_refused_without_connecting(tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "build_opener", lambda *_: pytest.fail("connected"))
    for address in ("http://example.org/data.bin", "ftp://example.org/data.bin", "file:///etc/hostname"):
        assert "without https" in get_error(make_file(address), tmp_path)


def test_remote_redirection_to_this_machine_is_refused():
    outside = Request("https://example.org/data.bin")
    with pytest.raises(RefusedError, match="to this machine"):
        Redirects().redirect_request(outside, None, 302, "", {}, "http://127.0.0.1:8000/secret")
    assert Redirects().redirect_request(outside, None, 302, "", {}, "https://example.com/b").host == "example.com"


def test_silent_server_times_out(site, tmp_path):
    done = threading.Event()
    address = site.put("/a", lambda request: done.wait(5) and None)
    message = get_error(make_file(address), tmp_path, timeout=0.1, delays=())
    done.set()
    assert "timed out" in message


def test_full_disk_raises_data_error_and_keeps_partial_file(site, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "CHUNK", 1000)
    monkeypatch.setattr(fault_injection, "_passed", Counter())
    monkeypatch.setenv("POGM_FAULT", "full@write:4")  # the first write is that of the note
    message = get_error(make_file(site.put("/a", serve_ranges(BODY))), tmp_path)
    assert os.strerror(errno.ENOSPC) in message
    assert (tmp_path / "data.bin.part").read_bytes() == BODY[:2000]
    monkeypatch.delenv("POGM_FAULT")
    assert get(make_file(site.put("/a", serve_ranges(BODY))), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_link_in_place_of_partial_file_is_refused_and_its_target_unchanged(site, tmp_path, link):
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    folder = tmp_path / "downloads"
    folder.mkdir()
    link(precious, folder / "data.bin.part")
    with pytest.raises(IntegrityError, match=r"Expected a regular file at .*data\.bin\.part; found a .* link"):
        get(make_file(site.put("/a", serve_ranges(BODY))), folder)
    assert precious.read_bytes() == b"precious"


def test_hash_that_was_not_published_is_shown_and_not_stored(site, tmp_path):
    file = make_file(site.put("/a", serve_ranges(BODY)), sha256=None)
    for _ in range(2):  # downloaded, then found in the folder
        with pytest.warns(UnverifiedWarning, match=HASH):
            get(file, tmp_path)
        assert files(tmp_path) == ["data.bin"]
    (tmp_path / "data.bin").write_bytes(BODY[::-1])  # the first content may have been the wrong one
    with pytest.warns(UnverifiedWarning, match=hashlib.sha256(BODY[::-1]).hexdigest()):
        get(file, tmp_path)


REFUSED = {
    "status 204": lambda request: request.give(b"", 204),
    "status 206": lambda request: request.give(BODY[:100], 206, Content_Range="bytes 0-99/100"),  # not asked for
    "an empty answer": lambda request: request.give(b""),
    "a web page": lambda request: request.give(b"<!-- x --><?xml?><html>", Content_Type="application/zip"),
    "does not begin like an archive": lambda request: request.give(b"Quota exceeded", Content_Type="application/zip"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_answer_that_is_not_the_file_is_refused_and_next_mirror_is_tried(site, tmp_path, reason):
    body = b"PK" + BODY
    wrong, right = site.put("/wrong", REFUSED[reason]), site.put("/right", serve_ranges(body))
    file = PublishedFile("data.zip", (wrong, right), PAGE)
    with pytest.warns(UnverifiedWarning):
        assert get(file, tmp_path).read_bytes() == body
    assert [path for path, _, _ in site.requests] == ["/wrong", "/right"], "without another attempt"
    (tmp_path / "data.zip").unlink()
    with pytest.raises(DataError, match=reason):
        get(dataclasses.replace(file, mirrors=(wrong,)), tmp_path)
    assert not {"data.zip", "data.zip.part"} & set(files(tmp_path))


@pytest.mark.parametrize(
    "location",
    ["http://[", "https://", "https:///x", f"https://{'a' * 64}.org/", "https://127.0.0.1:99999/", "https://h:x/"],
)
def test_malformed_redirection_is_refused_and_next_mirror_is_tried(site, tmp_path, location):
    wrong = site.put("/wrong", lambda request: request.give(b"", 302, Location=location))
    assert get(make_file(wrong, site.put("/a", serve_ranges(BODY))), tmp_path).read_bytes() == BODY
    assert [path for path, _, _ in site.requests] == ["/wrong", "/a"], "without another attempt"


@pytest.mark.parametrize("header", ["Content_Length", "Content_Range"])
def test_absurd_numbers_in_headers_are_ignored(site, tmp_path, header):
    def answer(request):
        request.send_response(200)
        request.send_header(header.replace("_", "-"), "9" * 5000)
        request.end_headers()
        request.wfile.write(BODY)

    assert get(make_file(site.put("/a", answer)), tmp_path).read_bytes() == BODY


def test_endless_answer_is_refused(site, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "MOST_BYTES", 1000)
    assert "more than the expected 1000 bytes" in get_error(make_file(site.put("/a", serve_ranges(BODY))), tmp_path)


def test_hash_of_unpacked_content_accepts_any_compression(site, tmp_path):
    for level in (1, 9):
        file = make_file(site.put("/a", serve_ranges(gzip.compress(BODY, level))), unpacked=True)
        get(file, tmp_path).unlink()
    other = make_file(site.put("/a", serve_ranges(gzip.compress(BODY[:-1]))), unpacked=True)
    assert "SHA-256" in get_error(other, tmp_path)
    assert "no gzip file" in get_error(make_file(site.put("/a", serve_ranges(BODY)), unpacked=True), tmp_path)


def test_truncated_gzip_file_has_no_hash(tmp_path):
    path = Path(tmp_path / "cut.gz")
    path.write_bytes(gzip.compress(BODY)[:-9])
    assert hash_file(path, unpacked=True) == ""


def test_concurrent_downloads_into_one_folder_are_refused(tmp_path):
    with lock_folder(tmp_path), pytest.raises(UsageError, match="in use"):
        get(make_file("https://example.org/data.bin"), tmp_path)
