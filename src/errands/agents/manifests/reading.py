"""The files of a load: one, or all of a folder."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from errands.agents.manifests.findings import Notebook, Place, Source, quoted, suggestion
from errands.agents.manifests.nodes import Node
from errands.errors import ConfigurationError
from errands.model.base import JSON_NAMES

# files

SUFFIXES = (".yaml", ".yml")
MAX_FILE = 2 * 1024 * 1024
MAX_FILES = 500


def texts(path: Path, notebook: Notebook) -> Iterator[tuple[str, str | None]]:
    """The name and the text of each file; None for one that cannot be read, of which the notebook hears."""
    if path.is_dir():
        files = sorted(_below(path))
        if len(files) > MAX_FILES:
            problem = f"has {len(files)} files"
            return notebook.error(Source(str(path)), (), problem, f"load at most {MAX_FILES} at a time")
        if not files:
            notebook.error(Source(str(path)), (), "has no .yaml or .yml files", "name a folder with manifests")
    elif path.is_file():
        files = [path]
    else:
        return notebook.error(Source(str(path)), (), "is neither a file nor a folder", "check the path")
    for file in files:
        yield str(file), _text(file, notebook)
    return None


def _below(folder: Path) -> Iterator[Path]:
    """Hidden files and folders are left out, and links to other folders are not followed."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.endswith(SUFFIXES) and not name.startswith("."):
                yield Path(parent, name)


def _text(file: Path, notebook: Notebook) -> str | None:
    source = Source(str(file))
    try:
        if not file.is_file():
            notebook.error(source, (), "is no file", "take it away")
            return None
        if file.stat().st_size > MAX_FILE:
            notebook.error(source, (), f"has more than {MAX_FILE // 1024 // 1024} MB", "make several files of it")
            return None
        return file.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        notebook.error(source, (), f"is no UTF-8 (at byte {error.start})", "save it as UTF-8")
    except OSError as error:
        notebook.error(source, (), f"cannot be read ({error.strerror})", "check the file and its permissions")
    return None


# reading

D = TypeVar("D", bound=msgspec.Struct)

_TYPES: dict[type[inspect.Type], tuple[type, str]] = {
    inspect.StrType: (str, "a text"),
    inspect.IntType: (int, "a whole number"),
    inspect.BoolType: (bool, "true or false"),
    inspect.DictType: (dict, "an object"),
    inspect.ListType: (list, "a list"),
    inspect.StructType: (dict, "an object"),
}
_NAMES = JSON_NAMES | {type(None): "empty"}
#: What YAML 1.1 took for true and false.
_OLD_FLAGS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


def read(kind: type[D], node: Node, place: Place) -> D:
    """The document at a node; everything that has the wrong form is told to the notebook of `place`."""
    value: D = _read(_described(kind), node, place)
    return value


@functools.cache
def _described(kind: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _unwrapped(kind: inspect.Type) -> tuple[inspect.Type, Any]:
    """A type without `| None` and without the example that comes with it."""
    example: Any = None
    if isinstance(kind, inspect.UnionType):
        [kind] = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
    if isinstance(kind, inspect.Metadata):
        [example] = (kind.extra_json_schema or {}).get("examples", [None])
        kind = kind.type
    return kind, example


def _read(kind: inspect.Type, node: Node, place: Place, example: Any = None) -> Any:
    if isinstance(kind, inspect.AnyType):
        return node.plain()
    if isinstance(kind, inspect.LiteralType):
        return _choice(kind, node, place)
    if isinstance(kind, inspect.StructType) and node.value in _shorthands(kind):
        return kind.cls()
    if not _has_type(kind, node, place, example):
        return _blank(kind)
    if isinstance(kind, inspect.StructType):
        return _struct(kind, node, place)
    if isinstance(kind, inspect.DictType):
        inner, _ = _unwrapped(kind.value_type)
        return {key: _read(inner, item, place / key) for key, item in node.value.items()}
    if isinstance(kind, inspect.ListType):
        inner, _ = _unwrapped(kind.item_type)
        return [_read(inner, item, place / index) for index, item in enumerate(node.value)]
    return _bounded(kind, node.value, place)


def _shorthands(kind: inspect.StructType) -> list[str]:
    """The text that may stand for an object of this kind, if there is one."""
    return [kind.cls.SHORTHAND] if hasattr(kind.cls, "SHORTHAND") else []


def _has_type(kind: inspect.Type, node: Node, place: Place, example: Any) -> bool:
    expected, name = _TYPES[type(kind)]
    if type(node.value) is expected:
        return True
    place.error(f"is {_NAMES[type(node.value)]}, not {name}", _remedy(kind, node, example))
    return False


def _remedy(kind: inspect.Type, node: Node, example: Any) -> str:
    """How to mend a value of the wrong type."""
    expected, name = _TYPES[type(kind)]
    value = node.value
    if expected is str and isinstance(value, list | dict):
        return "write a text, in quotes if it begins with a bracket"
    if expected is str and value is not None:
        return f"write a text such as {example}" if example else f'put it in quotes: "{node.written}"'
    if expected is bool and str(value).lower() in _OLD_FLAGS:
        return f"write {_OLD_FLAGS[str(value).lower()]}"
    if expected is list and isinstance(value, str):
        return f"write a list: [{value[:80]}]"
    if expected is list and isinstance(value, dict):
        return "write a list: each item begins with -"
    if isinstance(kind, inspect.StructType) and (shorthands := _shorthands(kind)):
        return f'write "{shorthands[0]}", or an object with at least one field'
    if isinstance(kind, inspect.StructType):
        needed = [field.encode_name for field in kind.fields if field.required]
        return f"write an object with {', '.join(needed or field_names(kind.cls))}"
    return f"write {name}"


def _bounded(kind: inspect.Type, value: Any, place: Place) -> Any:
    if isinstance(kind, inspect.StrType) and kind.min_length and not value.strip():
        place.error("is empty", "write something, or leave the field out")
    if isinstance(kind, inspect.IntType) and kind.ge is not None and value < kind.ge:
        place.error(f"is {value}", f"write {kind.ge} or more")
    return value


def _choice(kind: inspect.LiteralType, node: Node, place: Place) -> Any:
    if node.value in kind.values and type(node.value) is str:
        return node.value
    remedy = f"write one of {', '.join(map(str, kind.values))}"
    shown = quoted(node.value) if isinstance(node.value, str) else node.written or _NAMES[type(node.value)]
    place.error(f"is {shown}", remedy)
    return kind.values[0]


def _struct(kind: inspect.StructType, node: Node, place: Place) -> Any:
    cls: Any = kind.cls
    if not node.value and (shorthands := _shorthands(kind)):
        place.error("is empty", f'write "{shorthands[0]}" to use it without conditions')
    not_yet: dict[str, str] = getattr(cls, "NOT_YET", {})
    fields = {field.encode_name: field for field in kind.fields}
    for key, inner in node.value.items():
        if key in not_yet and inner.value not in (None, [], {}):
            remedy = "take it away, or run this manifest elsewhere"
            (place / key).error(f"cannot be used: {not_yet[key]} not in this version of errands", remedy)
        elif key not in fields and key not in not_yet:
            (place / key).error("is unknown", _instead(key, node, fields))
    values = {field.name: _field(field, node, place / field.encode_name) for field in kind.fields}
    try:
        return cls(**values)
    except ConfigurationError:
        return cls(**{name: value for name, value in values.items() if _is_taken(cls, name, value, place)})


def _instead(key: str, node: Node, fields: Collection[str]) -> str:
    """How to mend a field that is not known: it may belong to the one above it, which has nothing."""
    keys = list(node.value)
    above = keys[keys.index(key) - 1] if keys.index(key) else None
    if above in fields and node.value[above].value is None:
        return f"indent it, if it belongs to {above}, which is empty"
    return suggestion(key, fields, "take it away")


def _is_taken(cls: Any, name: str, value: Any, place: Place) -> bool:
    """Whether a struct that checks its fields itself, all of them optional, takes this one."""
    try:
        cls(**{name: value})
    except ConfigurationError as error:
        problem, _, remedy = str(error).partition(": ")
        (place / name).error(problem, remedy)
        return False
    return True


def _field(field: inspect.Field, node: Node, place: Place) -> Any:
    kind, example = _unwrapped(field.type)
    inner = node.value.get(field.encode_name)
    if inner is not None and (inner.value is not None or isinstance(kind, inspect.AnyType)):
        value = _read(kind, inner, place, None if field.required else example)
        if field.required and isinstance(value, str) and not value.strip():
            place.error("is empty", f"write something, such as {_shown(example)}")
        return value
    if not field.required:
        return field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    place.error("is missing" if inner is None else "is empty", f"add {field.encode_name}: {_shown(example)}")
    return _blank(kind)


def _shown(example: Any) -> str:
    return json.dumps(example) if not isinstance(example, str) else example


def _blank(kind: inspect.Type) -> Any:
    if isinstance(kind, inspect.StructType):
        required = [field for field in kind.fields if field.required]
        return kind.cls(**{field.name: _blank(_unwrapped(field.type)[0]) for field in required})
    return _TYPES[type(kind)][0]()


@functools.cache
def field_names(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields of a part of a manifest, as they are written."""
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))
