"""The process of an agent under a policy is killed; another one goes on where the records say."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errands.policy.records import AnyRecord, CapabilityBegan, CapabilityFinished, InputArrived
from errands.policy.reviews import ReviewDesk
from errands.runtime.journal import Journal
from tests.crash.scene import Scene
from tests.unit.cli.processes import Served

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

#: Says what it hears, after a call that takes until there is a file `go`.
AGENT = """
import asyncio
from pathlib import Path
from errands import TaskContext, agent

HERE = Path(__file__).parent

@agent(name="Clerk")
async def clerk(text: str, ctx: TaskContext) -> str:
    with (HERE / "heard").open("a") as heard:
        heard.write(text + "\\n")
    async with ctx.capability("pay", amount=5) as call:
        while not (HERE / "go").exists():
            await asyncio.sleep(0.01)
        call.output = "paid"
    return f"{text}: {call.output}"
"""


class Clerk(Scene):
    """The agent and its policy."""

    def __init__(self, folder: Path, policy: str) -> None:
        super().__init__(folder, "Clerk")
        (folder / "agent.py").write_text(AGENT, "utf-8")
        (folder / "policy.yaml").write_text(policy, "utf-8")

    def serve(self) -> Served:
        return Served(
            "agent.py",
            *("--policy", "policy.yaml"),
            cwd=self.folder,
            storage=self.storage,
            lease_seconds="1",
            poll_interval="0.1",
        )

    async def kill_when(self, kind: type[AnyRecord], state: str) -> None:
        """Starts a process, sends it a message, and kills it when there is such a record and the task is so far."""
        async with self.killed_at_the_end() as client:
            self.task_id = (await client.send("hello", blocking=False)).task_id
            while (await client.get_task(self.task_id)).state != state or not await self._has(kind):
                await asyncio.sleep(0.01)

    async def _has(self, kind: type[AnyRecord]) -> bool:
        return any(isinstance(record, kind) for record in await self.records())

    def heard(self) -> list[str]:
        return (self.folder / "heard").read_text("utf-8").split()


async def test_killed_while_an_answer_is_reviewed_the_agent_is_not_run_again(tmp_path: Path) -> None:
    at = Clerk(tmp_path, 'version: "1"\nguardrails:\n  after:\n    - assert: review("bob")\n')
    (tmp_path / "go").touch()
    await at.kill_when(CapabilityFinished, "input-required")
    async with at.engine() as engine:
        [review] = await ReviewDesk(Journal(engine)).list()
        assert review.subject == {"message": [{"mimeType": "text/plain", "text": "hello: paid"}]}
        await ReviewDesk(Journal(engine)).answer(at.task_id, True, by="bob")
    task = await at.finish()
    assert [artifact.parts[0].text for artifact in task.artifacts or ()] == ["hello: paid"]
    assert at.heard() == ["hello"]


async def test_killed_in_the_middle_a_message_is_let_in_once_and_the_counters_are_right(tmp_path: Path) -> None:
    changed = "input.put('message', ['hello' + string(size(context.input))])"
    at = Clerk(tmp_path, f'version: "1"\nguardrails:\n  before:\n    - transform: "{changed}"\n')
    await at.kill_when(CapabilityBegan, "working")
    (tmp_path / "go").touch()
    task = await at.finish()
    assert [artifact.parts[0].text for artifact in task.artifacts or ()] == ["hello1: paid"]
    assert at.heard() == ["hello1", "hello1"]
    kinds = [type(record) for record in await at.records()]
    assert (kinds.count(InputArrived), kinds.count(CapabilityBegan), kinds.count(CapabilityFinished)) == (1, 2, 1)
