"""Ask osv.dev for known vulnerabilities of the packages that errands needs, in the versions that are installed.

    .venv/bin/python scripts/audit_dependencies.py

It is one request for all packages, and one more for each vulnerability. Where the service cannot be reached it says so
and succeeds. To accept a vulnerability that has no fix yet, add its id with the reason to `[tool.errands.audit.ignore]`
in pyproject.toml.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
import tomllib
import urllib.request
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement

SERVICE = "https://api.osv.dev/v1"
#: Seconds for each request.
TIMEOUT = 10.0
PROJECT = pathlib.Path(__file__).parents[1] / "pyproject.toml"


def installed(project: dict[str, Any]) -> dict[str, str]:
    """Return the versions of the installed packages that errands needs with all extras, directly or not."""
    versions: dict[str, str] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    while wanted:
        requirement = Requirement(wanted.pop())
        name, extras = re.sub(r"[-_.]+", "-", requirement.name).lower(), frozenset(requirement.extras)
        if (name, extras) in seen or name == "errands":
            continue
        seen.add((name, extras))
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        versions[name] = package.version
        for text in package.requires or ():
            marker = Requirement(text).marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                wanted.append(text)
    return versions


def ask(url: str, question: object | None = None) -> Any:
    """Return the JSON that the service answers. Raise `OSError` or `ValueError`."""
    data = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return json.load(response)


def find(service: str, versions: dict[str, str]) -> dict[str, list[str]]:
    """Return the ids of the known vulnerabilities of each package."""
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in versions.items()
    ]
    results = ask(f"{service}/querybatch", {"queries": queries})["results"]
    found = {
        name: [one["id"] for one in result.get("vulns") or ()] for name, result in zip(versions, results, strict=True)
    }
    return {name: ids for name, ids in found.items() if ids}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service", default=SERVICE)
    parser.add_argument("--project", type=pathlib.Path, default=PROJECT)
    options = parser.parse_args()
    document = tomllib.loads(options.project.read_text())
    ignored: dict[str, str] = document.get("tool", {}).get("errands", {}).get("audit", {}).get("ignore", {})
    versions = installed(document["project"])
    problems: list[str] = []
    used: set[str] = set()
    try:
        for name, ids in find(options.service, versions).items():
            for one in ids:
                about = ask(f"{options.service}/vulns/{one}")
                accepted = {one, *about.get("aliases", ())} & ignored.keys()
                used |= accepted
                if not accepted and "withdrawn" not in about:
                    problems.append(f"{name} {versions[name]}: {one} {about.get('summary', '')}".strip())
    except (OSError, ValueError, KeyError) as error:
        sys.stdout.write(f"The dependencies were not audited: {options.service} did not answer ({error})\n")
        return 0
    for one in sorted(ignored.keys() - used):
        sys.stdout.write(f"{one} is ignored in pyproject.toml and no longer found: remove it\n")
    for problem in problems:
        sys.stdout.write(f"{problem}\n  https://osv.dev/vulnerability/{problem.split(': ')[1].split()[0]}\n")
    sys.stdout.write(f"{len(versions)} packages audited, {len(problems)} known vulnerabilities\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
