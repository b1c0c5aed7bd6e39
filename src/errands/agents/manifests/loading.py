"""Load manifests from a file or folder, and policies from a file, checked as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import msgspec

from errands.agents.manifests import documents
from errands.agents.manifests.documents import AGENT_KIND, TOOL_KIND, Agent, Descriptor, Document, Mount, Tool
from errands.agents.manifests.expressions import Readable
from errands.agents.manifests.findings import Finding, ManifestError, Place, has_errors, quoted, suggestion
from errands.agents.manifests.functions import Manifests
from errands.agents.manifests.reading import field_names, only_document, read, read_files
from errands.agents.manifests.rules import StepRules, check_agent, check_cycles, check_mount, check_tool
from errands.policy.cel import NameScope
from errands.policy.document import NO_MATCH, Policy
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig, given_name

MAX_DOCUMENTS = 200
PREFIX = "commonagents.info/"

#: The specification names the kinds of agents and tools in two ways.
_KINDS: dict[str, type[Document]] = {
    AGENT_KIND: Agent,
    TOOL_KIND: Tool,
    documents.DESCRIPTOR_KIND: Descriptor,
    "commonagents.info/v1/agent": Agent,
    "commonagents.info/v1/tool": Tool,
}
_NOT_YET = {
    f"{PREFIX}{version}/{kind}": f"{kind}s" for version in ("v1beta2", "v1") for kind in ("trigger", "schedule")
}
#: Fields by which a document without a kind is recognised as a mount, or as something that lacks its kind.
_MOUNT_FIELDS = {"path_prefixes", "local", "gcs", "s3"}
_OTHER_FIELDS = {*field_names(Agent), *field_names(Tool)} - {"name", "description", "parameters", "settings"}
_SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", re.ASCII)


class ToolSource(Protocol):
    """A tool of the program, such as a function with `@tool`."""

    #: Where it is defined, for messages.
    origin: str
    #: Its namespace is empty: every agent may use it.
    document: Tool


class Report(msgspec.Struct, frozen=True):
    """The findings about manifests; without errors, the manifests can be used."""

    #: By file and line.
    findings: list[Finding]
    #: None if there are errors.
    manifests: Manifests | None

    @property
    def valid(self) -> bool:
        """Return whether the manifests can be used; there may still be warnings."""
        return self.manifests is not None


def load(path: str | Path, *, tools: Iterable[ToolSource] = ()) -> Manifests:
    """Load the manifests in a file or folder. Raises `ManifestError` with everything that is wrong with them."""
    report = examine(path, tools=tools)
    if report.manifests is None:
        raise ManifestError(report.findings)
    return report.manifests


def examine(path: str | Path, *, tools: Iterable[ToolSource] = ()) -> Report:
    """Report everything that is wrong with the manifests in a file or folder; `tools` are those of the program."""
    findings: list[Finding] = []
    found = Manifests()
    for file in read_files(Path(path), findings):
        for index, place in enumerate(file):
            if place is None:
                found.is_complete = False
            elif index == MAX_DOCUMENTS:
                found.is_complete = False
                place.error(f"is one of more than {MAX_DOCUMENTS} documents", "split the file")
                break
            elif kind := _kind(place, found):
                _add(read(kind, place), place, index, found)
    namespaces = sorted({agent.namespace for agent in found.agents})
    for tool in tools:
        place = Place(findings, tool.origin)
        for namespace in namespaces:
            _add(msgspec.structs.replace(tool.document, namespace=namespace), place, 0, found)
    for document in found.tools:
        check_tool(document, found.place(document))
    for agent in found.agents:
        check_agent(agent, found.place(agent), found)
    check_cycles(found)
    if not (found.named or found.mount or has_errors(findings)):
        Place(findings, str(path)).error("has no agent, tool or mount", "name a file or folder with manifests")
    findings.sort(key=lambda finding: (finding.file, finding.line))
    return Report(findings, None if has_errors(findings) else found)


def _kind(place: Place, found: Manifests) -> type[Document] | None:
    """Return the kind of a document; None after reporting why it is skipped."""
    assert place.root is not None
    fields, inner = place.root.value, place / "kind"
    if not isinstance(fields, dict):
        place.error("is not an object", "begin with kind: and the other fields of an agent or a tool")
    elif "kind" not in fields and fields.keys() & _MOUNT_FIELDS:
        return Mount
    elif "kind" not in fields and not fields.keys() & _OTHER_FIELDS:
        place.warn("has no kind, so the document is skipped", f"add kind: {AGENT_KIND} if it is a manifest")
    elif "kind" not in fields or not isinstance(kind := fields["kind"].value, str):
        # It may be an agent or a tool that others use.
        found.is_complete = False
        if "kind" in fields:
            inner.error("is not a string", f"write kind: {AGENT_KIND}")
        else:
            inner.error("is missing", f"add kind: {AGENT_KIND} or kind: {TOOL_KIND}")
    elif kind in _KINDS:
        return _KINDS[kind]
    elif kind in _NOT_YET:
        problem = f"is {kind}, so the document is skipped: {_NOT_YET[kind]} are not in this version of errands"
        inner.warn(problem, "remove the document, or run it elsewhere")
    else:
        is_ours = kind.startswith(PREFIX)
        remedy = suggestion(kind, _KINDS, "remove the document") if is_ours else f"manifests begin with {PREFIX}"
        inner.warn(f"is {quoted(kind)}, so the document is skipped", remedy)
    return None


def _add(document: Document, place: Place, index: int, found: Manifests) -> None:
    match document:
        case Agent() | Tool():
            key = (document.namespace, document.name)
            if key in found.named:
                other = found.places[key]
                where = other.file if other.root is None else f"{other.file}:{(other / 'name').line()}"
                problem = f"is {quoted(document.name)}, which the namespace {document.namespace} already has at {where}"
                (place / "name").error(problem, "rename one of the two; tools and agents share their names")
            else:
                found.named[key], found.places[key] = document, place
        case Mount():
            if found.mount:
                place.error(f"is a second mount beside {quoted(found.mount.name)}", "keep one: all agents share it")
            found.mount = found.mount or document
            check_mount(document, place)
        case Descriptor():
            if index:
                place.error("describes the bundle and is not the first document", "put it first, and only once")
            if document.version is not None and not _SEMVER.fullmatch(document.version):
                (place / "version").warn(f"is {quoted(document.version)}", "write a version such as 1.0.0")
            found.descriptors.append(document)


# Policies of agents of any kind: the same expressions, limits and steps as in manifests


class PolicyReport(msgspec.Struct, frozen=True):
    """The findings about a policy; without errors, the policy can be used."""

    #: By line.
    findings: list[Finding]
    #: None if there are errors.
    policy: Policy | None


def examine_policy(path: str | Path) -> PolicyReport:
    """Report everything that is wrong with the policy in a file."""
    findings: list[Finding] = []
    policy = None
    if Path(path).is_dir():
        Place(findings, str(path)).error("is a folder", "name the file with the policy")
    elif place := only_document(Path(path), findings, 'write one policy, which begins with version: "1"'):
        policy = read(Policy, place)
        _check(policy, place)
    findings.sort(key=lambda finding: finding.line)
    return PolicyReport(findings, None if has_errors(findings) else policy)


def load_policy(path: str | Path) -> Policy:
    """Return the policy in a file. Raises `ManifestError` with everything that is wrong with it."""
    report = examine_policy(path)
    if report.policy is None:
        raise ManifestError(report.findings)
    return report.policy


def _check(policy: Policy, place: Place) -> None:
    steps = _PolicySteps()
    guardrails = place / "guardrails"
    steps.check(policy.guardrails.before, Phase.GUARDRAIL_BEFORE, guardrails / "before")
    steps.check(policy.guardrails.after, Phase.GUARDRAIL_AFTER, guardrails / "after")
    names: set[str] = set()
    for name, capability in policy.capabilities.items():
        inner = place / "capabilities" / name
        try:
            plain = given_name(name)
        except ValueError:
            inner.error("cannot be the name of a capability", "use the name that ctx.capability(...) is given")
        else:
            if plain in names:
                inner.error("is the same name as another", "keep one of them: '-' and '_' are the same in names")
            names.add(plain)
        for phase in CAPABILITY_PHASES:
            steps.check(getattr(capability, phase.value), phase, inner / phase.value)


class _PolicySteps(StepRules):
    def scope(self, phase: Phase) -> NameScope:
        return phase.scope if phase.guards else phase.scope.without_calls()

    def check_step(self, step: StepConfig, phase: Phase, place: Place, readable: Readable) -> None:
        super().check_step(step, phase, place, readable)
        if step.match is not None:
            problem, _, remedy = NO_MATCH.partition("; ")
            (place / "match").error(problem, remedy)

    def check_invoke(self, invoke: str, bindings: dict[str, str], place: Place) -> None:
        (place / "invoke").error(
            "cannot be used: a policy has no tools", "use assert or transform, or write the agent as a manifest"
        )
