"""`cel`: actions that are expressions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from errands.agents.tools.base import ToolError
from errands.policy.cel import Call, CallFailed, Session, Suspended
from tests.unit.tools.support import NOW, MemoryFiles, action, calling, manifests, tool, toolbox

pytestmark = pytest.mark.anyio


async def evaluated(folder: Path, expression: str, *, mount: str = "none", **fields: Any) -> Any:
    found = manifests(folder, tool(actions=[action("do", "cel", {"expression": expression})]), mount=mount)
    async with calling(toolbox(found), MemoryFiles()) as caller:
        return await caller.call("crm", {"a": 2, "path": "notes.txt"}, **fields)


async def test_an_expression_sees_its_arguments_the_context_the_time_and_the_server(tmp_path: Path) -> None:
    expression = "{'a': input.a * 3, 'user': context.user.id, 'now': now, 'version': runtime.version}"
    assert await evaluated(tmp_path, expression) == {"a": 6, "user": "ann", "now": NOW, "version": "1.2"}


async def test_an_expression_that_fails_is_an_error_for_the_model_without_the_expression(tmp_path: Path) -> None:
    with pytest.raises(ToolError) as raised:
        await evaluated(tmp_path, "input.secret_field + 1")
    assert "Key not found" in str(raised.value)
    assert "ask with has(...)" in str(raised.value)
    assert "input.secret_field + 1" not in str(raised.value)


async def test_files_of_the_mount_are_read_and_written(tmp_path: Path) -> None:
    files = MemoryFiles()

    async def perform(call: Call) -> Any:
        return (
            await files.write(*call.arguments) if call.function == "mount.write" else await files.read(*call.arguments)
        )

    expression = "{'wrote': mount.write(input.path, 'hello'), 'read': mount.read(input.path)}"
    result = await evaluated(tmp_path, expression, mount="task", perform=perform)
    assert result == {"wrote": "hello", "read": "hello"}
    assert files.held == {"notes.txt": "hello"}


async def test_a_call_that_fails_is_an_error_for_the_model(tmp_path: Path) -> None:
    async def perform(call: Call) -> Any:
        raise CallFailed("there is no file notes.txt")

    with pytest.raises(ToolError, match=r"there is no file notes\.txt"):
        await evaluated(tmp_path, "mount.read(input.path)", mount="task", perform=perform)


async def test_a_review_suspends_the_action_and_is_not_asked_for_twice(tmp_path: Path) -> None:
    session = Session(NOW)

    async def waiting(call: Call) -> Any:
        raise Suspended(call)

    with pytest.raises(Suspended) as raised:
        await evaluated(tmp_path, "{'ok': review('carol')}", perform=waiting, session=session)
    session.settle(raised.value.call, True)
    assert await evaluated(tmp_path, "{'ok': review('carol')}", perform=waiting, session=session) == {"ok": True}
