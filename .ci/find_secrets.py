"""Secret scan: find private keys, access tokens and passwords in the files of the repository.

The patterns are the published formats of tokens, so they find few other texts and need no list of exceptions; the
scan takes a second. Scanners that judge strings by their entropy report the checksums in this repository.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 10_000_000  # larger files are data
ALLOWED = "not a secret"  # a line with this text, such as a comment, is not reported
PATTERNS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY",
    "AWS access key": r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    "GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60})",
    "GitLab token": r"\bglpat-[\w-]{20}",
    "Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10}",
    "Google API key": r"\bAIza[\w-]{35}",
    "Stripe key": r"\b[rs]k_live_[A-Za-z0-9]{20}",
    "API key": r"\bsk-(?:proj-|ant-|or-)?[\w-]{32}",
    "Hugging Face token": r"\bhf_[A-Za-z0-9]{30}",
    "PyPI token": r"\bpypi-[\w-]{50}",
    "npm token": r"\bnpm_[A-Za-z0-9]{36}",
    "JSON Web Token": r"\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10}",
    "password in an address": r"://[^\s/:@\"'<>{}]+:[^\s/:@\"'<>{}$]+@[\w.-]",
    "password": r"(?i)(?:password|passwd|secret|api_?key|access_?token)[\"']?\s*[:=]\s*[\"'][^\s\"'{}<>$]{8,}[\"']",
}


def find_secrets(text: str) -> list[tuple[int, str]]:
    """Return the line number and the kind of each secret in a text; never the secret itself."""
    lines = text.splitlines()
    return [
        (number, kind)
        for kind, pattern in PATTERNS.items()
        if re.search(pattern, text)  # most files have none
        for number, line in enumerate(lines, 1)
        if re.search(pattern, line) and ALLOWED not in line
    ]


def list_files(root: Path) -> list[Path]:
    """Return the files of the repository, and those that could be added to it."""
    listing = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, capture_output=True, check=True, text=True).stdout.split("\0")
    paths = (root / name for name in names if name)
    return [path for path in paths if path.is_file() and path.stat().st_size <= MOST_BYTES]


def main(root: Path = ROOT) -> int:
    """Print the result and return the exit code: 1 if there are secrets."""
    try:
        files = list_files(root)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"Secret scan SKIPPED: expected a git repository at {root}; found: {error}.", file=sys.stderr)
        return 0
    count = 0
    for path in files:
        content = path.read_bytes()
        if b"\0" in content[:1000]:  # a picture or an archive
            continue
        for line, kind in find_secrets(content.decode("utf-8", "replace")):
            count += 1
            print(f"{path.relative_to(root)}:{line}: {kind}. Revoke and remove it, or write '{ALLOWED}' in its line.")
    print(f"Secret scan: {count} secrets in {len(files)} files.")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
