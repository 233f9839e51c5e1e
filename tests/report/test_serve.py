"""The server of the board over real HTTP: the page, the headers, and every request that it must refuse."""

import http.client
import socket
import struct
import tempfile
import threading
from contextlib import suppress

import pytest

from pogm._system.errors import UsageError
from pogm.report.serve import LOOPBACK, open_server

PAGE = "<!doctype html><p>θ</p>"


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """Start servers of the page that a function returns. Tracebacks are saved to the folder of the test."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    servers = []

    def start(page=lambda: PAGE):
        server = open_server(page, 0)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def ask(server, method="GET", path="/", **headers):
    """Return the answer to a request, and its text."""
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer, text


def test_the_page_has_security_headers(serve):
    answer, text = ask(serve())
    assert (answer.status, text) == (200, PAGE)
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    rules = answer.getheader("Content-Security-Policy")
    assert "default-src 'none'" in rules
    assert "connect-src 'self'" in rules
    assert "frame-ancestors 'none'" in rules
    assert "'unsafe-inline'" not in rules.partition("script-src")[2].partition(";")[0]
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    assert answer.getheader("Cache-Control") == "no-store"
    assert "Python" not in answer.getheader("Server")


def test_head_has_the_same_headers_and_no_body(serve):
    answer, text = ask(serve(), "HEAD")
    assert (answer.status, text, answer.getheader("Content-Length")) == (200, "", str(len(PAGE.encode())))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW"])
def test_other_methods_are_refused(serve, method):
    answer, text = ask(serve(), method)
    assert (answer.status, answer.getheader("Allow")) == (405, "GET, HEAD")
    assert PAGE not in text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "localhost", "127.0.0.1:1", "", None, "[::1]:{port}"]
)
def test_other_host_names_are_refused(serve, host):
    server = serve()
    answer, text = ask(server, Host=host and host.format(port=server.server_port))
    assert answer.status == 403
    assert PAGE not in text


def test_localhost_and_loopback_address_are_accepted(serve):
    server = serve()
    for name in ("localhost", LOOPBACK):
        assert ask(server, Host=f"{name}:{server.server_port}")[0].status == 200


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/records.jsonl",
        "/<script>",
        "/index.html",
        "http://[",
    ],
)
def test_other_paths_are_not_found_and_not_repeated(serve, path):
    server = serve()
    answer, text = ask(server, path=path, Host=f"localhost:{server.server_port}")
    assert (answer.status, text) == (404, "There is only one page: /")


def test_a_query_is_ignored(serve):
    assert ask(serve(), path="/?file=/etc/passwd")[1] == PAGE


def test_server_listens_on_loopback_only(serve):
    server = serve()
    assert server.socket.getsockname()[0] == "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a reserved address; nothing is sent
        except OSError:
            pytest.skip("this machine has only the loopback address")
        address = probe.getsockname()[0]
    if address.startswith("127."):
        pytest.skip("this machine has only the loopback address")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, server.server_port), timeout=5)


def test_an_error_of_the_page_is_shown_in_the_terminal_only_and_the_next_request_is_answered(serve, capsys):
    pages = iter([ValueError("in /home/somebody"), PAGE])

    def page():
        found = next(pages)
        if isinstance(found, Exception):
            raise found
        return found

    server = serve(page)
    answer, text = ask(server)
    assert answer.status == 500
    assert "somebody" not in text
    assert "somebody" in capsys.readouterr().err
    assert ask(server)[1] == PAGE


def test_an_error_of_the_page_is_printed_once_with_the_place_of_its_traceback(serve, capsys, tmp_path):
    server = serve(lambda: {}["page"])
    assert [ask(server)[0].status for _ in range(3)] == [500] * 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    (saved,) = tmp_path.iterdir()
    assert said.endswith(f"The traceback is in {saved}\n")


GARBAGE = {
    "nothing": b"",
    "empty lines": b"\r\n\r\n",
    "bytes": bytes(range(256)) + b"\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no version": b"GET /\r\n\r\n",
    "wrong version": b"GET / HTTP/9.9\r\n\r\n",
    "too many words": b"GET / echo b c HTTP/1.1\r\n\r\n",
    "invalid address": b"GET http://[ HTTP/1.1\r\n\r\n",
    "escape": b"GET /\x1b[31m HTTP/1.1\r\nHost: \x1b[31m\r\n\r\n",
    "method": b"\x1b[31m<script> / HTTP/1.1\r\n\r\n",
    "long line": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nA: " + b"a" * 100_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\n" + b"A: a\r\n" * 1000 + b"\r\n",
    "broken header": b"GET / HTTP/1.1\r\n:\x00\xff\r\n\r\n",
    "body": b"POST / HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n" + b"x" * 10_000,
    "negative length": b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("end", ["read", "reset"])
def test_malformed_requests_and_broken_connections_print_nothing(serve, capfd, sent, end):
    server = serve()
    with socket.create_connection((LOOPBACK, server.server_port), timeout=10) as connection:
        with suppress(ConnectionError):
            connection.sendall(sent)
        if end == "read":
            answer = b""
            with suppress(OSError):  # the server may have closed the connection already
                connection.shutdown(socket.SHUT_WR)
                while part := connection.recv(65536):
                    answer += part
            assert not answer.startswith(b"HTTP/1.0 200")
            assert b"<script>" not in answer
            assert b"echo" not in answer
            assert b"\x1b" not in answer
        else:  # the next packet of the server meets a connection that is gone
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(server)[1] == PAGE
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_clients_that_do_not_finish_a_request_or_do_not_read_the_answer_do_not_block_others(serve, capfd):
    server = serve(lambda: PAGE * 500_000)  # more than the buffers of a connection
    slow = [socket.create_connection((LOOPBACK, server.server_port), timeout=10) for _ in range(6)]
    for number, connection in enumerate(slow):
        whole = f"GET / HTTP/1.1\r\nHost: {LOOPBACK}:{server.server_port}\r\n\r\n".encode()
        connection.sendall(whole if number % 2 else whole[:10])
    server._page = lambda: PAGE
    assert ask(server)[0].status == 200
    for connection in slow:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    assert ask(server)[1] == PAGE
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")


def test_pages_are_rendered_one_at_a_time(serve):
    at_once, most = [], []

    def page():
        at_once.append(1)
        most.append(len(at_once))
        threading.Event().wait(0.02)
        at_once.pop()
        return PAGE

    server = serve(page)
    askers = [threading.Thread(target=ask, args=(server,)) for _ in range(5)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert most == [1] * 5


def test_a_used_port_is_an_error_if_given_and_skipped_if_not(serve, monkeypatch):
    server = serve()
    port = server.server_port
    with pytest.raises(UsageError, match=rf"Expected a free port; found that port {port} .*in use.*--port"):
        open_server(lambda: PAGE, port)
    monkeypatch.setattr("pogm.report.serve.PORT", port)
    with open_server(lambda: PAGE) as other:
        assert port < other.server_port < port + 20
    with pytest.raises(UsageError, match="from 0 to 65535; found 65536"):
        open_server(lambda: PAGE, 65536)
