"""What ``pogm board`` does: show how the runs of a folder stand, in a browser, while they run."""

import argparse
import os
import signal
import sys
import webbrowser

from pogm._system.errors import DataError
from pogm.report.board import Board
from pogm.report.serve import open_server

NICE = 10  # the runs come first


def show_board(options: argparse.Namespace) -> int:
    """Serve a page of progress, failures, growing curves and tables, for this machine alone, until Ctrl-C."""
    if not options.folder.is_dir():
        raise DataError(
            f"Expected a folder of runs; found nothing at {options.folder}. "
            "Pass the folder that `pogm run`, `pogm sweep` or `pogm experiment` writes to."
        )
    with open_server(Board(options.folder).page, options.port) as server:
        os.nice(NICE)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background job would ignore
        print(f"Board: {server.address} (Ctrl-C ends it)", file=sys.stderr, flush=True)
        try:
            if options.open:
                webbrowser.open(server.address)
            server.serve_forever()
        except KeyboardInterrupt:
            print("pogm: The board is closed; the runs go on.", file=sys.stderr)
    return 0
