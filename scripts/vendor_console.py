"""Fetch the JavaScript libraries of the console from npm and write them into the package.

    python scripts/vendor_console.py           fetch them again, in the versions below
    python scripts/vendor_console.py --check   compare the committed files with those of npm

The files are committed, so only people who change a version need npm. `VENDORED.json` beside them says where each one
comes from, with its checksum; the licences are beside it.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[1] / "src" / "errands" / "console" / "static" / "vendor"


class Library(NamedTuple):
    package: str
    version: str
    license: str
    #: The paths of its modules in the package, by the names that they have in the bundle.
    modules: dict[str, str]


LIBRARIES = (
    Library("preact", "11.2.0", "MIT", {"preact": "dist/preact.mjs", "hooks": "hooks/dist/hooks.mjs"}),
    Library("htm", "3.1.1", "Apache-2.0", {"htm": "dist/htm.mjs"}),
)
BUNDLE = "preact.js"
_HEAD = """\
// Written by scripts/vendor_console.py: %s, as published on npm. Their modules are put into
// functions, so that browsers need one request; licences and checksums are beside this file.
"""
#: What the bundle exports. `html` makes vnodes from template strings.
_TAIL = """
export const html = htm.bind(preact.h);
export const { Component, Fragment, createContext, createRef, h, options, render, toChildArray } = preact;
export const {
  useCallback, useContext, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useReducer, useRef, useState,
} = hooks;
"""
_SOURCE_MAP = re.compile(r"\n?//# sourceMappingURL=.*\n?")
_IMPORT = re.compile(r'import\{([^}]*)\}from"(\w+)";?')
_EXPORT = re.compile(r"export\{([^}]*)\};?")


def _returned(export: re.Match[str]) -> str:
    names = (pair.partition(" as ") for pair in export[1].split(","))
    return "return{" + ",".join(f"{exported or local}:{local}" for local, _, exported in names) + "};"


def wrapped(name: str, source: str) -> str:
    """Return a module as a constant: an object with what it exports, or its default export."""
    source = _SOURCE_MAP.sub("", source)
    source = _IMPORT.sub(lambda found: f"const{{{found[1].replace(' as ', ':')}}}={found[2]};", source)
    source = _EXPORT.sub(_returned, source)
    source = source.replace("export default ", "return ")
    if re.search(r"\b(?:import|export)\b", source):
        raise SystemExit(f"{name} has imports or exports in a form that this script does not know")
    return f"const {name} = (() => {{\n{source.strip()}\n}})();\n"


def fetch(library: Library) -> tuple[dict[str, str], str, dict[str, Any]]:
    """Return the modules of a library, its licence, and where they come from."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["npm", "pack", f"{library.package}@{library.version}", "--json", "--silent"]
        printed = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        [packed] = json.loads(printed)
        archive = (Path(folder) / packed["filename"]).read_bytes()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:

        def read(path: str) -> bytes:
            member = tar.extractfile(f"package/{path}")
            if member is None:
                raise SystemExit(f"{library.package} {library.version} has no file {path}")
            return member.read()

        modules = {name: read(path) for name, path in library.modules.items()}
        text = read("LICENSE").decode()
    facts = {
        "package": library.package,
        "version": library.version,
        "license": library.license,
        "integrity": packed["integrity"],
        "sha256": {library.modules[name]: hashlib.sha256(content).hexdigest() for name, content in modules.items()},
    }
    return {name: content.decode() for name, content in modules.items()}, text, facts


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    checks = parser.parse_args().check
    found = [fetch(library) for library in LIBRARIES]
    names = " and ".join(f"{library.package} {library.version} ({library.license})" for library in LIBRARIES)
    bundle = _HEAD % names
    bundle += "".join(wrapped(name, source) for modules, _, _ in found for name, source in modules.items()) + _TAIL
    contents = {BUNDLE: bundle}
    for library, (_, license_text, _) in zip(LIBRARIES, found, strict=True):
        contents[f"LICENSE.{library.package}"] = license_text
    described = {
        "script": "scripts/vendor_console.py",
        "sha256": {BUNDLE: hashlib.sha256(bundle.encode()).hexdigest()},
        "libraries": [facts for _, _, facts in found],
    }
    contents["VENDORED.json"] = json.dumps(described, indent=2) + "\n"
    if checks:
        different = [name for name, text in contents.items() if (FOLDER / name).read_text() != text]
        sys.exit(f"different from npm: {', '.join(different)}" if different else 0)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in contents.items():
        (FOLDER / name).write_text(text)
        sys.stdout.write(f"{name:<18} {len(text):>7,} characters\n")


if __name__ == "__main__":
    main()
