"""Check that a release is consistent: the version of the package, of the changelog and of the tag.

    python scripts/release_check.py [TAG]

Without a tag, the newest heading of CHANGELOG.md may be "Unreleased". Prints what is wrong, and exits with 1.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).parents[1]
#: The headings that Keep a Changelog has for changes, in its order.
KINDS = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]


def problems(tag: str | None, root: pathlib.Path = ROOT) -> list[str]:
    """Return what is wrong, in sentences."""
    version = str(tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"])
    own = re.search(r'__version__ = "(.+)"', (root / "src/errands/version.py").read_text())
    found = (
        [] if own and own[1] == version else [f"src/errands/version.py does not say {version}, as pyproject.toml does"]
    )
    headings = re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    found += [
        f"CHANGELOG.md: {heading!r} is not 'X.Y.Z - YYYY-MM-DD'" for heading in headings[1:] if not _dated(heading)
    ]
    kinds = re.findall(r"^### (.+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    found += [f"CHANGELOG.md: {kind!r} is not one of {', '.join(KINDS)}" for kind in kinds if kind not in KINDS]
    if tag is None:
        if headings[:1] != ["Unreleased"] and not _dated(headings[0]):
            found.append("CHANGELOG.md: the first heading is neither 'Unreleased' nor a version with a date")
        return found
    if tag != f"v{version}":
        found.append(f"the tag is {tag}, and the version is {version}")
    if not headings or not headings[0].startswith(f"{version} - "):
        found.append(f"CHANGELOG.md: the first heading is not '{version} - YYYY-MM-DD'")
    return found


def _dated(heading: str) -> bool:
    return re.fullmatch(r"\d+\.\d+\.\d+\S* - \d{4}-\d\d-\d\d", heading) is not None


if __name__ == "__main__":
    wrong = problems(sys.argv[1] if len(sys.argv) > 1 else None)
    sys.stdout.writelines(f"{problem}\n" for problem in wrong)
    sys.exit(1 if wrong else 0)
