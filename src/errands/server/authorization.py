"""Authorization: what an authenticated caller may do, and with whose tasks.

A caller uses its own tasks. The scopes that a skill asks for are checked when a message names the skill. Access rules,
which are CEL conditions, refuse requests, or let callers such as operators, auditors and service accounts use tasks of
other owners.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Literal, NamedTuple

import msgspec

from errands.clock import system_clock, to_iso
from errands.errors import ConfigurationError, InvalidParamsError, PermissionDeniedError
from errands.model.card_config import AgentCardConfig
from errands.model.core import Role
from errands.model.log import Reach, Scope
from errands.model.requests import SendMessageRequest
from errands.operations import OPERATIONS, Operation
from errands.outbound import Outbound
from errands.policy.cel import CelError, NameScope, Program, Session, Variables, compile, evaluate  # noqa: A004
from errands.policy.cel.evaluators import Evaluators
from errands.runtime.middleware import Caller
from errands.server.auth import MAX_NAME, Authentication

logger = logging.getLogger(__name__)

#: The header, or the metadata of a gRPC call, in which a caller names the owner for whom it acts.
OWNER_HEADER = "Errands-Owner"
#: In listings, this owner means the tasks of every owner.
EVERY_OWNER = "*"
#: The metadata of a message, or of its request, that names a skill.
SKILL_KEY = "skillId"

RULE_SCOPE = NameScope(
    name="an access rule",
    variables=frozenset({"caller", "operation", "reads", "skill", "metadata", "message", "now"}),
    choices=frozenset({("operation", frozenset(OPERATIONS)), ("message.role", frozenset(Role))}),
)


class AccessRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A rule for the requests for which the CEL expression `when` is true. It either denies or grants something."""

    when: str
    #: For the log.
    name: str = ""
    #: Refuses the request with this text.
    deny: str | None = None
    #: Gives access to the tasks of other owners: to see them, or to use them in every way.
    grant: Literal["read", "write"] | None = None
    #: Of which other owners: those of the caller's tenant, or all of the agent.
    reach: Literal["tenant", "agent"] = "tenant"


class Access(NamedTuple):
    """The scope in which a request is performed."""

    scope: Scope
    #: The caller's own name, if the scope is that of another owner.
    acting: str | None = None
    #: Whose tasks a listing shows; see `ListQuery.reach`.
    reach: Reach = "scope"
    #: Whether an access rule lets the caller do this with tasks of others.
    is_operator: bool = False


class Authorization:
    """Decides about every request. Needs `errands[policy]` if there are rules."""

    def __init__(self, authentication: Authentication, rules: Sequence[AccessRule], card: AgentCardConfig) -> None:
        """Raises `ConfigurationError` for rules that cannot be used, and for requirements of skills."""
        self.authentication = authentication
        self._rules = [(rule, _compiled(position, rule)) for position, rule in enumerate(rules)]
        self._skills = {skill.id: skill.security for skill in card.skills if skill.security}
        names = {scheme.name for scheme in authentication.schemes}
        for skill, security in self._skills.items():
            for needed in security:
                if len(needed) != 1 or not names.issuperset(needed):
                    raise ConfigurationError(
                        f"the security of the skill {skill} must be a list of alternatives such as "
                        f"[{{'{min(names)}': ['scope']}}], each with the name of one scheme of auth: "
                        f"{', '.join(sorted(names))}"
                    )
        self._evaluators: Evaluators | None = None

    @asynccontextmanager
    async def opened(self, outbound: Outbound) -> AsyncIterator[None]:
        """Prepare for requests. `outbound` makes the HTTP clients with which schemes ask issuers of tokens."""
        async with AsyncExitStack() as stack:
            for scheme in self.authentication.schemes:
                scheme.open(outbound)
                stack.push_async_callback(scheme.close)
            # For rules over large messages.
            self._evaluators = Evaluators()
            stack.push_async_callback(self._evaluators.close)
            yield

    async def decide(
        self,
        operation: Operation,
        request: Any,
        caller: Caller,
        scope: Scope,
        wanted_owner: str,
        scope_of: Callable[[str], Awaitable[Scope | None]],
        *,
        widest: bool = False,
        inner: Collection[str] = (),
    ) -> Access:
        """Return in which scope the request is performed. Raises `PermissionDeniedError` and `InvalidParamsError`.

        `scope` is the caller's own; `wanted_owner` names another owner, or is empty; `scope_of` finds any task. With
        `widest`, a caller who names no owner gets all that it may read. Tasks of `inner` agents are only for those who
        may use tasks of others.
        """
        skill = _skill_of(request) if self._skills or self._rules else ""
        if skill in self._skills:
            self._check_skill(self._skills[skill], caller)
        granted = await self._apply_rules(operation, request, caller, skill) if self._rules else set()
        if scope.tenant != caller.tenant:
            granted.discard("tenant")  # the request names a tenant, and the caller has none
        tenant = request.tenant or ""
        if caller.tenant and tenant not in ("", caller.tenant):
            if "agent" not in granted:
                raise PermissionDeniedError("The credentials are for another tenant")
            scope = scope._replace(tenant=tenant)
        if widest and granted and not wanted_owner:
            reach: Reach = "agent" if "agent" in granted and not tenant else "tenant"
            return Access(scope._replace(owner=EVERY_OWNER), caller.owner, reach, is_operator=True)
        if wanted_owner and wanted_owner != caller.owner:
            if not granted or len(wanted_owner) > MAX_NAME:
                raise PermissionDeniedError(f"The credentials do not allow to act for the owner in {OWNER_HEADER}")
            if wanted_owner == EVERY_OWNER and operation.name != "ListTasks":
                raise PermissionDeniedError(f"{OWNER_HEADER}: {EVERY_OWNER} is for ListTasks; name one owner")
            logger.info("%s of %r for %r", operation.name, caller.owner, wanted_owner)
            access = Access(scope._replace(owner=wanted_owner), caller.owner, is_operator=True)
            if wanted_owner == EVERY_OWNER:
                return access._replace(reach="agent" if "agent" in granted and not tenant else "tenant")
            return access
        if not granted:
            return Access(scope)
        found = await scope_of(task_id) if (task_id := task_of(request)) else None
        if found is None or found == scope or (found.agent != scope.agent and found.agent not in inner):
            return Access(scope, is_operator=True)
        if found.tenant != scope.tenant and "agent" not in granted:
            return Access(scope, is_operator=True)
        logger.info("%s of %r with task %r of %r", operation.name, caller.owner, task_id, found.owner)
        return Access(found, caller.owner, is_operator=True)

    def _check_skill(self, security: Iterable[Mapping[str, Sequence[str]]], caller: Caller) -> None:
        needed = [scopes for alternative in security for name, scopes in alternative.items() if name == caller.scheme]
        missing = [[scope for scope in scopes if scope not in caller.scopes] for scopes in needed]
        if not missing:
            raise PermissionDeniedError("This skill is for callers who authenticate in another way")
        if all(missing):
            raise self.authentication.lacks_scopes(caller.scheme, missing[0])

    async def _apply_rules(self, operation: Operation, request: Any, caller: Caller, skill: str) -> set[str]:
        """Return of which owners the caller may use the tasks. Raises `PermissionDeniedError`.

        A rule that cannot be evaluated denies, or grants nothing.
        """
        session = Session(now=to_iso(system_clock()))
        variables = self._variables(operation, request, caller, skill)
        granted: set[str] = set()
        for rule, program in self._rules:
            try:
                applies = await evaluate(program, variables, session, evaluators=self._evaluators)
            except CelError as error:
                logger.warning("the access rule %s could not be evaluated for %r: %s", rule.name, caller.owner, error)
                if rule.deny is not None:
                    raise PermissionDeniedError from None
                continue
            if not applies:
                continue
            if rule.deny is not None:
                logger.info("the access rule %s denies %s to %r", rule.name, operation.name, caller.owner)
                raise PermissionDeniedError(rule.deny or None)
            # The configurations of push notifications contain credentials.
            if rule.grant == "write" or (operation.reads and operation.capability != "push_notifications"):
                granted.add(rule.reach)
        return granted

    def _variables(self, operation: Operation, request: Any, caller: Caller, skill: str) -> Variables:
        names = frozenset[str]().union(*(program.names for _, program in self._rules))
        message = request.message if isinstance(request, SendMessageRequest) else None
        return Variables(
            caller={
                "owner": caller.owner,
                "tenant": caller.tenant,
                "email": caller.email,
                "scopes": sorted(caller.scopes),
                "claims": caller.claims,
                "scheme": caller.scheme,
            },
            operation=operation.name,
            reads=operation.reads,
            skill=skill,
            metadata=getattr(request, "metadata", None) or {},
            message={} if message is None or "message" not in names else msgspec.to_builtins(message),
        )


def _compiled(position: int, rule: AccessRule) -> Program:
    if not isinstance(rule, AccessRule):
        raise ConfigurationError(f"access_rules must be a list of AccessRule objects, not of {type(rule).__name__}")
    name = rule.name or f"number {position + 1}"
    if (rule.deny is None) == (rule.grant is None):
        raise ConfigurationError(f"the access rule {name} needs either deny or grant")
    if rule.grant not in (None, "read", "write") or rule.reach not in ("tenant", "agent"):
        raise ConfigurationError(f"the access rule {name}: grant is read or write, and reach is tenant or agent")
    try:
        return compile(RULE_SCOPE, rule.when, condition=True)
    except CelError as error:
        raise ConfigurationError(f"the access rule {name}: {error}") from None


def _skill_of(request: Any) -> str:
    """Return the skill that a message, or its request, names; "" if none.

    Raises `InvalidParamsError` for two different ones: the agent may read either.
    """
    if not isinstance(request, SendMessageRequest):
        return ""
    places = (request.message.metadata, request.metadata)
    named = {skill for metadata in places if metadata and isinstance(skill := metadata.get(SKILL_KEY), str)}
    if len(named) > 1:
        raise InvalidParamsError(
            f"The message and its request name different skills in {SKILL_KEY}; name one", field=f"metadata.{SKILL_KEY}"
        )
    return named.pop() if named else ""


def task_of(request: Any) -> str:
    """Return the task that a request is about; "" if none."""
    if isinstance(request, SendMessageRequest):
        return request.message.task_id or ""
    # Requests about the configurations of a task have an `id`, too, which is theirs.
    return getattr(request, "task_id", None) or (getattr(request, "id", None) or "")
