"""The secret scan and the dependency audit of ``make lint``."""

import importlib.util
import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / ".ci"


def load(name: str):
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


audit, find_secrets = load("audit"), load("find_secrets")

# Most are cut by a space, so that the scan of this file does not find them.
SECRETS = {
    "private key": "-----BEGIN RSA PRIVATE KEY-----",  # not a secret
    "AWS access key": "AKIA IOSFODNN7EXAMPLE",
    "GitHub token": "ghp_ 0123456789abcdefghijklmnopqrstuvwxyz",
    "GitLab token": "glpat- 0123456789abcdefghij",
    "Slack token": "xoxb- 123456789012-abcdef",
    "Google API key": "AIza 0123456789abcdefghijklmnopqrstuvwxy",
    "Stripe key": "sk_live_ 0123456789abcdefghij",
    "API key": "sk-ant- 0123456789abcdefghijklmnopqrstuvwxyz",
    "Hugging Face token": "hf_ 0123456789abcdefghijklmnopqrst",
    "PyPI token": "pypi- " + "AgEIcHlwaS5vcmc" * 4,
    "npm token": "npm_ 0123456789abcdefghijklmnopqrstuvwxyz",
    "JSON Web Token": "eyJ hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "password in an address": "https: //user:hunter2@example.org/",
    "password": 'PASSWORD = "correct-horse"',  # not a secret
}


@pytest.mark.parametrize("kind", find_secrets.PATTERNS)
def test_secrets_of_every_kind_are_found_with_their_line(kind):
    secret = SECRETS[kind]
    secret = secret if kind in ("private key", "password") else secret.replace(" ", "")
    assert find_secrets.find_secrets(f"first line\nvalue {secret}\n") == [(2, kind)]
    assert find_secrets.find_secrets(f"value {secret}  # not a secret\n") == []


def test_scan_of_a_repository_names_the_file_and_not_the_secret(tmp_path, capsys):
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "kept.py").write_text("x = 1\n")
    assert find_secrets.main(tmp_path) == 0
    secret = SECRETS["AWS access key"].replace(" ", "")
    (tmp_path / "new.py").write_text(f"key = {secret!r}\n")
    assert find_secrets.main(tmp_path) == 1
    said = capsys.readouterr().out
    assert "new.py:1: AWS access key." in said
    assert secret not in said


LOCK = "torch==2.15.0 \\\n    --hash=sha256:00\nold-package==1.0 ; sys_platform == 'linux' \\\n    --hash=sha256:11\n"


class Service(BaseHTTPRequestHandler):
    """Service that knows a vulnerability of one version."""

    def do_POST(self):
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
        old = {"package": {"name": "old-package", "ecosystem": "PyPI"}, "version": "1.0"}
        results = [{"vulns": [{"id": "GHSA-1"}, {"id": "GHSA-2"}]} if query == old else {} for query in queries]
        content = json.dumps({"results": results} if self.path == "/" else []).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = HTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_audit_names_the_vulnerable_version_and_fails_unless_it_is_accepted(tmp_path, capsys, monkeypatch, service):
    (tmp_path / "requirements.lock").write_text(LOCK)
    assert audit.main(tmp_path / "requirements.lock", service) == 1
    said = capsys.readouterr().out
    assert "old-package 1.0: GHSA-1, GHSA-2." in said
    assert "1 of 2 packages" in said
    monkeypatch.setattr(audit, "ACCEPTED", {"GHSA-1": "reason", "GHSA-2": "reason"})
    assert audit.main(tmp_path / "requirements.lock", service) == 0


@pytest.mark.parametrize("path", ["other", None])
def test_audit_says_that_it_was_skipped_if_the_service_does_not_answer(tmp_path, capsys, service, path):
    (tmp_path / "requirements.lock").write_text(LOCK)
    address = "http://127.0.0.1:9/" if path is None else service + path
    assert audit.main(tmp_path / "requirements.lock", address) == 0
    assert "Dependency audit SKIPPED" in capsys.readouterr().err


def test_audit_reads_every_version_of_the_lock_file():
    lines = audit.LOCK.read_text().splitlines()
    assert len(audit.read_lock(audit.LOCK.read_text())) == sum("==" in line and line[0] != " " for line in lines) > 100
