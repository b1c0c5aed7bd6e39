"""What the loop of an agent works with: `Plan` is its manifest, compiled once, and `Progress` how far a task is."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from errands.agents.manifests import Manifests
from errands.agents.manifests.documents import Agent, Capability
from errands.agents.manifests.functions import Arguments, Function, Inputs
from errands.agents.models.base import FunctionSaid, ModelSaid, Offer, Said, UserSaid
from errands.agents.script import offer as script_offer
from errands.agents.tools.toolbox import unapplied
from errands.policy import cel, records
from errands.policy.cel import Program, scopes
from errands.policy.cel.syntax import CAPABILITIES
from errands.policy.document import NO_POLICY, CompiledPolicy, Rules, joined
from errands.policy.enforcement import CapabilityRules
from errands.policy.limits import Limits, stricter, with_defaults
from errands.policy.records import FunctionCall
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig, Steps, compile_steps
from errands.policy.template import Template, compile_binding, compile_template

logger = logging.getLogger(__name__)


def own_steps(ref: str, capability: Capability, phase: Phase) -> Steps:
    """Return the steps that a manifest has around the calls of a capability."""
    return compile_steps(phase, getattr(capability, phase.value) or [], owner=f"capabilities.{ref}.")


class Routine:
    """A function with what is enforced around its calls."""

    def __init__(self, function: Function, plan: Plan, *, refused: bool = False) -> None:
        capability, policy = plan.agent.capabilities.get(function.ref, Capability()), plan.policy
        self.function = function
        #: Whether its calls are refused, because rules for its capability cannot be applied.
        self.refused = refused
        steps = [step for phase in CAPABILITY_PHASES for step in getattr(capability, phase.value) or []]
        self.form = plan.form(steps, [function.ref], msgspec.structs.replace(function, description=""), capability)
        self.arguments = Arguments(function)
        scope = scopes.binding(mount=plan.agent.mount != "none")
        self.bindings: dict[str, Template] = {
            name: compile_binding(scope, source) for name, source in function.bindings.items()
        }
        before_first, before, after = (
            joined(policy.steps(function.name, phase), own_steps(function.ref, capability, phase))
            for phase in CAPABILITY_PHASES
        )
        self.rules = CapabilityRules(
            name=function.name,
            before_first=before_first,
            before=before,
            after=after,
            action=function.action,
            operation=function.operation,
            bound=frozenset(self.bindings),
        )
        around = (*before.steps, *after.steps)
        programs = [program for step in around for program in step.programs]
        programs += [program for bound in self.bindings.values() for program in bound.programs]
        #: Whether its calls depend on the calls before them: then they wait for these.
        self.looks_back = (
            bool(before_first.steps)
            or any(step.action == "invoke" for step in around)
            or any(not path or path[0] in CAPABILITIES for program in programs for path in program.needs)
        )

    @property
    def name(self) -> str:
        return self.function.name

    @property
    def is_delegation(self) -> bool:
        return self.function.target != "tool"


class Plan:
    """The agent without its functions, which may have to be discovered first."""

    def __init__(
        self,
        agent: Agent,
        manifests: Manifests,
        policy: CompiledPolicy = NO_POLICY,
        elsewhere: Collection[str] = (),
    ) -> None:
        self.agent = agent
        self._manifests = manifests
        #: The policy of the server.
        self.policy = policy
        #: Functions of all agents of the server: the policy may have rules for those, too.
        self._elsewhere = elsewhere
        own = with_defaults(agent.limits)
        limits, guardrails = stricter(own, policy.limits), agent.guardrails
        self.rules = Rules(
            policy=policy,
            limits=limits,
            before=joined(policy.before, compile_steps(Phase.GUARDRAIL_BEFORE, guardrails.before or [])),
            after=joined(policy.after, compile_steps(Phase.GUARDRAIL_AFTER, guardrails.after or [])),
            is_joined=True,
            policy_limits=frozenset(
                name for name in Limits.__struct_fields__ if getattr(limits, name) != getattr(own, name)
            ),
            limit_text="A limit of this agent was exceeded: {}.",
        )
        self.inputs = Inputs(agent)
        self.takes_parameters = bool(self.inputs.schema["properties"])
        self.prompt: Template = compile_template(scopes.PROMPT, agent.prompt)
        self.exposes: dict[str, Program] = {
            name: cel.compile(scopes.EXPOSES, source) for name, source in (agent.exposes or {}).items()
        }
        self.form_of_input = self.form(guardrails.before or [])
        self.form_of_output = self.form(guardrails.after or [], (), agent.exposes)

    def own_steps(self) -> Iterator[tuple[str, Steps]]:
        """Yield the steps that the manifest has around the calls of each capability."""
        for ref, capability in self.agent.capabilities.items():
            for phase in CAPABILITY_PHASES:
                yield ref, own_steps(ref, capability, phase)

    def form(self, steps: Sequence[StepConfig], tools: Iterable[str] = (), *others: Any) -> str:
        """Return a digest of everything that decides and does something.

        What was approved in one form is not done in another. It covers the steps, the tools that they or a function
        use, and `others`, but not descriptions. Of a Python function only the parameters are known.
        """
        named = {*tools, *(step.invoke.partition(":")[0] for step in steps if step.invoke)}
        tools_here = (tool for tool in self._manifests.tools if tool.namespace == self.agent.namespace)
        bare = functools.partial(msgspec.structs.replace, description="")
        used = [bare(tool, actions=list(map(bare, tool.actions))) for tool in tools_here if tool.name in named]
        text = msgspec.json.encode([steps, used, *others], enc_hook=lambda _: None, order="sorted")
        return hashlib.sha256(text).hexdigest()[:8]

    def unruled(self, functions: Sequence[Function]) -> set[str]:
        """Return the capabilities with rules for operations that were not discovered, and log them.

        Their calls are refused, as it is unknown what those rules were to guard.
        """
        prefixes: dict[str, list[str]] = {}
        for declared in self._manifests.functions(self.agent):
            if declared.discovers:
                prefixes.setdefault(declared.ref, []).append(f"{declared.name}_")
        missing = sorted(self.policy.functions - {*self._elsewhere, *(function.name for function in functions)})
        refused: set[str] = set()
        for ref, begins in prefixes.items():
            problems = unapplied(ref, self.agent.capabilities.get(ref, Capability()), functions)
            problems += [
                f"the policy has rules for {name}, which is not a function"
                for name in missing
                if name.startswith(tuple(begins))
            ]
            for problem in problems:
                logger.error("%s: %s; its calls are refused until the rule is corrected", ref, problem)
            refused |= {ref} if problems else set()
        return refused


class Repertoire:
    """The functions of an agent."""

    def __init__(self, plan: Plan, functions: Sequence[Function], refused: Collection[str] = ()) -> None:
        agent = plan.agent
        self.routines: dict[str, Routine] = {
            function.name: Routine(function, plan, refused=function.ref in refused) for function in functions
        }
        offered = [routine.function for routine in self.routines.values() if routine.function.offered]
        offers = [Offer(function.name, function.description, function.parameters) for function in offered]
        #: Whether the model may write scripts. Loading makes sure that the name is free, unless a service took it.
        self.has_scripts = agent.script and scopes.SCRIPT not in self.routines
        in_scripts = [function for function in offered if scopes.is_script_name(function.name)]
        #: The functions that scripts may call.
        self.script_names = tuple(function.name for function in in_scripts)
        if self.has_scripts:
            offers.append(script_offer(in_scripts, mount=agent.mount != "none"))
        self.offers: tuple[Offer, ...] = tuple(offers)

    def offered(self, name: str) -> Routine | None:
        """Return the function that the model may call by this name."""
        routine = self.routines.get(name)
        return routine if routine is not None and routine.function.offered else None

    def is_script(self, call: FunctionCall) -> bool:
        return self.has_scripts and call.name == scopes.SCRIPT

    def invoked(self, tool: str, action: str) -> Routine | None:
        """Return what a step means by `tool:action`; None for an operation that the service does not offer."""
        routines = [routine for routine in self.routines.values() if routine.function.ref == tool]
        return next((one for one in routines if (one.function.operation or one.function.action) == action), None)

    def names(self, *, delegations: bool) -> tuple[str, ...]:
        return tuple(name for name, routine in self.routines.items() if routine.is_delegation == delegations)


# What has been done


class Progress:
    """How far a task has come: an index of its records. `take` each of them once, in order.

    After a crash, the records say where to continue, so nothing that has finished is done again.
    """

    def __init__(self) -> None:
        #: The input that has not been answered yet, and whether the guardrails have let it pass.
        self.input: records.InputArrived | None = None
        self.is_passed = True
        #: The last answer of the model to the input.
        self.answer: records.ModelCalled | None = None
        #: Its last text that is not empty: the model may have written it beside its calls, and nothing after them.
        self.text = ""
        self.outputs = 0
        self.began: dict[str, records.CapabilityBegan] = {}
        self.ended: dict[str, records.CallEnded] = {}
        #: All calls that have begun or ended.
        self.calls: set[str] = set()
        #: The ids that the model gave its calls.
        self.call_ids: set[str] = set()
        #: Child tasks, by call.
        self.children: dict[str, str] = {}
        #: What tools need for their next call, by tool.
        self.tools: dict[str, dict[str, object]] = {}
        #: Messages that were taken in or refused.
        self.taken: set[str] = set()
        self._said: list[Said] = []
        self._shown: dict[str, records.CapabilityShown] = {}

    def take(self, record: records.AnyRecord) -> None:
        """Move on by one record. Records that say nothing about the progress change nothing."""
        match record:
            case records.InputArrived():
                self.input, self.is_passed, self.answer, self.text = record, False, None, ""
                self.taken.add(record.message_id)
            case records.InputRefused():
                self.taken.add(record.message_id)
                if self.input is not None and self.input.message_id == record.message_id:
                    self._said += self._exchange()
                    self.input = self.answer = None
            case records.InputPassed():
                assert self.input is not None
                self.is_passed = True
                self._said.append(UserSaid(list((record.values or self.input.values)["message"])))
            case records.ModelCalled():
                self._said += self._exchange()
                self.answer = record
                self.text = record.text if record.text.strip() else self.text
                self.call_ids.update(call.id for call in record.calls)
            case records.CapabilityBegan():
                self.began[record.call] = record
                self.calls.add(record.call)
            case records.CapabilityFinished() | records.CapabilityErrored() | records.CapabilityRestricted():
                self.ended[record.call] = record
                self.calls.add(record.call)
            case records.CapabilityShown():
                self._shown[record.call] = record
            case records.DelegationBegan():
                self.children[record.call] = record.task_id
            case records.OutputGiven():
                self._said += self._exchange()
                self.outputs += 1
                self.input = self.answer = None
            case records.ToolOpened():
                self.tools[record.tool] = record.state
            case records.ToolsClosed():
                self.tools = {}

    def forget(self, call: str) -> None:
        """Forget that a call has begun, because it is decided again."""
        del self.began[call]
        self.calls.discard(call)

    def _exchange(self) -> Sequence[Said]:
        """Return what the model last answered, and what it was given for its calls, in their order."""
        answer = self.answer
        # Providers refuse a message of the model without anything in it.
        if answer is None or not (answer.calls or answer.text.strip()):
            return []
        results = [self._shown[call.id] for call in answer.calls if call.id in self._shown]
        said = [FunctionSaid(result.call, result.function, result.content) for result in results]
        return [ModelSaid(answer.text, answer.calls), *said]

    @property
    def said(self) -> tuple[Said, ...]:
        """The conversation as the model is shown it."""
        return (*self._said, *self._exchange())

    @property
    def unshown(self) -> tuple[records.FunctionCall, ...]:
        """The calls of the answer for which the model has no result, because they were not made or have not ended."""
        return tuple(call for call in self.answer.calls if call.id not in self._shown) if self.answer else ()

    @property
    def open_calls(self) -> list[records.CapabilityBegan]:
        """The calls that have begun and not ended."""
        return [began for call, began in self.began.items() if call not in self.ended]
