"""The reference of the Python interface, in Markdown, from docstrings, signatures and `#:` comments.

    public_names()       every public name of errands, where it is described, and its members
    python_pages()       the pages of the reference by their paths

A comment that begins with `#:` documents the attribute on the line after it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import re
import textwrap
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec
from markdown_tables import code, tables

import errands

DOCS = Path(__file__).parents[2] / "docs"
#: The modules for programs. What the guides import from others is described, too.
MODULES = ["errands", "errands.client", "errands.testing", "errands.sdk", "errands.a2akit", "errands.praisonai"]


class Topic(NamedTuple):
    """A page of the reference: what is defined in these modules, or under these names."""

    title: str
    text: str
    defined_in: tuple[str, ...]


#: The pages by their paths. A name is on the first that fits.
TOPICS = {
    "a2akit": Topic(
        "a2akit", "[Migrating from a2akit](../migrating-from-a2akit.md) explains them.", ("errands.a2akit",)
    ),
    "praisonai": Topic("PraisonAI", "[Migrating from PraisonAI](../migrating-from-praisonai.md) explains them.", ()),
    "testing": Topic("Testing", "[Testing](../testing.md) has examples.", ()),
    "client": Topic("The client", "[The client](../client.md) has examples.", ("errands.client",)),
    "exceptions": Topic(
        "Exceptions",
        "[Errors](errors.md) has their codes.",
        ("errands.errors", "errands.runtime.context.InvalidAnswerError"),
    ),
    "executors": Topic(
        "Executors",
        "[Executors](../executors.md) has examples.",
        ("errands.runtime.executor", "errands.runtime.executor_worker"),
    ),
    "stores": Topic(
        "Tasks and stores",
        "[Serving](../serving.md) and [Durability](../durability.md) explain them.",
        (
            "errands.engines",
            "errands.model.log",
            "errands.runtime.leases",
            "errands.runtime.processes",
            "errands.runtime.task_manager",
        ),
    ),
    "card": Topic(
        "The agent card",
        "[Writing agents](../agents.md) and [Signed agent cards](../card-signing.md) explain them.",
        ("errands.model.card_config", "errands.wire.card_signing"),
    ),
    "model": Topic(
        "Tasks, messages and events",
        "The objects of A2A 1.0, as its [specification](https://a2a-protocol.org) has them.",
        ("errands.model",),
    ),
    "agents": Topic(
        "Writing agents",
        "[Writing agents](../agents.md) has examples.",
        ("errands.runtime.context", "errands.runtime.function_worker", "errands.runtime.worker"),
    ),
    "policy": Topic("Policy", "[Policy](../policy.md) has examples.", ("errands.policy",)),
    "manifests": Topic(
        "Manifests, tools and models",
        "[Manifests](../manifests.md), [Tools](../tools.md) and [Models](../models.md) have examples.",
        ("errands.agents", "errands.outbound"),
    ),
    "serving": Topic("Serving", "[Serving](../serving.md) has examples.", ("errands.server", "errands.runtime")),
}
#: The classes that tables of `docs/` are about, if their heading does not say it.
_TABLES = {
    ("agents.md", "field"): "AgentCardConfig",
    ("agents.md", "hook"): "LifecycleHooks",
    ("manifests.md", "field of a capability"): "CapabilitySteps",
    ("manifests.md", "field of a step"): "StepConfig",
}
#: Classes whose objects programs are given: how they are made is not for callers.
_GIVEN = {"ClientResult", "Conversation", "RequestEnvelope", "StreamEvent", "TaskContext", "TaskManager", "TaskPages"}
_WIDTH = 88


@dataclass(frozen=True)
class PublicName:
    """A name that programs import."""

    module: str
    name: str
    value: Any
    #: Where it is described: `errands.Worker` for `errands.a2akit.Worker`.
    target: str

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def is_described_here(self) -> bool:
        """Return whether this is where the name is described, and not another name for the same thing."""
        return self.target == self.path


@dataclass(frozen=True)
class Member:
    """A public attribute or method of a class."""

    name: str
    #: How it is called, for methods; its annotation, for attributes.
    signature: str
    documentation: str
    is_method: bool = False
    default: str = ""


def names_of(module: ModuleType) -> list[str]:
    """Return the names that a module is for: those in `__all__`, and at the root those that are loaded when used."""
    listed = set(getattr(module, "__all__", ()))
    if not listed or module.__name__ == "errands":
        origin = module.__name__
        values = {name: getattr(module, name) for name in dir(module)}
        listed |= {name for name, value in values.items() if getattr(value, "__module__", "").startswith(origin)}
        listed |= {name for name in values if name.isupper() and isinstance(values[name], str)}
    return sorted(name for name in listed if not name.startswith("_"))


@functools.cache
def public_names() -> list[PublicName]:
    """Return every public name of every module. A value with several names is described under the first one."""
    found: list[PublicName] = []
    described: dict[int, str] = {}
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        found += [PublicName(module_name, name, getattr(module, name), "") for name in names_of(module)]
    known = {(name.module, name.name) for name in found}
    for module_name, imported in sorted(imported_by_guides() - known):
        value = getattr(importlib.import_module(module_name), imported)
        if not inspect.ismodule(value):
            found.append(PublicName(module_name, imported, value, ""))
    # Its own name, if it has several. Small constants may be equal without being the same thing.
    for name in sorted(found, key=lambda each: getattr(each.value, "__name__", "") != each.name):
        described.setdefault(id(name.value), name.path)
    targets = [described[id(name.value)] if callable(name.value) else name.path for name in found]
    found = [replace(name, target=target) for name, target in zip(found, targets, strict=True)]
    # What every program needs comes first.
    modules = list(dict.fromkeys(name.module for name in found))
    return sorted(found, key=lambda each: (modules.index(each.module), each.name not in errands.__all__))


@functools.cache
def imported_by_guides() -> set[tuple[str, str]]:
    """Return the modules and names that Python blocks of `docs/` import from errands."""
    found: set[tuple[str, str]] = set()
    for page in DOCS.glob("*.md"):
        for line in re.findall(r"^from (errands[\w.]* import [\w, ]+)$", page.read_text(), re.MULTILINE):
            module, _, names = line.partition(" import ")
            found |= {(module, name.strip().partition(" as ")[0]) for name in names.split(",")}
    return found


def documentation_of(value: Any) -> str:
    """Return the docstring of a class or function itself, not of its base or of its metaclass."""
    if isinstance(value, type):
        text = inspect.cleandoc(value.__dict__.get("__doc__") or "")
        # Dataclasses without a docstring get their signature as one.
        return "" if text.startswith(f"{value.__name__}(") else text
    return inspect.getdoc(value) or "" if callable(value) else ""


# Members of classes


def public_bases_of(kind: type) -> list[PublicName]:
    """Return the bases of a class that are in the reference, too."""
    return [
        name for base in kind.__mro__[1:] for name in public_names() if name.value is base and name.is_described_here
    ]


def members_of(kind: type) -> list[Member]:
    """Return the public members of a class in the order of its source, then those of bases that are not public.

    What a public base has is described there. An engine has nothing for programs but that.
    """
    of_bases = {name for base in public_bases_of(kind) for name in dir(base.value)}
    members = [member for member in _all_members_of(kind) if member.name not in of_bases]
    return [] if issubclass(kind, errands.Engine) and kind is not errands.Engine else members


def _all_members_of(kind: type) -> list[Member]:
    found: dict[str, Member] = {}
    # What is said of an attribute of a base is true of that of a subclass.
    comments = {name: text for base in reversed(kind.__mro__) for name, text in _comments(base).items()}
    for owner in kind.__mro__:
        if not owner.__module__.startswith("errands"):
            continue
        if issubclass(kind, enum.Enum) and owner is not kind:
            continue
        names = [*_annotations(owner), *vars(owner), *_comments(owner)]
        for name in dict.fromkeys(names):
            if not name.startswith("_") and name not in found and (member := _member(kind, owner, name, comments)):
                found[name] = member
    return list(found.values())


@functools.cache
def explained() -> dict[str, str]:
    """Return what the tables of `docs/` say about members, such as `StreamEvent.kind`."""
    found: dict[str, str] = {}
    for page in sorted(DOCS.glob("*.md")):
        for table in tables(page.read_text()):
            described = re.fullmatch(r"(?:field|member|method) of `(\w+)`", table.header[0])
            kind = described[1] if described else _TABLES.get((page.name, table.header[0]))
            for row in table.rows if kind else ():
                text = re.sub(r"\]\((?=[\w-]+\.md)", "](../", row[-1]).replace("](#", f"](../{page.name}#")
                found[f"{kind}.{code(row[0]).partition('(')[0]}"] = text
    return found


def _member(kind: type, owner: type, name: str, comments: Mapping[str, str]) -> Member | None:
    value = inspect.getattr_static(owner, name, None)
    function = inspect.unwrap(value.__func__) if isinstance(value, classmethod | staticmethod) else value
    if isinstance(value, property | functools.cached_property):
        getter = value.fget if isinstance(value, property) else value.func
        returns = str(inspect.signature(getter).return_annotation) if getter else ""
        return Member(name, "" if "_empty" in returns else returns, inspect.getdoc(getattr(kind, name)) or "")
    if inspect.isfunction(function) and name not in _annotations(owner):
        return Member(name, signature_of(name, value), inspect.getdoc(getattr(kind, name)) or "", is_method=True)
    if isinstance(value, type) or (isinstance(value, enum.Enum) and value.name != name):
        return None
    annotation = _annotations(owner).get(name, "")
    if annotation.startswith("ClassVar") and name not in comments:
        return None
    if not annotation and name not in comments and not isinstance(value, enum.Enum):
        return None
    documentation = comments.get(name) or explained().get(f"{owner.__name__}.{name.rstrip('_')}", "")
    return Member(name, annotation, documentation, default=_default(kind, name))


def _annotations(kind: type) -> dict[str, str]:
    found = inspect.get_annotations(kind)
    return {name: _annotation_text(annotation) for name, annotation in found.items()}


@functools.cache
def _comments(kind: type) -> dict[str, str]:
    """Return what the `#:` comments of a class say, by the attribute that follows each."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return {}
    found: dict[str, str] = {}
    comment: list[str] = []
    for line in map(str.strip, source.splitlines()):
        if line.startswith("#:"):
            comment.append(line[2:].strip())
            continue
        attribute = re.match(r"(?:self\.)?(\w+)\s*(?::[^=]|=)", line)
        if attribute and comment:
            found.setdefault(attribute[1], " ".join(comment))
        comment = []
    return found


def _default(kind: type, name: str) -> str:
    """Return the default of a field as a program would write it; "" for none, or one that is made anew each time."""
    if issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            if field.name == name:
                return "" if field.default is msgspec.NODEFAULT else _written(field.default)
    if dataclasses.is_dataclass(kind):
        for each in dataclasses.fields(kind):
            if each.name == name:
                return "" if each.default is dataclasses.MISSING else _written(each.default)
    value = inspect.getattr_static(kind, name, None)
    return _written(value.value) if isinstance(value, enum.Enum) else ""


def _written(value: object) -> str:
    if isinstance(value, enum.Enum):
        return repr(value.value)
    plain = isinstance(value, str | int | float | bool | None) or value == ()
    return repr(value) if plain else ""


def signature_of(name: str, function: Any) -> str:
    """Return the head of a function as a program would write it, on several lines if it is long."""
    is_wrapped = isinstance(function, classmethod | staticmethod)
    plain: Callable[..., Any] = inspect.unwrap(function.__func__ if is_wrapped else function)
    signature = inspect.signature(plain)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.name not in ("self", "cls")]
    # A name with an underscore is not for callers.
    parameters = [parameter for parameter in parameters if not parameter.name.startswith("_")]
    pieces = _with_markers(parameters)
    prefix = "async " if inspect.iscoroutinefunction(plain) else ""
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {_annotation_text(returned)}"
    one_line = f"{prefix}{name}({', '.join(pieces)}){arrow}"
    if len(one_line) <= _WIDTH:
        return one_line
    return f"{prefix}{name}(\n" + "".join(f"    {piece},\n" for piece in pieces) + f"){arrow}"


def _with_markers(parameters: list[inspect.Parameter]) -> list[str]:
    pieces: list[str] = []
    starred = False
    for position, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            pieces.append("*")
            starred = True
        pieces.append(_parameter_text(parameter))
        following = parameters[position + 1].kind if position + 1 < len(parameters) else None
        if parameter.kind is parameter.POSITIONAL_ONLY and following is not parameter.POSITIONAL_ONLY:
            pieces.append("/")
    return pieces


def _parameter_text(parameter: inspect.Parameter) -> str:
    star = "*" * (parameter.kind is parameter.VAR_POSITIONAL) + "**" * (parameter.kind is parameter.VAR_KEYWORD)
    text: str = star + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {_annotation_text(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        default = _written(parameter.default) or "..."
        text += f" = {default}" if ":" in text else f"={default}"
    return text


def _annotation_text(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"Annotated\[(.+?), Meta\(.*\)\]", r"\1", re.sub(r"\bcore\.", "", text))


# Pages


def python_pages() -> dict[str, str]:
    """Return the Markdown of each page of the reference by its path."""
    pages = {"reference/index.md": "\n".join(_index()) + "\n"}
    for slug, topic in TOPICS.items():
        names = [name for name in public_names() if name.is_described_here and topic_of(name) == slug]
        lines = [f"# {topic.title}", "", topic.text, "", *_overview(names), ""]
        for name in names:
            lines += [*_section(name), ""]
        pages[f"reference/{slug}.md"] = "\n".join(lines) + "\n"
    return pages


def topic_of(name: PublicName) -> str:
    """Return the page that describes a name. Raises `LookupError` if there is none."""
    described = next(each for each in public_names() if each.path == name.target)
    if (slug := described.module.rpartition(".")[2]) in ("a2akit", "praisonai", "testing"):
        return slug
    defined = f"{getattr(described.value, '__module__', described.module)}.{described.name}"
    for slug, topic in TOPICS.items():
        if any(_is_in(defined, prefix) for prefix in topic.defined_in):
            return slug
    raise LookupError(f"no page of the reference describes {defined}: add its module to TOPICS in {__file__}")


def _is_in(defined: str, prefix: str) -> bool:
    return defined == prefix or defined.startswith(f"{prefix}.")


def anchors() -> dict[str, str]:
    """Return the path and anchor of everything that the reference describes, by its full name."""
    found: dict[str, str] = {}
    for name in public_names():
        page = f"reference/{topic_of(name)}.md"
        found[name.path] = f"{page}#{name.target}"
        if isinstance(name.value, type):
            for member in members_of(name.value):
                anchor = f"{name.target}.{member.name}" if member.is_method else name.target
                found[f"{name.path}.{member.name}"] = f"{page}#{anchor}"
    return found


def _index() -> Iterator[str]:
    yield "# Python"
    yield ""
    yield "Every name that programs import. A name that is not here may change in any release."
    for module in dict.fromkeys(name.module for name in public_names()):
        yield from ("", f"## {module}", "", inspect.cleandoc(importlib.import_module(module).__doc__ or ""), "")
        yield from ("| name | what it is |", "|---|---|")
        for name in public_names():
            if name.module == module:
                link = f"{topic_of(name)}.md#{name.target}"
                yield f"| [`{name.name}`]({link}) | {first_sentence(documentation_of(name.value))} |"


def _overview(names: list[PublicName]) -> list[str]:
    rows = [f"| [`{name.name}`](#{name.path}) | {first_sentence(documentation_of(name.value))} |" for name in names]
    return ["| name | what it is |", "|---|---|", *rows]


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, fit for the cell of a table."""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=\.)\s(?=[A-Z`])", paragraph)[0].replace("|", "\\|")


def _section(name: PublicName) -> list[str]:
    value = name.value
    lines = [f"## {name.name} {{ #{name.path} }}", "", f"`from {name.module} import {name.name}`", ""]
    if isinstance(value, type):
        return lines + _class_section(name, value)
    if callable(value):
        return [*lines, *_code(signature_of(name.name, value)), "", documentation_of(value)]
    return [*lines, *_code(f"{name.name} = {value!r}")]


def _class_section(name: PublicName, kind: type) -> list[str]:
    bases = [
        base.__name__ for base in kind.__bases__ if base not in (object, ABC) and not base.__name__.startswith("_")
    ]
    members = members_of(kind)
    head = f"class {name.name}" + (f"({', '.join(bases)})" if bases else "")
    details = ""
    constructor = inspect.getattr_static(kind, "__init__")
    is_ours = inspect.isfunction(constructor) and constructor.__module__.startswith("errands")
    if is_ours and not dataclasses.is_dataclass(kind) and kind.__name__ not in _GIVEN:
        head = "class " + signature_of(name.name, constructor).removesuffix(" -> None")
        details = inspect.cleandoc(constructor.__doc__ or "")
    lines = [*_code(head), "", documentation_of(kind), "", details, ""]
    if bases_here := public_bases_of(kind):
        links = ", ".join(f"[`{base.name}`]({topic_of(base)}.md#{base.target})" for base in bases_here)
        lines += [f"It has the members of {links}.", ""]
    lines += _attributes([member for member in members if not member.is_method])
    for member in members:
        if member.is_method:
            lines += [f"### {member.name} {{ #{name.path}.{member.name} }}", ""]
            lines += [*_code(member.signature), "", member.documentation, ""]
    return lines


def _attributes(members: list[Member]) -> list[str]:
    """Return a table of attributes, without columns that would be empty."""
    columns = {
        "attribute": [f"`{member.name}`" for member in members],
        "type": [f"`{member.signature}`" if member.signature else "" for member in members],
        "default": [f"`{member.default}`" if member.default else "" for member in members],
        "meaning": [" ".join(member.documentation.split()) for member in members],
    }
    columns = {header: cells for header, cells in columns.items() if any(cells)}
    if not columns:
        return []
    rows = zip(*columns.values(), strict=True)
    lines = [" | ".join(columns), "|".join(["---"] * len(columns))]
    lines += [" | ".join(cell.replace("|", "\\|") for cell in row) for row in rows]
    return [f"| {line} |" for line in lines] + [""]


def _code(text: str) -> list[str]:
    return ["```python", text, "```"]
