"""Print dependency groups of pyproject.toml, one requirement per line, for any version of pip. Without names: dev."""

import pathlib
import sys
import tomllib

project = tomllib.loads(pathlib.Path(__file__).parents[1].joinpath("pyproject.toml").read_text())
for group in sys.argv[1:] or ["dev"]:
    for requirement in project["dependency-groups"][group]:
        if not requirement.startswith("errands"):
            sys.stdout.write(f"{requirement}\n")
