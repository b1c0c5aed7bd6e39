"""`A2AServer`: the composition root. It puts the parts of an agent's server together, starts and stops them."""

from __future__ import annotations

import asyncio
import copy
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from errands.engines.base import Engine
from errands.engines.commit import CommitCounts
from errands.engines.connection import without_password
from errands.errors import ConfigurationError, StorageError
from errands.interop import BuilderLike, CardLike, ExecutorLike
from errands.model.card_config import AgentCardConfig
from errands.model.log import Scope
from errands.outbound import Outbound
from errands.policy.agent_oversight import AgentOversight, build_oversight, check_functions
from errands.policy.cel.evaluators import Evaluators
from errands.policy.document import CompiledPolicy, Policy, compile_policy
from errands.policy.reviews import ReviewingTaskManager
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.figures import METRICS, Figures
from errands.runtime.handler import Handler
from errands.runtime.hooks import HookReader, LifecycleHooks
from errands.runtime.inner import InnerAgents
from errands.runtime.journal import Journal
from errands.runtime.json_lines import write_json_lines
from errands.runtime.leases import ActiveTask
from errands.runtime.middleware import A2AMiddleware
from errands.runtime.pool import WorkerPool
from errands.runtime.processes import ProcessReporter
from errands.runtime.push import PushSender, push_guard
from errands.runtime.settings import ServerRole, Settings
from errands.runtime.task_manager import TaskStore
from errands.runtime.watchdog import Watchdog
from errands.runtime.worker import Worker
from errands.server import configuration
from errands.server.access_audit import AccessAudit
from errands.server.admin import AdminApi
from errands.server.asgi import callable_host
from errands.server.auth import Authentication, AuthScheme, MutualTLSAuth
from errands.server.auth_file import auth_of, load_auth
from errands.server.authorization import AccessRule, Authorization
from errands.server.blobs import BlobAddresses, BlobPages
from errands.server.cards import CardPublisher
from errands.server.console_gate import ConsoleGate
from errands.server.dispatch import ClosedDispatcher, Dispatcher, ExtendedCardProvider
from errands.server.http import A2AApp
from errands.server.large_work import LargeWork
from errands.server.metrics_page import MetricsPage
from errands.server.request_guard import is_loopback
from errands.server.routing import Routes

if TYPE_CHECKING:
    from fastapi import FastAPI

    from errands.agents.manifests.loading import ToolSource
    from errands.agents.models.base import Model
    from errands.server.grpc import GrpcServer
    from errands.wire.card_signing import SigningKey

logger = logging.getLogger(__name__)


class A2AServer:
    """Serves one agent over every binding.

    The agent is a `worker` or an `executor`; its card may come with it. `app` is the ASGI application. `storage` is
    `memory`, a URL such as `sqlite:///tasks.db`, or an `Engine`; the default is the SQLite file `.errands/tasks.db`.
    `auth` is a list of schemes by which callers authenticate, or a file with them. `inner` are agents to which it
    delegates and that clients cannot reach. `signing` are the keys that sign the card. Settings come from `settings`,
    or else from `ERRANDS_*` environment variables; every setting is also a keyword argument, which wins over both.
    Raises `ConfigurationError` for wrong arguments.
    """

    _policy: CompiledPolicy | None = None
    _authorization: Authorization | None = None
    _run: asyncio.Task[None] | None = None
    _app: A2AApp | None = None
    _grpc: GrpcServer | None = None
    _is_shared: bool = False
    _watchdog: Watchdog | None = None

    def __init__(
        self,
        *,
        worker: Worker | None = None,
        executor: ExecutorLike | None = None,
        request_context_builder: BuilderLike | None = None,
        agent_card: CardLike | None = None,
        storage: str | Engine | None = None,
        settings: Settings | None = None,
        middlewares: Sequence[A2AMiddleware] | None = None,
        hooks: LifecycleHooks | None = None,
        dependencies: dict[Any, Any] | None = None,
        policy: str | Path | Policy | None = None,
        auth: Sequence[AuthScheme] | str | Path | None = None,
        access_rules: Sequence[AccessRule] = (),
        extended_card_provider: ExtendedCardProvider | None = None,
        inner: InnerAgents | None = None,
        signing: Sequence[SigningKey] | None = None,
        **overrides: Any,
    ) -> None:
        configuration.check_types(
            middlewares=middlewares,
            hooks=hooks,
            dependencies=dependencies,
            settings=settings,
            inner=inner,
            policy=policy,
            extended_card_provider=extended_card_provider,
        )
        card = configuration.find_card(agent_card, worker or executor)
        self._worker = configuration.make_worker(worker, executor, request_context_builder, card)
        if isinstance(storage, str):
            overrides["storage"] = storage
        self.settings = configuration.make_settings(settings, overrides)
        self._routes = Routes(
            [version for text in self.settings.protocol_versions.split(",") if (version := text.strip())]
        )
        versions = self._routes.versions
        # A copy: `use_auth` writes into it.
        self.agent_card = copy.copy(
            configuration.check_card(card, versions, self.settings, has_extended=extended_card_provider is not None)
        )
        signer = configuration.make_signer(signing, self.settings)
        self._jwt_signer = configuration.make_jwt_signer(signer, self.agent_card, self.settings)
        self.cards = CardPublisher(self.agent_card, self.settings, time.time(), versions=versions, signer=signer)
        self._engine = configuration.check_storage(storage, self.settings)
        self._inner = inner or InnerAgents()
        self._middlewares = list(middlewares or ())
        self._hooks = hooks
        self._deps = DependencyContainer(dependencies)
        self._extended_card_provider = extended_card_provider
        if policy is not None or self.settings.policy is not None:
            self.use_policy(policy or self.settings.policy or "")
        if auth is None and (found := auth_of(self.settings)) is not None:
            auth, access_rules = found.schemes, [*found.rules, *access_rules]
        if auth is not None:
            self.use_auth(auth, access_rules)
        elif access_rules:
            raise ConfigurationError("access_rules need auth=[...]: without it, callers are not known")
        #: Whether and for whom the console and the operator API are served.
        self.console = ConsoleGate(self)
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
        """Serve an agent that is written as a YAML manifest, with the agents that it uses. Needs `errands[agents]`.

        `agent` chooses one of several; `model` replaces the models that the manifests name; `tools` are tools of the
        program; `tool_settings` are a file, or values by tool. The other arguments are those of `A2AServer`. Raises
        `ManifestError` with everything that is wrong with the manifests, and `ConfigurationError`.
        """
        from errands.agents.build import build  # noqa: PLC0415 - most servers have no manifests

        # The agents are built with the same settings as the server. Some are arguments of their own.
        own = ("storage", "policy", "auth")
        names = [name for name in options if configuration.is_setting(name) and name not in own]
        settings = configuration.make_settings(settings, {name: options.pop(name) for name in names})
        built = build(
            path,
            agent=agent,
            model=model,
            tools=tools,
            tool_settings=tool_settings,
            settings=settings,
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
        """Apply this policy to every task, instead of the previous one. Call it before `start()`.

        Raises `ConfigurationError` with everything that is wrong with a file, and for functions that no agent here has:
        rules about them would never apply.
        """
        if not isinstance(policy, Policy):
            from errands.agents.manifests.loading import load_policy  # noqa: PLC0415 - only a file needs the YAML reader

            policy = load_policy(policy)
        compiled = compile_policy(policy)
        check_functions(compiled, (self._worker, *self._inner.workers.values()))
        self._policy = compiled

    def use_auth(self, auth: Sequence[AuthScheme] | str | Path, access_rules: Sequence[AccessRule] = ()) -> None:
        """Authenticate callers with these schemes, or those of a file, and publish them. Call it before `start()`.

        They replace the previous ones. Raises `ConfigurationError`.
        """
        if isinstance(auth, str | Path):
            found = load_auth(auth)
            auth, access_rules = found.schemes, [*found.rules, *access_rules]
        authentication = Authentication(auth)
        card = authentication.published(self.agent_card)
        self._authorization = Authorization(authentication, access_rules, card)
        self.agent_card.security_schemes, self.agent_card.security = card.security_schemes, card.security
        self.agent_card.extensions = card.extensions

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
        """Change settings; None leaves a setting unchanged. Call it before `start()`. Raises `ConfigurationError`."""
        changed = configuration.make_settings(self.settings, changes)
        for name in changed.__struct_fields__:
            setattr(self.settings, name, getattr(changed, name))

    def listen_at(self, host: str, port: int) -> None:
        """Set where HTTP listens. Call it before `start()`, as `errands serve` does.

        At a loopback address, requests for host names that a web page could have registered are refused.
        """
        self.http_address = (callable_host(host), port)
        self.listens_locally = is_loopback(host)

    @property
    def storage(self) -> str:
        """The storage URL without its password, or the class of the engine that the program has made."""
        return without_password(self.settings.storage) if self._engine is None else type(self._engine).__name__

    @property
    def app(self) -> A2AApp:
        """The ASGI application."""
        if self._app is None:
            self._app = A2AApp(self)
        return self._app

    def as_fastapi_app(self, *, debug: bool = False, **fastapi_kwargs: Any) -> FastAPI:
        """Return a FastAPI application with the agent at its root. Needs `errands[fastapi]`.

        Routes that are added before the first request come first. With `debug`, the console is served, to this machine
        only unless callers authenticate.
        """
        try:
            from fastapi import FastAPI  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigurationError(
                f"as_fastapi_app() needs an extra ({error}): pip install 'errands[fastapi]'; server.app needs none"
            ) from None

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with self:
                yield

        card = self.agent_card
        described = {"title": card.name, "version": card.version, "description": card.description}
        app = FastAPI(lifespan=lifespan, debug=debug, **{**described, **fastapi_kwargs})
        self.console.is_debugging = debug
        # The last of all routes: everything that FastAPI does not know belongs to the agent.
        app.router.default = self.app
        return app

    def share(self) -> None:
        """Make this one of several processes that serve the agent on the same ports. Call it before `start()`.

        Raises `ConfigurationError` if the processes could not see each other's tasks or share the gRPC port.
        """
        configuration.check_shared(self._engine or configuration.make_engine(self.settings), "several processes")
        if self.settings.grpc_port == 0:
            raise ConfigurationError("grpc_port=0 would be another port in each of several processes; choose a port")
        self._is_shared = True

    # Starting and stopping

    async def start(self) -> None:
        """Open the dependencies, the store and the pool. Starting twice does nothing.

        Raises `StorageError` if the store cannot be used, `ConfigurationError`, and what a dependency raises.
        """
        async with self._starting:
            if self.started:
                return
            ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._stop.clear()
            # The same task enters and leaves all contexts, whichever tasks call start and stop.
            self._run = asyncio.create_task(self._live(ready), name="errands-server")
            await ready
            self.started = True

    async def stop(self) -> None:
        """Drain and close everything. Stopping twice does nothing."""
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
        if settings.log_format == "json":
            write_json_lines()
        engine = self._engine or configuration.make_engine(settings)
        if settings.role is not ServerRole.ALL:
            configuration.check_shared(engine, f"a process with the role {settings.role} and the others")
        async with AsyncExitStack() as stack:
            #: The counts of this process; None if metrics are off.
            self.figures: Figures | None = None
            if settings.metrics:
                if engine.counts is None:
                    engine.counts = CommitCounts()
                    # An engine may serve again without metrics. What it counts then would be kept until it is read.
                    stack.callback(setattr, engine, "counts", None)
                self.figures = Figures(engine.counts)
            if settings.otel:
                installed = configuration.load_telemetry()
                rate = settings.otel_traces_per_second
                stack.enter_context(installed(self.figures, METRICS, self.agent_card.name, rate))
            await self._deps.startup()
            stack.push_async_callback(self._deps.shutdown)
            self.engine = await stack.enter_async_context(engine)
            if self.agent_card.capabilities.push_notifications and settings.push_concurrency:
                guard = push_guard(settings)
                sender = PushSender(engine, self.agent_card.name, settings, guard, self._jwt_signer, self.figures)
                await stack.enter_async_context(sender)
            await self._start_turns(stack)
            stack.push_async_callback(self.pool.drain)
            stack.callback(engine.disconnect)
            await self._open_bindings(stack)
            if settings.loop_hold_warning is not None:
                # Not earlier: importing modules at the start holds the loop, but no request waits yet.
                self._watchdog = stack.enter_context(Watchdog(settings.loop_hold_warning))
                stack.callback(setattr, self, "_watchdog", None)
            yield

    async def _start_turns(self, stack: AsyncExitStack) -> None:
        """Start the pool that runs the turns of all agents, with their oversight and hooks, and the task manager."""
        settings, name, figures = self.settings, self.agent_card.name, self.figures
        evaluators = Evaluators()
        stack.push_async_callback(evaluators.close)

        def oversight_of(worker: Worker) -> AgentOversight:
            return build_oversight(worker, self._policy, evaluators, (self._worker, *self._inner.workers.values()))

        self.pool = pool = WorkerPool(self.engine, settings, self._deps, figures)
        hooks = None if self._hooks is None else HookReader(self._hooks, settings.drain_timeout)
        if hooks is not None:
            await stack.enter_async_context(hooks)
        self.blobs = configuration.make_blobs(settings, self.engine)
        if self.blobs is not None:
            await stack.enter_async_context(self.blobs)
            self.pool.on_sweep(partial(self.blobs.sweep, self.engine))
        journal = Journal(self.engine, hooks, self.blobs, figures)
        self.pool.add(Handler(name, self._worker, journal, settings, oversight_of(self._worker)))
        self.task_manager = ReviewingTaskManager(
            self.pool,
            name,
            input_modes=self.agent_card.input_modes,
            settings=settings,
            identifiers=configuration.identifiers_of(self._worker),
            inner=self._inner.workers,
        )
        self._inner.start(self.pool, Journal(self.engine, blobs=self.blobs, figures=figures), settings, oversight_of)
        self.reporter: ProcessReporter | None = None
        if figures is not None:
            figures.read_from("errands_turns_running", lambda: len(pool.running))
            figures.read_from("errands_subscribers", self.engine.count_subscribers)
            if settings.role is not ServerRole.API:
                figures.read_from("errands_turns_limit", lambda: settings.max_concurrent_tasks)
            self.reporter = ProcessReporter(
                self.engine,
                figures,
                process_id=pool.leases.worker_id,
                agent=name,
                role=settings.role,
                agents=pool.handlers,
                # The processes of one supervisor share their ports.
                group=f"{socket.gethostname()}:{os.getppid()}" if self._is_shared else "",
                loop_lag=lambda: None if self._watchdog is None else self._watchdog.take_lag(),
            )
            # Until the pool is drained, which takes its time.
            await stack.enter_async_context(self.reporter)
        await stack.enter_async_context(self.pool)

    async def _open_bindings(self, stack: AsyncExitStack) -> None:
        """Set up authorization, the dispatcher, the pages beside A2A, and gRPC."""
        settings = self.settings
        self.large_work = LargeWork(settings.max_buffered_bytes)
        serves = settings.role is not ServerRole.WORKER
        if self._authorization is not None and serves:
            outbound = Outbound.from_setting(settings.outbound_allow)
            await stack.enter_async_context(self._authorization.opened(outbound))
        audit = AccessAudit(self.engine, self.agent_card.name, settings) if settings.audit else None
        self.dispatcher = (Dispatcher if serves else ClosedDispatcher)(
            self.task_manager,
            self.agent_card,
            self._middlewares,
            self._routes,
            self.cards,
            self._extended_card_provider,
            settings=settings,
            authorization=self._authorization,
            blobs=None if self.blobs is None else BlobAddresses(self.blobs, settings),
            audit=audit,
            figures=self.figures,
        )
        self.metrics_page: MetricsPage | None = None
        if self.reporter is not None:
            identify = self.dispatcher.identify if self.asks_who_calls and serves else None
            self.metrics_page = MetricsPage(
                self.reporter,
                identify,
                settings,
                lambda exchange: self.console.is_open and self.console.is_from_here(exchange),
                audit,
            )
        self.blob_pages: BlobPages | None = None
        if self.blobs is not None and serves:
            self.blob_pages = BlobPages(self.blobs, self.engine, self.dispatcher.identify, settings, audit)
        self.admin = AdminApi(self, self._inner, audit)
        if settings.grpc_port is not None and serves:
            stack.callback(setattr, self, "_grpc", None)
            grpc_server = configuration.load_grpc_server()
            self._grpc = await stack.enter_async_context(
                grpc_server(self.dispatcher, self.large_work, settings, self.http_address, shares_port=self._is_shared)
            )
            # Drain before gRPC stops, which would cut off running calls.
            stack.push_async_callback(self.drain)
            self.cards.grpc_address = self._grpc.address

    @property
    def asks_who_calls(self) -> bool:
        """True if `auth` or any middleware checks requests; without one, everyone may use the agent."""
        return self._authorization is not None or bool(self._middlewares)

    @property
    def checks_certificates(self) -> bool:
        """True if `auth` decides about connections without a client certificate."""
        schemes = () if self._authorization is None else self._authorization.authentication.schemes
        return any(isinstance(scheme, MutualTLSAuth) for scheme in schemes)

    @property
    def grpc_port(self) -> int | None:
        """The port on which gRPC listens, None while it does not."""
        return self._grpc.port if self._grpc is not None else None

    def scope(self, owner: str = "", tenant: str = "") -> Scope:
        """Return the scope of a caller of this agent, for programs that use the engine themselves."""
        return Scope(tenant, owner, self.agent_card.name)

    @property
    def tasks(self) -> TaskStore:
        """The tasks of anonymous callers; `tasks.of(owner, tenant)` has those of others. From `start()` on."""
        return TaskStore(self.task_manager, self.scope())

    async def active_tasks(self) -> list[ActiveTask]:
        """Return the running tasks of this agent, in all processes on the same store. From `start()` on."""
        return await self.pool.active_tasks(self.agent_card.name)

    async def drain(self) -> None:
        """Accept no more work, wait for running turns, then end streams and waiting requests."""
        if self._grpc is not None:
            self._grpc.stop_serving()
        if self.started:
            await self.pool.drain()
            self.engine.disconnect()

    async def problem(self) -> str | None:
        """Return why the server cannot take requests right now, or None."""
        if not self.started or self.pool.draining:
            return "shutting down"
        try:
            await self.engine.check()
        except StorageError as error:
            logger.error("not ready: %s", error)
            return "the task store is not available"
        return None
