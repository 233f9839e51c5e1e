"""The server of the board over real HTTP: the page, the headers, and every request that it must refuse."""

import http.client
import socket
import threading

import pytest

from pogm._system.errors import UsageError
from pogm.report.serve import LOOPBACK, open_server

PAGE = "<!doctype html><p>θ</p>"


@pytest.fixture
def serve():
    """Start servers of the page that a function returns."""
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
    ],
)
def test_other_paths_are_not_found_and_not_repeated(serve, path):
    answer, text = ask(serve(), path=path)
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
