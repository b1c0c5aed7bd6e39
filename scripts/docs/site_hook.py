"""What `make docs` adds to the pages in `docs/`, as a hook of MkDocs.

- the pages of the reference, from docstrings and tables;
- pages of this repository outside `docs/`, such as the changelog, and the files of `examples/` and `deploy/`;
- links from names in code, such as `TaskContext.complete`, to the reference. A name of errands that does not exist is a
  warning, and with it the build fails.
"""

from __future__ import annotations

import importlib
import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from python_pages import anchors, python_pages
from table_pages import commands, error_classes, settings_by_part, table_pages

import errands

logger = logging.getLogger("mkdocs.hooks.errands")

ROOT = Path(__file__).parents[2]
#: Pages of the repository outside `docs/`, with their path on the site.
REPOSITORY_PAGES = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security-policy.md",
    "benchmarks/README.md": "project/benchmarks.md",
    "examples/support-agent/README.md": "examples/support-agent.md",
}
#: Folders whose files are shown on one page each.
FOLDERS = {
    "examples": ("examples/programs.md", "Examples", "Each program shows one feature."),
    "deploy": ("project/deploy.md", "Deployment files", "[Scaling](../scaling.md#deploying) explains them."),
    "examples/support-agent": ("examples/support-agent-files.md", "The files of the support agent", ""),
}
_SHOWN = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".md": "", "": "docker"}
_MARKDOWN_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(#[^)\s]*)?\)")
#: In code, bars of tables are escaped for GitHub only.
_ESCAPED_BAR = re.compile(r"`[^`\n]*\\\|[^`\n]*`")
#: Pages that are about other packages, whose names may be the same as ours.
_ABOUT_OTHERS = ("migrating-", "comparison", "project/")


# Pages


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in generated_pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def generated_pages() -> dict[str, str]:
    """Return the Markdown of every page that is not in `docs/`, by its path on the site."""
    pages = {**python_pages(), **table_pages()}
    for source, path in REPOSITORY_PAGES.items():
        pages[path] = _without_directives((ROOT / source).read_text())
    for folder, (path, title, text) in FOLDERS.items():
        pages[path] = f"# {title}\n\n{text}\n" + "".join(_file_section(file, folder) for file in _files_of(folder))
    return pages


def _files_of(folder: str) -> list[Path]:
    pattern = "**/*" if folder == "deploy" else "*"
    return sorted(path for path in (ROOT / folder).glob(pattern) if path.is_file() and path.suffix in _SHOWN)


def _file_section(path: Path, folder: str) -> str:
    if path.suffix == ".md":
        return ""
    name = path.relative_to(ROOT / folder).as_posix()
    language = _SHOWN[path.suffix]
    return f"\n## {name} {{ #{name} }}\n\n````{language}\n{path.read_text().rstrip()}\n````\n"


def _without_directives(text: str) -> str:
    return re.sub(r"^<!--.*-->\n", "", text, flags=re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt what is written for GitHub: links to files of the repository lead to the page that shows the file."""
    markdown = _ESCAPED_BAR.sub(lambda code: code[0].replace(r"\|", "|"), markdown)
    source = next((source for source, path in REPOSITORY_PAGES.items() if path == page.file.src_uri), None)
    if source is None and page.file.generated_by:
        return markdown
    folder = posixpath.dirname(source if source is not None else f"docs/{page.file.src_uri}")

    def replaced(link: re.Match[str]) -> str:
        target, anchor = link[1], link[2] or ""
        if not target:
            return link[0]
        place = site_place(posixpath.normpath(posixpath.join(folder, target)))
        if place is None:
            return link[0]
        path, _, own_anchor = place.partition("#")
        relative = posixpath.relpath(path, posixpath.dirname(page.file.src_uri) or ".")
        return f"]({relative}{anchor or (own_anchor and '#' + own_anchor)})"

    return _MARKDOWN_LINK.sub(replaced, markdown)


def site_place(path: str) -> str | None:
    """Return where the site shows a file or folder of the repository, or None if it does not."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path in REPOSITORY_PAGES:
        return REPOSITORY_PAGES[path]
    for folder in sorted(FOLDERS, key=len, reverse=True):
        page = FOLDERS[folder][0]
        if path == folder:
            return page
        if path.startswith(f"{folder}/"):
            name = path.removeprefix(f"{folder}/")
            if (ROOT / path).is_file():
                return f"{page}#{name}"
            first = next((file for file in _files_of(folder) if file.is_relative_to(ROOT / path)), None)
            return f"{page}#{first.relative_to(ROOT / folder).as_posix()}" if first else None
    return None


# References


def reference_targets() -> dict[str, str]:
    """Return the page and anchor for what may be written in code, such as `Worker` or `errands tasks list`."""
    targets: dict[str, str] = {}
    for name, place in anchors().items():
        targets[name] = place
        short = name.removeprefix("errands.")
        for prefix in ("client.", "testing.", "sdk.", "a2akit.", "praisonai."):
            short = short.removeprefix(prefix)
        # Lower-case words, such as `agent`, have other meanings, too.
        if short[:1].isupper() or "." in short:
            targets.setdefault(short, place)
        if short.startswith("TaskContext."):
            targets.setdefault(f"ctx.{short.partition('.')[2]}", place)
    for settings in settings_by_part().values():
        for name in settings:
            targets[f"ERRANDS_{name.upper()}"] = f"reference/settings.md#{name}"
            targets[f"Settings.{name}"] = f"reference/settings.md#{name}"
    for name in error_classes():
        targets.setdefault(name, f"reference/errors.md#{name}")
    for name, _ in list(commands())[1:]:
        targets[name] = f"reference/commands.md#{name.replace(' ', '-')}"
    return targets


_TARGETS: dict[str, str] = {}
_TOKENS = re.compile(r"<h[1-6][^>]*>|</h[1-6]>|<a\b|</a>|<pre\b|</pre>|<code>(?P<code>[^<]+)</code>")


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link the first mention of a name in each section to its place in the reference."""
    if not _TARGETS:
        _TARGETS.update(reference_targets())
    if unresolved := re.search(r"\[[^\]\n<]*\]\[[\w. -]*\]", re.sub(r"(?s)<(pre|code)\b.*?</\1>", "", html)):
        logger.warning("%s: unresolved reference %s", page.file.src_uri, unresolved[0])
    links = not page.file.src_uri.startswith(_ABOUT_OTHERS)
    inside: list[str] = []
    mentioned: set[str] = set()

    def replaced(token: re.Match[str]) -> str:
        text = token["code"]
        if text is None:
            if token[0].startswith("</"):
                inside.pop()
            else:
                inside.append(token[0])
            if token[0].startswith("<h"):
                mentioned.clear()
            return token[0]
        name = re.sub(r"\(.*\)$", "", text)
        if name.startswith("errands.") and not _exists(name):
            logger.warning("%s: there is nothing called %s", page.file.src_uri, name)
        if _is_missing_member(name):
            logger.warning("%s: %s has no such member", page.file.src_uri, name)
        place = _TARGETS.get(name)
        if not links or inside or place is None or name in mentioned or place.partition("#")[0] == page.file.src_uri:
            return token[0]
        mentioned.add(name)
        target = files.get_file_from_path(place.partition("#")[0])
        assert target is not None
        return f'<a href="{target.url_relative_to(page.file)}#{place.partition("#")[2]}">{token[0]}</a>'

    return _TOKENS.sub(replaced, html)


def _exists(name: str) -> bool:
    """Return whether a dotted name of errands leads to something. Names of loggers, files and attributes may differ."""
    steps = name.split(".")
    looks_like_python = any(step[:1].isupper() for step in steps) or _submodule(errands, steps[1]) is not None
    return (
        not looks_like_python or not all(map(str.isidentifier, steps)) or name in _TARGETS or _resolve(name) is not None
    )


def _resolve(name: str) -> Any:
    head, _, rest = name.partition(".")
    value: Any = importlib.import_module(head)
    for step in rest.split("."):
        value = getattr(value, step, None) or _submodule(value, step)
        if value is None:
            return None
    return value


def _submodule(value: Any, step: str) -> Any:
    try:
        return importlib.import_module(f"{value.__name__}.{step}")
    except (AttributeError, ModuleNotFoundError):
        return None


def _is_missing_member(name: str) -> bool:
    """Return whether it looks like a member of a class in the reference and is not one."""
    owner, _, member = name.rpartition(".")
    if not re.fullmatch(r"[A-Z]\w+|ctx", owner) or not member.isidentifier():
        return False
    kind = "TaskContext" if owner == "ctx" else owner
    return kind in _TARGETS and f"{kind}.{member}" not in _TARGETS and not hasattr(_resolve(f"errands.{kind}"), member)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version of the package."""
    config.copyright = f"errands {errands.__version__}, Apache-2.0"
    return config
