"""Print the dev dependency group of pyproject.toml, one requirement per line, for any version of pip."""

import pathlib
import sys
import tomllib

project = tomllib.loads(pathlib.Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
for requirement in project["dependency-groups"]["dev"]:
    if not requirement.startswith("errands"):
        sys.stdout.write(f"{requirement}\n")
