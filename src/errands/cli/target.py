"""Loads the server that TARGET on the command line names: a Python file or module, or manifests."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
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


class ManifestOptions(NamedTuple):
    """The options that only manifests have."""

    agent: str | None = None
    model: str | None = None
    tool_settings: Path | None = None

    def __str__(self) -> str:
        """Return the options that are given, as they are written."""
        return " and ".join(f"--{name.replace('_', '-')}" for name, value in self._asdict().items() if value)


class ServeTarget(NamedTuple):
    """`file.py`, `file.py:name`, `module`, `module:name`, `file.yaml` or a folder of manifests."""

    source: str
    name: str | None

    @classmethod
    def parse(cls, text: str) -> ServeTarget:
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


#: The files that are served without a TARGET: those of `errands init`.
PROJECT_FILES = ("agent.py", "agent.yaml")


def has_project() -> bool:
    """Return whether the current folder has one of these files."""
    return any(Path(name).is_file() for name in PROJECT_FILES)


def project_target() -> str:
    """Return the target in the current folder. Raises `UsageError` unless there is exactly one."""
    found = [name for name in PROJECT_FILES if Path(name).is_file()]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"this folder has {' and '.join(found)}; choose one: `errands serve {found[0]}`")
    raise UsageError(
        f"name a TARGET: this folder has neither {' nor '.join(PROJECT_FILES)}. `errands init NAME` creates a project"
    )


def load_server(text: str, storage: str | None = None, manifest: ManifestOptions | None = None) -> A2AServer:
    """Return the server that `text` names, with another storage if one is given. Raises `CommandError`."""
    target = ServeTarget.parse(text)
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


def _import(target: ServeTarget) -> ModuleType:
    path = target.path.absolute() if target.path is not None else None
    name, root = target.source, Path.cwd()
    if path is not None:
        if not path.is_file():
            raise UsageError(
                f"the file {target.path} does not exist: expected FILE.py, FILE.py:NAME, MODULE:NAME, FILE.yaml or "
                "a folder of manifests"
            )
        # The full name of the module, so that relative imports work.
        name, root = path.stem, path.parent
        while (root / "__init__.py").is_file():
            name, root = f"{root.name}.{name}", root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    # A file in a package may be written to be run as a script, which imports its neighbours without a package.
    if path is not None and str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        return importlib.import_module(name) if path is None else _import_file(name, path)
    except ModuleNotFoundError as error:
        if path is None and error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"the module {name} is neither installed nor in {root}") from None
        raise program_error(error, target.source) from None
    except ErrandsError as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f", line {frame.lineno}" for frame in frames if frame.filename == str(path)]
        raise CommandError(f"{target.source}{lines[-1] if lines else ''}: {error}") from None
    except (Exception, SystemExit) as error:
        raise program_error(error, target.source) from None


def _import_file(name: str, path: Path) -> ModuleType:
    known = sys.modules.get(name)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        # A file called json.py or agent.py must not replace another module of that name, or be replaced by it.
        name = f"errands_target_{path.stem}"
    if parent := name.rpartition(".")[0]:
        importlib.import_module(parent)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


# Finding


def _find(target: ServeTarget, module: ModuleType) -> Any:
    agents = _agents(module)
    if target.name is not None:
        found: Any = module
        for step in target.name.split("."):
            if not hasattr(found, step):
                raise UsageError(f"{target.source} has no {target.name}; it has {', '.join(agents) or 'no agents'}")
            found = getattr(found, step)
        if isinstance(found, A2AServer) or _is_worker(found) or _is_worker_class(found):
            return found
        raise UsageError(
            f"{target.source}:{target.name} is of type {type(found).__name__}; errands serves an A2AServer, a function "
            "with @agent, or a Worker or AgentExecutor with an agent_card"
        )
    if len(agents) == 1:
        return next(iter(agents.values()))
    if agents:
        raise UsageError(
            f"{target.source} has {len(agents)} agents ({', '.join(agents)}); choose one: "
            f"`errands serve {target.source}:{next(iter(agents))}`"
        )
    classes = [name for name, value in vars(module).items() if _is_own_worker_class(value, module)]
    without_card = [name for name in classes if not name.startswith("_")]
    if without_card:
        first = without_card[0]
        raise UsageError(
            f"{target.source} has the worker {', '.join(without_card)} but no agent card; write `server = "
            f"A2AServer({_argument(vars(module)[first])}={first}(), agent_card=AgentCardConfig(...))`"
        )
    raise UsageError(
        f"{target.source} has no agent; write `server = A2AServer(worker=..., agent_card=AgentCardConfig(...))` or "
        "decorate a function with `@agent(...)`"
    )


def _agents(module: ModuleType) -> dict[str, Any]:
    """Return what can be served, by name: servers, else workers with a card, else classes of workers with a card."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    with_card = {name: value for name, value in public.items() if getattr(value, "agent_card", None) is not None}
    servers = {name: value for name, value in public.items() if isinstance(value, A2AServer)}
    workers = {name: value for name, value in with_card.items() if _is_worker(value)}
    classes = {name: value for name, value in with_card.items() if _is_own_worker_class(value, module)}
    found = servers or workers or classes
    # Under its first name, if it has several.
    firsts = {id(value): name for name, value in reversed(found.items())}
    return {name: value for name, value in found.items() if firsts[id(value)] == name}


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
