"""``pogm board``: progress of runs in a browser."""

import os
import signal
import sys
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pogm.cli.parser import Command, argument, option

NICE = 10  # added to the niceness of the process, so that the runs have priority


@dataclass(frozen=True, kw_only=True)
class Board(Command):
    """Show progress, failures, curves and tables of a folder of runs in a browser, while the runs train."""

    examples: ClassVar[str] = "pogm board runs/sweep\npogm board runs --port 8000 --open"

    folder: Path = argument("Folder of a sweep, of an experiment or of any runs.")
    port: int | None = option("Port on this machine (default: 6007, or the next free port).", None, least=0, most=65535)
    open: bool = option("Also open the page in the browser.", False)

    def run(self) -> int:
        """Serve the page, for this machine only, until Ctrl-C."""
        from pogm._system.errors import DataError
        from pogm._system.signals import HangupError
        from pogm.report import board
        from pogm.report.serve import open_server

        if not self.folder.is_dir():
            raise DataError(
                f"Expected a folder of runs; found nothing at {self.folder}. "
                "Pass the folder that `pogm run`, `pogm sweep` or `pogm experiment` writes to."
            )
        with open_server(board.Board(self.folder).page, self.port) as server:
            os.nice(NICE)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores SIGINT
            print(f"Board: {server.address} (Ctrl-C ends it)", file=sys.stderr, flush=True)  # the result
            try:
                if self.open:
                    webbrowser.open(server.address)
                server.serve_forever()
            except HangupError:
                raise
            except KeyboardInterrupt:
                print("pogm: The board is closed; the runs continue.", file=sys.stderr)
        return 0


COMMAND = Board
