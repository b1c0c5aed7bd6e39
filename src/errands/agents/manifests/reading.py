"""Read YAML files into structs, by the types of their fields, and report everything that is wrong.

A value that is wrong is reported and replaced by a blank of the right type, so that everything else can still be
checked; nothing more is reported about the replaced fields from then on.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from errands.agents.manifests.findings import Finding, Place, quoted, suggestion
from errands.agents.manifests.yaml_nodes import Node, UnreadableError, documents
from errands.errors import ConfigurationError

D = TypeVar("D", bound=msgspec.Struct)

SUFFIXES = (".yaml", ".yml")
MAX_FILE = 2 * 1024 * 1024
MAX_FILES = 500

_TYPES: dict[type[inspect.Type], tuple[type, str]] = {
    inspect.StrType: (str, "a string"),
    inspect.IntType: (int, "an integer"),
    inspect.BoolType: (bool, "true or false"),
    inspect.DictType: (dict, "an object"),
    inspect.ListType: (list, "a list"),
    inspect.StructType: (dict, "an object"),
}
_VALUES = {
    str: "a string",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "empty",
}
#: Describing the types of an agent takes some milliseconds, and a folder may have hundreds.
_described = functools.cache(inspect.type_info)
#: Words that YAML 1.1 read as true and false.
_OLD_FLAGS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


# Files


def read_files(path: Path, findings: list[Finding]) -> Iterator[Iterator[Place | None]]:
    """Yield the documents of each manifest file at a path. None among them is something that cannot be read."""
    whole = Place(findings, str(path))
    files = [path]
    if path.is_dir():
        files = []
        # Links to other folders are not followed.
        for parent, folders, names in os.walk(path):
            folders[:] = [name for name in folders if not name.startswith(".")]
            files += [Path(parent, name) for name in names if name.endswith(SUFFIXES) and not name.startswith(".")]
        if not files:
            whole.error("has no .yaml or .yml files", "name a folder with manifests")
    elif not path.is_file():
        return whole.error("is neither a file nor a folder", "check the path")
    if len(files) > MAX_FILES:
        return whole.error(f"has {len(files)} files", f"load at most {MAX_FILES} at a time")
    yield from (_read_file(file, findings) for file in sorted(files))
    return None


def _read_file(file: Path, findings: list[Finding]) -> Iterator[Place | None]:
    def report(line: int | None, problem: str, remedy: str) -> None:
        # A place for each, as only the first error about a place is reported.
        Place(findings, str(file)).error(problem, remedy, line=line)

    try:
        if file.is_file() and file.stat().st_size <= MAX_FILE:
            for root in documents(file.read_text("utf-8-sig"), report):
                yield Place(findings, str(file), root)
            return
        if file.is_file():
            report(None, f"has more than {MAX_FILE // 1024 // 1024} MB", "split it into several files")
        else:
            report(None, "is not a file", "remove it")
    except UnicodeDecodeError as error:
        report(None, f"is not UTF-8 (at byte {error.start})", "save it as UTF-8")
    except OSError as error:
        report(None, f"cannot be read ({error.strerror})", "check the file and its permissions")
    except UnreadableError as error:
        report(error.line, error.problem, error.remedy)
    yield None


def only_document(path: Path, findings: list[Finding], remedy: str) -> Place | None:
    """Return the only document of a file, an object; None after reporting what is wrong with the file."""
    places = [place for file in read_files(path, findings) for place in file if place is not None]
    if findings:
        return None
    if len(places) != 1:
        Place(findings, str(path)).error(f"has {len(places)} documents", remedy)
        return None
    [place] = places
    if place.root is None or not isinstance(place.root.value, dict):
        place.error("is not an object", remedy)
        return None
    return place


# Structs


def read(kind: type[D], place: Place) -> D:
    """Read a whole document as a struct; everything of the wrong form is reported."""
    assert place.root is not None
    value: D = _read(_described(kind), place.root, place)
    return value


def field_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the fields of a part of a manifest as they are written."""
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, Any]:
    """Return a type without `| None`, and the example that comes with it."""
    example: Any = None
    if isinstance(kind, inspect.UnionType):
        [kind] = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
    if isinstance(kind, inspect.Metadata):
        [example] = (kind.extra_json_schema or {}).get("examples", [None])
        kind = kind.type
    return kind, example


def _shorthand(kind: inspect.Type) -> str | None:
    """Return the string that may replace an object of this kind, if there is one."""
    return getattr(kind.cls, "SHORTHAND", None) if isinstance(kind, inspect.StructType) else None


def _read(kind: inspect.Type, node: Node, place: Place, example: Any = None) -> Any:
    value: Any = node.value
    if isinstance(kind, inspect.AnyType):
        return node.plain()
    if isinstance(kind, inspect.LiteralType):
        if value in kind.values and type(value) is str:
            return value
        shown = quoted(value) if isinstance(value, str) else node.written or _VALUES[type(value)]
        place.error(f"is {shown}", f"write one of {', '.join(map(str, kind.values))}")
        return kind.values[0]
    if isinstance(kind, inspect.StructType) and value is not None and value == _shorthand(kind):
        return kind.cls()
    expected, name = _TYPES[type(kind)]
    if type(node.value) is not expected:
        place.error(f"is {_VALUES[type(value)]}, not {name}", _type_remedy(kind, node, example))
        return _blank(kind)
    if isinstance(kind, inspect.StructType):
        return _struct(kind, node, place)
    if isinstance(kind, inspect.DictType):
        inner, _ = _unwrapped(kind.value_type)
        return {key: _read(inner, item, place / key) for key, item in value.items()}
    if isinstance(kind, inspect.ListType):
        inner, _ = _unwrapped(kind.item_type)
        return [_read(inner, item, place / index) for index, item in enumerate(value)]
    if isinstance(kind, inspect.StrType) and kind.min_length and not value.strip():
        place.error("is empty", "write something, or leave the field out")
    if isinstance(kind, inspect.IntType) and kind.ge is not None and value < kind.ge:
        place.error(f"is {value}", f"write {kind.ge} or more")
    return value


def _type_remedy(kind: inspect.Type, node: Node, example: Any) -> str:
    expected, name = _TYPES[type(kind)]
    value = node.value
    if expected is str and isinstance(value, list | dict):
        return "write a string, in quotes if it begins with a bracket"
    if expected is str and value is not None:
        return f"write a string such as {example}" if example else f'put it in quotes: "{node.written}"'
    if expected is bool and str(value).lower() in _OLD_FLAGS:
        return f"write {_OLD_FLAGS[str(value).lower()]}"
    if expected is list and isinstance(value, str):
        return f"write a list: [{value[:80]}]"
    if expected is list and isinstance(value, dict):
        return "write a list: each item begins with -"
    if shorthand := _shorthand(kind):
        return f'write "{shorthand}", or an object with at least one field'
    if isinstance(kind, inspect.StructType):
        needed = [field.encode_name for field in kind.fields if field.required]
        return f"write an object with {', '.join(needed or field_names(kind.cls))}"
    return f"write {name}"


def _struct(kind: inspect.StructType, node: Node, place: Place) -> Any:
    cls: Any = kind.cls
    if not node.value and (shorthand := _shorthand(kind)):
        place.error("is empty", f'write "{shorthand}" to use it without conditions')
    not_yet: dict[str, str] = getattr(cls, "NOT_YET", {})
    fields = {field.encode_name: field for field in kind.fields}
    above = None
    for key, inner in node.value.items():
        if key in not_yet and inner.value not in (None, [], {}):
            remedy = "remove it, or run this manifest elsewhere"
            (place / key).error(f"cannot be used: {not_yet[key]} not in this version of errands", remedy)
        elif key not in fields and key not in not_yet:
            remedy = suggestion(key, fields, "remove it")
            if above in fields and node.value[above].value is None:
                remedy = f"indent it, if it belongs to {above}, which is empty"
            (place / key).error("is unknown", remedy)
        above = key
    values = {field.name: _field(field, node, place / field.encode_name) for field in kind.fields}
    try:
        return cls(**values)
    except ConfigurationError:
        # A struct that checks its fields itself, all of them optional: find out which one it refuses.
        for name in list(values):
            try:
                cls(**{name: values[name]})
            except ConfigurationError as error:
                problem, _, remedy = str(error).partition(": ")
                (place / name).error(problem, remedy)
                del values[name]
        return cls(**values)


def _field(field: inspect.Field, node: Node, place: Place) -> Any:
    kind, example = _unwrapped(field.type)
    shown = example if isinstance(example, str) else json.dumps(example)
    inner = node.value.get(field.encode_name)
    if inner is not None and (inner.value is not None or isinstance(kind, inspect.AnyType)):
        value = _read(kind, inner, place, None if field.required else example)
        if field.required and isinstance(value, str) and not value.strip():
            place.error("is empty", f"write something, such as {shown}")
        return value
    if not field.required:
        return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    place.error("is missing" if inner is None else "is empty", f"add {field.encode_name}: {shown}")
    return _blank(kind)


def _blank(kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.StructType):
        required = [field for field in kind.fields if field.required]
        return kind.cls(**{field.name: _blank(_unwrapped(field.type)[0]) for field in required})
    return _TYPES[type(kind)][0]()
