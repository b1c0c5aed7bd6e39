"""The operator's file of tool settings: what tools and remote agents need, by their names, with secrets from outside.

crm:
  api.key: ${CRM_KEY}
partner:                      # a remote agent
  headers: {Authorization: "Bearer ${PARTNER_TOKEN}"}
auth:                         # what {auth.github} stands for in the requests of tools
  github: ${GITHUB_TOKEN}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from errands.agents.manifests.extra import from_extra
from errands.errors import ConfigurationError

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
            f"{path}{line}: is no YAML ({problem}); mend the syntax there, and put texts with braces in quotes"
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
            raise ConfigurationError(
                f"{path}: the environment has no variable {name}; set it, or take ${{{name}}} away"
            )
        return environ[name]

    return _VARIABLE.sub(fill, value)
