"""Python functions as tools."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import enum
import logging
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from errands.agents.manifests import ManifestError, examine, load
from errands.agents.manifests.functions import Arguments, ArgumentsError
from errands.agents.tools import Invocation, ToolError, tool
from errands.agents.tools.base import BrokenToolError
from errands.agents.tools.python import PythonTool
from errands.agents.tools.toolbox import Toolbox
from errands.errors import ConfigurationError
from errands.outbound import Outbound
from errands.policy.cel import Call, Session
from tests.unit.agents.support import VALID, put, spoiled, told, written
from tests.waiting import SOON

pytestmark = pytest.mark.anyio


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Item:
    name: str
    color: Color = Color.RED


class Tree(msgspec.Struct):
    children: list[Tree] = []


async def perform(call: Call) -> Any:
    raise AssertionError(call)


def invocation(arguments: dict[str, Any]) -> Invocation:
    return Invocation(
        call="c1",
        action=None,
        arguments=arguments,
        context={},
        session=Session("2026-01-01T00:00:00Z"),
        perform=perform,
    )


async def run(made: PythonTool[..., Any], **arguments: Any) -> Any:
    return await made.run(invocation(arguments))


def parameters(made: PythonTool[..., Any]) -> Any:
    assert made.document.actions[0].parameters is not None
    return made.document.actions[0].parameters["properties"]


# What the model is told


def test_the_signature_is_the_schema() -> None:
    @tool
    def order(
        number: str,
        items: list[Item],
        day: datetime.date,
        amount: Annotated[int, msgspec.Meta(ge=1, description="How many.")] = 1,
        color: Color = Color.BLUE,
        size: Literal["s", "l"] | None = None,
        tags: list[str] = ["new"],  # noqa: B006 - is copied
    ) -> None:
        """Orders something.

        The second line is not for the model.

        Args:
            number (str): The number of the order,
                as it is on the bill.
            size: One of two.
            nobody: Is no parameter.
        """

    assert order.document.name == "order"
    assert order.document.description == "Orders something."
    assert order.document.actions[0].name == "order"
    assert parameters(order) == {
        "number": {"type": "string", "description": "The number of the order, as it is on the bill."},
        "items": {
            "type": "array",
            "items": {
                "title": "Item",
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "color": {"title": "Color", "enum": ["blue", "red"], "default": "red"},
                },
                "required": ["name"],
            },
        },
        "day": {"type": "string", "format": "date"},
        "amount": {"type": "integer", "minimum": 1, "description": "How many.", "default": 1},
        "color": {"title": "Color", "enum": ["blue", "red"], "default": "blue"},
        "size": {"anyOf": [{"enum": ["l", "s"]}, {"type": "null"}], "default": None, "description": "One of two."},
        "tags": {"type": "array", "items": {"type": "string"}, "default": ["new"]},
    }


def test_the_defaults_of_a_set_are_in_the_same_order_in_every_process() -> None:
    letters = list("abcdefghijkl")
    some = set(letters)

    @tool
    async def spell(
        some: set[str] = some,
        others: frozenset[str] = frozenset(letters),
        colors: frozenset[Color | None] = frozenset({Color.RED, Color.BLUE, None}),
    ) -> str:
        """Spells."""
        return ""

    assert [schema["default"] for schema in parameters(spell).values()] == [letters, letters, ["blue", "red", None]]


def test_parameters_may_be_described_as_sphinx_does() -> None:
    @tool
    def find(number: int) -> None:
        """Finds it.

        :param number: Which one.
        """

    assert parameters(find) == {"number": {"type": "integer", "description": "Which one."}}


def test_a_type_that_contains_itself_is_told_as_far_as_it_goes() -> None:
    @tool
    def plant(tree: Tree) -> None:
        """Plants it."""

    assert parameters(plant)["tree"]["properties"]["children"]["items"] == {}


def test_a_tool_has_a_name_and_may_be_synchronous() -> None:
    @tool(name="find-order", synchronous=True)
    def find() -> None:
        """Finds it."""

    assert (find.document.name, find.document.synchronous) == ("find-order", True)


def test_a_tool_is_still_a_function() -> None:
    @tool
    def double(number: int) -> int:
        """Doubles it."""
        return 2 * number

    assert double(4) == 8
    assert double.__name__ == "double"  # type: ignore[attr-defined]  # a wrapper has it


def untyped(number) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001, RUF100
    """Has no type."""


def undocumented(number: int) -> None: ...


def many(*numbers: int) -> None:
    """Takes many."""


def strange(lock: threading.Event) -> None:
    """Takes something that JSON does not have."""


def unknown(number: Nowhere) -> None:  # type: ignore[name-defined]  # noqa: F821
    """Has a type that nobody knows."""


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (untyped, "the parameter number has no type; add one, such as number: str"),
        (undocumented, "add one"),
        (many, "numbers: int cannot be described to a model; name every parameter|numbers: 'int' cannot"),
        (strange, "its parameters cannot be described to a model"),
        (unknown, "name 'Nowhere' is not defined"),
    ],
)
def test_what_cannot_be_told_to_a_model_is_refused(function: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as caught:
        tool(function)
    assert f"tests.unit.agents.test_python_tools.{function.__name__}: " in str(caught.value)


# Calling


async def test_a_function_gets_values_of_its_types_and_gives_json() -> None:
    @tool
    async def order(item: Item, day: datetime.date, tags: list[str] = []) -> dict[str, Any]:  # noqa: B006 - is copied
        """Orders it."""
        assert item.color is Color.BLUE
        tags.append("seen")
        return {"item": item, "next": day + datetime.timedelta(days=1), "tags": tags, "set": {2.5}}

    result = await run(order, item={"name": "cup", "color": "blue"}, day="2026-01-31")
    assert result == {
        "item": {"name": "cup", "color": "blue"},
        "next": "2026-02-01",
        "tags": ["seen"],
        "set": [2.5],
    }
    assert (await run(order, item={"name": "cup", "color": "blue"}, day="2026-01-31"))["tags"] == ["seen"]


async def test_a_sync_function_does_not_hold_up_the_others() -> None:
    entered = threading.Event()
    leave = threading.Event()

    @tool
    def wait() -> str:
        """Waits."""
        entered.set()
        assert leave.wait(SOON)
        return threading.current_thread().name

    running = asyncio.create_task(run(wait))
    assert await asyncio.to_thread(entered.wait, SOON)
    leave.set()
    assert await running != threading.current_thread().name


async def test_a_function_may_ask_for_the_call_it_is_made_by() -> None:
    @tool
    def pay(amount: int, made: Invocation) -> str:
        """Pays."""
        return f"{amount} for {made.call}"

    assert parameters(pay) == {"amount": {"type": "integer"}}
    assert await run(pay, amount=3) == "3 for c1"


async def test_arguments_that_do_not_fit_are_told_to_the_model() -> None:
    @tool
    def pay(amount: int) -> None:
        """Pays."""

    with pytest.raises(ToolError, match=r"Expected `int`, got `str` - at `\$.amount`"):
        await run(pay, amount="much")
    with pytest.raises(ToolError, match="missing required field `amount`"):
        await run(pay)


@pytest.mark.parametrize("error", [ToolError("The shop is closed."), BrokenToolError("No shop.")])
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_an_error_on_purpose_is_passed_on(error: Exception, asynchronous: bool) -> None:
    async def later() -> None:
        """Fails."""
        raise error

    def now() -> None:
        """Fails."""
        raise error

    with pytest.raises(type(error), match=str(error)):
        await run(tool(later) if asynchronous else tool(now))


class Unknown:
    pass


def fails_by_itself() -> None:
    """Fails."""
    raise KeyError("/etc/secret")


def exits() -> None:
    """Exits."""
    sys.exit("/etc/secret")


def stops() -> None:
    """Stops an iteration that nobody began."""
    raise StopIteration("/etc/secret")


async def fails_later() -> None:
    """Fails."""
    raise ValueError("/etc/secret")


async def gives_no_json() -> Unknown:
    """Gives something else."""
    return Unknown()


async def gives_half_a_character() -> str:
    """Gives what no text can have."""
    return "\ud83d"


@pytest.mark.parametrize(
    "function", [fails_by_itself, exits, stops, fails_later, gives_no_json, gives_half_a_character]
)
async def test_an_error_that_nobody_meant_has_a_reference_and_says_nothing_else(
    function: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ToolError, match=rf"^{function.__name__} failed \(reference [0-9a-f]{{8}}\)$") as caught:
        await run(tool(function))
    assert str(caught.value)[-9:-1] in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


# In manifests


@tool(name="audit")
def note(text: str, urgent: bool = False) -> dict[str, str]:
    """Keeps a note."""
    return {"kept": text}


def without_audit(tmp_path: Path) -> Path:
    return written(tmp_path, spoiled(lambda documents: documents.pop("audit")))


async def test_a_manifest_names_a_function_like_any_other_tool(tmp_path: Path) -> None:
    documents = spoiled(put("agent", "capabilities", "audit", value={"bindings": {"text": "context.user.id"}}))
    del documents["audit"]
    documents["agent"]["capabilities"]["github-file"]["before"] = []
    manifests = load(written(tmp_path, documents), tools=[note])
    agent = next(agent for agent in manifests.agents if agent.name == "support")
    function = next(function for function in manifests.functions(agent) if function.name == "audit")
    assert function.parameters == {
        "type": "object",
        "properties": {"urgent": {"type": "boolean", "default": False}},
        "required": [],
        "additionalProperties": False,
    }
    assert [tool.namespace for tool in manifests.tools if tool.name == "audit"] == ["shop"]
    assert await Arguments(function).resolve({}, {"text": "x"}) == {"text": "x", "urgent": False}
    with pytest.raises(ArgumentsError, match="urgent"):
        await Arguments(function).resolve({"urgent": "very"}, {"text": "x"})


async def test_a_toolbox_runs_a_function_like_any_other_tool(tmp_path: Path) -> None:
    documents = spoiled(put("agent", "capabilities", value={"audit": "*"}))
    documents = {"agent": {**documents["agent"], "exposes": {}}}
    manifests = load(written(tmp_path, documents), tools=[note])
    box = Toolbox(manifests, manifests.agents[0], settings={}, outbound=Outbound(), runtime={}, auth={})
    box.check()
    [function] = await box.functions()
    async with box.turn(task_id="T-1") as turn:
        assert await turn.initialize(function, invocation({})) is None
        assert await turn.invoke(function, invocation({"text": "hello"})) == {"kept": "hello"}


def test_steps_are_checked_against_a_function(tmp_path: Path) -> None:
    assert told(examine(without_audit(tmp_path))) != []
    steps = [{"invoke": "audit:audit", "bindings": {"text": "input.path"}}]
    documents = spoiled(put("agent", "capabilities", "github-file", "before", value=steps))
    del documents["audit"]
    assert told(examine(written(tmp_path, documents), tools=[note])) == []
    steps[0]["bindings"] = {"words": "input.path"}
    found = told(examine(written(tmp_path, documents), tools=[note]))
    assert "capabilities.github-file.before[0].bindings.words: is not a parameter of audit" in "\n".join(found)


def test_a_name_can_be_taken_once(tmp_path: Path) -> None:
    with pytest.raises(ManifestError) as caught:
        load(written(tmp_path, VALID), tools=[note])
    assert "tests.unit.agents.test_python_tools.note: name: is 'audit', which the namespace shop already has at" in str(
        caught.value
    )
    found = told(examine(without_audit(tmp_path), tools=[note, note]))
    assert "already has at tests.unit.agents.test_python_tools.note" in "\n".join(found)


def test_a_name_that_manifests_cannot_write_is_refused(tmp_path: Path) -> None:
    @tool(name="a b")
    def odd() -> None:
        """Is odd."""

    assert "name: is 'a b'; use up to 100 of a-z" in "".join(told(examine(written(tmp_path, VALID), tools=[odd])))


def test_no_manifest_can_name_a_function_itself(tmp_path: Path) -> None:
    execute = {"python": {"tool": "os.system"}}
    found = told(examine(written(tmp_path, spoiled(put("audit", "actions", 0, "execute", value=execute)))))
    assert "actions[0].execute.python: is unknown" in "\n".join(found)
