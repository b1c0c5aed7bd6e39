"""The operator's settings of tools: keys, addresses and the like, as the `settings` of a tool declare them.

They come from the operator's file, the environment and the program; the model never sees them. A file has the names of
tools and remote agents, with secrets from the environment:

    crm:
      api.key: ${CRM_KEY}
    partner:                      # a remote agent
      headers: {Authorization: "Bearer ${PARTNER_TOKEN}"}
    auth:                         # the values of {auth.github} in the requests of tools
      github: ${GITHUB_TOKEN}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import Tool
from errands.agents.manifests.findings import suggestion
from errands.agents.manifests.yaml_nodes import from_extra
from errands.errors import ConfigurationError

_PREFIX = "ERRANDS_TOOL_"
_NOT_IN_VARIABLES = re.compile(r"[^A-Z0-9]+")
#: `${NAME}`, `${file:PATH}`, and `$${` for a plain `${`.
_REFERENCE = re.compile(r"\$(\$?)\{([^}]*)\}")
_FILE = "file:"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def variable(tool: str, name: str) -> str:
    """Return the environment variable of a setting: `ERRANDS_TOOL_CRM__API_KEY` for `api.key` of `crm`."""
    return "__".join([_PREFIX + _NOT_IN_VARIABLES.sub("_", tool.upper()), _NOT_IN_VARIABLES.sub("_", name.upper())])


def from_environment(tools: Iterable[Tool], environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the settings that are in the environment, by tool, converted to the types of their schemas."""
    found: dict[str, dict[str, Any]] = {}
    for tool in tools:
        for name, schema in schemas.properties(tool.settings).items():
            value: Any = environ.get(variable(tool.name, name))
            if value is None:
                continue
            if schema.get("type") not in (None, "string"):
                # `resolved` reports a value that cannot be decoded, with the name of the setting.
                with suppress(msgspec.DecodeError):
                    value = msgspec.json.decode(value)
            found.setdefault(tool.name, {})[name] = value
    return found


def unused_variables(tools: Iterable[Tool], environ: Mapping[str, str]) -> list[str]:
    """Return the variables that look like settings of tools, but are settings of none of these."""
    known = {variable(tool.name, name) for tool in tools for name in schemas.properties(tool.settings)}
    return sorted(name for name in environ if name.startswith(_PREFIX) and "__" in name and name not in known)


def resolved(tool: Tool, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a tool with their defaults. Raises `ConfigurationError` with everything that is wrong."""
    declared = schemas.properties(tool.settings)
    values = {**schemas.defaults(declared), **given}
    problems = [
        f"the tool {tool.name} has no setting {name[:80]!r}: {suggestion(name, declared, 'remove it')}"
        for name in given
        if name not in declared
    ]
    for name, schema in declared.items():
        if name not in values:
            described = schema.get("description") or schema.get("title")
            problem = f"needs the setting {name}" + (f" ({described})" if described else "")
        elif found := schemas.problem(schema, values[name]):
            # The message of the library repeats the value.
            is_type = found.keyword == "type"
            reason = f"must be of type {schema.get('type')}" if is_type else f"violates its {found.keyword}"
            problem = f"has an invalid setting {name}: it {reason}"
        else:
            continue
        remedy = f"set the variable {variable(tool.name, name)}, or write {name} under {tool.name} in the tool settings"
        problems.append(f"the tool {tool.name} {problem}: {remedy}")
    if problems:
        raise ConfigurationError("; ".join(problems))
    return values


def secrets(tool: Tool, values: Mapping[str, Any]) -> list[Any]:
    """Return the values that must be hidden."""
    declared = schemas.properties(tool.settings)
    return [value for name, value in values.items() if declared.get(name, {}).get("format") == "password"]


def read_settings(path: str | Path, environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return the settings of a file, with `${NAME}` filled in. Raises like `read_filled`."""
    content = read_filled(path, environ, "the tool settings")
    try:
        found = msgspec.convert(content or {}, dict[str, dict[str, Any] | None])
    except msgspec.ValidationError:
        problem = "must have the names of tools, and under each of them its settings by name"
        raise ConfigurationError(f"{path}: {problem}") from None
    return {name: values or {} for name, values in found.items()}


def read_filled(path: str | Path, environ: Mapping[str, str], what: str) -> Any:
    """Return the content of a YAML file, with `${NAME}` and `${file:PATH}` filled in.

    Raises `ConfigurationError`, which never contains a value.
    """
    yaml = from_extra("yaml")
    try:
        content = yaml.safe_load(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"{what} {path} cannot be read ({error.strerror}); check the path") from None
    except (UnicodeDecodeError, ValueError):
        raise ConfigurationError(f"{what} {path} cannot be read: save it as UTF-8") from None
    except yaml.YAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if getattr(error, "problem_mark", None) else ""
        problem = getattr(error, "problem", None) or "unknown"
        raise ConfigurationError(
            f"{path}{line}: is not valid YAML ({problem}); fix the syntax there, and put strings with braces in quotes"
        ) from None
    return _filled(content, environ, path)


def _filled(value: Any, environ: Mapping[str, str], path: str | Path) -> Any:
    if isinstance(value, dict):
        # A secret may be a key, too: that of a caller.
        return {_filled(key, environ, path): _filled(one, environ, path) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, environ, path) for one in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        is_escaped, name = found.groups()
        if is_escaped:
            return found.group()[1:]
        if name.startswith(_FILE):
            file = name.removeprefix(_FILE)
            try:
                return Path(path).parent.joinpath(file).read_text("utf-8").strip()
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise ConfigurationError(f"{path}: the file {file} cannot be read ({reason}); check the path") from None
        if not _VARIABLE_NAME.fullmatch(name):
            raise ConfigurationError(f"{path}: ${{{name}}} is not the name of a variable; write $${{ for a plain ${{")
        if name not in environ:
            raise ConfigurationError(f"{path}: the variable {name} is not set; set it, or remove ${{{name}}}")
        return environ[name]

    return _REFERENCE.sub(fill, value)
