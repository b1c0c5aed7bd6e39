"""What can be handed over as an executor, and what is said about everything else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from a2a.server.agent_execution import AgentExecutor as OfficialExecutor
from a2a.server.agent_execution import RequestContext as OfficialContext
from a2a.server.events import EventQueue as OfficialQueue

from errands import (
    A2AServer,
    AgentCardConfig,
    ConfigurationError,
    TaskContext,
    Worker,
)
from errands.interop import adapt
from errands.interop.executor import SdkExecutor
from tests.unit.interop.native import Native

CARD = AgentCardConfig(name="Agent", description="An agent.")


class Official(OfficialExecutor):
    async def execute(self, context: OfficialContext, event_queue: OfficialQueue) -> None: ...

    async def cancel(self, context: OfficialContext, event_queue: OfficialQueue) -> None: ...


class Once(Official):
    on_interrupted = "fail"


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None: ...


class Unrelated:
    async def execute(self, context: Any, event_queue: Any) -> None: ...


def test_an_executor_of_ours_stays_as_it_is() -> None:
    executor = Native()
    assert adapt(executor) is executor


def test_an_executor_of_the_sdk_becomes_one_of_ours() -> None:
    assert isinstance(adapt(Official()), SdkExecutor)
    A2AServer(executor=Official(), agent_card=CARD, storage="memory")


def test_an_executor_of_the_sdk_may_say_what_becomes_of_it_after_a_crash() -> None:
    assert adapt(Official()).on_interrupted == "redeliver"
    assert adapt(Once()).on_interrupted == "fail"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Official, "not the class Official; pass Official()"),
        (Echo(), "not Echo, which is a Worker; pass it as worker="),
        (Unrelated(), "not Unrelated, which has an execute method but derives from neither"),
        ("echo", "errands.AgentExecutor, not str"),
    ],
)
def test_anything_else_is_refused_with_what_is_wrong_about_it(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        A2AServer(executor=given, agent_card=CARD, storage="memory")
    assert says in str(refused.value)


def test_without_an_object_of_it_the_a2a_package_is_not_imported() -> None:
    program = (
        "import sys, errands, errands.interop\n"
        "from errands import A2AServer, AgentCardConfig\n"
        "from tests.unit.interop.native import Native\n"
        "A2AServer(executor=Native(), agent_card=AgentCardConfig(name='A', description='A'), storage='memory')\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'a2a'])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
