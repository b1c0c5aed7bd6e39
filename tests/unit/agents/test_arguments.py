"""What a function is called with, and what an agent is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from errands.agents.manifests.functions import Arguments, ArgumentsError, Inputs
from errands.agents.manifests.schemas import nested
from tests.unit.agents.support import Documents, loaded

pytestmark = pytest.mark.anyio

BOUND = {"repo": "r", "owner": "o"}
HELLO = [{"mimeType": "text/plain", "text": "Hello"}]


def arguments(folder: Path, name: str) -> Arguments:
    manifests = loaded(folder)
    [function] = [one for one in manifests.functions(manifests.agents[0]) if one.name == name]
    return Arguments(function)


async def test_values_bindings_and_defaults_are_put_together(tmp_path: Path) -> None:
    read = arguments(tmp_path, "github_file_read_chunk")
    assert await read.resolve({"path": "a"}, BOUND) == {"path": "a", "lines": 100, **BOUND}
    assert (await read.resolve({"path": "a", "lines": 5}, BOUND))["lines"] == 5


async def test_what_the_model_says_about_a_bound_parameter_is_ignored(tmp_path: Path) -> None:
    read = arguments(tmp_path, "github_file_read_chunk")
    assert (await read.resolve({"path": "a", "repo": "mine"}, BOUND))["repo"] == "r"
    with pytest.raises(ArgumentsError, match="repo: is missing"):
        await read.resolve({"path": "a", "repo": "mine"}, {"owner": "o"})


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "path: is missing"),
        ({"path": 7}, 'path: 7 is not of type "string"'),
        ({"path": "a", "pth": "b"}, "pth: is unknown"),
        ({"path": 7, "lines": "x"}, 'path: 7 is not of type "string"; lines: "x" is not of type "integer"'),
    ],
)
async def test_what_does_not_fit_is_told(tmp_path: Path, given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ArgumentsError) as raised:
        await arguments(tmp_path, "github_file_read_chunk").resolve(given, BOUND)
    assert str(raised.value) == problem


async def test_a_bound_value_is_not_told(tmp_path: Path) -> None:
    with pytest.raises(ArgumentsError) as raised:
        await arguments(tmp_path, "github_file_write").resolve(
            {"path": "a"}, {"repo": {"token": "secret"}, "owner": "o"}
        )
    assert str(raised.value) == "repo: the bound value is invalid"


async def test_an_agent_is_given_a_message_by_the_model_and_nothing_else(tmp_path: Path) -> None:
    analyst = arguments(tmp_path, "analyst")
    given = {"message": "Think", "customer": "another"}
    assert await analyst.resolve(given, {"customer": "c"}) == {"message": "Think", "customer": "c"}


def test_settings_with_dots_are_read_as_paths() -> None:
    assert nested({"github.token": "t", "github.user.name": "n", "url": "u"}) == {
        "github": {"token": "t", "user": {"name": "n"}},
        "url": "u",
    }


# Inputs of an agent


def inputs(folder: Path, **parameters: Any) -> Inputs:
    def spoil(documents: Documents) -> None:
        documents["agent"]["parameters"]["properties"].update(parameters)

    return Inputs(loaded(folder, spoil).agents[0])


async def test_an_input_has_its_defaults(tmp_path: Path) -> None:
    assert await inputs(tmp_path).resolve({"message": HELLO}) == {"message": HELLO, "region": "eu"}


async def test_an_input_needs_a_message(tmp_path: Path) -> None:
    with pytest.raises(ArgumentsError, match="message: is missing, and the agent has no default for it"):
        await inputs(tmp_path).resolve({"region": "eu"})


async def test_a_message_may_have_a_default(tmp_path: Path) -> None:
    assert (await inputs(tmp_path, message={"default": HELLO}).resolve({}))["message"] == HELLO


async def test_an_input_needs_what_has_no_default(tmp_path: Path) -> None:
    with pytest.raises(ArgumentsError, match="ticket: is missing"):
        await inputs(tmp_path, ticket={"type": "integer"}).resolve({"message": HELLO})
    with pytest.raises(ArgumentsError, match='ticket: "x" is not of type "integer"'):
        await inputs(tmp_path, ticket={"type": "integer"}).resolve({"message": HELLO, "ticket": "x"})
