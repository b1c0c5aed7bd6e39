"""Loads the server that TARGET on the command line names: a Python file or module, or manifests."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from errands.agents.manifests import ManifestError
from errands.agents.manifests.reading import SUFFIXES
from errands.cli.failures import CommandError, UsageError, program_error
from errands.errors import ErrandsError
from errands.interop import is_executor_class
from errands.runtime.worker import Worker
from errands.server.app import A2AServer

_WRITE_ONE = (
    "write `server = A2AServer(worker=..., agent_card=AgentCardConfig(...))` or decorate a function with `@agent(...)`"
)


class ManifestOptions(NamedTuple):
    """The options that only manifests have."""

    agent: str | None = None
    model: str | None = None
    tool_settings: Path | None = None

    def __str__(self) -> str:
        """Return the options that are given, as they are written."""
        return " and ".join(f"--{name.replace('_', '-')}" for name, value in self._asdict().items() if value)


class Target(NamedTuple):
    """`file.py`, `file.py:name`, `module`, `module:name`, `file.yaml` or a folder of manifests."""

    source: str
    name: str | None

    @classmethod
    def parse(cls, text: str) -> Target:
        if cls(text, None).is_manifest:
            return cls(text, None)
        source, colon, name = text.rpartition(":")
        # The colon of C:\agent.py does not separate a name.
        if not colon or name.endswith(".py"):
            return cls(text, None)
        if cls(source, None).is_manifest:
            raise UsageError(f"{text}: choose an agent of the manifests with --agent {name}")
        if not source or not name:
            raise UsageError(f"{text}: expected FILE.py, FILE.py:NAME or MODULE:NAME")
        return cls(source, name)

    @property
    def is_manifest(self) -> bool:
        """True for YAML, and for a folder that is not a Python package."""
        path = Path(self.source)
        is_folder = path.is_dir() and not (path / "__init__.py").is_file()
        return bool(self.source) and (is_folder or self.source.lower().endswith(SUFFIXES))

    @property
    def path(self) -> Path | None:
        """The file, unless it is a module."""
        is_file = self.source.endswith(".py") or os.sep in self.source or "/" in self.source
        return Path(self.source) if is_file else None

    @property
    def folder(self) -> Path:
        """The folder that --reload watches."""
        path = Path(self.source) if self.is_manifest else self.path
        if path is None:
            return Path.cwd()
        return path.absolute() if path.is_dir() else path.absolute().parent

    def command(self, name: str) -> str:
        return f"errands serve {self.source}:{name}"


def load_server(text: str, storage: str | None = None, manifest: ManifestOptions | None = None) -> A2AServer:
    """Return the server that `text` names, with another storage if one is given. Raises `CommandError`."""
    target = Target.parse(text)
    options = manifest or ManifestOptions()
    if target.is_manifest:
        try:
            return A2AServer.from_manifest(target.source, storage=storage, **options._asdict())
        except ManifestError as error:
            lines = "".join(f"{finding.severity:<8} {finding}\n" for finding in error.findings)
            raise CommandError(f"{target.source} is not valid; see above", details=lines) from None
        except ErrandsError as error:
            raise CommandError(f"{target.source}: {error}") from None
    if any(options):
        raise UsageError(f"{options}: only manifests (FILE.yaml or a folder) have this option; {text} is Python")
    found = _find(target, _import(target))
    try:
        if isinstance(found, A2AServer):
            server = found
        else:
            agent: Any = found() if inspect.isclass(found) else found
            server = A2AServer(**{_argument(type(agent)): agent})
        if storage is not None:
            server.use_storage(storage)
    except ErrandsError as error:
        raise CommandError(f"{text}: {error}") from None
    except Exception as error:
        raise program_error(error, text) from None
    return server


# Importing


def _import(target: Target) -> ModuleType:
    path = target.path
    if path is not None:
        if not path.is_file():
            raise UsageError(
                f"there is no file {path}: expected FILE.py, FILE.py:NAME, MODULE:NAME, FILE.yaml or "
                "a folder of manifests"
            )
        name, root = _dotted_name(path.absolute())
    else:
        name, root = target.source, Path.cwd()
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    # A file in a package may be written to be run as a script, which imports its neighbours without a package.
    if path is not None and str(path.absolute().parent) not in sys.path:
        sys.path.append(str(path.absolute().parent))
    try:
        return importlib.import_module(name) if path is None else _import_file(name, path.absolute())
    except ModuleNotFoundError as error:
        if path is None and error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"there is no module {name}, neither installed nor in {root}") from None
        raise program_error(error, target.source) from None
    except ErrandsError as error:
        raise CommandError(f"{target.source}{_line_of(error, path)}: {error}") from None
    except (Exception, SystemExit) as error:
        raise program_error(error, target.source) from None


def _dotted_name(path: Path) -> tuple[str, Path]:
    """Return the module's full name and the folder to import it from, so that relative imports work."""
    names, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return ".".join(names), folder


def _import_file(name: str, path: Path) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        # A file called json.py or agent.py must not replace another module of that name, or be replaced by it.
        name = f"errands_target_{path.stem}"
    parent = name.rpartition(".")[0]
    if parent:
        importlib.import_module(parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _line_of(error: BaseException, path: Path | None) -> str:
    """Return where in the user's file it happened, as `, line 7`."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if path is not None and trace.tb_frame.f_code.co_filename == str(path.absolute()):
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f", line {line}"


# Finding


def _find(target: Target, module: ModuleType) -> Any:
    if target.name is None:
        return _only_agent(target, module)
    found: Any = module
    for step in target.name.split("."):
        if not hasattr(found, step):
            agents = ", ".join(_agents(module)) or "no agents"
            raise UsageError(f"{target.source} has no {target.name}; it has {agents}")
        found = getattr(found, step)
    if isinstance(found, A2AServer) or _is_worker(found) or _is_worker_class(found):
        return found
    raise UsageError(
        f"{target.source}:{target.name} is of type {type(found).__name__}; errands serves an A2AServer, a function "
        "with @agent, or a Worker or AgentExecutor with an agent_card"
    )


def _only_agent(target: Target, module: ModuleType) -> Any:
    agents = _agents(module)
    if len(agents) == 1:
        return next(iter(agents.values()))
    if agents:
        first = next(iter(agents))
        raise UsageError(
            f"{target.source} has {len(agents)} agents ({', '.join(agents)}); choose one: `{target.command(first)}`"
        )
    without_card = [name for name, value in _public(module) if _is_own_worker_class(value, module)]
    if without_card:
        raise UsageError(
            f"{target.source} has the worker {', '.join(without_card)} but no agent card; write "
            f"`server = A2AServer({_argument(vars(module)[without_card[0]])}={without_card[0]}(), "
            "agent_card=AgentCardConfig(...))`"
        )
    raise UsageError(f"{target.source} has no agent; {_WRITE_ONE}")


def _agents(module: ModuleType) -> dict[str, Any]:
    """Return what can be served, by name: servers, else workers with a card, else classes of workers with a card."""
    public = list(_public(module))
    servers = _distinct((name, value) for name, value in public if isinstance(value, A2AServer))
    if servers:
        return servers
    with_card = [(name, value) for name, value in public if getattr(value, "agent_card", None) is not None]
    workers = _distinct((name, value) for name, value in with_card if _is_worker(value))
    if workers:
        return workers
    return _distinct((name, value) for name, value in with_card if _is_own_worker_class(value, module))


def _public(module: ModuleType) -> Iterable[tuple[str, Any]]:
    return ((name, value) for name, value in vars(module).items() if not name.startswith("_"))


def _distinct(named: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return each value under its first name."""
    names: dict[int, tuple[str, Any]] = {}
    for name, value in named:
        names.setdefault(id(value), (name, value))
    return dict(names.values())


def _is_worker(value: Any) -> bool:
    return isinstance(value, Worker) or is_executor_class(type(value))


def _is_worker_class(value: Any) -> bool:
    if not inspect.isclass(value) or inspect.isabstract(value):
        return False
    return issubclass(value, Worker) or is_executor_class(value)


def _is_own_worker_class(value: Any, module: ModuleType) -> bool:
    return _is_worker_class(value) and value.__module__ == module.__name__


def _argument(agent: type) -> str:
    """Return the argument of A2AServer for an agent of this class."""
    return "executor" if is_executor_class(agent) else "worker"
