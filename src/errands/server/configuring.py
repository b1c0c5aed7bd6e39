"""What a server is given, checked and completed: its agent, its card, its settings and its store.

Everything that can be wrong is told here, when the server is made, and not when it is started.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errands.engines.base import Engine, Retention
from errands.engines.passwords import without_password
from errands.engines.urls import engine_from_url
from errands.errors import ConfigurationError
from errands.interop import BuilderLike, CardLike, ExecutorLike, adapt, adapt_card, is_executor_class
from errands.model.card_config import AgentCardConfig
from errands.policy.document import Policy
from errands.runtime.executor.ids import Identifiers
from errands.runtime.executor.worker import ExecutorWorker
from errands.runtime.hooks import LifecycleHooks
from errands.runtime.inner import InnerAgents
from errands.runtime.middleware import A2AMiddleware
from errands.runtime.settings import NOT_ON_CARD, ServerRole, Settings, misspelled
from errands.runtime.worker import Worker
from errands.server.cards import build_card, check_binding, extensions_of, offers_extended_card
from errands.wire.card_check import grpc_address
from errands.wire.proto import grpc_extra

if TYPE_CHECKING:
    from errands.server.grpc import GrpcServer

logger = logging.getLogger(__name__)

# Arguments


def check_arguments(
    *,
    middlewares: object,
    hooks: object,
    dependencies: object,
    settings: object,
    inner: object,
    policy: object,
    extended_card_provider: object,
) -> None:
    """Raises `ConfigurationError` for an argument of another type than A2AServer takes."""
    for name, given, kinds in (
        ("hooks", hooks, LifecycleHooks),
        ("dependencies", dependencies, Mapping),
        ("settings", settings, Settings),
        ("inner", inner, InnerAgents),
        ("policy", policy, str | Path | Policy),
    ):
        if given is not None and not isinstance(given, kinds):
            wanted = getattr(kinds, "__name__", "path or a Policy")
            raise ConfigurationError(f"{name} must be a {wanted}, not {_kind(given)}")
    if extended_card_provider is not None and not callable(extended_card_provider):
        raise ConfigurationError(
            f"extended_card_provider must be an async function that returns a card, not {_kind(extended_card_provider)}"
        )
    if middlewares is not None and not isinstance(middlewares, Sequence):
        raise ConfigurationError(f"middlewares must be a list of A2AMiddleware objects, not {_kind(middlewares)}")
    for middleware in middlewares or ():
        if not isinstance(middleware, A2AMiddleware):
            raise ConfigurationError(
                f"middlewares must be objects of A2AMiddleware, not {_kind(middleware)}; what a2a-sdk's "
                "ServerCallContextBuilder does belongs into before_dispatch"
            )


def _kind(given: object) -> str:
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


# The agent


def given_card(card: CardLike | None, agent: Worker | ExecutorLike | None) -> AgentCardConfig | None:
    """The card that was given or that the agent itself has, in our form."""
    given = card or getattr(agent, "agent_card", None)
    return None if given is None else adapt_card(given)


def given_worker(
    worker: Worker | None,
    executor: ExecutorLike | None,
    builder: BuilderLike | None,
    card: AgentCardConfig | None,
) -> Worker:
    """What runs the turns, whichever way the agent is written. Raises `ConfigurationError`."""
    if (worker is None) == (executor is None):
        raise ConfigurationError("an agent is given once: pass worker=... or executor=..., and not both")
    if executor is None:
        if isinstance(worker, type):
            raise ConfigurationError(f"worker={worker.__name__} is a class; pass an object of it: {worker.__name__}()")
        if not isinstance(worker, Worker):
            hint = "; pass it as executor=" if is_executor_class(type(worker)) else ""
            raise ConfigurationError(f"worker must be an instance of errands.Worker, not {type(worker).__name__}{hint}")
        if builder is not None:
            raise ConfigurationError("request_context_builder goes with executor=...; a worker has its TaskContext")
        return worker
    extensions = [extension.uri for extension in extensions_of(card)] if card else ()
    return ExecutorWorker(*adapt(executor, builder), extensions)


def checked_card(
    card: AgentCardConfig | None, bindings: Sequence[str], versions: Sequence[str], *, has_extended: bool
) -> AgentCardConfig:
    """The card, if a server can show it. `has_extended` is whether there is another one for who is known."""
    if card is None:
        raise ConfigurationError("an agent needs a card: pass agent_card=AgentCardConfig(...)")
    if not card.name:
        raise ConfigurationError("an agent needs a name: its tasks are found by it; pass AgentCardConfig(name=...)")
    for binding in (card.protocol, *bindings):
        check_binding(binding)
    if has_extended:
        card.supports_authenticated_extended_card = True
    build_card(card, "http://localhost", versions=versions)
    if card.capabilities.push_notifications:
        raise ConfigurationError("push notifications are not available yet; leave push_notifications=False")
    if offers_extended_card(card) and not has_extended:
        logger.warning("the card offers an extended card, but no extended_card_provider is given")
    return card


def identifiers_of(worker: Worker) -> Identifiers | None:
    """Where the identifiers of new tasks come from, when an executor's context builder says so."""
    if isinstance(worker, ExecutorWorker):
        builder = worker.builder
        if builder.task_id_generator or builder.context_id_generator:
            return Identifiers(builder.task_id_generator, builder.context_id_generator)
    return None


def read_policy(policy: str | Path | Policy) -> Policy:
    """Raises `ConfigurationError` with everything that is wrong with a file."""
    if isinstance(policy, Policy):
        return policy
    from errands.agents.policies import load_policy  # noqa: PLC0415 - only a file needs what reads it

    return load_policy(policy)


# Settings


def given_settings(settings: Settings | None, **overrides: Any) -> Settings:
    """A copy of the settings, or those of the environment, with what is not None of `overrides`."""
    if settings is None:
        found = Settings.from_env(**overrides)
        for variable, meant in misspelled(os.environ).items():
            # Not worth an end: it may be meant for another program.
            logger.warning("the variable %s is no setting; did you mean %s?", variable, meant)
    else:
        values = {field: getattr(settings, field) for field in settings.__struct_fields__}
        values.update({name: value for name, value in overrides.items() if value is not None})
        found = Settings(**values)
    found.role = _role(found.role)
    found.check()
    if found.public_grpc not in (None, NOT_ON_CARD) and grpc_address(found.public_grpc or "") is None:
        raise ConfigurationError(
            f"public_grpc={found.public_grpc!r} does not fit; write HOST:PORT, https://HOST, or {NOT_ON_CARD} to leave "
            "gRPC off the card"
        )
    return found


def _role(name: str) -> ServerRole:
    try:
        return ServerRole(name)
    except ValueError:
        raise ConfigurationError(f"role {name!r}: possible are {', '.join(ServerRole)}") from None


def listed(text: str) -> list[str]:
    """What stands between the commas of a setting."""
    return [item for part in text.split(",") if (item := part.strip())]


def grpc_server() -> type[GrpcServer]:
    """Raises `ConfigurationError` when its package is missing."""
    with grpc_extra():
        from errands.server.grpc import GrpcServer  # noqa: PLC0415 - grpc is an extra
    return GrpcServer


# The store


def given_engine(storage: str | Engine | None, settings: Settings, **others: str | Engine | None) -> Engine | None:
    """The store, when it is not the address in the settings; `others` may only name it once more."""
    if not isinstance(storage, str | Engine | None):
        raise ConfigurationError(
            f"storage must be a URL such as 'sqlite:///tasks.db' or an errands Engine, not {_kind(storage)}"
        )
    if not isinstance(storage, Engine):
        engine_from_url(settings.storage)  # a wrong address is told now, not at the start
    storage = storage or settings.storage
    for name, other in others.items():
        if other is not None and other != storage:
            raise ConfigurationError(
                f"{name}={_named(other)}: tasks, queue and events live in one store; leave {name} out or make it "
                f"the same as storage={_named(storage)}"
            )
    return storage if isinstance(storage, Engine) else None


def _named(storage: str | Engine) -> str:
    return repr(without_password(storage)) if isinstance(storage, str) else _kind(storage)


def made_engine(settings: Settings) -> Engine:
    """The store that the settings name, with what the operator wants kept."""
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
    # Without a wish it is left to the store.
    return engine_from_url(settings.storage, Retention(**given) if given else None)


def check_shared(engine: Engine, who: str) -> None:
    """Raises `ConfigurationError` for a store that other processes cannot see."""
    if not engine.shared:
        raise ConfigurationError(
            f"storage {engine.name!r} is one process's own: {who} would not meet the others there; use a file such as "
            "sqlite:///tasks.db or a database"
        )
