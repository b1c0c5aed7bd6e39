"""`make docs` builds a site that works without a server and without other hosts, and fails on what leads nowhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from errands import __version__
from tests.docs.pages import ROOT

#: The arguments of MkDocs in `make docs`.
[RECIPE] = re.findall(r"-m mkdocs (build .*)", (ROOT / "Makefile").read_text())


def build(folder: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` does, in a folder with a `mkdocs.yml`."""
    command = [sys.executable, "-m", "mkdocs", *RECIPE.split(), "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr + done.stdout
    return folder


class Loaded(HTMLParser):
    """What a browser fetches for a page by itself."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        fetched = values.get("src") if tag != "link" else values.get("href")
        if fetched and values.get("rel") not in ("canonical", "prev", "next"):
            self.addresses.append(fetched)


def test_a_page_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    elsewhere = {address for page in pages for address in Loaded(page).addresses if re.match(r"\w+:|//", address)}
    assert elsewhere == set()
    styles = "".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"url\([\"']?(?:https?:)?//[^)]*\)|@import", styles) == []


def test_what_a_page_loads_is_there(site: Path) -> None:
    # The page for missing pages is shown at any path, so that its addresses begin at the root.
    for page in set(site.rglob("*.html")) - {site / "404.html"}:
        for address in Loaded(page).addresses:
            path = address.partition("?")[0].partition("#")[0]
            assert (page.parent / path).resolve().exists() or path.startswith("data:"), f"{page}: {address}"


def test_the_search_finds_the_reference_and_works_from_files(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text())
    titles = {entry["title"] for entry in index["docs"]}
    assert {"TaskContext", "errands serve", "SendMessage", "An agent in five minutes"} <= titles
    # A page that was opened from a folder may not fetch: the index is a script, too.
    assert (site / "search" / "search_index.js").is_file()


def test_the_site_says_which_version_it_is_about(site: Path) -> None:
    assert f"errands {__version__}, Apache-2.0" in (site / "index.html").read_text()


def test_a_name_in_a_text_leads_to_the_reference(site: Path) -> None:
    page = (site / "agents.html").read_text()
    assert 'href="reference/agents.html#errands.Worker"><code>Worker</code>' in page
    assert 'id="errands.Worker"' in (site / "reference" / "agents.html").read_text()


BROKEN = {
    "a page that does not exist": ("[Serving](severing.md)", "severing.md"),
    "a heading that does not exist": ("[Serving](index.md#nowhere)", "#nowhere"),
    "a picture that does not exist": ("![A picture](images/none.png)", "images/none.png"),
    "a file of the repository that does not exist": ("[Deploy](../deploy/none.yaml)", "deploy/none.yaml"),
    "a reference without a target": ("See [`Worker`][errands.Nothing].", "unresolved reference"),
    "a name that errands does not have": ("Call `errands.testing.nothing`.", "nothing called errands.testing.nothing"),
    "a member that a class does not have": ("Call `TaskContext.finish()`.", "TaskContext.finish has no such member"),
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with the same configuration and all broken pages."""
    folder = tmp_path_factory.mktemp("small")
    (folder / "docs").mkdir()
    shutil.copytree(ROOT / "docs" / "assets", folder / "docs" / "assets")
    shutil.copytree(ROOT / "scripts" / "docs", folder / "scripts" / "docs")
    (folder / "docs" / "index.md").write_text("# Home\n")
    for number, (text, _) in enumerate(BROKEN.values()):
        (folder / "docs" / f"broken-{number}.md").write_text(f"# Broken\n\n{text}\n")
    config = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (folder / "mkdocs.yml").write_text(config)
    # The files that the hook shows are read from here.
    for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks", "deploy", "examples"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def complaints(small: Path) -> str:
    done = build(small, small / "site")
    assert done.returncode != 0
    return done.stderr + done.stdout


@pytest.mark.parametrize("kind", BROKEN)
def test_the_build_fails_on(kind: str, complaints: str) -> None:
    assert BROKEN[kind][1] in complaints
