"""Downloads: whole and checked, or an error that says what each mirror said. Every fault is a real server's."""

import errno
import gzip
import hashlib
import json
import os
import threading
import warnings
from collections import Counter
from pathlib import Path
from urllib.request import Request

import pytest
from faulty_server import in_turn, ranged

from pogm._system import fault_injection
from pogm._system.errors import DataError, IntegrityError, UsageError
from pogm._system.files import locked
from pogm.data.sources import transfer as transfers
from pogm.data.sources.catalogue import PublishedFile, hash_file
from pogm.data.sources.download import UnverifiedWarning, download
from pogm.data.sources.transfer import Redirects, RefusedError

BODY = bytes(range(256)) * 40
HASH = hashlib.sha256(BODY).hexdigest()
SOON = (0.0, 0.0)
PAGE = "https://example.org/data"


def source(*mirrors, sha256=HASH, size=None, **more):
    return PublishedFile("data.bin", mirrors, PAGE, sha256=sha256, size=size, **more)


def get(asked, folder, **more):
    return download(asked, folder, **{"delays": SOON, "timeout": 5.0} | more)


def files(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def failure(asked, folder, **more):
    """What the error says where no mirror works; the file itself must not be there."""
    with pytest.raises(DataError) as caught:
        get(asked, folder, **more)
    assert "data.bin" not in files(folder)
    return str(caught.value)


def test_a_file_arrives_whole_and_alone_and_its_progress_is_told(site, tmp_path):
    told = []
    path = get(source(site.put("/a", ranged(BODY))), tmp_path / "new" / "raw", progress=lambda *now: told.append(now))
    assert path.read_bytes() == BODY
    assert files(path.parent) == ["data.bin"]
    assert told[-1] == (len(BODY), len(BODY))


def test_a_file_that_is_there_and_right_is_not_asked_for_again(site, tmp_path):
    asked = source(site.put("/a", ranged(BODY)))
    get(asked, tmp_path)
    (tmp_path / "lock").unlink()
    get(asked, tmp_path)
    assert len(site.asked) == 1
    assert os.listdir(tmp_path) == ["data.bin"]  # not even a lock: the folder may be one that only others may write


def test_a_file_that_is_there_and_wrong_is_refused_and_left_to_its_owner(site, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"mine")
    with pytest.raises(IntegrityError, match="Move it away") as caught:
        get(source(site.put("/a", ranged(BODY))), tmp_path)
    assert HASH in str(caught.value)
    assert (tmp_path / "data.bin").read_bytes() == b"mine"
    assert site.asked == []


def test_the_second_mirror_is_tried_where_the_first_one_has_no_such_file(site, tmp_path):
    dead = site.put("/dead", lambda request: request.give(b"gone", 404))
    assert get(source(dead, site.put("/a", ranged(BODY))), tmp_path).read_bytes() == BODY
    assert [path for path, _, _ in site.asked] == ["/dead", "/a"]


@pytest.mark.parametrize("status", [500, 503])
def test_a_server_in_trouble_is_asked_again(site, tmp_path, status):
    trouble = in_turn(lambda request: request.give(b"", status), ranged(BODY))
    assert get(source(site.put("/a", trouble)), tmp_path).read_bytes() == BODY


def test_the_delays_between_attempts_are_those_given(site, tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    said = failure(source(site.put("/a", lambda request: request.give(b"", 503))), tmp_path, delays=(1.0, 4.0, 15.0))
    assert slept == [1.0, 4.0, 15.0]
    assert len(site.asked) == 4
    assert "status 503" in said


def test_where_all_mirrors_are_dead_each_is_quoted_and_the_way_by_hand_is_told(site, tmp_path):
    gone = site.put("/gone", lambda request: request.give(b"", 404))
    page = site.put("/page", lambda request: request.give(b"<html>", Content_Type="text/html"))
    said = failure(source(gone, page, "http://127.0.0.1:1/closed"), tmp_path)
    for part in (f"{gone}: status 404", f"{page}: a web page", "/closed: no connection", PAGE, HASH, str(tmp_path)):
        assert part in said
    assert "pogm data fetch" in said
    assert "pogm data prepare" in said
    assert files(tmp_path) == []


def test_a_wrong_hash_is_never_kept_and_not_asked_for_again(site, tmp_path):
    said = failure(source(site.put("/a", ranged(BODY[::-1]))), tmp_path)
    assert hashlib.sha256(BODY[::-1]).hexdigest() in said
    assert HASH in said
    assert len(site.asked) == 1
    assert "data.bin.part" not in files(tmp_path)


@pytest.mark.parametrize(("kind", "start"), [("text/html", b"<!-- hm -->"), ("application/zip", b"\n<!DOCTYPE html>")])
def test_a_web_page_with_status_200_is_not_the_file_whatever_it_says_it_is(site, tmp_path, kind, start):
    page = start + b"<html><head><title>Quota\x1b exceeded</title></head></html>"
    address = site.put("/a", lambda request: request.give(page, Content_Type=kind))
    said = failure(source(address, sha256=None), tmp_path)
    assert "web page instead of the file ('Quota exceeded')" in said
    assert files(tmp_path) == []


def test_a_cut_body_is_gone_on_with_where_it_was_cut(site, tmp_path):
    cut = in_turn(lambda request: request.give(BODY[:1000], claim=len(BODY)), ranged(BODY))
    assert get(source(site.put("/a", cut)), tmp_path).read_bytes() == BODY
    assert [asked for _, asked, _ in site.asked] == [None, "bytes=1000-"]


def test_a_server_that_dies_in_mid_transfer_every_time_is_asked_as_long_as_that_gets_further(site, tmp_path):
    def dying(request):
        start = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        status = 206 if start else 200
        span = {"Content_Range": f"bytes {start}-{len(BODY) - 1}/{len(BODY)}"} if start else {}
        request.give(BODY[start : start + 1000], status, claim=len(BODY) - start, **span)
        request.connection.close()

    assert get(source(site.put("/a", dying)), tmp_path).read_bytes() == BODY
    assert len(site.asked) == -(-len(BODY) // 1000)


def test_what_was_cut_is_kept_for_the_next_time(site, tmp_path):
    address = site.put("/a", lambda request: request.give(BODY[:1000], claim=len(BODY)))
    said = failure(source(address), tmp_path)
    assert f"closed after 1000 of {len(BODY)} bytes" in said
    assert (tmp_path / "data.bin.part").read_bytes() == BODY[:1000]
    site.put("/a", ranged(BODY))
    site.asked.clear()
    assert get(source(address), tmp_path).read_bytes() == BODY
    assert site.asked == [("/a", "bytes=1000-", None)]
    assert files(tmp_path) == ["data.bin"]


def test_a_part_is_finished_from_another_mirror_where_the_hash_is_known(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY[:1000])
    assert get(source(site.put("/b", ranged(BODY))), tmp_path).read_bytes() == BODY
    assert site.asked == [("/b", "bytes=1000-", None)]


def test_a_server_that_ignores_ranges_is_read_from_the_start(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY[:1000])
    assert get(source(site.put("/a", lambda request: request.give(BODY))), tmp_path).read_bytes() == BODY


def test_a_server_that_answers_another_range_is_not_believed(site, tmp_path):
    def wrong(request):
        request.give(BODY[500:], 206, Content_Range=f"bytes 500-{len(BODY) - 1}/{len(BODY)}")

    (tmp_path / "data.bin.part").write_bytes(BODY[:1000])
    assert get(source(site.put("/a", in_turn(wrong, ranged(BODY)))), tmp_path).read_bytes() == BODY
    assert [asked for _, asked, _ in site.asked] == ["bytes=1000-", None]


def test_a_part_that_was_complete_already_is_kept_on_416(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY)
    assert get(source(site.put("/a", ranged(BODY))), tmp_path).read_bytes() == BODY
    assert site.asked == [("/a", f"bytes={len(BODY)}-", None)]


def test_a_part_longer_than_the_file_is_thrown_away_on_416(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(BODY + b"more")
    assert get(source(site.put("/a", ranged(BODY))), tmp_path).read_bytes() == BODY
    assert [asked for _, asked, _ in site.asked] == [f"bytes={len(BODY) + 4}-", None]


def test_a_part_of_other_content_is_fetched_again_in_one_piece(site, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(b"x" * 1000)
    assert get(source(site.put("/a", ranged(BODY))), tmp_path).read_bytes() == BODY
    assert [asked for _, asked, _ in site.asked] == ["bytes=1000-", None]


@pytest.mark.parametrize("honours", [True, False])
def test_a_file_that_changes_between_two_attempts_is_never_mixed(site, tmp_path, honours):
    new = BODY[::-1]

    def ignoring(request):  # a server that goes on with the new file although the tag was the old one's
        start = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        span = {"Content_Range": f"bytes {start}-{len(new) - 1}/{len(new)}"} if start else {}
        request.give(new[start:], 206 if start else 200, ETag='"new"', **span)

    later = ranged(new, '"new"') if honours else ignoring
    cut = in_turn(lambda request: request.give(BODY[:1000], claim=len(BODY), ETag='"old"'), later)
    with pytest.warns(UnverifiedWarning):
        path = get(source(site.put("/a", cut), sha256=None), tmp_path)
    assert path.read_bytes() == new
    assert site.asked[1] == ("/a", "bytes=1000-", '"old"')


@pytest.mark.parametrize("tag", [None, 'W/"weak"'])
def test_without_a_hash_or_a_strong_tag_nothing_is_resumed(site, tmp_path, tag):
    headers = {"ETag": tag} if tag else {}
    cut = in_turn(lambda request: request.give(BODY[:1000], claim=len(BODY), **headers), ranged(BODY))
    with pytest.warns(UnverifiedWarning):
        assert get(source(site.put("/a", cut), sha256=None), tmp_path).read_bytes() == BODY
    assert [asked for _, asked, _ in site.asked] == [None, None]


def test_a_file_of_another_size_is_refused_before_it_is_read(site, tmp_path):
    said = failure(source(site.put("/a", ranged(BODY)), size=len(BODY) + 1), tmp_path)
    assert f"a file of {len(BODY)} bytes, not {len(BODY) + 1}" in said
    assert files(tmp_path) == []


def test_a_server_that_claims_too_little_gives_a_file_of_the_wrong_hash(site, tmp_path):
    said = failure(source(site.put("/a", lambda request: request.give(BODY, claim=1000))), tmp_path)
    assert "SHA-256" in said
    assert "data.bin.part" not in files(tmp_path)


def test_a_body_without_a_length_ends_where_it_should_or_is_refused(site, tmp_path):
    def endless(request):
        request.send_response(200)
        request.end_headers()
        request.wfile.write(BODY * 2)

    said = failure(source(site.put("/a", endless), size=len(BODY)), tmp_path)
    assert f"more than the expected {len(BODY)} bytes" in said
    assert "data.bin.part" not in files(tmp_path)


def test_a_redirection_on_this_machine_is_followed(site, tmp_path):
    site.put("/a", ranged(BODY))
    address = site.put("/old", lambda request: request.give(b"", 302, Location="/a"))
    assert get(source(address), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("elsewhere", ["http://example.org/data.bin", "ftp://example.org/data.bin"])
def test_a_redirection_away_from_https_is_refused_without_connecting(site, tmp_path, monkeypatch, elsewhere):
    connected = []
    connect = __import__("socket").create_connection
    monkeypatch.setattr(
        "socket.create_connection",
        lambda place, *rest, **more: connected.append(place[0]) or connect(place, *rest, **more),
    )
    said = failure(source(site.put("/a", lambda request: request.give(b"", 302, Location=elsewhere))), tmp_path)
    assert f"without https ({elsewhere}), which was not contacted" in said
    assert set(connected) == {"127.0.0.1"}


def test_an_address_without_https_is_refused_without_connecting(tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "build_opener", lambda *_: pytest.fail("connected"))
    for address in ("http://example.org/data.bin", "ftp://example.org/data.bin", "file:///etc/hostname"):
        assert "without https" in failure(source(address), tmp_path)


def test_nobody_else_may_send_us_to_this_machine():
    outside = Request("https://example.org/data.bin")
    with pytest.raises(RefusedError, match="to this machine"):
        Redirects().redirect_request(outside, None, 302, "", {}, "http://127.0.0.1:8000/secret")
    assert Redirects().redirect_request(outside, None, 302, "", {}, "https://example.com/b").host == "example.com"


def test_a_silent_server_is_given_up_on(site, tmp_path):
    done = threading.Event()
    address = site.put("/a", lambda request: done.wait(5) and None)
    said = failure(source(address), tmp_path, timeout=0.1, delays=())
    done.set()
    assert "timed out" in said


def test_a_full_disk_is_an_error_about_data_and_the_part_stays(site, tmp_path, monkeypatch):
    monkeypatch.setattr(transfers, "CHUNK", 1000)
    monkeypatch.setattr(fault_injection, "_passed", Counter())
    monkeypatch.setenv("POGM_FAULT", "full@write:4")  # the first is the note's
    said = failure(source(site.put("/a", ranged(BODY))), tmp_path)
    assert os.strerror(errno.ENOSPC) in said
    assert (tmp_path / "data.bin.part").read_bytes() == BODY[:2000]
    monkeypatch.delenv("POGM_FAULT")
    assert get(source(site.put("/a", ranged(BODY))), tmp_path).read_bytes() == BODY


def test_a_file_without_a_published_hash_is_warned_about_once_and_remembered(site, tmp_path):
    asked = source(site.put("/a", ranged(BODY)), sha256=None)
    with pytest.warns(UnverifiedWarning, match=HASH):
        get(asked, tmp_path)
    assert json.loads((tmp_path / "data.bin.sha256.json").read_text())["sha256"] == HASH
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        get(asked, tmp_path)


def test_another_content_than_the_one_remembered_is_noticed(site, tmp_path):
    asked = source(site.put("/a", ranged(BODY)), sha256=None)
    with pytest.warns(UnverifiedWarning):
        get(asked, tmp_path).unlink()
    site.put("/a", ranged(BODY[::-1]))
    assert "data.bin.sha256.json noted the first time" in failure(asked, tmp_path)
    (tmp_path / "data.bin").write_bytes(BODY[::-1])
    with pytest.raises(IntegrityError, match="noted the first time"):
        get(asked, tmp_path)


def test_a_file_put_there_by_hand_is_remembered_too(tmp_path):
    (tmp_path / "data.bin").write_bytes(BODY)
    with pytest.warns(UnverifiedWarning, match=HASH):
        get(source("https://example.org/data.bin", sha256=None), tmp_path)


def test_the_hash_of_the_unpacked_content_accepts_any_packing_and_nothing_else(site, tmp_path):
    for level in (1, 9):
        asked = source(site.put("/a", ranged(gzip.compress(BODY, level))), unpacked=True)
        get(asked, tmp_path).unlink()
    other = source(site.put("/a", ranged(gzip.compress(BODY[:-1]))), unpacked=True)
    assert "SHA-256" in failure(other, tmp_path)
    assert "no gzip file" in failure(source(site.put("/a", ranged(BODY)), unpacked=True), tmp_path)


def test_a_cut_gzip_file_has_no_hash(tmp_path):
    path = Path(tmp_path / "cut.gz")
    path.write_bytes(gzip.compress(BODY)[:-9])
    assert hash_file(path, unpacked=True) == ""


def test_two_downloads_into_one_folder_do_not_meet(tmp_path):
    with locked(tmp_path), pytest.raises(UsageError, match="in use"):
        get(source("https://example.org/data.bin"), tmp_path)
