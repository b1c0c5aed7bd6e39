"""What the check of an agent card finds, and what it leaves in peace."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errands import AgentCardConfig, CapabilitiesConfig, ProviderConfig, SkillConfig
from errands.model.base import encode
from errands.model.card import HTTPAuthSecurityScheme, OAuth2SecurityScheme, OAuthFlow, OAuthFlows, SecurityScheme
from errands.server.cards import build_card
from errands.wire.card_check import CardFinding, check_card
from errands.wire.v0_3_card import to_v0_3, union
from tests.soak import examples

CONFIG = AgentCardConfig(
    name="Cook",
    description="Cooks.",
    version="1.0.0",
    capabilities=CapabilitiesConfig(streaming=True, extended_agent_card=True),
    skills=[
        SkillConfig(id="soup", name="Soup", description="Makes soup.", tags=["food"], security=[{"oauth": ["cook"]}])
    ],
    provider=ProviderConfig(organization="Kitchen", url="https://kitchen.test"),
    security_schemes={
        "bearer": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer")),
        "oauth": SecurityScheme(
            oauth2_security_scheme=OAuth2SecurityScheme(
                flows=OAuthFlows(
                    client_credentials=OAuthFlow(token_url="https://kitchen.test/token", scopes={"cook": "cook"})
                )
            )
        ),
    },
    security=[{"bearer": []}],
)
CARD = build_card(CONFIG, "https://kitchen.test", versions=["1.0", "0.3"], grpc_address="kitchen.test:50051")
NEW: dict[str, Any] = json.loads(encode(CARD))
OLD: dict[str, Any] = json.loads(to_v0_3(CARD))

_NOTHING = object()


def changed(card: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """The card with another value at `a.b.0.c`; without it when there is none."""
    card = copy.deepcopy(card)
    *way, last = path.split(".")
    holder: Any = card
    for step in way:
        holder = holder[int(step)] if isinstance(holder, list) else holder[step]
    key: Any = int(last) if isinstance(holder, list) else last
    if value is _NOTHING:
        del holder[key]
    else:
        holder[key] = value
    return card


def findings(card: Any, fetched_from: str | None = None) -> list[CardFinding]:
    return check_card(json.dumps(card).encode(), fetched_from=fetched_from).findings


def only(card: Any, fetched_from: str | None = None) -> tuple[str, str, str]:
    (finding,) = findings(card, fetched_from)
    assert finding.remedy
    return finding.severity, finding.path, finding.problem


@pytest.mark.parametrize(
    ("raw", "versions"), [(encode(CARD), ["1.0"]), (to_v0_3(CARD), ["0.3"]), (union(CARD), ["1.0", "0.3"])]
)
def test_a_good_card_of_any_form_has_no_findings(raw: bytes, versions: list[str]) -> None:
    report = check_card(raw, fetched_from="https://kitchen.test/.well-known/agent-card.json")
    assert (report.versions, report.findings, report.valid) == (versions, [], True)


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b"[]", b'"card"', b"null", b"{}", b'{"name": "x"}', b"[" * 100_000]
)
def test_what_is_no_card_is_told_so(raw: bytes) -> None:
    report = check_card(raw)
    assert (report.versions, report.valid, len(report.findings)) == ([], False, 1)


@pytest.mark.parametrize("name", ["name", "description", "version", "capabilities", "defaultInputModes", "skills"])
@pytest.mark.parametrize("card", [NEW, OLD])
def test_a_required_field_that_is_missing_is_an_error(card: dict[str, Any], name: str) -> None:
    assert only(changed(card, name, _NOTHING)) == ("error", name, "is missing")
    assert only(changed(card, name, None)) == ("error", name, "is missing")


@pytest.mark.parametrize("name", ["protocolVersion", "preferredTransport"])
def test_0_3_requires_fields_of_its_own(name: str) -> None:
    assert only(changed(OLD, name, _NOTHING)) == ("error", name, "is missing")


@pytest.mark.parametrize(
    ("path", "value", "place", "problem"),
    [
        ("name", 5, "name", "is a number, not a text"),
        ("capabilities.streaming", "yes", "capabilities.streaming", "is a text, not true or false"),
        ("capabilities", [], "capabilities", "is a list, not an object"),
        ("skills.0.tags", "food", "skills[0].tags", "is a text, not a list"),
        ("skills.0", "soup", "skills[0]", "is a text, not an object"),
        ("skills.0.tags.0", 1.5, "skills[0].tags[0]", "is a number, not a text"),
        ("supportedInterfaces.1.url", True, "supportedInterfaces[1].url", "is true or false, not a text"),
        (
            "supportedInterfaces.0.protocolVersion",
            1.0,
            "supportedInterfaces[0].protocolVersion",
            "is a number, not a text",
        ),
        ("provider", "Kitchen", "provider", "is a text, not an object"),
        ("provider.url", _NOTHING, "provider.url", "is missing"),
        ("skills.0.id", _NOTHING, "skills[0].id", "is missing"),
    ],
)
def test_a_wrong_type_is_an_error_with_its_path(path: str, value: Any, place: str, problem: str) -> None:
    assert only(changed(NEW, path, value)) == ("error", place, problem)


def test_an_optional_field_that_is_null_is_a_warning() -> None:
    assert only(changed(NEW, "iconUrl", None)) == ("warning", "iconUrl", "is null")


def test_a_field_in_snake_case_is_told_how_it_is_spelled_and_read_all_the_same() -> None:
    card = changed(NEW, "supported_interfaces", NEW["supportedInterfaces"])
    assert only(changed(card, "supportedInterfaces", _NOTHING))[1:] == (
        "supported_interfaces",
        "is written in snake_case",
    )


@pytest.mark.parametrize("path", ["skills", "skills.0.tags", "supportedInterfaces", "defaultOutputModes"])
def test_1_0_wants_something_in_its_required_lists(path: str) -> None:
    found = findings(changed(NEW, path, []))
    assert ("error", path.replace(".0", "[0]")) in [(finding.severity, finding.path) for finding in found]


@pytest.mark.parametrize("path", ["skills", "skills.0.tags", "defaultInputModes"])
def test_an_empty_list_is_a_warning_in_0_3(path: str) -> None:
    assert only(changed(OLD, path, [])) == ("warning", path.replace(".0", "[0]"), "is empty")


def test_an_empty_description_is_a_warning() -> None:
    assert only(changed(NEW, "description", "")) == ("warning", "description", "is empty")


# Interfaces


@pytest.mark.parametrize(
    "url", ["/rpc", "kitchen.test", "localhost:8000", "ftp://kitchen.test", "https://", "http://[", "https://a b.test"]
)
def test_an_address_that_cannot_be_called_is_an_error(url: str) -> None:
    severity, path, _ = only(changed(NEW, "supportedInterfaces.0.url", url))
    assert (severity, path) == ("error", "supportedInterfaces[0].url")
    assert ("error", "url") in [(finding.severity, finding.path) for finding in findings(changed(OLD, "url", url))]


@pytest.mark.parametrize(
    "url", ["kitchen.test:1", "https://kitchen.test", "grpcs://kitchen.test:1", "dns:kitchen.test:1"]
)
def test_grpc_has_addresses_of_its_own(url: str) -> None:
    assert findings(changed(NEW, "supportedInterfaces.2.url", url)) == []


@pytest.mark.parametrize("url", ["kitchen.test", "/grpc", "ftp://kitchen.test:1", "kitchen.test:port"])
def test_a_grpc_address_without_a_port_is_an_error(url: str) -> None:
    assert only(changed(NEW, "supportedInterfaces.2.url", url))[:2] == ("error", "supportedInterfaces[2].url")


def test_an_address_on_the_readers_machine_is_an_error_unless_the_card_is_from_there() -> None:
    card = changed(NEW, "supportedInterfaces.0.url", "http://localhost:8000/")
    assert only(card, "https://kitchen.test/card.json")[:2] == ("error", "supportedInterfaces[0].url")
    assert findings(card, "http://127.0.0.1:8000/card.json") == []
    assert findings(card) == []


@pytest.mark.parametrize(
    ("url", "severity", "words"),
    [
        ("http://kitchen.test/", "warning", "not encrypted"),
        ("http://0.0.0.0:8000/", "error", "not an address to call"),
        ("https://user:secret@kitchen.test/", "error", "credentials"),
    ],
)
def test_an_address_that_is_not_for_everybody(url: str, severity: str, words: str) -> None:
    found = only(changed(NEW, "supportedInterfaces.0.url", url))
    assert found[0] == severity
    assert words in found[2]
    assert "secret" not in found[2]


@pytest.mark.parametrize(
    ("binding", "severity"), [("jsonrpc", "error"), ("http+json", "error"), ("grpc", "error"), ("SOAP", "warning")]
)
def test_a_binding_is_known_by_its_exact_name(binding: str, severity: str) -> None:
    path = "supportedInterfaces.2.protocolBinding" if binding == "grpc" else "supportedInterfaces.0.protocolBinding"
    assert only(changed(NEW, path, binding))[0] == severity


@pytest.mark.parametrize(
    ("version", "severity"), [("one", "error"), ("1", "error"), ("1.0.1", "warning"), ("2.0", "warning")]
)
def test_a_version_is_a_number_that_clients_know(version: str, severity: str) -> None:
    found = only(changed(NEW, "supportedInterfaces.0.protocolVersion", version))
    assert found[:2] == (severity, "supportedInterfaces[0].protocolVersion")


def test_an_interface_that_is_there_twice_is_a_warning() -> None:
    interfaces = [*NEW["supportedInterfaces"], NEW["supportedInterfaces"][0]]
    assert only(changed(NEW, "supportedInterfaces", interfaces))[:2] == ("warning", "supportedInterfaces[6]")


def test_a_card_in_the_form_of_0_3_says_so() -> None:
    assert only(changed(OLD, "protocolVersion", "1.0"))[:2] == ("error", "protocolVersion")


def test_the_list_of_interfaces_in_0_3_is_complete_and_without_v1() -> None:
    found = findings(changed(OLD, "additionalInterfaces.1.url", "https://kitchen.test/v1"))
    assert [(finding.severity, finding.path) for finding in found] == [("warning", "additionalInterfaces[1].url")]
    others = OLD["additionalInterfaces"][1:]
    assert only(changed(OLD, "additionalInterfaces", others))[:2] == ("warning", "additionalInterfaces")


def test_fields_of_0_3_on_a_card_of_1_0_alone_are_pointed_out() -> None:
    severity, path, _ = only(changed(NEW, "security", [{"bearer": []}]))
    assert (severity, path) == ("warning", "security")


# Security


def test_a_requirement_names_schemes_that_are_defined() -> None:
    card = changed(NEW, "securityRequirements.0.schemes", {"basic": {"list": []}})
    severity, path, problem = only(card)
    assert (severity, path) == ("error", "securityRequirements[0]")
    assert "'basic'; defined are: 'bearer', 'oauth'" in problem
    assert only(changed(OLD, "security", [{"basic": []}]))[:2] == ("error", "security[0]")
    assert only(changed(OLD, "skills.0.security", [{"basic": []}]))[:2] == ("error", "skills[0].security[0]")


def test_a_requirement_in_the_form_of_0_3_is_an_error_in_1_0() -> None:
    path, problem = only(changed(NEW, "securityRequirements", [{"bearer": []}]))[1:]
    assert (path, problem) == ("securityRequirements[0].schemes", "is missing")


def test_a_scope_that_no_flow_has_is_a_warning() -> None:
    card = changed(NEW, "skills.0.securityRequirements.0.schemes.oauth.list", ["fry"])
    severity, path, problem = only(card)
    assert (severity, path) == ("warning", "skills[0].securityRequirements[0]")
    assert "'fry'" in problem


@pytest.mark.parametrize(
    ("scheme", "path"),
    [
        ({}, "securitySchemes.bearer"),
        ({"type": "http", "scheme": "bearer"}, "securitySchemes.bearer"),
        ({"mtlsSecurityScheme": {}, "httpAuthSecurityScheme": {"scheme": "x"}}, "securitySchemes.bearer"),
        ({"httpAuthSecurityScheme": {}}, "securitySchemes.bearer.httpAuthSecurityScheme.scheme"),
        (
            {"apiKeySecurityScheme": {"name": "k", "location": "body"}},
            "securitySchemes.bearer.apiKeySecurityScheme.location",
        ),
        ({"oauth2SecurityScheme": {"flows": {}}}, "securitySchemes.bearer.flows"),
        ({"openIdConnectSecurityScheme": {}}, "securitySchemes.bearer.openIdConnectSecurityScheme.openIdConnectUrl"),
        ("bearer", "securitySchemes.bearer"),
    ],
)
def test_a_scheme_of_1_0_is_of_one_kind_and_complete(scheme: Any, path: str) -> None:
    found = findings(changed(NEW, "securitySchemes.bearer", scheme))
    assert ("error", path) in [(finding.severity, finding.path) for finding in found]


@pytest.mark.parametrize(
    ("scheme", "path"),
    [
        ({}, "securitySchemes.bearer.type"),
        ({"type": "basic"}, "securitySchemes.bearer.type"),
        ({"http": {"scheme": "bearer"}}, "securitySchemes.bearer.type"),
        ({"type": "http"}, "securitySchemes.bearer.scheme"),
        ({"type": "apiKey", "name": "k", "in": "body"}, "securitySchemes.bearer.in"),
        (
            {"type": "oauth2", "flows": {"implicit": {"authorizationUrl": "/auth", "scopes": {}}}},
            "securitySchemes.bearer.flows.implicit.authorizationUrl",
        ),
    ],
)
def test_a_scheme_of_0_3_has_a_type_and_is_complete(scheme: dict[str, Any], path: str) -> None:
    found = findings(changed(OLD, "securitySchemes.bearer", scheme))
    assert ("error", path) in [(finding.severity, finding.path) for finding in found]


def test_an_extended_card_that_nobody_can_ask_for_is_a_warning() -> None:
    for card, path in [(NEW, "capabilities.extendedAgentCard"), (OLD, "supportsAuthenticatedExtendedCard")]:
        bare = changed(changed(card, "securitySchemes", _NOTHING), "skills.0.tags", ["food"])
        for name in ("securityRequirements", "security"):
            bare.pop(name, None)
            bare["skills"][0].pop(name, None)
        assert only(bare)[:2] == ("warning", path)


# Skills, media types, extensions, signatures


def test_ids_of_skills_are_told_apart() -> None:
    assert only(changed(NEW, "skills", NEW["skills"] * 2))[:2] == ("error", "skills[1].id")


@pytest.mark.parametrize("mode", ["text", "", "text/", "/plain", "text plain", "text/plain/x"])
def test_a_mode_is_a_media_type(mode: str) -> None:
    assert only(changed(NEW, "defaultInputModes", [mode]))[:2] == ("error", "defaultInputModes[0]")
    assert only(changed(NEW, "skills.0.inputModes", [mode]))[:2] == ("error", "skills[0].inputModes[0]")


@pytest.mark.parametrize("mode", ["text/plain; charset=utf-8", "image/*", "*/*", "application/vnd.x+json"])
def test_media_types_may_be_wild_and_have_parameters(mode: str) -> None:
    assert findings(changed(NEW, "defaultInputModes", [mode])) == []


def test_extensions_have_uris_of_their_own() -> None:
    extension = {"uri": "https://e.test/1"}
    assert findings(changed(NEW, "capabilities.extensions", [extension])) == []
    assert only(changed(NEW, "capabilities.extensions", [extension] * 2))[:2] == (
        "error",
        "capabilities.extensions[1].uri",
    )
    assert only(changed(NEW, "capabilities.extensions", [{"uri": "mine"}]))[0] == "warning"


@pytest.mark.parametrize(
    ("protected", "good"), [("eyJhbGciOiJFUzI1NiJ9", True), ("e30", False), ("!", False), ("ä", False)]
)
def test_a_signature_has_a_header_with_an_algorithm(protected: str, good: bool) -> None:
    card = changed(NEW, "signatures", [{"protected": protected, "signature": "x"}])
    assert [finding.path for finding in findings(card)] == ([] if good else ["signatures[0].protected"])


def test_web_pages_can_be_opened() -> None:
    for path in ("documentationUrl", "iconUrl", "provider.url"):
        assert only(changed(NEW, path, "kitchen.test"))[:2] == ("warning", path)


def test_findings_that_both_forms_share_are_told_once_and_errors_come_first() -> None:
    card = json.loads(union(CARD))
    card = changed(changed(card, "description", ""), "name", 5)
    assert [(finding.severity, finding.path) for finding in findings(card)] == [
        ("error", "name"),
        ("warning", "description"),
    ]


def test_the_card_of_a_praisonai_agent_is_explained() -> None:
    card = {
        "name": "Assistant",
        "url": "http://localhost:8000/a2a",
        "version": "1.0.0",
        "capabilities": {"streaming": True},
        "provider": {"name": "PraisonAI"},
    }
    errors = {finding.path for finding in findings(card, "https://agents.test/.well-known/agent.json")}
    assert errors == {
        "description",
        "defaultInputModes",
        "defaultOutputModes",
        "provider.organization",
        "provider.url",
        "protocolVersion",
        "preferredTransport",
        "skills",
        "url",
    }


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_PATHS = [
    *NEW,
    *(f"skills.0.{name}" for name in NEW["skills"][0]),
    *(f"supportedInterfaces.0.{name}" for name in NEW["supportedInterfaces"][0]),
    *(f"securitySchemes.{name}" for name in NEW["securitySchemes"]),
    "securitySchemes.oauth.oauth2SecurityScheme.flows.clientCredentials",
    "securityRequirements.0",
    "capabilities.extensions",
    "signatures",
]


@settings(max_examples=examples(200), deadline=None)
@given(path=st.sampled_from(_PATHS), value=_JSON)
def test_nothing_that_stands_on_a_card_confuses_the_check(path: str, value: Any) -> None:
    for card in (NEW, json.loads(union(CARD))):
        report = check_card(json.dumps(changed(card, path, value)).encode())
        assert all(finding.problem and finding.remedy for finding in report.findings)
