"""Dependency audit: look up known vulnerabilities of the versions in requirements.lock, in one request to osv.dev.

`make lint` must also work without a network. If the service cannot be reached, the audit says that it was skipped. A
request for each of 200 packages, as pip-audit makes them, would take longer than the rest of `make lint`.
"""

import json
import re
import sys
from pathlib import Path
from urllib.request import Request, urlopen

LOCK = Path(__file__).parents[1] / "requirements.lock"
SERVICE = "https://api.osv.dev/v1/querybatch"
SECONDS = 5.0
ACCEPTED: dict[str, str] = {}  # ids of vulnerabilities that do not concern pogm, each with the reason


def read_lock(text: str) -> list[tuple[str, str]]:
    """Return the names and versions in a file of requirements."""
    return re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE)


def find_vulnerabilities(packages: list[tuple[str, str]], service: str = SERVICE) -> list[str]:
    """Return a line for each package with vulnerabilities that are not accepted.

    Raises:
        OSError: The service cannot be reached.
        ValueError: Its answer has another format.
    """
    queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in packages]
    content = json.dumps({"queries": queries}).encode()
    with urlopen(Request(service, content, {"Content-Type": "application/json"}), timeout=SECONDS) as answer:
        try:
            results = [[one["id"] for one in result.get("vulns", ())] for result in json.load(answer)["results"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"an answer in another format: {error!r}") from error
    return [
        f"{name} {version}: {', '.join(ids)}"
        for (name, version), found in zip(packages, results, strict=True)
        if (ids := [one for one in found if one not in ACCEPTED])
    ]


def main(lock: Path = LOCK, service: str = SERVICE) -> int:
    """Print the result and return the exit code: 1 if there are vulnerabilities."""
    packages = read_lock(lock.read_text())
    try:
        found = find_vulnerabilities(packages, service)
    except (OSError, ValueError) as error:
        print(f"Dependency audit SKIPPED: expected an answer from {service}; found: {error}.", file=sys.stderr)
        return 0
    for line in found:
        print(f"{lock.name}: {line}. See https://osv.dev/ and update it, or accept it in .ci/audit.py.")
    print(f"Dependency audit: {len(found)} of {len(packages)} packages have known vulnerabilities.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
