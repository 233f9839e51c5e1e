"""Command line of pogm: one file per verb, with its options, help, examples and action.

To add a command, write a file like ``status.py`` and put its name into `VERBS`. The options of all commands can be read
without torch; a command imports torch when it runs.
"""

import importlib
import os
import platform
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from itertools import takewhile

from pogm import __version__
from pogm._system.errors import DataError, DivergedError, PogmError, StoppedError, UsageError, file_error_text
from pogm._system.messages import log, note, set_verbosity
from pogm._system.output import ignore_output_errors
from pogm._system.signals import STOPPED, HangupError, interruptible
from pogm._system.terminal import WarningPrinter, escaped_output, message_text
from pogm._system.unexpected import EXIT_CODE, report_unexpected
from pogm.cli.config import config_text
from pogm.cli.json_output import is_asked_for, text_to_stderr
from pogm.cli.parser import (
    Command,
    MissingWordsError,
    TopParser,
    add_commands,
    changed_options,
    command_summary,
    make,
)

ABOUT = "Domain generalization: POGM and other methods, compared under DomainBed's protocol."

VERBS = {  # one file each, in the order of the help
    "start": ("demo", "doctor", "list", "data", "weights", "verdict"),
    "train": ("train", "run", "sweep", "resume", "soup", "ensemble"),
    "watch": ("status", "board"),
    "results": ("report", "export", "audit"),
    "deploy": ("predict", "evaluate"),
    "research": ("measure", "experiment", "new"),
}

VERBOSITY = ("-q", "--quiet", "-v", "--verbose")  # options that may also come before the command
EPILOG = """examples:
  pogm demo                                          train four methods on two small datasets, write a report
  pogm doctor                                        what is installed and found, and what to do if something is not
  pogm list algorithms                               every method in one line
  pogm list algorithms POGM                          one method: paper, hyperparameters, search space, cost
  pogm data check ./hospitals                        read every image of a folder and list what is wrong
  pogm weights convert model.pth                     weights as safetensors, without running code
  pogm verdict ./hospitals                           will a model work at the next site?
  pogm train ./hospitals --out model                 train a model, and forecast its accuracy at a new site
  pogm run --dataset RotatedDigits --algorithm POGM --test-domain 75 --set kappa=0.1 --out runs/first
  pogm sweep --algorithms ERM POGM --datasets RotatedDigits --configurations 5 --out runs/sweep
  pogm resume runs/first                             continue after a crash or Ctrl-C
  pogm soup runs/sweep                               average the weights of finished runs (sweep --shared-init)
  pogm ensemble runs/sweep                           average the predictions of finished runs
  pogm status runs/sweep                             number of runs that are done, running, failed or waiting
  pogm board runs/sweep                              progress and curves in a browser, while the runs train
  pogm report runs                                   tables, and runs/report.html
  pogm export runs --out sweep                       the runs as a DomainBed sweep, for its collector
  pogm export runs/first --to onnx                   the selected model for ONNX Runtime, compared with the original
  pogm audit table.csv                               means, ranks, marks and copied rows of a published table
  pogm predict runs/first images --csv out.csv       classes and probabilities of new images
  pogm evaluate runs/first new_site                  accuracy, calibration and confusion matrix at a new site
  pogm measure --algorithms ERM POGM --target        agreement of each step with every domain
  pogm experiment table2 --scale embedded            a table of the paper, on data that come with the package
  pogm new algorithm WorstGap                        files of an algorithm of your own, and its test

options in a file: pogm sweep --config sweep.toml, for every command; --save-config writes one
results for programs: --json; less or more text: -q, -v

shell completion: pip install 'pogm[completion]', then add to the start-up file of bash or zsh:
  eval "$(register-python-argcomplete pogm)"         in zsh below the lines: autoload -U compinit; compinit
"""


def parser(verb: str | None = None) -> TopParser:
    """Return the parser of the command line, or only the part for one verb."""
    groups = {title: (verb,) for title, verbs in VERBS.items() if verb in verbs} or VERBS
    commands = {
        name: importlib.import_module(f"pogm.cli.{name}").COMMAND for names in groups.values() for name in names
    }
    listed = {title: {name: command_summary(commands[name]) for name in names} for title, names in groups.items()}
    top = TopParser(ABOUT, listed, epilog=EPILOG, usage="pogm [-h] [--version] COMMAND ...")
    top.add_argument("--version", action="version", version=f"pogm {__version__}")
    add_commands(top, commands.values())
    return top


def parse(words: Sequence[str]) -> Command:
    """Return the command that the words of a command line ask for.

    Args:
        words: The words after ``pogm``.

    Raises:
        SystemExit: With code 2 if the words are not a valid command; with code 0 after --help and --version.
    """
    if "_ARGCOMPLETE" in os.environ:  # the shell asks for completions
        try:
            import argcomplete
        except ImportError:  # the shell uses that of another environment; a message would disturb the command line
            raise SystemExit(1) from None
        argcomplete.autocomplete(parser())
    before = [*takewhile(lambda word: word in VERBOSITY, words)]  # pogm -v run is pogm run -v
    words = [*words[len(before) :], *before] or ["--help"]
    try:
        return _parse(words)
    except MissingWordsError as missing:
        if "--json" not in words[:-1]:
            missing.report(words)
    try:  # --json FOLDER: the folder is an argument of the command, not the file of --json
        return _parse([*(word for word in words if word != "--json"), "--json"])
    except MissingWordsError as missing:
        missing.report(words)


def _parse(words: Sequence[str]) -> Command:
    top = parser(words[0] if words else None)
    values, unknown = top.parse_known_args(words)
    if unknown:
        try:
            values, unknown = top.parse_known_args(values.parser.repeat_options(words))
        except MissingWordsError:  # one of the values is an argument of the command
            if not any(word.startswith("-") for word in unknown):
                values.parser.refuse_unknown(unknown, ". Write arguments such as a folder before the options.")
    if unknown:
        values.parser.refuse_unknown(unknown)
    command: Command = make(values.command, values)
    return command


@cache
def command_names() -> frozenset[str]:
    """Return the commands that have options, such as "sweep" and "data check"."""
    verbs = {verb: importlib.import_module(f"pogm.cli.{verb}").COMMAND for verbs in VERBS.values() for verb in verbs}
    below = {f"{verb} {one.__name__.lower()}" for verb, command in verbs.items() for one in command.commands}
    return frozenset(below | {verb for verb, command in verbs.items() if not command.commands})


def main(words: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error is printed as one paragraph, without a traceback."""
    warnings.showwarning = WarningPrinter()
    words = sys.argv[1:] if words is None else words
    with escaped_output(), interruptible():
        try:
            return _run(words)
        except KeyboardInterrupt as stop:
            _print_error(STOPPED)
            return 128 + (signal.SIGHUP if isinstance(stop, HangupError) else signal.SIGINT)
        except BrokenPipeError:
            from pogm.benchmark.progress.run_progress import silence

            silence()
            return 128 + signal.SIGPIPE
        except OSError as error:
            _print_error(f"pogm: {file_error_text(error)}")
            return DataError.exit_code
        except Exception as error:
            report_unexpected(error, shlex.join(["pogm", *words]))
            return EXIT_CODE


def _run(words: Sequence[str]) -> int:
    launch = None
    try:
        command = parse(words)
        if "RANK" in os.environ:  # by torchrun; without it, a command that needs no torch does not import it
            from pogm.cli.execution import check_single_process
            from pogm.distributed.world import Launch

            launch = Launch.from_environment()
            if launch is not None and launch.rank > 0:
                warnings.simplefilter("ignore")  # rank 0 shows them
            if not command.under_torchrun:
                check_single_process("another command")
        with ExitStack() as stack:
            if command.trains:
                stack.enter_context(ignore_output_errors())
            stack.enter_context(escaped_output())
            if is_asked_for(command):
                stack.enter_context(text_to_stderr())
            stack.enter_context(set_verbosity(quiet=command.common.quiet, verbose=command.common.verbose))
            if command.common.save_config is not None and (launch is None or launch.rank == 0):
                _save_config(command, words)
            start = time.monotonic()
            log.info("pogm %s, Python %s: %s", __version__, platform.python_version(), shlex.join(words))
            code = command.run()
            log.info("Finished in %.2f s, exit code %d", time.monotonic() - start, code)
            return code
    except PogmError as error:
        is_shown_by_rank_0 = isinstance(error, UsageError | StoppedError | DivergedError)
        if launch is None or launch.rank == 0 or not is_shown_by_rank_0:
            _print_error(f"pogm: {f'rank {launch.rank}: ' if launch else ''}{message_text(error)}")
        return error.exit_code


def _save_config(command: Command, words: Sequence[str]) -> None:
    """Write the options of a command for --config."""
    from pogm._system.files import write_atomic

    path = command.common.save_config
    assert path is not None
    name = " ".join(words[: 2 if words[0] in ("data", "new", "weights") else 1])
    write_atomic(path, config_text(changed_options(command), f"pogm {name}").encode())
    note(f"Options: {path}")


def _print_error(text: str) -> None:
    with suppress(OSError):  # the terminal is closed
        print(text, file=sys.stderr, flush=True)
