"""Fork server of the tests: imports torch once and starts commands in 0.1 s. All workers of pytest-xdist use it."""

import os
from multiprocessing import forkserver
from pathlib import Path

_server = forkserver._forkserver  # type: ignore[attr-defined]


def start() -> str:
    """Start the server, unless it runs already. Return its address."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    _server.set_forkserver_preload(["preloaded"])
    _server.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    address: str = _server._forkserver_address
    return address


def share(address: str) -> None:
    """Let this process use a server that another process started."""
    _server._forkserver_address = address
    _server.ensure_running = lambda: None
    if _server._forkserver_alive_fd is None:
        _server._forkserver_alive_fd = os.pipe()[1]  # sent with every request
