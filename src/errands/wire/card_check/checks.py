"""The checks of a card, one class for each version: first its shape, then what stands in it."""

from __future__ import annotations

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

import msgspec

from errands.wire.card_check.addresses import grpc_address, is_local, web_address
from errands.wire.card_check.findings import Finding, Notebook, Report, below, name_of
from errands.wire.card_check.shapes import CARD_V0_3, CARD_V1_0, LEFT_BEHIND, SCHEMES_V0_3, SCHEMES_V1_0, Shape

#: The bindings of the specification. Others may be invented, but hardly any client will know them.
BINDINGS = ("JSONRPC", "GRPC", "HTTP+JSON")
VERSIONS = ("1.0", "0.3")

_MEDIA_TYPE = re.compile(r"[\w.+*-]+/[\w.+*-]+(\s*;.*)?", re.ASCII)
_VERSION = re.compile(r"\d+\.\d+(?P<patch>\.\d+)?", re.ASCII)
_URI = re.compile(r"[a-z][a-z0-9+.-]*:\S", re.ASCII | re.IGNORECASE)
_KEY_PLACES = ("header", "query", "cookie")


def check_card(raw: bytes, *, fetched_from: str | None = None) -> Report:
    """Everything that can be said about a card; `fetched_from` is the address it was found at, if any."""
    try:
        card = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return _no_card(f"is no JSON ({error})", "serve one JSON object with Content-Type application/json")
    if not isinstance(card, dict):
        return _no_card(f"is {name_of(card)}, not an object", "serve one JSON object")
    is_new = bool({"supportedInterfaces", "supported_interfaces"} & card.keys())
    is_old = "url" in card or (not is_new and bool({"preferredTransport", "additionalInterfaces"} & card.keys()))
    if not is_new and not is_old:
        example = CARD_V1_0.fields["supportedInterfaces"].example
        return _no_card(
            "names no address of the agent",
            f'add "supportedInterfaces": {example}; in A2A 0.3, url and preferredTransport',
        )
    host = urlsplit(fetched_from).hostname if fetched_from else None
    checks: list[_Check] = []
    if is_new:
        checks.append(_NewCard(card, host, is_alone=not is_old))
    if is_old:
        checks.append(_OldCard(card, host))
    findings = dict.fromkeys(finding for check in checks for finding in check.findings)
    return Report(
        versions=[check.version for check in checks],
        findings=sorted(findings, key=lambda finding: finding.severity),
    )


def _no_card(problem: str, remedy: str) -> Report:
    return Report(versions=[], findings=[Finding(severity="error", path="", problem=problem, remedy=remedy)])


class _Check(Notebook, ABC):
    """One form of the card. First its shape is checked; what has the right type is then looked at more closely."""

    version: ClassVar[str]
    shape: ClassVar[Shape]
    #: The field of a card or a skill that says which schemes a caller needs.
    requirements: ClassVar[str]

    def __init__(self, card: dict[str, Any], host: str | None) -> None:
        super().__init__()
        #: The host that the card was fetched from.
        self._host = host
        self.card: dict[str, Any] = self.take(card, self.shape, "")
        self._check_modes(self.card, "", "defaultInputModes", "defaultOutputModes")
        self._check_skills()
        self._check_capabilities()
        self._check_web_pages()
        self._check_signatures()
        self._check_security()
        self.check_interfaces()

    @abstractmethod
    def check_interfaces(self) -> None: ...

    @abstractmethod
    def needed(self, requirement: dict[str, Any]) -> dict[str, list[str]]:
        """The schemes that a requirement names, and the scopes of each."""

    @abstractmethod
    def check_scheme(self, scheme: dict[str, Any], path: str) -> dict[str, Any]:
        """The content of a scheme, whichever kind it is of."""

    # What both versions have

    def _check_modes(self, holder: Mapping[str, Any], path: str, *names: str) -> None:
        for name in names:
            for index, mode in _texts(holder.get(name)):
                place = f"{below(path, name)}[{index}]"
                if not _MEDIA_TYPE.fullmatch(mode):
                    self.error(place, f"is {mode[:80]!r}, which is no media type", "write one such as text/plain")
            self._check_distinct(below(path, name), "", list(_texts(holder.get(name))))

    def _check_distinct(
        self, path: str, name: str, values: Iterable[tuple[int, str]], *, matters: bool = False
    ) -> None:
        seen: dict[str, int] = {}
        for index, value in values:
            place = below(f"{path}[{index}]", name) if name else f"{path}[{index}]"
            if value in seen:
                tell = self.error if matters else self.warn
                tell(
                    place, f"is {value[:80]!r}, like that of {path}[{seen[value]}]", "take one away, or tell them apart"
                )
            seen.setdefault(value, index)

    def _check_skills(self) -> None:
        skills = list(_objects(self.card.get("skills")))
        for index, skill in skills:
            self._check_modes(skill, f"skills[{index}]", "inputModes", "outputModes")
        ids = [(index, skill["id"]) for index, skill in skills if skill.get("id")]
        self._check_distinct("skills", "id", ids, matters=True)

    def _check_capabilities(self) -> None:
        extensions = list(_objects(self.card.get("capabilities", {}).get("extensions")))
        uris = [(index, extension["uri"]) for index, extension in extensions if extension.get("uri")]
        for index, uri in uris:
            if not _URI.match(uri):
                self.warn(
                    f"capabilities.extensions[{index}].uri", f"is {uri[:80]!r}, which is no URI", "write https://..."
                )
        self._check_distinct("capabilities.extensions", "uri", uris, matters=True)

    def _check_web_pages(self) -> None:
        pages = {name: self.card.get(name) for name in ("documentationUrl", "iconUrl")}
        pages["provider.url"] = self.card.get("provider", {}).get("url")
        for path, url in pages.items():
            if url and web_address(url) is None:
                self.warn(path, f"is {url[:80]!r}, which no browser can open", "write https://...")

    def _check_signatures(self) -> None:
        for index, signature in _objects(self.card.get("signatures")):
            path = f"signatures[{index}].protected"
            if signature.get("protected") and "alg" not in _jws_header(signature["protected"]):
                self.error(
                    path, "is no JWS header with an alg", "sign the card as RFC 7515 says: base64url of a JSON object"
                )

    # Security

    def _check_security(self) -> None:
        schemes = self.card.get("securitySchemes", {})
        contents = {
            name: self.check_scheme(scheme, below("securitySchemes", name))
            for name, scheme in schemes.items()
            if isinstance(scheme, dict)
        }
        for name, content in contents.items():
            self._check_flows(content.get("flows"), f"securitySchemes.{name}.flows")
        holders = [("", self.card)]
        holders += [(f"skills[{index}]", skill) for index, skill in _objects(self.card.get("skills"))]
        for path, holder in holders:
            for index, requirement in _objects(holder.get(self.requirements)):
                self._check_requirement(requirement, f"{below(path, self.requirements)}[{index}]", contents)

    def _check_requirement(self, requirement: dict[str, Any], path: str, schemes: dict[str, dict[str, Any]]) -> None:
        for name, scopes in self.needed(requirement).items():
            if name not in schemes:
                defined = ", ".join(map(repr, schemes)) or "none"
                self.error(
                    path, f"names the scheme {name[:80]!r}; defined are: {defined}", "define it in securitySchemes"
                )
                continue
            flows = schemes[name].get("flows")
            if isinstance(flows, dict):
                offered = {scope for flow in flows.values() if flow for scope in flow.get("scopes", {})}
                for scope in scopes:
                    if scope not in offered:
                        self.warn(path, f"names the scope {scope[:80]!r} that no flow of {name!r} has", "add it there")

    def _check_flows(self, flows: Any, path: str) -> None:
        if not isinstance(flows, dict):
            return
        if not flows:
            self.error(path, "is empty", "describe at least one flow, such as clientCredentials")
        for flow, fields in flows.items():
            for name, url in (fields or {}).items():
                if name.endswith("Url") and web_address(url) is None:
                    self.error(f"{path}.{flow}.{name}", f"is {url[:80]!r}, no absolute address", "write https://...")

    def check_key_place(self, path: str, place: str | None) -> None:
        if place and place not in _KEY_PLACES:
            self.error(path, f"is {place[:80]!r}", f"write one of {', '.join(_KEY_PLACES)}")

    def warn_of_unguarded_card(self, path: str) -> None:
        if not self.card.get("securitySchemes"):
            self.warn(path, "is true, but there is no way to authenticate", "add securitySchemes")

    # Interfaces

    def check_binding(self, binding: str, path: str) -> None:
        if binding in BINDINGS:
            return
        if binding.upper() in BINDINGS:
            self.error(path, f"is {binding!r}; clients compare it letter by letter", f"write {binding.upper()}")
        else:
            self.warn(path, f"is {binding[:80]!r}, which few clients know", f"offer one of {', '.join(BINDINGS)} too")

    def check_url(self, url: str, binding: str, path: str) -> None:
        if binding and binding not in BINDINGS:
            return  # whatever its addresses look like
        parts = grpc_address(url) if binding == "GRPC" else web_address(url)
        if parts is None:
            wanted = "HOST:PORT" if binding == "GRPC" else "an absolute address, such as https://example.com/"
            self.error(path, f"is {url[:80]!r}, which clients cannot call", f"write {wanted}")
            return
        if parts.username or parts.password:
            self.error(
                path, "contains credentials, and everybody can read the card", "describe them in securitySchemes"
            )
        name = parts.hostname or ""
        if name in ("0.0.0.0", "::"):  # noqa: S104
            self.error(
                path, f"names {name}, which is no address to call", "write the name that clients know the host by"
            )
        elif is_local(name):
            if self._host is not None and not is_local(self._host):
                self.error(
                    path,
                    f"leads clients to their own machine ({name})",
                    f"write the address they use, such as {self._host}",
                )
        elif parts.scheme == "http":
            self.warn(path, "is not encrypted", "use https:// in production")


class _NewCard(_Check):
    version = "1.0"
    shape = CARD_V1_0
    requirements = "securityRequirements"

    def __init__(self, card: dict[str, Any], host: str | None, *, is_alone: bool) -> None:
        super().__init__(card, host)
        if is_alone:
            for name, instead in LEFT_BEHIND.items():
                if name in card:
                    self.warn(name, "is a field of A2A 0.3, and readers of 1.0 pass over it", f"use {instead}")
        if self.card.get("capabilities", {}).get("extendedAgentCard"):
            self.warn_of_unguarded_card("capabilities.extendedAgentCard")

    def needed(self, requirement: dict[str, Any]) -> dict[str, list[str]]:
        schemes = requirement.get("schemes", {})
        return {name: [scope for _, scope in _texts((scopes or {}).get("list"))] for name, scopes in schemes.items()}

    def check_scheme(self, scheme: dict[str, Any], path: str) -> dict[str, Any]:
        scheme = self.camelized(scheme, SCHEMES_V1_0, path)
        kinds = [kind for kind in SCHEMES_V1_0 if scheme.get(kind) is not None]
        if len(kinds) != 1:
            problem = "describes no scheme" if not kinds else f"describes {len(kinds)} schemes: {', '.join(kinds)}"
            self.error(path, problem, f"set exactly one of {', '.join(SCHEMES_V1_0)}")
            return {}
        content: dict[str, Any] = self.take(scheme[kinds[0]], SCHEMES_V1_0[kinds[0]], f"{path}.{kinds[0]}") or {}
        self.check_key_place(f"{path}.{kinds[0]}.location", content.get("location"))
        return content

    def check_interfaces(self) -> None:
        places: list[tuple[int, str]] = []
        for index, interface in _objects(self.card.get("supportedInterfaces")):
            path = f"supportedInterfaces[{index}]"
            binding, version = interface.get("protocolBinding", ""), interface.get("protocolVersion", "")
            if binding:
                self.check_binding(binding, f"{path}.protocolBinding")
            if version:
                self._check_version(version, f"{path}.protocolVersion")
            if interface.get("url"):
                self.check_url(interface["url"], binding.upper(), f"{path}.url")
            places.append(
                (index, f"{binding} {version} at {interface.get('url')} {interface.get('tenant', '')}".strip())
            )
        self._check_distinct("supportedInterfaces", "", places)

    def _check_version(self, version: str, path: str) -> None:
        match = _VERSION.fullmatch(version)
        if match is None:
            self.error(path, f"is {version[:80]!r}, which is no version", "write one such as 1.0")
        elif ".".join(version.split(".")[:2]) not in VERSIONS:
            self.warn(path, f"is {version}, which few clients know", f"offer one of {', '.join(VERSIONS)} too")
        elif match["patch"]:
            self.warn(path, f"is {version}; patch numbers take no part", f"write {version.rpartition('.')[0]}")


class _OldCard(_Check):
    version = "0.3"
    shape = CARD_V0_3
    requirements = "security"

    def __init__(self, card: dict[str, Any], host: str | None) -> None:
        super().__init__(card, host)
        version = self.card.get("protocolVersion")
        if version and not version.startswith("0.3"):
            self.error(
                "protocolVersion",
                f"is {version[:80]!r}, but the card has the form of 0.3",
                "write 0.3.0, or supportedInterfaces",
            )
        if self.card.get("supportsAuthenticatedExtendedCard"):
            self.warn_of_unguarded_card("supportsAuthenticatedExtendedCard")

    def needed(self, requirement: dict[str, Any]) -> dict[str, list[str]]:
        return {name: [scope for _, scope in _texts(scopes)] for name, scopes in requirement.items()}

    def check_scheme(self, scheme: dict[str, Any], path: str) -> dict[str, Any]:
        kind = scheme.get("type")
        if not isinstance(kind, str) or kind not in SCHEMES_V0_3:
            problem = "is missing" if kind is None else f"is {str(kind)[:80]!r}"
            self.error(f"{path}.type", problem, f"write one of {', '.join(SCHEMES_V0_3)}")
            return {}
        content: dict[str, Any] = self.take(scheme, SCHEMES_V0_3[kind], path) or {}
        self.check_key_place(f"{path}.in", content.get("in"))
        return content

    def check_interfaces(self) -> None:
        main = (self.card.get("url", ""), self.card.get("preferredTransport", ""))
        others = list(_objects(self.card.get("additionalInterfaces")))
        self._check_interface("", main[1], main[0], "preferredTransport")
        for index, other in others:
            self._check_interface(
                f"additionalInterfaces[{index}]", other.get("transport", ""), other.get("url", ""), "transport"
            )
        pairs = [(other.get("url"), other.get("transport")) for _, other in others]
        if others and all(main) and main not in pairs:
            self.warn("additionalInterfaces", "does not repeat url with preferredTransport", "add it, for completeness")
        places = [(index, f"{other.get('transport')} at {other.get('url')}") for index, other in others]
        self._check_distinct("additionalInterfaces", "", places)

    def _check_interface(self, path: str, binding: str, url: str, name: str) -> None:
        if binding:
            self.check_binding(binding, below(path, name))
        if url:
            self.check_url(url, binding.upper(), below(path, "url"))
        if binding == "HTTP+JSON" and url.rstrip("/").endswith("/v1"):
            self.warn(below(path, "url"), "ends in /v1, which clients of 0.3 append themselves", "leave /v1 out")


def _texts(values: Any) -> Iterator[tuple[int, str]]:
    return ((index, value) for index, value in enumerate(values or ()) if isinstance(value, str))


def _objects(values: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    return ((index, value) for index, value in enumerate(values or ()) if isinstance(value, dict))


def _jws_header(protected: str) -> dict[str, Any]:
    try:
        header = msgspec.json.decode(base64.urlsafe_b64decode(protected + "=" * (-len(protected) % 4)))
    except (msgspec.DecodeError, binascii.Error, UnicodeDecodeError, ValueError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}
