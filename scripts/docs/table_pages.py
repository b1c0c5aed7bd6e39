"""The reference of operations, settings, errors and commands, in Markdown, from the tables that declare them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import typer.main
from python_pages import documentation_of, first_sentence

from errands import client, errors
from errands.cli.failures import EXIT_CODES
from errands.cli.main import app
from errands.errors import A2AError
from errands.model.base import A2AObject, fields_of
from errands.operations import OPERATIONS
from errands.runtime.settings import ENV_PREFIX, SECRET, Settings
from errands.runtime.task_manager import TaskManager
from errands.wire.status import STATUS
from errands.wire.v0_3 import JSONRPC as V0_3


def table_pages() -> dict[str, str]:
    """Return the Markdown of each page by its path."""
    return {
        "reference/settings.md": "\n".join(_settings()) + "\n",
        "reference/operations.md": "\n".join(_operations()) + "\n",
        "reference/errors.md": "\n".join(_errors()) + "\n",
        "reference/commands.md": "\n".join(_commands()) + "\n",
    }


def _row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _header(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


# Settings


def settings_by_part() -> dict[str, dict[str, str]]:
    """Return what each setting means, by the part of the server that uses it, in the order of `Settings`."""
    parts: dict[str, dict[str, str]] = {}
    part = ""
    comment: list[str] = []
    lines = [line.strip() for line in inspect.getsource(Settings).splitlines()]
    for position, line in enumerate(lines):
        if line.startswith("#:"):
            comment.append(line[2:].strip())
        elif line.startswith("# ") and not lines[position + 1]:
            part = line[2:].partition(".")[0]
        elif (name := line.partition(":")[0]) in Settings.__struct_fields__:
            parts.setdefault(part, {})[name] = " ".join(comment)
            comment = []
    return parts


def _settings() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield "Each setting is a field of `Settings`, a keyword argument of `A2AServer`, and a variable of the environment."
    yield "[Configuration](../configuration.md) says which of them takes precedence, and links to what each one is for."
    defaults = {field.name: field for field in fields_of(Settings)}
    for part, settings in settings_by_part().items():
        yield from ("", f"## {part}", "")
        yield from _header("setting", "default", "meaning")
        for name, meaning in settings.items():
            field = defaults[name]
            names = f'<span id="{name}"></span>`{name}`<br>`{ENV_PREFIX}{name.upper()}`'
            secret = " Never shown or logged." if name in SECRET else ""
            yield _row(names, f"`{_default(field.default)}`", f"{meaning}{secret}<br>*{_kind(field.type)}*")


def _kind(annotation: Any) -> str:
    """Return in words what a setting may be."""
    if described := getattr(annotation, "__metadata__", None):
        return str(described[0].description)
    kinds = ("none" if option is type(None) else _kind(option) for option in get_args(annotation))
    return " or ".join(kinds) or ("text" if annotation is str else str(annotation))


def _default(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"
    return str(value)


# Operations


def _operations() -> Iterator[str]:
    in_v0_3 = {operation.name: method for method, operation in V0_3.methods.items()}
    yield "# Operations"
    yield ""
    yield "Every operation of A2A, as each binding names it. Over JSON-RPC all are posted to `/`, and A2A 1.0 uses the"
    yield "name of the operation as the method; over gRPC they are the methods of `A2AService`."
    yield "[Serving](../serving.md#http-paths) has the other paths of a server."
    yield ""
    yield from _header("operation", "HTTP+JSON", "answer")
    for operation in OPERATIONS.values():
        yield _row(
            f"[`{operation.name}`](#{operation.name.lower()})",
            f"`{operation.http_method} {operation.path}`",
            "a stream" if operation.streams else "one",
        )
    for operation in OPERATIONS.values():
        yield from ("", f"## {operation.name}", "")
        if operation.name in in_v0_3:
            yield f"In JSON-RPC of A2A 0.3, the method is `{in_v0_3[operation.name]}`."
        if operation.capability:
            yield f"The agent's card must offer the capability `{_camel(operation.capability)}`."
        if hasattr(TaskManager, operation.method):
            yield f"`TaskManager.{operation.method}` performs it."
        answer = "Each event" if operation.streams else "The answer"
        for title, struct in (("The request", operation.request), (answer, operation.response)):
            yield from ("", *_struct(title, struct))


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)


def _struct(title: str, struct: type[A2AObject]) -> Iterator[str]:
    yield f"**{title}**, `{struct.__name__}`. {documentation_of(struct)}"
    fields = msgspec.structs.fields(struct)
    if not fields:
        yield "It is empty."
        return
    yield ""
    yield from _header("field", "type", "required")
    for field in fields:
        kind = struct.__annotations__.get(field.name) or _inherited(struct, field.name)
        yield _row(f"`{field.encode_name}`", f"`{_json_kind(kind)}`", "yes" if field.required else "")


def _inherited(struct: type, name: str) -> Any:
    return next(base.__annotations__[name] for base in struct.__mro__ if name in getattr(base, "__annotations__", {}))


def _json_kind(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r" \| (None|UnsetType)", "", text)


# Errors


def error_classes() -> dict[str, type[Exception]]:
    """Return every error of errands and of its client by its name, bases before what derives from them."""
    modules = (errors, inspect.getmodule(client.A2AClientError))
    kinds = [kind for module in modules for kind in vars(module).values() if inspect.isclass(kind)]
    ours = [kind for kind in kinds if issubclass(kind, errors.ErrandsError)]
    return {kind.__name__: kind for kind in sorted(dict.fromkeys(ours), key=lambda kind: len(kind.__mro__))}


def _errors() -> Iterator[str]:
    yield "# Errors"
    yield ""
    yield "Everything that errands raises on purpose derives from `ErrandsError`. An `A2AError` has a *reason*, by"
    yield "which clients recognise it in every binding."
    yield "[Serving](../serving.md#errors-on-the-wire) says how it travels."
    yield from ("", "## Of the protocol", "")
    yield from _header("error", "reason", "JSON-RPC", "HTTP", "gRPC", "when")
    kinds = error_classes()
    for name, kind in kinds.items():
        if issubclass(kind, A2AError) and kind.reason in STATUS:
            status = STATUS[kind.reason]
            codes = (f"`{kind.reason}`", status.jsonrpc, status.http, f"`{status.grpc}`")
            yield _row(f'<span id="{name}"></span>`{name}`', *codes, _sentence(kind))
    for title, base, excepted in (
        ("Of stores, policies and settings", errors.ErrandsError, (A2AError, client.A2AClientError)),
        ("Of the client", client.A2AClientError, ()),
    ):
        yield from ("", f"## {title}", "")
        yield from _header("error", "a kind of", "when")
        for name, kind in kinds.items():
            if issubclass(kind, base) and not issubclass(kind, excepted):
                bases = ", ".join(f"`{each.__name__}`" for each in kind.__bases__)
                yield _row(f'<span id="{name}"></span>`{name}`', bases, _sentence(kind))


def _sentence(kind: type) -> str:
    return " ".join(documentation_of(kind).partition("\n\n")[0].split())


# Commands


def commands(command: Any = None, name: str = "errands") -> Iterator[tuple[str, Any]]:
    """Yield every command that is not hidden, by what a person types."""
    command = command or typer.main.get_command(app)
    yield name, command
    for step, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, f"{name} {step}")


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield "Every command with its `--help`. [The command line](../cli.md) explains them with what they print."
    yield ""
    yield from _header("command", "what it does")
    for name, command in commands():
        yield _row(f"[`{name}`](#{_slug(name)})", first_sentence(command.help or ""))
    yield from ("", "## Exit codes", "")
    yield from _header("exit code", "meaning")
    for code, meaning in EXIT_CODES.items():
        yield _row(f"`{code.value}`", meaning)
    for name, command in commands():
        yield from ("", f"## {name}", "", inspect.cleandoc(_help_text(command)), "")
        yield from _parameters(command)


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _help_text(command: Any) -> str:
    # The list of exit codes follows the example of `errands --help`; this page has it as a table.
    return (command.help or "").partition("Exit codes:")[0].replace("\b", "")


def _parameters(command: Any) -> Iterator[str]:
    parameters = [each for each in command.params if each.name not in ("help", "install_completion", "show_completion")]
    if not parameters:
        return
    yield from _header("argument or option", "default", "meaning")
    for each in parameters:
        is_option = each.param_type_name == "option"
        names = ", ".join([*each.opts, *each.secondary_opts]) if is_option else (each.metavar or each.name.upper())
        value = f" {each.metavar}" if is_option and each.metavar and not each.is_flag else ""
        is_plain = isinstance(each.default, str | int | float) and each.default not in ("", False)
        yield _row(
            f"`{names}{value}`",
            f"`{each.default}`" if is_plain else "",
            " ".join((getattr(each, "help", "") or "").split()),
        )
