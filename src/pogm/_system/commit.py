"""The commit of the package, if it runs from a git checkout."""

import os
import subprocess
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2]  # "src" in a checkout; "site-packages" if the package is installed
STATUS = ("git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "--no-ahead-behind", "-uno", ".")


@cache
def find_commit(source: Path = SOURCE) -> str | None:
    """Return the hash of the commit, followed by "+changes" if its tracked files in ``src`` differ.

    None if the package does not run from a git checkout, or if git does not answer in two seconds.
    """
    if source.name != "src" or not (source.parent / ".git").exists():
        return None
    others = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}  # of a git hook
    try:
        done = subprocess.run(STATUS, cwd=source, env=others, capture_output=True, timeout=2, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.splitlines()
    found = lines[0].removeprefix(b"# branch.oid ").decode()
    return found + "+changes" * any(not line.startswith(b"#") for line in lines)
