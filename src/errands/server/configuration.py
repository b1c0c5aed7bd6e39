"""Checks and completes the arguments of `A2AServer`: its agent, card, settings and store.

Everything that can be wrong is reported here, when the server is constructed, and not when it is started.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from errands.engines.base import Engine, Retention
from errands.engines.urls import engine_from_url
from errands.errors import ConfigurationError
from errands.interop import BuilderLike, CardLike, ExecutorLike, adapt, adapt_card, is_executor_class
from errands.model.card_config import AgentCardConfig
from errands.policy.document import Policy
from errands.runtime.blobs import Blobs, bucket_from_url
from errands.runtime.executor import Identifiers
from errands.runtime.executor_worker import ExecutorWorker
from errands.runtime.hooks import LifecycleHooks
from errands.runtime.inner import InnerAgents
from errands.runtime.middleware import A2AMiddleware
from errands.runtime.push import push_guard
from errands.runtime.settings import NOT_ON_CARD, ServerRole, Settings, misspelled
from errands.runtime.webhooks import JWTSigner, signing_key
from errands.runtime.worker import Worker
from errands.server.cards import build_card, check_binding, extensions_of, offers_extended_card
from errands.wire import signing_extra
from errands.wire.card_check import grpc_address
from errands.wire.proto import grpc_extra

if TYPE_CHECKING:
    from errands.server.grpc import GrpcServer
    from errands.wire.card_signing import CardSigner, SigningKey

logger = logging.getLogger(__name__)

#: a2akit's names of settings.
_SETTING_ALIASES = {"blocking_timeout_s": "blocking_timeout", "cancel_force_timeout_s": "cancel_force_timeout"}

# Arguments


def check_types(
    *,
    middlewares: object,
    hooks: object,
    dependencies: object,
    settings: object,
    inner: object,
    policy: object,
    extended_card_provider: object,
) -> None:
    """Raise `ConfigurationError` for an argument of another type than `A2AServer` takes."""
    for name, given, kinds in (
        ("hooks", hooks, LifecycleHooks),
        ("dependencies", dependencies, Mapping),
        ("settings", settings, Settings),
        ("inner", inner, InnerAgents),
        ("policy", policy, str | Path | Policy),
    ):
        if given is not None and not isinstance(given, kinds):
            expected = getattr(kinds, "__name__", "path or a Policy")
            raise ConfigurationError(f"{name} must be a {expected}, not {kind_of(given)}")
    if extended_card_provider is not None and not callable(extended_card_provider):
        kind = kind_of(extended_card_provider)
        raise ConfigurationError(f"extended_card_provider must be an async function that returns a card, not {kind}")
    if middlewares is not None and not isinstance(middlewares, Sequence):
        raise ConfigurationError(f"middlewares must be a list of A2AMiddleware objects, not {kind_of(middlewares)}")
    for middleware in middlewares or ():
        if not isinstance(middleware, A2AMiddleware):
            raise ConfigurationError(
                f"middlewares must be objects of A2AMiddleware, not {kind_of(middleware)}; what a2a-sdk's "
                "ServerCallContextBuilder does belongs into before_dispatch"
            )


def kind_of(given: object) -> str:
    """Return what an argument is, for an error message."""
    return f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__


# The agent


def find_card(card: CardLike | None, agent: Worker | ExecutorLike | None) -> AgentCardConfig | None:
    """Return the card that was passed or else the agent's own."""
    given = card or getattr(agent, "agent_card", None)
    return None if given is None else adapt_card(given)


def check_card(
    card: AgentCardConfig | None, versions: Sequence[str], settings: Settings, *, has_extended: bool
) -> AgentCardConfig:
    """Return the card. Raises `ConfigurationError` unless a server can serve it."""
    if card is None:
        raise ConfigurationError("an agent needs a card: pass agent_card=AgentCardConfig(...)")
    if not card.name:
        raise ConfigurationError("an agent needs a name, which identifies its tasks: pass AgentCardConfig(name=...)")
    check_binding(card.protocol)
    if has_extended:
        card.supports_authenticated_extended_card = True
    build_card(card, "http://localhost", versions=versions)
    offers_push = card.capabilities.push_notifications
    if offers_push and not settings.push_notifications:
        raise ConfigurationError(
            "the card offers push notifications, but the setting push_notifications is off; change one of them"
        )
    if offers_push is None:
        # A copy: the same card may be served with other settings.
        capabilities = replace(card.capabilities, push_notifications=settings.push_notifications)
        card = replace(card, capabilities=capabilities)
    if offers_extended_card(card) and not has_extended:
        logger.warning("the card offers an extended card, but extended_card_provider is missing")
    return card


def make_signer(signing: Sequence[SigningKey] | None, settings: Settings) -> CardSigner | None:
    """Return what signs the cards with the given keys and those of the settings, or None without keys.

    Raises `ConfigurationError`.
    """
    files = [Path(name.strip()) for name in (settings.card_signing_keys or "").split(",") if name.strip()]
    if not signing and not files:
        if settings.card_signing_jku is not None:
            raise ConfigurationError("card_signing_jku needs a key: set card_signing_keys, too")
        return None
    with signing_extra():
        from errands.wire.card_signing import (  # noqa: PLC0415 - an extra
            MAX_SIGNING_KEYS,
            CardSigner,
            SigningKey,
            signing_keys,
        )
    if not all(isinstance(key, SigningKey) for key in signing or ()):
        raise ConfigurationError("signing must be a list of SigningKey objects")
    keys = [*(signing or ()), *(key for file in files for key in signing_keys(file, jku=settings.card_signing_jku))]
    if len(keys) > MAX_SIGNING_KEYS:
        raise ConfigurationError(f"{len(keys)} keys sign the card, and readers take at most {MAX_SIGNING_KEYS}")
    if len({key.kid for key in keys}) != len(keys):
        raise ConfigurationError("two keys that sign the card have the same kid; give each its own")
    return CardSigner(keys)


def make_jwt_signer(signer: CardSigner | None, card: AgentCardConfig, settings: Settings) -> JWTSigner | None:
    """Return what signs notifications of webhooks with JWTs, None if they are not. Raises `ConfigurationError`."""
    if not settings.push_jwt:
        return None
    if signer is None:
        raise ConfigurationError("push_jwt needs a key to sign with: set card_signing_keys, or pass signing=[...]")
    return JWTSigner(settings.public_url or card.name, signer.keys[0].token)


def make_worker(
    worker: Worker | None,
    executor: ExecutorLike | None,
    builder: BuilderLike | None,
    card: AgentCardConfig | None,
) -> Worker:
    """Return the worker, or one that runs the executor. Raises `ConfigurationError`."""
    if (worker is None) == (executor is None):
        raise ConfigurationError("pass either worker=... or executor=..., and not both")
    if executor is None:
        if isinstance(worker, type):
            raise ConfigurationError(f"worker={worker.__name__} is a class; pass an object of it: {worker.__name__}()")
        if not isinstance(worker, Worker):
            hint = "; pass it as executor=" if is_executor_class(type(worker)) else ""
            raise ConfigurationError(f"worker must be an instance of errands.Worker, not {type(worker).__name__}{hint}")
        if builder is not None:
            raise ConfigurationError("request_context_builder needs executor=...; a worker has its TaskContext")
        return worker
    extensions = [extension.uri for extension in extensions_of(card)] if card else ()
    return ExecutorWorker(*adapt(executor, builder), extensions)


def identifiers_of(worker: Worker) -> Identifiers | None:
    """Return the id generators of an executor's request context builder, None without any."""
    if isinstance(worker, ExecutorWorker):
        builder = worker.builder
        if builder.task_id_generator or builder.context_id_generator:
            return Identifiers(builder.task_id_generator, builder.context_id_generator)
    return None


# Settings


def is_setting(name: str) -> bool:
    """Return whether a keyword argument of `A2AServer` overrides a setting."""
    return name in Settings.__struct_fields__ or name in _SETTING_ALIASES


def make_settings(settings: Settings | None, overrides: Mapping[str, Any]) -> Settings:
    """Return a copy of the settings, or those of the environment, with the overrides that are not None.

    Raises `ConfigurationError` for wrong values and `TypeError` for unknown names.
    """
    for name in overrides:
        if not is_setting(name):
            raise TypeError(f"A2AServer() got an unexpected keyword argument {name!r}")
    overrides = {_SETTING_ALIASES.get(name, name): value for name, value in overrides.items() if value is not None}
    versions = overrides.get("protocol_versions")
    if versions is not None and not isinstance(versions, str):
        overrides["protocol_versions"] = ",".join(versions)
    if settings is None:
        found = Settings.from_env(**overrides)
        for variable, meant in misspelled(os.environ).items():
            # A warning only, because the variable may belong to another program.
            logger.warning("unknown setting %s; did you mean %s?", variable, meant)
    else:
        found = Settings(**{name: getattr(settings, name) for name in Settings.__struct_fields__} | overrides)
    try:
        found.role = ServerRole(found.role)
    except ValueError:
        raise ConfigurationError(f"invalid role {found.role!r}: expected one of {', '.join(ServerRole)}") from None
    found.check()
    if found.public_grpc not in (None, NOT_ON_CARD) and grpc_address(found.public_grpc or "") is None:
        raise ConfigurationError(
            f"invalid public_grpc {found.public_grpc!r}: expected HOST:PORT, https://HOST, or {NOT_ON_CARD} to leave "
            "gRPC off the card"
        )
    push_guard(found)
    if found.push_secret is not None:
        signing_key(found.push_secret)
    # Report a wrong URL or a missing package now, not at the start.
    if found.blobs is not None:
        bucket_from_url(found.blobs)
    if found.grpc_port is not None:
        load_grpc_server()
    if found.otel:
        load_telemetry()
    return found


def load_telemetry() -> Callable[..., AbstractContextManager[None]]:
    """Return the context manager that turns tracing on. Raises `ConfigurationError` if its package is missing."""
    try:
        from errands.telemetry import installed  # noqa: PLC0415 - opentelemetry is an extra
    except ImportError as error:
        raise ConfigurationError(f"otel needs an extra ({error}): pip install 'errands[otel]'") from None
    return installed


def load_grpc_server() -> type[GrpcServer]:
    """Return the class of gRPC servers. Raises `ConfigurationError` if its package is missing."""
    with grpc_extra():
        from errands.server.grpc import GrpcServer  # noqa: PLC0415 - grpc is an extra
    return GrpcServer


# The store


def check_storage(storage: str | Engine | None, settings: Settings) -> Engine | None:
    """Return the engine that the program has made, None for a URL. Raises `ConfigurationError`."""
    if not isinstance(storage, str | Engine | None):
        raise ConfigurationError(
            f"storage must be a URL such as 'sqlite:///tasks.db' or an errands Engine, not {kind_of(storage)}"
        )
    if isinstance(storage, Engine):
        return storage
    engine_from_url(settings.storage)  # report a wrong URL now, not at the start
    return None


def make_engine(settings: Settings) -> Engine:
    """Return the engine of the settings' storage URL and retention."""
    retention: dict[str, Any] = {
        "ended_after": settings.keep_ended_for,
        "completed_after": settings.keep_completed_for,
        "failed_after": settings.keep_failed_for,
        "canceled_after": settings.keep_canceled_for,
        "rejected_after": settings.keep_rejected_for,
        "ended_at_most": settings.keep_ended_at_most,
        "events_per_task": settings.keep_events,
        "contexts_after": settings.keep_contexts_for,
        "accesses_after": settings.keep_audit_for,
    }
    given = {name: value for name, value in retention.items() if value is not None}
    # Without retention settings, the engine's own defaults hold.
    return engine_from_url(settings.storage, Retention(**given) if given else None)


def make_blobs(settings: Settings, engine: Engine) -> Blobs | None:
    """Return where large files go, None if they stay in the log. Raises `ConfigurationError`."""
    if settings.blobs is None:
        return None
    bucket = bucket_from_url(settings.blobs)
    return Blobs(bucket, engine.clock, above=settings.blob_bytes, inline=settings.max_body_bytes)


def check_shared(engine: Engine, who: str) -> None:
    """Raise `ConfigurationError` for a store that other processes cannot see."""
    if not engine.shared:
        raise ConfigurationError(
            f"storage {engine.name!r} is private to one process, and {who} must share one; use a file such as "
            "sqlite:///tasks.db or a database"
        )
