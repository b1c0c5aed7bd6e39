"""`A2AServer`: one agent, put together and served."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from errands.engines.base import Engine
from errands.engines.passwords import without_password
from errands.errors import ConfigurationError, StorageError
from errands.interop import BuilderLike, CardLike, ExecutorLike
from errands.model.card_config import AgentCardConfig
from errands.model.log import Scope
from errands.policy.cel.evaluators import Evaluators
from errands.policy.document import CompiledPolicy, Policy, compile_policy
from errands.policy.enforcement import Enforcement, RuledWorker
from errands.policy.reviews import ReviewingTaskManager
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.handler import Handler
from errands.runtime.hooks import LifecycleHooks
from errands.runtime.inner import InnerAgents
from errands.runtime.journal import Journal
from errands.runtime.leases import ActiveTask
from errands.runtime.middleware import A2AMiddleware
from errands.runtime.pool import WorkerPool
from errands.runtime.settings import ServerRole, Settings
from errands.runtime.task_store import TaskStore
from errands.runtime.watchdog import Watchdog
from errands.runtime.worker import Worker
from errands.server.asgi import A2AApp
from errands.server.cards import CardPublisher
from errands.server.configuring import (
    check_arguments,
    check_shared,
    checked_card,
    given_card,
    given_engine,
    given_settings,
    given_worker,
    grpc_server,
    identifiers_of,
    listed,
    made_engine,
    read_policy,
)
from errands.server.dispatch import ClosedDispatcher, Dispatcher, ExtendedCardProvider
from errands.server.http import callable_host
from errands.server.request_guard import is_loopback
from errands.server.routing import Routes

if TYPE_CHECKING:
    from fastapi import FastAPI

    from errands.agents.manifests.loading import ToolSource
    from errands.agents.models.base import Model
    from errands.server.grpc import GrpcServer

logger = logging.getLogger(__name__)


class A2AServer:
    """Serves one agent over every binding.

    `app` is an ASGI application that runs anywhere and mounts anywhere. Settings come from `ERRANDS_*` environment
    variables unless `settings` is given; the other keyword arguments win over both. `storage` is `memory`, a URL such
    as `sqlite:///tasks.db`, or an `Engine`; the default is the SQLite file `.errands/tasks.db`. `inner` are agents that
    it hands work to and that nobody else can reach. Raises `ConfigurationError` for whatever of it is wrong.
    """

    _policy: CompiledPolicy | None = None
    _run: asyncio.Task[None] | None = None
    _app: A2AApp | None = None
    _grpc: GrpcServer | None = None
    _is_shared: bool = False

    def __init__(
        self,
        *,
        worker: Worker | None = None,
        executor: ExecutorLike | None = None,
        request_context_builder: BuilderLike | None = None,
        agent_card: CardLike | None = None,
        middlewares: Sequence[A2AMiddleware] | None = None,
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
        additional_protocols: Sequence[str] | None = None,
        protocol_versions: Sequence[str] | None = None,
        extended_card_provider: ExtendedCardProvider | None = None,
        grpc_port: int | None = None,
        role: str | None = None,
        policy: str | Path | Policy | None = None,
        inner: InnerAgents | None = None,
    ) -> None:
        check_arguments(
            middlewares=middlewares,
            hooks=hooks,
            dependencies=dependencies,
            settings=settings,
            inner=inner,
            policy=policy,
            extended_card_provider=extended_card_provider,
        )
        card = given_card(agent_card, worker or executor)
        self._worker = given_worker(worker, executor, request_context_builder, card)
        self.settings = given_settings(
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
        self._routes = Routes(listed(self.settings.protocol_versions))
        versions = self._routes.versions
        has_extended = extended_card_provider is not None
        self.agent_card = checked_card(card, additional_protocols or (), versions, has_extended=has_extended)
        self.cards = CardPublisher(self.agent_card, self.settings, time.time(), versions=versions)
        self._engine = given_engine(storage, self.settings, broker=broker, event_bus=event_bus)
        self._inner = inner or InnerAgents()
        self._middlewares = list(middlewares or ())
        self._hooks = hooks
        self._deps = DependencyContainer(dependencies)
        self._extended_card_provider = extended_card_provider
        if policy is not None or self.settings.policy is not None:
            self.use_policy(policy or self.settings.policy or "")
        if self.settings.grpc_port is not None:
            grpc_server()  # report a missing package now, not at the start
        #: What `errands serve` prints about the agent.
        self.facts: dict[str, str] = {}
        #: Where HTTP listens, if it is known (see `listen_at`).
        self.http_address: tuple[str, int] | None = None
        #: Whether only this machine can reach HTTP, if it is known.
        self.listens_locally = False
        self.started = False
        self._starting = asyncio.Lock()
        self._stop = asyncio.Event()

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
        from errands.agents.build import build  # noqa: PLC0415 - most servers have no manifests

        built = build(
            path,
            agent=agent,
            model=model,
            tools=tools,
            tool_settings=tool_settings,
            settings=settings or Settings.from_env(),
            card=agent_card,
        )
        server = cls(
            worker=built.worker,
            inner=built.inner,
            agent_card=built.card,
            settings=settings,
            dependencies={**(dependencies or {}), **built.dependencies},
            **options,
        )
        server.facts = built.facts
        return server

    def use_policy(self, policy: str | Path | Policy) -> None:
        """Holds every task to this policy, instead of the one given before; call it before the server is started.

        Raises `ConfigurationError` with everything that is wrong with a file, and for functions that it names and no
        agent here has: its rules would never apply.
        """
        compiled = compile_policy(read_policy(policy))
        workers = [
            worker for worker in (self._worker, *self._inner.workers.values()) if isinstance(worker, RuledWorker)
        ]
        names = {name for worker in workers for name in worker.function_names()[0]}
        discovering = tuple(prefix for worker in workers for prefix in worker.function_names()[1])
        unknown = [name for name in compiled.functions - names if not name.startswith(discovering)]
        if workers and unknown:
            raise ConfigurationError(
                f"the policy names functions that this agent does not have: {', '.join(sorted(unknown))}; "
                f"it has {', '.join(sorted(names)) or 'none'}"
            )
        for worker in workers:
            worker.hold_to(compiled, names)
        self._policy = compiled

    def use_storage(self, url: str) -> None:
        """Keep the tasks in another store. Call it before `start()`.

        Raises `ConfigurationError` if the program has made the engine itself.
        """
        if self._engine is not None:
            raise ConfigurationError(
                f"the program made the storage itself ({self.storage}), so --storage cannot replace it; omit "
                "--storage, or give A2AServer a URL"
            )
        self.use_settings(storage=url)

    def use_settings(self, **changes: Any) -> None:
        """Change settings, except those that are None. Call it before `start()`. Raises `ConfigurationError`."""
        changed = given_settings(self.settings, **changes)
        for name in changes:
            setattr(self.settings, name, getattr(changed, name))
        if self.settings.grpc_port is not None:
            grpc_server()  # report a missing package now, not at the start

    def listen_at(self, host: str, port: int) -> None:
        """Tell the server where HTTP listens. Call it before `start()`, as `errands serve` does.

        At a loopback address, requests for host names that a web page could have registered are refused.
        """
        self.http_address = (callable_host(host), port)
        self.listens_locally = is_loopback(host)

    @property
    def storage(self) -> str:
        """Where tasks live: an address without its password, or the class of an engine that the program has made."""
        return without_password(self.settings.storage) if self._engine is None else type(self._engine).__name__

    @property
    def app(self) -> A2AApp:
        """The ASGI application."""
        if self._app is None:
            self._app = A2AApp(self)
        return self._app

    def as_fastapi_app(self, *, debug: bool = False, **fastapi_kwargs: Any) -> FastAPI:
        """The same as a FastAPI application, for programs that add routes of their own. Needs `errands[fastapi]`."""
        try:
            from errands.server.fastapi import wrap  # noqa: PLC0415 - fastapi is an extra
        except ImportError as error:
            problem = (
                f"as_fastapi_app() needs an extra ({error}): pip install 'errands[fastapi]'; server.app needs none"
            )
            raise ConfigurationError(problem) from None
        return wrap(self, debug=debug, **fastapi_kwargs)

    def share(self) -> None:
        """Makes it one of several processes that serve the agent on the same ports. Before `start()`.

        Raises `ConfigurationError` when they could not see each other's tasks, or not share the port of gRPC.
        """
        check_shared(self._engine or made_engine(self.settings), "several processes")
        if self.settings.grpc_port == 0:
            raise ConfigurationError("grpc_port=0 is another port in each of several processes; name one")
        self._is_shared = True

    # Life

    async def start(self) -> None:
        """Opens everything. Starting twice does nothing.

        Raises `StorageError` when the store cannot be used, `ConfigurationError`, and what a dependency raises.
        """
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
        settings = self.settings
        if settings.log_level:
            logging.getLogger("errands").setLevel(settings.log_level.upper())
        engine = self._engine or made_engine(settings)
        if settings.role is not ServerRole.ALL:
            check_shared(engine, f"a process with the role {settings.role}")
        async with AsyncExitStack() as stack:
            await self._deps.startup()
            stack.push_async_callback(self._deps.shutdown)
            self.engine = await stack.enter_async_context(engine)
            await self._open_tasks(stack)
            stack.push_async_callback(self.pool.drain)
            stack.callback(engine.disconnect)
            serves = settings.role is not ServerRole.WORKER
            self.dispatcher = (Dispatcher if serves else ClosedDispatcher)(
                self.task_manager,
                self.agent_card,
                self._middlewares,
                self._routes,
                self.cards,
                self._extended_card_provider,
                max_parts=settings.max_message_parts,
            )
            if settings.grpc_port is not None and serves:
                await self._open_grpc(stack)
            if settings.loop_hold_warning is not None:
                # Not before: while the server starts, modules are imported, and nobody waits.
                stack.enter_context(Watchdog(settings.loop_hold_warning))
            yield

    async def _open_tasks(self, stack: AsyncExitStack) -> None:
        settings, name = self.settings, self.agent_card.name
        evaluators = Evaluators()
        stack.push_async_callback(evaluators.close)

        def oversight_of(worker: Worker) -> Enforcement:
            return Enforcement(self._policy, evaluators, worker)

        self.pool = WorkerPool(self.engine, settings, self._deps)
        journal = Journal(self.engine, self._hooks)
        self.pool.add(Handler(name, self._worker, journal, settings, oversight_of(self._worker)))
        self.task_manager = ReviewingTaskManager(
            self.pool,
            name,
            input_modes=self.agent_card.input_modes,
            settings=settings,
            identifiers=identifiers_of(self._worker),
            inner=self._inner.workers,
        )
        # Hooks are about the served agent only.
        self._inner.start(self.pool, {name: self.task_manager}, Journal(self.engine), settings, oversight_of)
        await stack.enter_async_context(self.pool)

    async def _open_grpc(self, stack: AsyncExitStack) -> None:
        stack.callback(setattr, self, "_grpc", None)
        grpc = grpc_server()(self.dispatcher, self.settings, self.http_address, shares_port=self._is_shared)
        self._grpc = await stack.enter_async_context(grpc)
        # What is under way must have ended before gRPC stops: it would be cut off.
        stack.push_async_callback(self.drain)
        self.cards.grpc_address = self._grpc.address

    @property
    def asks_who_calls(self) -> bool:
        """Whether any middleware looks at requests; without one, everybody is let in."""
        return bool(self._middlewares)

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
        return await self.pool.active_tasks(self.agent_card.name)

    async def drain(self) -> None:
        """Takes no more work, waits for what runs, then ends streams and waiting requests: before a shutdown."""
        if self._grpc is not None:
            self._grpc.stop_serving()
        if self.started:
            await self.pool.drain()
            self.engine.disconnect()

    async def problem(self) -> str | None:
        """Why the server cannot take requests right now, or None."""
        if not self.started or self.pool.draining:
            return "shutting down"
        try:
            await self.engine.check()
        except StorageError as error:
            logger.error("not ready: %s", error)
            return "the task store is not available"
        return None
