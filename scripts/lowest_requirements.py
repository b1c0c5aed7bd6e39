"""Print the lowest version of every dependency that pyproject.toml declares, one requirement per line.

`make lowest` installs them to test the lower bounds. If several extras need a package, the highest bound applies.
"""

import pathlib
import re
import sys
import tomllib
from itertools import chain

BOUND = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?>=(?P<version>[0-9.]+)")

project = tomllib.loads(pathlib.Path(__file__).parents[1].joinpath("pyproject.toml").read_text())["project"]
lowest: dict[str, str] = {}
for requirement in chain(project["dependencies"], *project["optional-dependencies"].values()):
    if requirement.startswith("errands["):
        continue
    bound = BOUND.match(requirement)
    if bound is None:
        sys.exit(f"pyproject.toml: {requirement!r} has no lower bound")
    name, version = bound["name"], bound["version"]
    lowest[name] = max(lowest.get(name, version), version, key=lambda text: [int(part) for part in text.split(".")])
sys.stdout.writelines(f"{name}=={version}\n" for name, version in lowest.items())
