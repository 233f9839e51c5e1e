"""The command line: ``pogm demo | run | sweep | measure | experiment | data | status | resume | report | ...``."""

import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from pogm._system.errors import DataError, DivergedError, PogmError, StoppedError, UsageError
from pogm.benchmark.runs.progress import silence
from pogm.cli import commands
from pogm.cli.options import check_alone
from pogm.cli.parser import parser
from pogm.distributed.world import Launch


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; its exit code. Errors meant for the user come as one paragraph, without a traceback."""
    warnings.showwarning = _show_warning
    options = parser().parse_args(arguments)
    launch = Launch.from_environment()
    follows = launch is not None and launch.rank > 0
    if follows:
        warnings.simplefilter("ignore")  # the first process shows them
    try:
        if options.command not in (commands.run_one, commands.resume):
            check_alone("another command")
        code: int | None = options.command(options)
        return code or 0
    except PogmError as error:
        if not (follows and isinstance(error, UsageError | StoppedError | DivergedError)):  # which the first says
            print(f"pogm: {f'rank {launch.rank}: ' if launch else ''}{error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("pogm: stopped. The same command goes on from here.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        silence()
        return 128 + signal.SIGPIPE
    except OSError as error:
        print(f"pogm: Expected to read and write files; found: {error}. Check that path and its disk.", file=sys.stderr)
        return DataError.exit_code


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    print(f"pogm: {category.__name__}: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
