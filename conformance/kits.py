"""The conformance runs: the public kits at pinned commits, the agent of each run, and the explained failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

REPOSITORY = "https://github.com/a2aproject/a2a-tck"


@dataclass(frozen=True)
class Kit:
    """A branch of the kit's repository and its requirements."""

    version: str
    commit: str
    requirements: tuple[str, ...]
    #: Arguments of pytest; `{url}` is the agent's URL.
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    name: str
    kit: Kit
    #: The tests of the kit to run.
    tests: tuple[str, ...]
    #: Environment variables that configure the agent: see agent.py.
    agent: Mapping[str, str] = field(default_factory=dict)
    #: Further options of `errands serve`.
    serve: tuple[str, ...] = ()
    #: Further arguments of pytest.
    arguments: tuple[str, ...] = ()
    #: Failures caused by the kit, by class or module and name, with the reason.
    explained: Mapping[str, str] = field(default_factory=dict)
    #: Whether unexplained failures are errors. A run that is not judged runs only when it is named.
    is_judged: bool = True


KIT_1_0 = Kit(
    version="1.0",
    commit="357c4a87afa2818731590647cccbea31c31733a2",
    requirements=(
        "pytest==9.2.0",
        "pytest-asyncio==1.4.1.post1",
        "httpx==0.28.1",
        "grpcio==1.85.1",
        "protobuf==7.36.2",
        "googleapis-common-protos==1.76.0",
        "jsonschema==4.26.0",
    ),
    arguments=("--sut-host={url}",),
)

KIT_0_3 = Kit(
    version="0.3",
    commit="eb1f804c27ea25db8805264d9ed2d7ca077a7776",
    requirements=(
        "pytest==9.2.0",
        "pytest-asyncio==1.4.1.post1",
        "httpx==0.28.1",
        "requests==2.34.2",
        "responses==0.26.3",
        "deepdiff==9.1.0",
        "jsonschema==4.26.0",
        "packaging==26.3",
        "PyYAML==6.0.3",
        "python-dotenv==1.2.4",
        "grpcio-tools==1.85.1",
        "googleapis-common-protos==1.76.0",
        "pyOpenSSL==26.4.0",
    ),
    arguments=("--sut-url={url}", "--test-scope=all", "--transports=jsonrpc", "--transport-strategy=prefer_jsonrpc"),
)

_A2A_JSON = "1.0.1 requires application/a2a+json if the request names no type; the kit, of 1.0.0, application/json"

_PRECONDITION = "the status is FAILED_PRECONDITION in 1.0.1; it was UNIMPLEMENTED in 1.0.0"

EXPLAINED_1_0 = {
    "TestAIP193ErrorFormat::test_error_content_type": _A2A_JSON,
    "TestRestErrorStructure::test_error_uses_aip193_format": _A2A_JSON,
    "TestHttpJsonStatusCodes::test_content_type_not_supported_returns_415": (
        "ContentTypeNotSupportedError is 400 in 1.0.1; it was 415 in 1.0.0"
    ),
    "TestGrpcStatusCodes::test_version_not_supported_returns_unimplemented": _PRECONDITION,
}
#: The kit's webhook is on this machine.
_WEBHOOK = {"ERRANDS_PUSH_ALLOW": "127.0.0.1,localhost"}
ONLY_1_0 = {"CONFORMANCE_VERSIONS": "1.0", "ERRANDS_GRPC_PORT": "0", **_WEBHOOK}
#: The kit for 0.3 continues and cancels its tasks, and expects the extended card to require credentials.
FOR_0_3 = {"CONFORMANCE_OTHERWISE": "tck-input-required", "CONFORMANCE_SECURITY": "bearer", **_WEBHOOK}

#: The agent with errands' defaults, and with one part of its set-up removed, to measure the effect of each part.
_MODES, _WINDOW = "input_modes", "idempotency_window"
_PIECES: Mapping[str, Mapping[str, str]] = {
    "1.0-defaults": {"CONFORMANCE_DEFAULTS": f"{_MODES},{_WINDOW}"},
    "1.0-defaults-and-grpc": {"CONFORMANCE_DEFAULTS": f"{_MODES},{_WINDOW}", "ERRANDS_GRPC_PORT": "0"},
    "1.0-without-grpc": {"CONFORMANCE_VERSIONS": "1.0", **_WEBHOOK},
    "1.0-without-webhooks": {"CONFORMANCE_VERSIONS": "1.0", "ERRANDS_GRPC_PORT": "0"},
    "1.0-with-0.3": {"ERRANDS_GRPC_PORT": "0", **_WEBHOOK},
    "1.0-default-modes": {**ONLY_1_0, "CONFORMANCE_DEFAULTS": _MODES},
    "1.0-default-window": {**ONLY_1_0, "CONFORMANCE_DEFAULTS": _WINDOW},
}
SETUP = tuple(
    Run(name=name, kit=KIT_1_0, tests=("tests/compatibility",), agent=agent, is_judged=False)
    for name, agent in _PIECES.items()
)

RUNS = (
    Run(
        name="1.0",
        kit=KIT_1_0,
        tests=("tests/compatibility",),
        agent=ONLY_1_0,
        explained=EXPLAINED_1_0,
    ),
    Run(
        name="1.0-capabilities-off",
        kit=KIT_1_0,
        tests=("tests/compatibility",),
        agent={**ONLY_1_0, "CONFORMANCE_CAPABILITIES": ""},
        explained={
            **EXPLAINED_1_0,
            "TestGrpcStatusCodes::test_push_not_supported_returns_unimplemented": _PRECONDITION,
            "TestGrpcStatusCodes::test_unsupported_operation_returns_unimplemented": _PRECONDITION,
            "TestRestStreaming::test_streaming_content_type": (
                "the kit reads the refusal of a stream without fetching it, whatever the server responds"
            ),
        },
    ),
    Run(
        name="1.0-required-extension",
        kit=KIT_1_0,
        tests=("tests/compatibility/core_operations/test_error_handling.py::TestCapabilityExtensionRequired",),
        agent={**ONLY_1_0, "CONFORMANCE_EXTENSION": "urn:a2a:tck:required-extension"},
    ),
    Run(
        name="0.3-mandatory",
        kit=KIT_0_3,
        tests=("tests/mandatory",),
        arguments=("-m", "mandatory_jsonrpc or mandatory_protocol"),
        agent=FOR_0_3,
    ),
    Run(
        name="0.3-capabilities",
        kit=KIT_0_3,
        tests=("tests/optional/capabilities",),
        agent=FOR_0_3,
        explained={
            "test_push_notification_config_methods::test_get_push_notification_config": (
                "the kit makes a config without an id and asks for the id `default`"
            ),
        },
    ),
    *SETUP,
)
