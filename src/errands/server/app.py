"""`A2AServer`: one agent, put together and served."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from errands.engines.base import Engine, Retention
from errands.engines.passwords import without_password
from errands.engines.urls import engine_from_url
from errands.errors import ConfigurationError, StorageError
from errands.interop import Card, Executor, adapt, adapt_card
from errands.model.card_config import AgentCardConfig
from errands.model.log import Scope
from errands.policy.cel.evaluators import Evaluators
from errands.policy.document import CompiledPolicy, Policy, compile_policy
from errands.runtime.active import ActiveTask
from errands.runtime.adapter import WorkerAdapter
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.executor.ids import Identifiers
from errands.runtime.executor.request import RequestContextBuilder
from errands.runtime.executor.worker import ExecutorWorker
from errands.runtime.hooks import LifecycleHooks
from errands.runtime.inner import InnerAgents
from errands.runtime.journal import Journal
from errands.runtime.middleware import A2AMiddleware
from errands.runtime.settings import ServerRole, Settings
from errands.runtime.task_manager import TaskManager
from errands.runtime.task_store import TaskStore
from errands.runtime.worker import Worker
from errands.server.asgi import A2AApp
from errands.server.card import CardShelf, build_card, check_binding, extensions_of, offers_extended_card
from errands.server.dispatch import ClosedDispatcher, Dispatcher, ExtendedCardProvider
from errands.server.repertoire import Repertoire
from errands.wire.proto import grpc_extra

if TYPE_CHECKING:
    from fastapi import FastAPI

    from errands.agents.manifests.registering import ToolSource
    from errands.agents.models.base import Model
    from errands.server.grpc_server import GrpcServer

logger = logging.getLogger(__name__)


class A2AServer:
    """Serves one agent over every binding.

    `app` is an ASGI application that runs anywhere and mounts anywhere. Settings come from `ERRANDS_*` environment
    variables unless `settings` is given; the other keyword arguments win over both. `storage` is `memory`, a URL such
    as `sqlite:///tasks.db`, or an `Engine`; the default is the SQLite file `.errands/tasks.db`. `inner` are agents that
    it hands work to and that nobody else can reach.
    """

    def __init__(
        self,
        *,
        worker: Worker | None = None,
        executor: Executor | None = None,
        request_context_builder: RequestContextBuilder | None = None,
        agent_card: Card | None = None,
        middlewares: Sequence[A2AMiddleware] = (),
        storage: str | Engine | None = None,
        broker: str | Engine | None = None,
        event_bus: str | Engine | None = None,
        hooks: LifecycleHooks | None = None,
        dependencies: dict[Any, Any] | None = None,
        settings: Settings | None = None,
        blocking_timeout_s: float | None = None,
        cancel_force_timeout_s: float | None = None,
        max_concurrent_tasks: int | None = None,
        public_url: str | None = None,
        additional_protocols: Sequence[str] = (),
        protocol_versions: Sequence[str] | None = None,
        extended_card_provider: ExtendedCardProvider | None = None,
        grpc_port: int | None = None,
        role: str | None = None,
        policy: str | Path | Policy | None = None,
        inner: InnerAgents | None = None,
    ) -> None:
        given = agent_card or getattr(worker or executor, "agent_card", None)
        card = None if given is None else adapt_card(given)
        worker = _worker(worker, executor, request_context_builder, card)
        if card is None:
            raise ConfigurationError("an agent needs a card: pass agent_card=AgentCardConfig(...)")
        for protocol in (card.protocol, *additional_protocols):
            check_binding(protocol)
        self.settings = _settings(
            settings,
            storage=storage if isinstance(storage, str) else None,
            blocking_timeout=blocking_timeout_s,
            cancel_force_timeout=cancel_force_timeout_s,
            max_concurrent_tasks=max_concurrent_tasks,
            public_url=public_url,
            protocol_versions=None if protocol_versions is None else ",".join(protocol_versions),
            grpc_port=grpc_port,
            role=role,
        )
        self.settings.role = _role(self.settings.role)
        self._worker = worker
        self._inner = inner or InnerAgents()
        self._policy: CompiledPolicy | None = None
        if policy is not None or self.settings.policy is not None:
            self.use_policy(policy or self.settings.policy or "")
        self._identifiers = _identifiers(worker)
        self.agent_card: AgentCardConfig = card
        if extended_card_provider is not None:
            card.supports_authenticated_extended_card = True
        self._middlewares = list(middlewares)
        self._engine = storage if isinstance(storage, Engine) else None
        if self._engine is None:
            engine_from_url(self.settings.storage)  # a wrong address is told now, not at the start
        _check_same_engine(storage or self.settings.storage, broker=broker, event_bus=event_bus)
        self._hooks = hooks
        self._deps = DependencyContainer(dependencies)
        self._extended_card_provider = extended_card_provider
        self._repertoire = Repertoire(_listed(self.settings.protocol_versions))
        self._check_card(card, extended_card_provider)
        self.card_shelf = CardShelf(card, self.settings, time.time(), versions=self._repertoire.versions)
        #: What else a person wants to know about the agent when it is served.
        self.facts: dict[str, str] = {}
        self.started = False
        self._starting = asyncio.Lock()
        self._stop = asyncio.Event()
        self._run: asyncio.Task[None] | None = None
        self._app: A2AApp | None = None
        self._grpc: GrpcServer | None = None
        #: Where HTTP listens, when whoever listens has said so: gRPC has no way to find out.
        self.http_address: tuple[str, int] | None = None
        self._is_shared = False
        if self.settings.grpc_port is not None:
            _grpc_server()  # a missing package is told now, not at the start

    @classmethod
    def from_manifest(
        cls,
        path: str | Path,
        *,
        agent: str | None = None,
        model: str | Model | None = None,
        tools: Iterable[ToolSource] = (),
        tool_settings: Mapping[str, Mapping[str, Any]] | str | Path | None = None,
        settings: Settings | None = None,
        agent_card: AgentCardConfig | None = None,
        dependencies: dict[Any, Any] | None = None,
        **options: Any,
    ) -> Self:
        """Serves an agent that is written down in YAML, with the agents that it uses. Needs `errands[agents]`.

        `agent` says which, when there are several; `model` wins over what agents name; `tools` are those of the
        program; `tool_settings` are a file, or values by tool. The other arguments are those of `A2AServer`. Raises
        `ManifestError` with everything that is wrong with the manifests, and `ConfigurationError`.
        """
        # Most servers have no manifests.
        from errands.server.manifests import assemble  # noqa: PLC0415

        ensemble = assemble(
            path,
            agent=agent,
            model=model,
            tools=tools,
            tool_settings=tool_settings,
            settings=settings or Settings.from_env(),
            card=agent_card,
        )
        server = cls(
            worker=ensemble.worker,
            inner=ensemble.inner,
            agent_card=ensemble.card,
            settings=settings,
            dependencies={**(dependencies or {}), **ensemble.dependencies},
            **options,
        )
        server.facts = ensemble.facts
        return server

    def _check_card(self, card: AgentCardConfig, provider: ExtendedCardProvider | None) -> None:
        build_card(card, "http://localhost", versions=self._repertoire.versions)
        if card.capabilities.push_notifications:
            raise ConfigurationError("push notifications are not available yet; leave push_notifications=False")
        if offers_extended_card(card) and provider is None:
            logger.warning("the card offers an extended card, but no extended_card_provider is given")

    def use_policy(self, policy: str | Path | Policy) -> None:
        """Holds every task to this policy, instead of the one given before; call it before the server is started.

        Raises `ConfigurationError` with everything that is wrong with a file.
        """
        self._policy = compile_policy(policy if isinstance(policy, Policy) else _from_file(policy))
        for worker in (self._worker, *self._inner.workers.values()):
            if worker.keeps_records:
                worker.hold_to(self._policy)

    @property
    def app(self) -> A2AApp:
        """The ASGI application."""
        if self._app is None:
            self._app = A2AApp(self)
        return self._app

    def as_fastapi_app(self, *, debug: bool = False, **fastapi_kwargs: Any) -> FastAPI:
        """The same as a FastAPI application, for programs that add routes of their own. Needs `errands[fastapi]`."""
        from errands.server.fastapi import wrap  # noqa: PLC0415 - fastapi is an extra

        return wrap(self, debug=debug, **fastapi_kwargs)

    def share(self) -> None:
        """Makes it one of several processes that serve the agent on the same ports. Before `start()`.

        Raises `ConfigurationError` when they could not see each other's tasks, or not share the port of gRPC.
        """
        _check_shared(self._engine or engine_from_url(self.settings.storage), "several processes")
        if self.settings.grpc_port == 0:
            raise ConfigurationError("grpc_port=0 is another port in each of several processes; name one")
        self._is_shared = True

    # Life

    async def start(self) -> None:
        """Opens everything. Starting twice does nothing."""
        async with self._starting:
            if self.started:
                return
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._stop.clear()
            # One task enters and leaves everything, whichever tasks call start and stop.
            self._run = asyncio.create_task(self._live(ready), name="errands-server")
            await ready
            self.started = True

    async def stop(self) -> None:
        """Drains and closes everything. Stopping twice does nothing."""
        async with self._starting:
            self._stop.set()
            if self._run is not None:
                await self._run
            self._run = None
            self.started = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def _live(self, ready: asyncio.Future[None]) -> None:
        try:
            async with self._assembled():
                ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    @asynccontextmanager
    async def _assembled(self) -> AsyncIterator[None]:
        settings, name = self.settings, self.agent_card.name
        if settings.log_level:
            logging.getLogger("errands").setLevel(settings.log_level.upper())
        engine = self._engine or engine_from_url(settings.storage, _retention(settings))
        if settings.role is not ServerRole.ALL:
            _check_shared(engine, f"a process with the role {settings.role}")
        async with AsyncExitStack() as stack:
            await self._deps.startup()
            stack.push_async_callback(self._deps.shutdown)
            await stack.enter_async_context(engine)
            journal = Journal(engine, self._hooks)
            evaluators = Evaluators()
            stack.push_async_callback(evaluators.close)
            adapter = WorkerAdapter(
                self._worker,
                journal,
                agent=name,
                deps=self._deps,
                settings=settings,
                policy=self._policy,
                evaluators=evaluators,
            )
            await stack.enter_async_context(adapter)
            tasks = TaskManager(
                journal,
                adapter,
                input_modes=self.agent_card.input_modes,
                settings=settings,
                identifiers=self._identifiers,
                inner=self._inner.workers,
            )
            await stack.enter_async_context(
                self._inner.running(engine, {name: tasks}, self._deps, settings, self._policy, evaluators)
            )
            stack.push_async_callback(self._drain_turns)
            stack.callback(engine.disconnect)
            self.engine = engine
            self.adapter = adapter
            self.task_manager = tasks
            serves = settings.role is not ServerRole.WORKER
            self.dispatcher = (Dispatcher if serves else ClosedDispatcher)(
                tasks,
                self.agent_card,
                self._middlewares,
                self._repertoire,
                self.card_shelf,
                self._extended_card_provider,
            )
            if settings.grpc_port is not None and serves:
                await self._open_grpc(stack)
            yield

    async def _open_grpc(self, stack: AsyncExitStack) -> None:
        stack.callback(setattr, self, "_grpc", None)
        grpc = _grpc_server()(self.dispatcher, self.settings, self.http_address, shares_port=self._is_shared)
        self._grpc = await stack.enter_async_context(grpc)
        # What is under way must have ended before gRPC stops: it would be cut off.
        stack.push_async_callback(self.drain)
        self.card_shelf.grpc_address = self._grpc.address

    @property
    def grpc_port(self) -> int | None:
        """The port gRPC listens on, while it does."""
        return self._grpc.port if self._grpc is not None else None

    def scope(self, owner: str = "", tenant: str = "") -> Scope:
        """Whose tasks somebody sees who asks this agent: for programs that talk to the engine themselves."""
        return Scope(tenant, owner, self.agent_card.name)

    @property
    def tasks(self) -> TaskStore:
        """The tasks of callers without a name; `tasks.of(owner, tenant)` has those of others. From `start()` on."""
        return TaskStore(self.task_manager, self.scope())

    async def active_tasks(self) -> list[ActiveTask]:
        """What is running of this agent, here and in other processes on the same store. From `start()` on."""
        return await self.adapter.active_tasks()

    async def drain(self) -> None:
        """Takes no more work, waits for what runs, then ends streams and waiting requests: before a shutdown."""
        if self._grpc is not None:
            await self._grpc.stop_serving()
        if self.started:
            await self._drain_turns()
            self.engine.disconnect()

    async def _drain_turns(self) -> None:
        # At the same time: a turn may wait for one of an inner agent.
        await asyncio.gather(self.adapter.drain(), self._inner.drain())

    async def problem(self) -> str | None:
        """Why the server cannot take requests right now, or None."""
        if not self.started or self.adapter.draining:
            return "shutting down"
        try:
            await self.engine.check()
        except StorageError as error:
            logger.error("not ready: %s", error)
            return "the task store is not available"
        return None


def _worker(
    worker: Worker | None,
    executor: Executor | None,
    builder: RequestContextBuilder | None,
    card: AgentCardConfig | None,
) -> Worker:
    """What runs the turns, whichever way the agent is written."""
    if (worker is None) == (executor is None):
        raise ConfigurationError("an agent is given once: pass worker=... or executor=..., and not both")
    if executor is None:
        if not isinstance(worker, Worker):
            raise ConfigurationError(f"worker must be an instance of errands.Worker, not {type(worker).__name__}")
        if builder is not None:
            raise ConfigurationError("request_context_builder goes with executor=...; a worker has its TaskContext")
        return worker
    extensions = [extension.uri for extension in extensions_of(card)] if card else ()
    return ExecutorWorker(adapt(executor), builder, extensions)


def _identifiers(worker: Worker) -> Identifiers | None:
    """Where the identifiers of new tasks come from, when an executor's context builder says so."""
    if isinstance(worker, ExecutorWorker):
        builder = worker.builder
        if builder.task_id_generator or builder.context_id_generator:
            return Identifiers(builder.task_id_generator, builder.context_id_generator)
    return None


def _from_file(path: str | Path) -> Policy:
    from errands.agents.policies import load_policy  # noqa: PLC0415 - only a file needs what reads it

    return load_policy(path)


def _grpc_server() -> type[GrpcServer]:
    with grpc_extra():
        from errands.server.grpc_server import GrpcServer  # noqa: PLC0415 - grpc is an extra
    return GrpcServer


def _settings(settings: Settings | None, **overrides: Any) -> Settings:
    if settings is None:
        return Settings.from_env(**overrides)
    values = {field: getattr(settings, field) for field in settings.__struct_fields__}
    values.update({name: value for name, value in overrides.items() if value is not None})
    return Settings(**values)


def _role(name: str) -> ServerRole:
    try:
        return ServerRole(name)
    except ValueError:
        raise ConfigurationError(f"role {name!r}: possible are {', '.join(ServerRole)}") from None


def _check_shared(engine: Engine, who: str) -> None:
    if not engine.shared:
        raise ConfigurationError(
            f"storage {engine.name!r} is one process's own: {who} would not meet the others there; use a file such as "
            "sqlite:///tasks.db or a database"
        )


def _listed(text: str) -> list[str]:
    return [item for part in text.split(",") if (item := part.strip())]


def _retention(settings: Settings) -> Retention | None:
    """What the operator wants kept; None leaves it to the store."""
    wishes: dict[str, Any] = {
        "ended_after": settings.keep_ended_for,
        "completed_after": settings.keep_completed_for,
        "failed_after": settings.keep_failed_for,
        "canceled_after": settings.keep_canceled_for,
        "rejected_after": settings.keep_rejected_for,
        "ended_at_most": settings.keep_ended_at_most,
        "events_per_task": settings.keep_events,
        "contexts_after": settings.keep_contexts_for,
    }
    given = {name: wish for name, wish in wishes.items() if wish is not None}
    return Retention(**given) if given else None


def _check_same_engine(storage: str | Engine, **others: str | Engine | None) -> None:
    for name, other in others.items():
        if other is not None and other != storage:
            raise ConfigurationError(
                f"{name}={_named(other)}: tasks, queue and events live in one store; leave {name} out or make it "
                f"the same as storage={_named(storage)}"
            )


def _named(storage: str | Engine) -> str:
    return repr(without_password(storage) if isinstance(storage, str) else storage)
