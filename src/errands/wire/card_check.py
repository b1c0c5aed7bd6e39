"""Checks an agent card, of either version and of any agent: what is wrong, where, and how to fix it. No I/O.

An error is something that clients fail on or that the specification forbids; a warning is something that is allowed and
probably a mistake. The types of a card are checked against the structs of its version, the texts that have the right
type by the tables `_MUST` and `_SHOULD`. The other checks look at several fields.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import inspect

from errands.model import card as cards
from errands.model.base import JSON_NAMES, A2AObject
from errands.wire.v0_3_card import InterfaceV03

#: The bindings of the specification. Others may be invented, but hardly any client will know them.
BINDINGS = ("JSONRPC", "GRPC", "HTTP+JSON")
VERSIONS = ("1.0", "0.3")

#: The fields that a flow of OAuth must have.
_FLOW_FIELDS = {
    "authorizationCode": ("authorizationUrl", "tokenUrl", "scopes"),
    "clientCredentials": ("tokenUrl", "scopes"),
    "implicit": ("authorizationUrl", "scopes"),
    "password": ("tokenUrl", "scopes"),
    "deviceCode": ("deviceAuthorizationUrl", "tokenUrl", "scopes"),
}
#: Required lists that must not be empty since 1.0.
_FILLED = frozenset({"supportedInterfaces", "skills", "tags", "defaultInputModes", "defaultOutputModes"})
_INTERFACE = '{"url": "https://example.com/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}'
#: What a card without a required field could say.
_EXAMPLES = {
    "name": '"My agent"',
    "description": '"Searches the web."',
    "version": '"1.0.0"',
    "protocolVersion": '"1.0", or "0.3.0" on a card of 0.3',
    "url": '"https://example.com/"',
    "preferredTransport": '"JSONRPC"',
    "protocolBinding": '"JSONRPC"',
    "transport": '"JSONRPC"',
    "supportedInterfaces": f"[{_INTERFACE}]",
    "capabilities": '{"streaming": true}',
    "defaultInputModes": '["text/plain"]',
    "defaultOutputModes": '["text/plain"]',
    "skills": '[{"id": "search", "name": "Search", "description": "Searches.", "tags": ["search"]}]',
    "id": '"search"',
    "tags": '["search"]',
    "organization": '"Example Inc."',
    "uri": '"https://example.com/ext/v1"',
    "protected": '"eyJ..."',
    "signature": '"..."',
    "schemes": '{"NAME": {"list": []}}',
    "location": '"header"',
    "in": '"header"',
    "scheme": '"Bearer"',
    "flows": '{"clientCredentials": {...}}',
    "scopes": '{"read": "read data"}',
}
#: Fields of 0.3 that have no meaning on a card of 1.0 alone, and what replaces them.
_REPLACED = {
    "protocolVersion": "protocolVersion of each of supportedInterfaces",
    "preferredTransport": "the order of supportedInterfaces",
    "additionalInterfaces": "supportedInterfaces",
    "security": "securityRequirements",
    "supportsAuthenticatedExtendedCard": "capabilities.extendedAgentCard",
}


class _StrictSkillV03(cards.AgentSkill):
    security: list[dict[str, list[str]]] | None = None


class _StrictCardV03(A2AObject):
    """A card of 0.3 as its specification has it. `v0_3_card` reads others, too."""

    name: str
    description: str
    version: str
    protocol_version: str
    url: str
    preferred_transport: str
    capabilities: cards.AgentCapabilities
    default_input_modes: list[str]
    default_output_modes: list[str]
    skills: list[_StrictSkillV03]
    additional_interfaces: list[InterfaceV03] | None = None
    provider: cards.AgentProvider | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    security_schemes: dict[str, dict[str, Any]] | None = None
    security: list[dict[str, list[str]]] | None = None
    supports_authenticated_extended_card: bool | None = None
    signatures: list[cards.AgentCardSignature] | None = None


class _StrictApiKeyV03(A2AObject):
    place: str = msgspec.field(name="in")
    name: str
    description: str | None = None


_SCHEMES_V03: dict[str, type[A2AObject]] = {
    "apiKey": _StrictApiKeyV03,
    "http": cards.HTTPAuthSecurityScheme,
    "oauth2": cards.OAuth2SecurityScheme,
    "openIdConnect": cards.OpenIdConnectSecurityScheme,
    "mutualTLS": cards.MutualTlsSecurityScheme,
}


class CardFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong, or looks wrong, on a card."""

    severity: Literal["error", "warning"]
    #: Where on the card, such as `skills[0].tags`; empty for the card as a whole.
    path: str
    #: What is wrong: the end of a sentence that begins with the path.
    problem: str
    #: What to do about it.
    remedy: str


class CardReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out about a card."""

    #: The versions whose form the card has, the newest first; empty when it is not a card.
    versions: list[str]
    #: The errors first.
    findings: list[CardFinding]

    @property
    def valid(self) -> bool:
        """Return whether there are no errors. There may be warnings."""
        return not any(finding.severity == "error" for finding in self.findings)


def check_card(raw: bytes, *, fetched_from: str | None = None) -> CardReport:
    """Return everything that can be said about a card; `fetched_from` is the address it was found at, if any."""
    try:
        card = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _not_a_card(f"is not valid JSON ({error})", "serve one JSON object with Content-Type application/json")
    if not isinstance(card, dict):
        return _not_a_card(f"is {JSON_NAMES[type(card)]}, not an object", "serve one JSON object")
    is_new = bool({"supportedInterfaces", "supported_interfaces"} & card.keys())
    is_old = "url" in card or (not is_new and bool({"preferredTransport", "additionalInterfaces"} & card.keys()))
    if not is_new and not is_old:
        return _not_a_card(
            "names no address of the agent",
            f'add "supportedInterfaces": [{_INTERFACE}]; in A2A 0.3, url and preferredTransport',
        )
    host = urlsplit(fetched_from).hostname if fetched_from else None
    checks = [_check_v1_0(card, host, is_alone=not is_old)] if is_new else []
    checks += [_check_v0_3(card, host)] if is_old else []
    findings = dict.fromkeys(finding for check in checks for finding in check.findings)
    return CardReport(
        versions=[check.version for check in checks], findings=sorted(findings, key=lambda finding: finding.severity)
    )


def _not_a_card(problem: str, remedy: str) -> CardReport:
    return CardReport(versions=[], findings=[CardFinding(severity="error", path="", problem=problem, remedy=remedy)])


# Addresses: which of them a client can call


def web_address(url: str) -> SplitResult | None:
    """Return the parts of an absolute http or https address, or None when it is not one."""
    parts = _split(url)
    return parts if parts is not None and parts.scheme in ("http", "https") else None


def grpc_address(url: str) -> SplitResult | None:
    """Return the parts of `HOST:PORT`, or of an address with one of the schemes that gRPC clients know."""
    parts = _split(url if "://" in url else f"//{url.removeprefix('dns:')}")
    if parts is None or parts.scheme not in ("", "http", "https", "grpc", "grpcs"):
        return None
    return parts if parts.port is not None or parts.scheme else None


def is_local(host: str) -> bool:
    """Return whether the host means the machine of the caller."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        # Both are parsed only now, and raise when they are wrong.
        is_complete = bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if is_complete and not re.search(r"\s", url) else None


# Rules for single texts: which paths, the test they pass, what it means if they do not, and the fix


def _is_known(version: str) -> bool:
    """Return whether clients know the version. One that is not even a version breaks another rule."""
    return not _VERSION.fullmatch(version) or ".".join(version.split(".")[:2]) in VERSIONS


def _is_jws_header(protected: str) -> bool:
    try:
        return "alg" in msgspec.json.decode(base64.urlsafe_b64decode(protected + "=="), type=dict[str, Any])
    except (ValueError, RecursionError):
        return False


_VERSION = re.compile(r"\d+\.\d+(\.\d+)?", re.ASCII)
_MEDIA_TYPE = re.compile(r"[\w.+*-]+/[\w.+*-]+(\s*;.*)?", re.ASCII)
_URI = re.compile(r"[a-z][a-z0-9+.-]*:\S", re.ASCII | re.IGNORECASE)
_KEY_PLACES = ("header", "query", "cookie")
_FACE_VERSION = r"supportedInterfaces\[\d+\]\.protocolVersion"
_LINK = "write https://..."

_Rule = tuple[str, Callable[[str], object], str, str]
_MUST: tuple[_Rule, ...] = (
    (r".*([iI]n|[oO]ut)putModes\[\d+\]", _MEDIA_TYPE.fullmatch, "not a media type", "write one such as text/plain"),
    (r"signatures\[\d+\]\.protected", _is_jws_header, "not a JWS header with an alg", "sign as RFC 7515 says"),
    (r"securitySchemes\..*\.flows\.\w+\.\w+Url", web_address, "not an absolute address", _LINK),
    (r"securitySchemes\..*\.(location|in)", _KEY_PLACES.__contains__, "not a place", "write header, query or cookie"),
    (
        r"protocolVersion",
        re.compile("0\\.3").match,
        "not 0.3, whose form the card has",
        "write 0.3.0, or supportedInterfaces",
    ),
    (_FACE_VERSION, _VERSION.fullmatch, "not a version", "write one such as 1.0"),
)
_SHOULD: tuple[_Rule, ...] = (
    (r"capabilities\.extensions\[\d+\]\.uri", _URI.match, "not a URI", _LINK),
    (r"documentationUrl|iconUrl|provider\.url", web_address, "not an address that a browser can open", _LINK),
    (_FACE_VERSION, _is_known, "a version that few clients know", f"offer one of {', '.join(VERSIONS)} too"),
    (_FACE_VERSION, lambda version: version.count(".") < 2, "more than clients look at", "leave out the patch number"),
)


class _Check:
    """The findings about one form of a card."""

    def __init__(self, version: str, model: type[A2AObject], card: dict[str, Any]) -> None:
        self.version = version
        self.findings: list[CardFinding] = []
        #: The card without what has the wrong type. Lists keep their length, so that positions are those on the card.
        self.card: dict[str, Any] = self.take(card, inspect.type_info(model), "")
        self.skills = _objects(self.card.get("skills"))
        extensions = _objects(self.card.get("capabilities", {}).get("extensions"))
        self.check_distinct("skills", [(index, skill.get("id")) for index, skill in self.skills], ".id")
        self.check_distinct("capabilities.extensions", [(index, one.get("uri")) for index, one in extensions], ".uri")
        for path, holder in self.holders():
            for name in ("defaultInputModes", "defaultOutputModes", "inputModes", "outputModes"):
                self.check_distinct(path + name, enumerate(holder.get(name, ())))

    def error(self, path: str, problem: str, remedy: str) -> None:
        self.findings.append(CardFinding(severity="error", path=path, problem=problem, remedy=remedy))

    def warn(self, path: str, problem: str, remedy: str) -> None:
        self.findings.append(CardFinding(severity="warning", path=path, problem=problem, remedy=remedy))

    def holders(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the card and its skills, which share some fields, each with the path before its fields."""
        return [("", self.card), *((f"skills[{index}].", skill) for index, skill in self.skills)]

    def take(self, value: Any, kind: inspect.Type, path: str) -> Any:
        """Return `value` without what has the wrong type; None when it has the wrong type itself."""
        if isinstance(kind, inspect.UnionType):
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
        if isinstance(kind, inspect.AnyType):
            return value
        expected: type[Any] = _PYTHON_TYPES.get(type(kind), dict)
        if type(value) is not expected:
            wanted = JSON_NAMES[expected]
            self.error(path, f"is {JSON_NAMES[type(value)]}, not {wanted}", f"write {wanted}")
            return None
        if isinstance(kind, inspect.ListType):
            return [self.take(item, kind.item_type, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(kind, inspect.DictType):
            return {key: self.take(item, kind.value_type, _below(path, key)) for key, item in value.items()}
        if isinstance(kind, inspect.StructType):
            return self._take_object(value, kind, path)
        if value or path.endswith("]"):
            for rules, tell in ((_MUST, self.error), (_SHOULD, self.warn)):
                for paths, holds, meaning, remedy in rules:
                    if isinstance(value, str) and re.fullmatch(paths, path) and not holds(value):
                        tell(path, f"is {value[:80]!r}, which is {meaning}", remedy)
        return value

    def _take_object(self, value: dict[str, Any], kind: inspect.StructType, path: str) -> dict[str, Any]:
        fields = {field.encode_name: field for field in kind.fields}
        for key in list(value):
            name = re.sub(r"_([a-z0-9])", lambda letter: letter[1].upper(), key)
            if key != name and name in fields and name not in value:
                self.error(_below(path, key), "is written in snake_case", f"call it {name}")
                value = {**value, name: value[key]}
        needed = _FLOW_FIELDS.get(path.rpartition(".")[2], ())
        taken: dict[str, Any] = {}
        for name, field in fields.items():
            place, example = _below(path, name), f"such as {_EXAMPLES.get(name, _EXAMPLES['url'])}"
            is_needed = (field.required and name != "list") or name in needed
            if value.get(name) is None:
                if is_needed:
                    self.error(place, "is missing", f"add it, {example}")
                elif name in value:
                    self.warn(place, "is null", "leave it out, or give it a value")
                continue
            content = self.take(value[name], field.type, place)
            if content is not None:
                taken[name] = content
            if is_needed and content == [] and name in _FILLED and self.version == "1.0":
                self.error(place, "is empty, and A2A 1.0 wants at least one", f"write at least one, {example}")
            elif is_needed and content in ("", []):
                tell = self.error if name in needed else self.warn
                tell(place, "is empty", f"write something, {example}")
        return taken

    def check_distinct(self, path: str, values: Iterable[tuple[int, str | None]], name: str = "") -> None:
        """Check that no two items of a list are the same; those with a `name` for it must not be."""
        seen: dict[str, int] = {}
        for index, value in values:
            if value and value in seen:
                problem = f"is {value[:80]!r}, like that of {path}[{seen[value]}]"
                tell = self.error if name else self.warn
                tell(f"{path}[{index}]{name}", problem, "remove one, or make them different")
            elif value:
                seen[value] = index

    def check_security(self, field: str, schemes: Mapping[str, dict[str, Any]], extended: str) -> None:
        """Check the schemes and what refers to them: requirements in `field`, and the extended card."""
        for name, scheme in schemes.items():
            if scheme.get("flows") == {}:
                remedy = "describe at least one flow, such as clientCredentials"
                self.error(f"securitySchemes.{name}.flows", "is empty", remedy)
        for before, holder in self.holders():
            for index, requirement in _objects(holder.get(field)):
                path = f"{before}{field}[{index}]"
                if self.version == "1.0":
                    requirement = {
                        name: (scopes or {}).get("list") for name, scopes in requirement.get("schemes", {}).items()
                    }
                for name, scopes in requirement.items():
                    if name not in schemes:
                        defined = ", ".join(map(repr, schemes)) or "none"
                        problem = f"names the scheme {name[:80]!r}; defined are: {defined}"
                        self.error(path, problem, "define it in securitySchemes")
                    elif flows := schemes[name].get("flows"):
                        offered = {scope for flow in flows.values() for scope in flow.get("scopes", ())}
                        for scope in filter(None, scopes or ()):
                            if scope not in offered:
                                problem = f"names the scope {scope[:80]!r} that no flow of {name!r} has"
                                self.warn(path, problem, "add it there")
        *holder_path, last = extended.split(".")
        holder = self.card.get(holder_path[0], {}) if holder_path else self.card
        if holder.get(last) and not self.card.get("securitySchemes"):
            self.warn(extended, "is true, but the card has no way to authenticate", "add securitySchemes")

    def check_interface(self, interface: dict[str, Any], path: str, field: str, host: str | None) -> None:
        """Check binding and address; `field` has the binding, and `host` is where the card was fetched from."""
        binding, url = interface.get(field, ""), interface.get("url", "")
        if binding.upper() in BINDINGS and binding not in BINDINGS:
            problem = f"is {binding!r}; clients compare it letter by letter"
            self.error(path + field, problem, f"write {binding.upper()}")
        elif binding and binding not in BINDINGS:
            remedy = f"offer one of {', '.join(BINDINGS)} too"
            self.warn(path + field, f"is {binding[:80]!r}, which few clients know", remedy)
            return  # its addresses may look like anything
        if not url:
            return
        is_grpc, path = binding.upper() == "GRPC", f"{path}url"
        parts = grpc_address(url) if is_grpc else web_address(url)
        if parts is None:
            wanted = "HOST:PORT" if is_grpc else "an absolute address, such as https://example.com/"
            self.error(path, f"is {url[:80]!r}, which clients cannot call", f"write {wanted}")
            return
        if parts.username or parts.password:
            self.error(path, "contains credentials, and everyone can read the card", "describe them in securitySchemes")
        name = parts.hostname or ""
        if name in ("0.0.0.0", "::"):  # noqa: S104
            problem = f"names {name}, which is not an address to call"
            self.error(path, problem, "write the name that clients know the host by")
        elif is_local(name):
            if host is not None and not is_local(host):
                problem = f"leads clients to their own machine ({name})"
                self.error(path, problem, f"write the address they use, such as {host}")
        elif parts.scheme == "http":
            self.warn(path, "is not encrypted", "use https:// in production")


def _check_v1_0(card: dict[str, Any], host: str | None, *, is_alone: bool) -> _Check:
    check = _Check("1.0", cards.AgentCard, card)
    for name, instead in _REPLACED.items():
        if is_alone and name in card:
            check.warn(name, "is a field of A2A 0.3 that readers of 1.0 ignore", f"use {instead}")
    schemes: dict[str, dict[str, Any]] = {}
    for name, scheme in check.card.get("securitySchemes", {}).items():
        if scheme is not None:
            schemes[name] = next(iter(scheme.values()), {})
            if len(scheme) != 1:
                problem = f"describes {len(scheme)} schemes: {', '.join(scheme)}" if scheme else "describes no scheme"
                remedy = f"set exactly one of {', '.join(cards.SCHEME_FIELDS.values())}"
                check.error(f"securitySchemes.{name}", problem, remedy)
    check.check_security("securityRequirements", schemes, "capabilities.extendedAgentCard")
    interfaces = _objects(check.card.get("supportedInterfaces"))
    for index, interface in interfaces:
        check.check_interface(interface, f"supportedInterfaces[{index}].", "protocolBinding", host)
    check.check_distinct("supportedInterfaces", [(index, " ".join(one.values())) for index, one in interfaces])
    return check


def _check_v0_3(card: dict[str, Any], host: str | None) -> _Check:
    check = _Check("0.3", _StrictCardV03, card)
    schemes: dict[str, dict[str, Any]] = {}
    for name, scheme in check.card.get("securitySchemes", {}).items():
        path, kind = f"securitySchemes.{name}", (scheme or {}).get("type")
        schemes[name] = {}
        if scheme is not None and str(kind) not in _SCHEMES_V03:
            problem = "is missing" if kind is None else f"is {str(kind)[:80]!r}"
            check.error(f"{path}.type", problem, f"write one of {', '.join(_SCHEMES_V03)}")
        elif scheme is not None:
            schemes[name] = check.take(scheme, inspect.type_info(_SCHEMES_V03[str(kind)]), path)
    check.check_security("security", schemes, "supportsAuthenticatedExtendedCard")
    others = _objects(check.card.get("additionalInterfaces"))
    for path, field, interface in [
        ("", "preferredTransport", check.card),
        *((f"additionalInterfaces[{index}].", "transport", other) for index, other in others),
    ]:
        check.check_interface(interface, path, field, host)
        if interface.get(field) == "HTTP+JSON" and interface.get("url", "").rstrip("/").endswith("/v1"):
            check.warn(f"{path}url", "ends in /v1, which clients of 0.3 append themselves", "leave /v1 out")
    main = {"url": check.card.get("url"), "transport": check.card.get("preferredTransport")}
    if others and all(main.values()) and main not in [other for _, other in others]:
        check.warn("additionalInterfaces", "does not repeat url with preferredTransport", "add it, for completeness")
    check.check_distinct("additionalInterfaces", [(index, " ".join(one.values())) for index, one in others])
    return check


_PYTHON_TYPES: dict[type[inspect.Type], type] = {inspect.StrType: str, inspect.BoolType: bool, inspect.ListType: list}


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _objects(values: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(index, value) for index, value in enumerate(values or ()) if isinstance(value, dict)]
