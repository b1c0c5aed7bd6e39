"""What the operator gives a tool: keys, addresses and the like, as the tool's `settings` declare them.

Values come from the operator's file (`settings_file`), from the environment (`from_environment`) and from the program;
the model never sees them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Tool
from errands.agents.manifests.findings import suggestion
from errands.agents.manifests.nodes import from_extra
from errands.errors import ConfigurationError

# settings

_PREFIX = "ERRANDS_TOOL_"
_FOREIGN = re.compile(r"[^A-Z0-9]+")


def variable(tool: str, name: str) -> str:
    """The environment variable of a setting: `ERRANDS_TOOL_CRM__API_KEY` for `api.key` of `crm`."""
    return "__".join([_PREFIX + _FOREIGN.sub("_", tool.upper()), _FOREIGN.sub("_", name.upper())])


def from_environment(tools: Iterable[Tool], environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The settings of tools that the environment has, by the names of the tools. Texts become what the schema wants."""
    found: dict[str, dict[str, Any]] = {}
    for tool in tools:
        for name, schema in schemas.properties(tool.settings).items():
            text = environ.get(variable(tool.name, name))
            if text is not None:
                found.setdefault(tool.name, {})[name] = _converted(text, schema)
    return found


def unused_variables(tools: Iterable[Tool], environ: Mapping[str, str]) -> list[str]:
    """Variables of the environment that look like settings of these tools and are none."""
    known = {variable(tool.name, name) for tool in tools for name in schemas.properties(tool.settings)}
    return sorted(name for name in environ if name.startswith(_PREFIX) and "__" in name and name not in known)


def _converted(text: str, schema: schemas.Schema) -> Any:
    if schema.get("type") in (None, "string"):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        # It does not fit, and is told so with the name of the setting.
        return text


def resolved(tool: Tool, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a tool with their defaults. Raises `ConfigurationError` with everything that is wrong."""
    declared = schemas.properties(tool.settings)
    values = {**schemas.defaults(declared), **given}
    problems = [_unknown(tool, name, declared) for name in given if name not in declared]
    for name, schema in declared.items():
        problem = _problem(name, schema, values)
        if problem:
            problems.append(f"the tool {tool.name} {problem}: {_remedy(tool, name)}")
    if problems:
        raise ConfigurationError("; ".join(problems))
    return values


def secrets(tool: Tool, values: Mapping[str, Any]) -> list[Any]:
    """The values that nobody may see."""
    declared = schemas.properties(tool.settings)
    return [value for name, value in values.items() if declared.get(name, {}).get("format") == "password"]


def _unknown(tool: Tool, name: str, declared: Mapping[str, Any]) -> str:
    remedy = suggestion(name, declared, "remove it")
    return f"the tool {tool.name} has no setting {name[:80]!r}: {remedy}"


def _problem(name: str, schema: schemas.Schema, values: Mapping[str, Any]) -> str | None:
    if name not in values:
        described = schema.get("description") or schema.get("title")
        return f"needs the setting {name}" + (f" ({described})" if described else "")
    found = schemas.problem(schema, values[name])
    if found is None:
        return None
    # The message of the library repeats the value.
    reason = f"must be of type {schema.get('type')}" if found.keyword == "type" else f"breaks its {found.keyword}"
    return f"has a setting {name} that does not fit: it {reason}"


def _remedy(tool: Tool, name: str) -> str:
    return f"set the variable {variable(tool.name, name)}, or write {name} under {tool.name} in the tool settings"


# settings_file

Settings = dict[str, dict[str, Any]]

#: `${NAME}`, and `$${` for the same as it stands.
_VARIABLE = re.compile(r"\$(\$?)\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_settings(path: str | Path, environ: Mapping[str, str]) -> Settings:
    """The settings of a file, with `${NAME}` filled in. Raises `ConfigurationError`, which has no value in it."""
    yaml = from_extra("yaml")
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(
            f"the tool settings {path} cannot be read ({error.strerror}); check the path"
        ) from None
    except (UnicodeDecodeError, ValueError):
        raise ConfigurationError(f"the tool settings {path} are no text in UTF-8; save them as UTF-8") from None
    except yaml.YAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if getattr(error, "problem_mark", None) else ""
        problem = getattr(error, "problem", None) or "unknown"
        raise ConfigurationError(
            f"{path}{line}: is not valid YAML ({problem}); fix the syntax there, and put texts with braces in quotes"
        ) from None
    if not _is_settings(content):
        raise ConfigurationError(f"{path}: must have the names of tools, and under each of them its settings by name")
    return {
        name: {key: _filled(value, environ, path) for key, value in values.items()} for name, values in _items(content)
    }


def _is_settings(content: Any) -> bool:
    return content is None or (
        isinstance(content, dict)
        and all(isinstance(name, str) and isinstance(values, dict | None) for name, values in content.items())
        and all(isinstance(key, str) for values in content.values() for key in values or ())
    )


def _items(content: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(name, values or {}) for name, values in (content or {}).items()]


def _filled(value: Any, environ: Mapping[str, str], path: str | Path) -> Any:
    if isinstance(value, dict):
        return {key: _filled(one, environ, path) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, environ, path) for one in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        is_escaped, name = found.groups()
        if is_escaped:
            return found.group()[1:]
        if not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{path}: ${{{name}}} names no variable of the environment; write $${{ for a plain ${{"
            )
        if name not in environ:
            raise ConfigurationError(f"{path}: the environment has no variable {name}; set it, or remove ${{{name}}}")
        return environ[name]

    return _VARIABLE.sub(fill, value)
