"""`Settings`: every setting with its name, default and meaning. `ERRANDS_NAME` in the environment sets `name`."""

from __future__ import annotations

import difflib
import enum
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from errands.engines.connection import without_password
from errands.errors import ConfigurationError
from errands.model.base import fields_of
from errands.tracing import TRACES_PER_SECOND

ENV_PREFIX = "ERRANDS_"
#: Settings whose values are never shown.
SECRET = frozenset({"model_api_key", "auth_api_keys", "push_secret"})
#: Settings that protect the server. A variable that is there but empty is a mistake, such as a secret that is not set,
#: and so is one whose name is misspelled.
PROTECTING = frozenset(
    {
        "auth",
        "auth_api_keys",
        "auth_issuer",
        "auth_audience",
        "policy",
        "push_secret",
        "tls_certificate",
        "tls_client_ca",
    }
)
#: Variables of the command line, which are not settings.
COMMAND_LINE = frozenset(
    {"API_KEY", "CLIENT_CA", "CLIENT_CERTIFICATE", "CLIENT_ID", "CLIENT_SECRET", "TOKEN", "TOKEN_URL"}
)
#: What Kubernetes and Docker write into the variable `ERRANDS_GRPC_PORT` if a service is called `errands-grpc`.
_SERVICE_LINK = re.compile(r"\w+_PORT(_\w+)?=(tcp|udp|sctp)://")
DEFAULT_STORAGE = "sqlite:///.errands/tasks.db"
#: The value of `public_grpc` that leaves gRPC off the card.
NOT_ON_CARD = "off"


class ServerRole(enum.StrEnum):
    """What a process does for its agent. Processes in different roles share the store."""

    #: Takes requests and runs turns.
    ALL = "all"
    #: Takes requests, answers and streams; never runs a turn.
    API = "api"
    #: Runs turns; over HTTP it only reports its health.
    WORKER = "worker"


# The types of settings. Errors show the description.
Role = Annotated[ServerRole, Meta(description="one of " + ", ".join(ServerRole))]
Seconds = Annotated[float, Meta(ge=0, description="seconds (0 or more)")]
Interval = Annotated[float, Meta(gt=0, description="seconds (more than 0)")]
Rate = Annotated[float, Meta(gt=0, description="requests per second (more than 0)")]
TraceRate = Annotated[float, Meta(gt=0, description="traces per second (more than 0)")]
#: A negative window disables the check.
Window = Annotated[float, Meta(description="seconds")]
Count = Annotated[int, Meta(ge=0, description="a whole number (0 or more)")]
Amount = Annotated[int, Meta(ge=1, description="a whole number (1 or more)")]
Port = Annotated[int, Meta(ge=0, le=65535, description="a port (0 to 65535)")]
Flag = Annotated[bool, Meta(description="true or false")]
#: Whether the console is served.
Console = Annotated[Literal["auto", "on", "off"], Meta(description="one of auto, on, off")]
_LEVELS = ("debug", "info", "warning", "error", "critical")
LogLevel = Annotated[str, Meta(pattern=f"^(?i:{'|'.join(_LEVELS)})$", description="one of " + ", ".join(_LEVELS))]

LogFormat = Annotated[str, Meta(pattern="^(text|json)$", description="text or json")]


class Settings(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of a server, grouped by the part that uses them.

    `Settings.from_env()` reads the environment; keyword arguments of `A2AServer` take precedence over it.
    """

    # The process

    #: Where tasks live: `memory`, `sqlite:///path`, `postgresql://host/database` or `redis://host`.
    storage: str = DEFAULT_STORAGE
    #: What this process does: `all`, `api` (takes requests, runs no turns) or `worker` (runs turns, takes no requests).
    role: Role = ServerRole.ALL
    #: Level of the `errands` logger.
    log_level: LogLevel | None = None
    #: The form of log lines: `text` leaves it to the program, `json` writes an object on each line.
    log_format: LogFormat = "text"
    #: Seconds for which code may hold the event loop before a warning in the log names it. None: no warnings.
    loop_hold_warning: Interval | None = 0.25

    #: Whether requests, tasks and turns are counted, for `/metrics` and for operators.
    metrics: Flag = True
    #: Whether everyone who reaches the server may read `/metrics`, and not only operators.
    metrics_public: Flag = False
    #: Whether traces are recorded with OpenTelemetry, whose SDK the program brings. Needs `errands[otel]`.
    otel: Flag = False
    #: How many traces the process begins in a second; of those that callers have begun, ten times as many are recorded.
    #: `inf`: all of them.
    otel_traces_per_second: TraceRate = TRACES_PER_SECOND

    #: Whether the audit trail has who sent each message and each cancel, and from which address; and looks at tasks of
    #: other owners, transfers of files, changes of webhooks, and requests that were denied.
    audit: Flag = False
    #: Whether it also has what callers look at of their own.
    audit_reads: Flag = False

    # Sends and turns

    #: Seconds a blocking send waits before it answers with the task as it is. None: until the turn ends.
    blocking_timeout: Seconds | None = None
    #: Seconds a worker has to react to a cancel before it is canceled by force.
    cancel_force_timeout: Seconds = 10.0
    #: Turns that run at the same time in this process; more wait in the queue. None: no limit.
    max_concurrent_tasks: Amount | None = 1000
    #: Seconds that the longest waiting task may have waited; beyond that, new tasks are refused. None: no limit.
    max_queue_age: Seconds | None = 3600.0
    #: Seconds from the creation of a task to its end, in the queue, at work or paused; then it fails. None: no limit.
    task_timeout: Interval | None = None
    #: Seconds that a paused task waits for an answer before it is canceled. None: for ever.
    paused_timeout: Seconds | None = 2_592_000.0
    #: Tries of one turn before the task fails, counting the first.
    max_attempts: Amount = 3
    #: Seconds without a heartbeat after which another worker may take a task over.
    lease_seconds: Interval = 30.0
    #: Seconds between polls for due tasks, in case a notification was missed.
    poll_interval: Interval = 1.0
    #: Seconds that running turns have to finish when the server stops; the rest is given back to the queue.
    drain_timeout: Seconds = 10.0
    #: Seconds for which a message that is sent again finds its first task.
    idempotency_window: Window = 86_400.0
    #: Whether a message with only a contextId answers the task of that context that waits for input, if exactly one
    #: does. False: it begins a new task, as the A2A specification says. PraisonAI's dialect at `/a2a` always does it.
    answer_by_context: Flag = False

    # Retention

    #: Seconds that ended tasks are kept after their last change; `inf` keeps them for ever. None: as the store does it,
    #: which is 30 days in a durable store, see docs/durability.md.
    keep_ended_for: Seconds | None = None
    #: The same for tasks that completed. None: as `keep_ended_for` says.
    keep_completed_for: Seconds | None = None
    #: The same for tasks that failed. None: as `keep_ended_for` says.
    keep_failed_for: Seconds | None = None
    #: The same for tasks that were canceled. None: as `keep_ended_for` says.
    keep_canceled_for: Seconds | None = None
    #: The same for tasks that were rejected. None: as `keep_ended_for` says.
    keep_rejected_for: Seconds | None = None
    #: Ended tasks that are kept at most, the newest. None: as the store does it.
    keep_ended_at_most: Count | None = None
    #: Events kept per task for readers that come late. None: as the store does it.
    keep_events: Count | None = None
    #: Seconds that `update_context` values are kept after their last change. None: as `keep_ended_for`, or the store.
    keep_contexts_for: Seconds | None = None
    #: Seconds that the audit trail keeps what is in no task. None: as the store does it, which is 30 days.
    keep_audit_for: Seconds | None = None
    #: Seconds between two clean-ups of ended tasks, whatever the number of processes.
    sweep_interval: Interval = 60.0

    # What one caller may use. A caller is an owner or, without authentication, an address. See docs/limits.md.

    #: Requests per second of one caller to one process. None: no limit.
    caller_rate: Rate | None = None
    #: Requests that a caller may send at once before the rate applies.
    caller_burst: Amount = 100
    #: Streams of one caller that are open at the same time in one process. None: no limit.
    caller_max_streams: Amount | None = 1000
    #: Tasks of one caller that have not ended, in the whole store. None: no limit.
    caller_max_tasks: Amount | None = None
    #: Bytes that the tasks of one caller may take in the store. None: no limit.
    caller_max_bytes: Amount | None = None

    # Large content

    #: Where large files go instead of into the log: a directory, `s3://bucket/folder` or `gs://bucket/folder`. None:
    #: they stay in the log.
    blobs: str | None = None
    #: Bytes above which a file is large.
    blob_bytes: Amount = 256 * 1024
    #: Bytes of the largest file that a client may upload.
    max_upload_bytes: Amount = 100 * 1024 * 1024

    # Bindings and cards

    #: The versions of A2A that are served, separated by commas.
    protocol_versions: str = "1.0,0.3"
    #: Bytes of the largest request body.
    max_body_bytes: Amount = 10 * 1024 * 1024
    #: Bytes of large requests and unread answers in one process.
    max_buffered_bytes: Amount = 256 * 1024 * 1024
    #: Parts of the largest message.
    max_message_parts: Amount = 1000
    #: JSON values of the largest request: members of objects and items of arrays, at every level.
    max_message_values: Amount = 100_000
    #: Seconds of silence on a stream after which a comment is sent. httpx, and with it the official clients, gives up
    #: after 5 seconds unless configured otherwise.
    keep_alive: Interval = 4.0
    #: The address of the server for clients, if it is not the one they call.
    public_url: str | None = None
    #: Whether to trust `X-Forwarded-*` headers: only behind a proxy that sets them itself.
    trust_forwarded: Flag = False
    #: Proxies in front of the server that each add an address to `X-Forwarded-For`, if `trust_forwarded` is set.
    forwarded_proxies: Amount = 1
    #: Whether the console and the operator API are served: `on`, `off`, or `auto`, which is on where only this machine
    #: can reach HTTP or callers authenticate. See docs/operator-api.md.
    console: Console = "auto"
    #: The port gRPC listens on; 0 takes a free one. None: no gRPC. Needs `errands[grpc]`.
    grpc_port: Port | None = None
    #: The address gRPC listens on; 0.0.0.0 means every one.
    grpc_host: str = "127.0.0.1"
    #: Where clients reach gRPC, if not where it listens: `host:port` or a URL. `off` leaves it off the card.
    public_grpc: str | None = None

    #: The files with the private keys that sign the card, PEM or JWK, separated by commas. Needs `errands[signing]`.
    card_signing_keys: str | None = None
    #: Where readers of the card find the public keys, if signatures should say it. `/.well-known/jwks.json` is served.
    card_signing_jku: str | None = None

    # Authentication

    #: The PEM file with the certificate of the server, for `errands serve` and gRPC. None: without TLS.
    tls_certificate: str | None = None
    #: The PEM file with its key, if it is another one.
    tls_key: str | None = None
    #: The PEM file with the authorities whose client certificates are accepted. None: none are asked for.
    tls_client_ca: str | None = None
    #: The file with the schemes by which callers authenticate, and with access rules. Needs `errands[auth]`.
    auth: str | None = None
    #: API keys for the header `X-API-Key`, each after the name of its owner: `alice=KEY,bob=sha256:HASH`.
    auth_api_keys: str | None = None
    #: The OpenID provider whose tokens are accepted. Needs `auth_audience`, and `errands[auth]`.
    auth_issuer: str | None = None
    #: The audience that these tokens must have.
    auth_audience: str | None = None
    #: The id of the client with which the console signs people in at this provider. See docs/console.md.
    auth_console_client: str | None = None

    # Push notifications

    #: Whether clients may register webhooks, unless the agent's card says something else.
    push_notifications: Flag = True
    #: Webhooks that one task may have.
    push_configs_per_task: Amount = 10
    #: Where webhooks may be apart from public addresses: addresses, networks and host names, separated by commas.
    push_allow: str | None = None
    #: Seconds that a webhook has to answer.
    push_timeout: Interval = 10.0
    #: Seconds for which a delivery that fails is tried again; then it is a dead letter.
    push_give_up_after: Seconds = 86_400.0
    #: Webhooks that this process calls at the same time. 0: it leaves that to other processes.
    push_concurrency: Count = 64
    #: The same for one host.
    push_concurrency_per_host: Amount = 8
    #: The secret with which deliveries are signed (HMAC-SHA256). None: they are not signed.
    push_secret: str | None = None
    #: Whether deliveries have a JWT that is signed with the first key of the card. Needs `card_signing_keys`.
    push_jwt: Flag = False

    # Policy and agents from manifests

    #: The file of the policy for every task. Needs `errands[agents]`.
    policy: str | None = None
    #: The model of agents that name none, as `provider/model`; `scripted` replaces the models of all agents.
    model: str | None = None
    #: The address of the provider of `model`, if it is not the usual one.
    model_base_url: str | None = None
    #: The key for it, if it is not in the provider's own variable.
    model_api_key: str | None = None
    #: Seconds a model has for one answer, retries included.
    model_timeout: Interval = 300.0
    #: Bytes of the largest answer of a model.
    model_max_bytes: Amount = 5 * 1024 * 1024
    #: Where tools and agents of manifests, and authentication, may connect to apart from public addresses: addresses,
    #: networks and host names, separated by commas.
    outbound_allow: str | None = None
    #: Seconds a request of a tool may take.
    tool_timeout: Interval = 30.0
    #: Bytes of the largest answer to a tool or of a remote agent.
    tool_max_bytes: Amount = 5 * 1024 * 1024
    #: The file with the settings of the tools of manifests, by the names of the tools.
    tool_settings: str | None = None
    #: How often work may be delegated from agent to agent.
    max_delegation_depth: Count = 5

    def __repr__(self) -> str:
        shown = {
            name: "…" if name in SECRET and value else value for name, value in msgspec.structs.asdict(self).items()
        }
        shown["storage"] = without_password(self.storage)
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> Settings:
        """Return the defaults, overridden by the environment and then by `overrides` that are not None.

        Raise `ConfigurationError`, and `TypeError` for unknown names.
        """
        for name in overrides:
            if name not in cls.__struct_fields__:
                raise TypeError(f"from_env() got an unexpected keyword argument {name!r}")
        environ = _own(os.environ if environ is None else environ)
        values: dict[str, Any] = {}
        for field in fields_of(cls):
            variable = ENV_PREFIX + field.name.upper()
            if (text := environ.get(variable)) is None:
                continue
            is_none = field.type is not str and text.strip().lower() in ("", "none", "null")
            if field.name in PROTECTING and not text.strip():
                raise ConfigurationError(f"{variable} is empty; give it a value, or unset it to do without")
            if is_none and type(None) in get_args(field.type):
                values[field.name] = None
                continue
            try:
                values[field.name] = msgspec.convert("null" if is_none else text, field.type, strict=False)
            except msgspec.ValidationError:
                shown = "null" if is_none else "…" if field.name in SECRET else text
                raise ConfigurationError(f"invalid {variable}={shown!r}: expected {_expected(field.type)}") from None
        values.update({name: value for name, value in overrides.items() if value is not None})
        for variable, meant in misspelled(environ).items():
            name = meant.removeprefix(ENV_PREFIX).lower()
            if name in PROTECTING and name not in values:
                raise ConfigurationError(f"unknown setting {variable}; did you mean {meant}?")
        return cls(**values)

    def check(self) -> None:
        """Raise `ConfigurationError` for an invalid value; programs can set any."""
        for field in fields_of(type(self)):
            value = getattr(self, field.name)
            try:
                msgspec.convert(value, field.type)
            except msgspec.ValidationError:
                shown = "…" if field.name in SECRET else repr(value)
                raise ConfigurationError(f"invalid {field.name}={shown}: expected {_expected(field.type)}") from None


def _expected(annotation: Any) -> str:
    """Return in words what a setting may be."""
    if described := getattr(annotation, "__metadata__", None):
        return str(described[0].description)
    options = ("none" if option is type(None) else _expected(option) for option in get_args(annotation))
    return " or ".join(options) or "a text"


def _own(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that are meant as settings."""
    return {
        name: text
        for name, text in environ.items()
        if name.startswith(ENV_PREFIX)
        and name.removeprefix(ENV_PREFIX) not in COMMAND_LINE
        and not _SERVICE_LINK.match(f"{name}={text}")
    }


def misspelled(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables that look like misspelled settings, each with the one that is probably meant."""
    known = [name.upper() for name in Settings.__struct_fields__]
    found: dict[str, str] = {}
    for name in sorted(variable.removeprefix(ENV_PREFIX) for variable in _own(environ)):
        if name not in known and (close := difflib.get_close_matches(name, known, 1, cutoff=0.8)):
            found[ENV_PREFIX + name] = ENV_PREFIX + close[0]
    return found


def get_settings() -> Settings:
    """Return the settings of the environment as it is now. Raise `ConfigurationError`."""
    return Settings.from_env()
