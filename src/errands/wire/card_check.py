"""What is wrong with an agent card, of either version and of any agent: where, why, and how to fix it. No I/O.

An error is something that clients fail on or that the specification forbids; a warning is something that is allowed and
probably not meant. First the types of a card are checked against the structs of its version. What has the right type is
then looked at more closely.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

import msgspec
from msgspec import inspect

from errands.model.base import JSON_NAMES, Model
from errands.model.card import (
    SCHEME_FIELDS,
    AgentCapabilities,
    AgentCard,
    AgentCardSignature,
    AgentProvider,
    AgentSkill,
    SecurityScheme,
)

#: The bindings of the specification. Others may be invented, but hardly any client will know them.
BINDINGS = ("JSONRPC", "GRPC", "HTTP+JSON")
VERSIONS = ("1.0", "0.3")

_MEDIA_TYPE = re.compile(r"[\w.+*-]+/[\w.+*-]+(\s*;.*)?", re.ASCII)
_VERSION = re.compile(r"\d+\.\d+(?P<patch>\.\d+)?", re.ASCII)
_URI = re.compile(r"[a-z][a-z0-9+.-]*:\S", re.ASCII | re.IGNORECASE)
_KEY_PLACES = ("header", "query", "cookie")
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


class _StrictInterfaceV03(Model):
    url: str
    transport: str


class _StrictSkillV03(AgentSkill):
    security: list[dict[str, list[str]]] | None = None


class _StrictCardV03(Model):
    """A card of 0.3 as its specification has it. `v0_3_card` reads others, too."""

    name: str
    description: str
    version: str
    protocol_version: str
    url: str
    preferred_transport: str
    capabilities: AgentCapabilities
    default_input_modes: list[str]
    default_output_modes: list[str]
    skills: list[_StrictSkillV03]
    additional_interfaces: list[_StrictInterfaceV03] | None = None
    provider: AgentProvider | None = None
    documentation_url: str | None = None
    icon_url: str | None = None
    security_schemes: dict[str, dict[str, Any]] | None = None
    security: list[dict[str, list[str]]] | None = None
    supports_authenticated_extended_card: bool | None = None
    signatures: list[AgentCardSignature] | None = None


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
    checks = [
        *([_CheckV10(card, host, is_alone=not is_old)] if is_new else ()),
        *([_CheckV03(card, host)] if is_old else ()),
    ]
    findings = dict.fromkeys(finding for check in checks for finding in check.findings)
    return CardReport(
        versions=[check.version for check in checks], findings=sorted(findings, key=lambda finding: finding.severity)
    )


def _not_a_card(problem: str, remedy: str) -> CardReport:
    return CardReport(versions=[], findings=[CardFinding(severity="error", path="", problem=problem, remedy=remedy)])


class _Check:
    """The findings about one form of a card."""

    version: str
    model: type[Model]
    #: The field of a card or a skill that says which schemes a caller needs.
    requirements: str

    def __init__(self, card: dict[str, Any], host: str | None) -> None:
        self.findings: list[CardFinding] = []
        #: The host that the card was fetched from.
        self._host = host
        self.card: dict[str, Any] = self.take(card, self.model, "")
        self.skills = _objects(self.card.get("skills"))

    def error(self, path: str, problem: str, remedy: str) -> None:
        self.findings.append(CardFinding(severity="error", path=path, problem=problem, remedy=remedy))

    def warn(self, path: str, problem: str, remedy: str) -> None:
        self.findings.append(CardFinding(severity="warning", path=path, problem=problem, remedy=remedy))

    # Types

    def take(self, value: Any, model: type, path: str, renamed: Mapping[str, str] | None = None) -> Any:
        """Return `value` without what has the wrong type; None when it has the wrong type itself.

        Lists keep their length, so that later findings name the positions on the card. `renamed` has fields that are
        called differently on this card.
        """
        return self._take(value, inspect.type_info(model), path, renamed or {})

    def _take(self, value: Any, kind: inspect.Type, path: str, renamed: Mapping[str, str]) -> Any:
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
            return [self._take(item, kind.item_type, f"{path}[{index}]", renamed) for index, item in enumerate(value)]
        if isinstance(kind, inspect.DictType):
            return {key: self._take(item, kind.value_type, _below(path, key), renamed) for key, item in value.items()}
        if not isinstance(kind, inspect.StructType):
            return value
        fields = {renamed.get(field.encode_name, field.encode_name): field for field in kind.fields}
        value = self.camelized(value, fields, path)
        taken: dict[str, Any] = {}
        for name, field in fields.items():
            place = _below(path, name)
            is_needed = field.required and name != "list"
            if value.get(name) is None:
                if is_needed:
                    self.error(place, "is missing", f"add it, such as {_example(name)}")
                elif name in value:
                    self.warn(place, "is null", "leave it out, or give it a value")
                continue
            content = self._take(value[name], field.type, place, renamed)
            if content is not None:
                taken[name] = content
            if is_needed and content == [] and name in _FILLED and self.version == "1.0":
                remedy = f"write at least one, such as {_example(name)}"
                self.error(place, "is empty, and A2A 1.0 wants at least one", remedy)
            elif is_needed and content in ("", []):
                self.warn(place, "is empty", f"write something, such as {_example(name)}")
        return taken

    def camelized(self, value: dict[str, Any], names: Iterable[str], path: str) -> dict[str, Any]:
        """Return `value` with the known `names` spelled as they should be."""
        renamed = dict(value)
        for key in value:
            name = re.sub(r"_([a-z0-9])", lambda letter: letter[1].upper(), key)
            if key != name and name in names and name not in value:
                self.error(_below(path, key), "is written in snake_case", f"call it {name}")
                renamed[name] = renamed.pop(key)
        return renamed

    # What both versions have

    def check_contents(self) -> None:
        self._check_modes(self.card, "", "defaultInputModes", "defaultOutputModes")
        for index, skill in self.skills:
            self._check_modes(skill, f"skills[{index}]", "inputModes", "outputModes")
        ids = [(index, skill["id"]) for index, skill in self.skills if skill.get("id")]
        self.check_distinct("skills", ".id", ids, matters=True)
        extensions = _objects(self.card.get("capabilities", {}).get("extensions"))
        uris = [(index, extension["uri"]) for index, extension in extensions if extension.get("uri")]
        for index, uri in uris:
            if not _URI.match(uri):
                path = f"capabilities.extensions[{index}].uri"
                self.warn(path, f"is {uri[:80]!r}, which is not a URI", "write https://...")
        self.check_distinct("capabilities.extensions", ".uri", uris, matters=True)
        pages = {name: self.card.get(name) for name in ("documentationUrl", "iconUrl")}
        for path, url in {**pages, "provider.url": self.card.get("provider", {}).get("url")}.items():
            if url and web_address(url) is None:
                self.warn(path, f"is {url[:80]!r}, which no browser can open", "write https://...")
        for index, signature in _objects(self.card.get("signatures")):
            if signature.get("protected") and "alg" not in _jws_header(signature["protected"]):
                self.error(
                    f"signatures[{index}].protected",
                    "is not a JWS header with an alg",
                    "sign the card as RFC 7515 says: base64url of a JSON object",
                )

    def _check_modes(self, holder: Mapping[str, Any], path: str, *names: str) -> None:
        for name in names:
            modes = [(index, mode) for index, mode in enumerate(holder.get(name) or ()) if mode is not None]
            for index, mode in modes:
                if not _MEDIA_TYPE.fullmatch(mode):
                    place = f"{_below(path, name)}[{index}]"
                    self.error(place, f"is {mode[:80]!r}, which is not a media type", "write one such as text/plain")
            self.check_distinct(_below(path, name), "", modes)

    def check_distinct(self, path: str, name: str, values: list[tuple[int, str]], *, matters: bool = False) -> None:
        seen: dict[str, int] = {}
        for index, value in values:
            if value in seen:
                problem = f"is {value[:80]!r}, like that of {path}[{seen[value]}]"
                tell = self.error if matters else self.warn
                tell(f"{path}[{index}]{name}", problem, "remove one, or make them different")
            seen.setdefault(value, index)

    # Security

    def check_security(self, schemes: dict[str, dict[str, Any]]) -> None:
        """Check the contents of the schemes and what refers to them."""
        for name, scheme in schemes.items():
            if isinstance(flows := scheme.get("flows"), dict):
                self._check_flows(flows, f"securitySchemes.{name}.flows")
        holders = [("", self.card), *((f"skills[{index}].", skill) for index, skill in self.skills)]
        for path, holder in holders:
            for index, requirement in _objects(holder.get(self.requirements)):
                self._check_requirement(requirement, f"{path}{self.requirements}[{index}]", schemes)

    def needed(self, requirement: dict[str, Any]) -> dict[str, Any]:
        """Return the schemes that a requirement names, and the scopes of each."""
        return requirement

    def _check_requirement(self, requirement: dict[str, Any], path: str, schemes: dict[str, dict[str, Any]]) -> None:
        for name, scopes in self.needed(requirement).items():
            if name not in schemes:
                defined = ", ".join(map(repr, schemes)) or "none"
                problem = f"names the scheme {name[:80]!r}; defined are: {defined}"
                self.error(path, problem, "define it in securitySchemes")
                continue
            if isinstance(flows := schemes[name].get("flows"), dict):
                offered = {scope for flow in flows.values() if flow for scope in flow.get("scopes") or ()}
                for scope in scopes or ():
                    if scope is not None and scope not in offered:
                        self.warn(path, f"names the scope {scope[:80]!r} that no flow of {name!r} has", "add it there")

    def _check_flows(self, flows: dict[str, Any], path: str) -> None:
        if not flows:
            self.error(path, "is empty", "describe at least one flow, such as clientCredentials")
        for flow, fields in flows.items():
            for name in _FLOW_FIELDS[flow]:
                if name not in (fields or {}):
                    self.error(f"{path}.{flow}.{name}", "is missing", f"add it, such as {_example(name)}")
            for name, url in (fields or {}).items():
                if name.endswith("Url") and web_address(url) is None:
                    problem = f"is {url[:80]!r}, which is not an absolute address"
                    self.error(f"{path}.{flow}.{name}", problem, "write https://...")

    def check_key_place(self, path: str, place: str | None) -> None:
        if place and place not in _KEY_PLACES:
            self.error(path, f"is {place[:80]!r}", f"write one of {', '.join(_KEY_PLACES)}")

    def check_extended_card(self, path: str, is_offered: bool | None) -> None:
        if is_offered and not self.card.get("securitySchemes"):
            self.warn(path, "is true, but there is no way to authenticate", "add securitySchemes")

    # Interfaces

    def check_interface(self, binding: str, url: str, binding_path: str, url_path: str) -> None:
        if binding and binding not in BINDINGS:
            if binding.upper() in BINDINGS:
                problem = f"is {binding!r}; clients compare it letter by letter"
                self.error(binding_path, problem, f"write {binding.upper()}")
            else:
                remedy = f"offer one of {', '.join(BINDINGS)} too"
                self.warn(binding_path, f"is {binding[:80]!r}, which few clients know", remedy)
                return  # its addresses may look like anything
        if not url:
            return
        is_grpc = binding.upper() == "GRPC"
        parts = grpc_address(url) if is_grpc else web_address(url)
        if parts is None:
            wanted = "HOST:PORT" if is_grpc else "an absolute address, such as https://example.com/"
            self.error(url_path, f"is {url[:80]!r}, which clients cannot call", f"write {wanted}")
            return
        if parts.username or parts.password:
            problem = "contains credentials, and everybody can read the card"
            self.error(url_path, problem, "describe them in securitySchemes")
        name = parts.hostname or ""
        if name in ("0.0.0.0", "::"):  # noqa: S104
            problem = f"names {name}, which is not an address to call"
            self.error(url_path, problem, "write the name that clients know the host by")
        elif is_local(name):
            if self._host is not None and not is_local(self._host):
                problem = f"leads clients to their own machine ({name})"
                self.error(url_path, problem, f"write the address they use, such as {self._host}")
        elif parts.scheme == "http":
            self.warn(url_path, "is not encrypted", "use https:// in production")


class _CheckV10(_Check):
    version = "1.0"
    model = AgentCard
    requirements = "securityRequirements"

    def __init__(self, card: dict[str, Any], host: str | None, *, is_alone: bool) -> None:
        schemes = card.get("securitySchemes")
        if isinstance(schemes, dict):
            # Each scheme is checked by itself, as it must be of one kind.
            card = {**card, "securitySchemes": {name: {} if isinstance(s, dict) else s for name, s in schemes.items()}}
        super().__init__(card, host)
        if is_alone:
            for name, instead in _REPLACED.items():
                if name in card:
                    self.warn(name, "is a field of A2A 0.3 that readers of 1.0 ignore", f"use {instead}")
        self.check_extended_card(
            "capabilities.extendedAgentCard", self.card.get("capabilities", {}).get("extendedAgentCard")
        )
        self.check_contents()
        objects = schemes.items() if isinstance(schemes, dict) else ()
        self.check_security({name: self._check_scheme(s, name) for name, s in objects if isinstance(s, dict)})
        self._check_interfaces()

    def needed(self, requirement: dict[str, Any]) -> dict[str, Any]:
        return {name: (scopes or {}).get("list") for name, scopes in requirement.get("schemes", {}).items()}

    def _check_scheme(self, scheme: dict[str, Any], name: str) -> dict[str, Any]:
        path, fields = f"securitySchemes.{name}", SCHEME_FIELDS.values()
        scheme = self.camelized(scheme, fields, path)
        kinds = [kind for kind in fields if scheme.get(kind) is not None]
        if len(kinds) != 1:
            problem = "describes no scheme" if not kinds else f"describes {len(kinds)} schemes: {', '.join(kinds)}"
            self.error(path, problem, f"set exactly one of {', '.join(fields)}")
            return {}
        content: dict[str, Any] = self.take({kinds[0]: scheme[kinds[0]]}, SecurityScheme, path).get(kinds[0], {})
        self.check_key_place(f"{path}.{kinds[0]}.location", content.get("location"))
        return content

    def _check_interfaces(self) -> None:
        places: list[tuple[int, str]] = []
        for index, interface in _objects(self.card.get("supportedInterfaces")):
            path = f"supportedInterfaces[{index}]"
            binding, version, url = (interface.get(name, "") for name in ("protocolBinding", "protocolVersion", "url"))
            self.check_interface(binding, url, f"{path}.protocolBinding", f"{path}.url")
            if version:
                self._check_version(version, f"{path}.protocolVersion")
            places.append((index, f"{binding} {version} at {url} {interface.get('tenant', '')}".strip()))
        self.check_distinct("supportedInterfaces", "", places)

    def _check_version(self, version: str, path: str) -> None:
        match = _VERSION.fullmatch(version)
        if match is None:
            self.error(path, f"is {version[:80]!r}, which is not a version", "write one such as 1.0")
        elif ".".join(version.split(".")[:2]) not in VERSIONS:
            self.warn(path, f"is {version}, which few clients know", f"offer one of {', '.join(VERSIONS)} too")
        elif match["patch"]:
            self.warn(path, f"is {version}; clients ignore patch numbers", f"write {version.rpartition('.')[0]}")


class _CheckV03(_Check):
    version = "0.3"
    model = _StrictCardV03
    requirements = "security"

    def __init__(self, card: dict[str, Any], host: str | None) -> None:
        super().__init__(card, host)
        version = self.card.get("protocolVersion")
        if version and not version.startswith("0.3"):
            problem = f"is {version[:80]!r}, but the card has the form of 0.3"
            self.error("protocolVersion", problem, "write 0.3.0, or supportedInterfaces")
        self.check_extended_card(
            "supportsAuthenticatedExtendedCard", self.card.get("supportsAuthenticatedExtendedCard")
        )
        self.check_contents()
        schemes = self.card.get("securitySchemes", {})
        self.check_security({name: self._check_scheme(s, name) for name, s in schemes.items() if s is not None})
        self._check_interfaces()

    def _check_scheme(self, scheme: dict[str, Any], name: str) -> dict[str, Any]:
        path, kind = f"securitySchemes.{name}", scheme.get("type")
        if not isinstance(kind, str) or kind not in SCHEME_FIELDS:
            problem = "is missing" if kind is None else f"is {str(kind)[:80]!r}"
            self.error(f"{path}.type", problem, f"write one of {', '.join(SCHEME_FIELDS)}")
            return {}
        fields: Any = inspect.type_info(SecurityScheme)
        model = next(
            one.cls
            for field in fields.fields
            if field.encode_name == SCHEME_FIELDS[kind]
            for one in field.type.types
            if isinstance(one, inspect.StructType)
        )
        content: dict[str, Any] = self.take(scheme, model, path, {"location": "in"}) or {}
        self.check_key_place(f"{path}.in", content.get("in"))
        return content

    def _check_interfaces(self) -> None:
        main = (self.card.get("url", ""), self.card.get("preferredTransport", ""))
        others = _objects(self.card.get("additionalInterfaces"))
        self._check_place(main[1], main[0], "", "preferredTransport")
        for index, other in others:
            path = f"additionalInterfaces[{index}]."
            self._check_place(other.get("transport", ""), other.get("url", ""), path, "transport")
        pairs = [(other.get("url"), other.get("transport")) for _, other in others]
        if others and all(main) and main not in pairs:
            problem = "does not repeat url with preferredTransport"
            self.warn("additionalInterfaces", problem, "add it, for completeness")
        places = [(index, f"{other.get('transport')} at {other.get('url')}") for index, other in others]
        self.check_distinct("additionalInterfaces", "", places)

    def _check_place(self, binding: str, url: str, path: str, name: str) -> None:
        self.check_interface(binding, url, f"{path}{name}", f"{path}url")
        if binding == "HTTP+JSON" and url.rstrip("/").endswith("/v1"):
            self.warn(f"{path}url", "ends in /v1, which clients of 0.3 append themselves", "leave /v1 out")


_PYTHON_TYPES: dict[type[inspect.Type], type] = {
    inspect.StrType: str,
    inspect.BoolType: bool,
    inspect.ListType: list,
}


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _example(name: str) -> str:
    return _EXAMPLES.get(name, '"https://example.com/..."')


def _objects(values: Any) -> list[tuple[int, dict[str, Any]]]:
    return [(index, value) for index, value in enumerate(values or ()) if isinstance(value, dict)]


def _jws_header(protected: str) -> dict[str, Any]:
    try:
        header = msgspec.json.decode(base64.urlsafe_b64decode(protected + "=" * (-len(protected) % 4)))
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


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
