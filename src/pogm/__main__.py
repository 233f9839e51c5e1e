"""The program ``pogm``, also run by ``python -m pogm``. PYTHON_ARGCOMPLETE_OK"""

import signal
import sys

from pogm._system.signals import interruptible


def main() -> int:
    """Run the command line and return the exit code. Ctrl-C during imports ends the program with one line."""
    with interruptible():
        from pogm import cli
    code = cli.main()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback from the end of the interpreter
    return code


if __name__ == "__main__":
    sys.exit(main())
