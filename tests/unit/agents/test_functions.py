"""Functions as the model sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from errands.agents.manifests import Function
from errands.agents.manifests.documents import StatelessHttp
from errands.agents.manifests.functions import backend
from errands.agents.manifests.schemas import is_required, object_of
from tests.unit.agents.support import Documents, Spoil, drop, loaded, put

CAPABILITY = ("agent", "capabilities", "github-file")


def functions(folder: Path, *spoils: Spoil) -> dict[str, Function]:
    def spoil(documents: Documents) -> None:
        for one in spoils:
            one(documents)

    manifests = loaded(folder, spoil)
    return {function.name: function for function in manifests.functions(manifests.agents[0])}


def test_names_are_those_of_the_specification(tmp_path: Path) -> None:
    """Several actions: the key and the action; one action: the key; an agent: its name."""
    assert list(functions(tmp_path)) == ["github_file_read_chunk", "github_file_write", "analyst", "audit"]


def test_include_hides_and_does_not_rename(tmp_path: Path) -> None:
    found = functions(tmp_path, put(*CAPABILITY, "include", value=["write"]), drop(*CAPABILITY, "before"))
    assert {name: function.offered for name, function in found.items()} == {
        "github_file_read_chunk": False,
        "github_file_write": True,
        "analyst": True,
    }


def test_an_empty_include_hides_everything(tmp_path: Path) -> None:
    found = functions(tmp_path, put(*CAPABILITY, "include", value=[]))
    assert not found["github_file_write"].offered


def test_what_only_middleware_invokes_has_a_record_and_is_not_offered(tmp_path: Path) -> None:
    assert functions(tmp_path)["audit"].offered is False


def test_the_model_sees_neither_bound_parameters_nor_our_keywords(tmp_path: Path) -> None:
    function = functions(tmp_path)["github_file_read_chunk"]
    assert function.parameters == {
        "type": "object",
        "properties": {"path": {"type": "string"}, "lines": {"type": "integer", "default": 100}},
        "required": ["path"],
        "additionalProperties": False,
    }
    assert function.bindings == {"repo": "context.input[0].region", "owner": "'us'"}


def test_a_call_must_fit_all_parameters(tmp_path: Path) -> None:
    function = functions(tmp_path)["github_file_read_chunk"]
    assert [name for name, schema in function.declared.items() if is_required(schema)] == ["repo", "owner", "path"]
    assert "require_binding" not in str(object_of(function.declared))
    assert function.defaults == {"lines": 100}


def test_a_parameter_that_is_not_bound_is_seen(tmp_path: Path) -> None:
    function = functions(tmp_path, drop(*CAPABILITY, "bindings", "owner"))["github_file_write"]
    assert list(function.parameters["properties"]) == ["owner", "path"]


def test_a_binding_of_one_action_is_none_of_another(tmp_path: Path) -> None:
    found = functions(tmp_path, put(*CAPABILITY, "bindings", "lines", value="10"))
    assert "lines" in found["github_file_read_chunk"].bindings
    assert "lines" not in found["github_file_write"].bindings


def test_another_agent_takes_a_message_and_nothing_else(tmp_path: Path) -> None:
    def topic(documents: Documents) -> None:
        documents["analyst"]["parameters"]["properties"]["topic"] = {"type": "string", "default": "all"}

    function = functions(tmp_path, topic)["analyst"]
    assert function.target == "agent"
    [(name, schema)] = function.parameters["properties"].items()
    assert (name, schema["type"], function.parameters["required"]) == ("message", "string", ["message"])
    assert function.defaults == {"topic": "all"}
    assert function.bindings == {"customer": "context.user.id"}


def test_a_remote_agent_is_a_function_too(tmp_path: Path) -> None:
    found = functions(tmp_path, put("agent", "capabilities", "far-away", value={"url": "https://agents.example.com"}))
    assert found["far_away"].target == "remote"
    assert list(found["far_away"].parameters["properties"]) == ["message"]


def test_an_agent_declares_message_to_give_it_a_default(tmp_path: Path) -> None:
    message = {"default": [{"mimeType": "text/plain", "text": "Good morning"}]}
    assert functions(tmp_path, put("agent", "parameters", "properties", "message", value=message))


def test_the_star_uses_everything(tmp_path: Path) -> None:
    found = functions(
        tmp_path,
        put(*CAPABILITY, value="*"),
        drop("tool", "parameters", "properties", "repo"),
        put("tool", "actions", 0, "execute", "stateless_http", "url", value="https://example.com"),
    )
    assert found["github_file_write"].offered
    assert found["github_file_write"].bindings == {}


# What tools say for all of their actions


def test_an_action_inherits_what_its_tool_says(tmp_path: Path) -> None:
    headers = ("tool", "actions", 0, "execute", "stateless_http", "headers")
    tool = loaded(tmp_path, put(*headers, value={"Accept": "text/plain"})).tools[0]
    name, http = backend(tool, tool.actions[0])
    assert name == "stateless_http"
    assert isinstance(http, StatelessHttp)
    assert http.headers == {"Authorization": "Bearer {settings.github.token}", "Accept": "text/plain"}
    assert http.method == "GET"


# What is only known when it runs


def discovering(**tool: Any) -> Spoil:
    head = {"kind": "commonagents.info/v1beta2/tool", "namespace": "shop", "name": "far", "description": "Far."}

    def spoil(documents: Documents) -> None:
        documents["far"] = {**head, **tool}
        documents["agent"]["capabilities"]["far"] = {
            "include": ["whatever"],
            "bindings": {"user": "context.user.id"},
            "before": [{"assert": "context.capabilities.far_search.count_errored < 3", "match": "search"}],
        }

    return spoil


def test_a_server_may_bring_its_actions(tmp_path: Path) -> None:
    spoil = discovering(mcp={"transport": "stdio", "command": "server", "args": ["{settings.x}"]}, settings=_X)
    function = functions(tmp_path, spoil)["far"]
    assert (function.discovers, function.action, function.offered) == (True, None, True)
    assert function.bindings == {"user": "context.user.id"}
    assert function.discovered_name("get-page") == "far_get_page"


def test_an_action_may_be_one_operation(tmp_path: Path) -> None:
    document = {"url": "https://example.com/openapi.json"}
    actions = [{"name": "find", "description": "Finds.", "execute": {"openapi": {"operation": "findPet"}}}]

    def spoil(documents: Documents) -> None:
        discovering(openapi=document, actions=actions)(documents)
        documents["agent"]["capabilities"]["far"] = "*"

    assert functions(tmp_path, spoil)["far"].discovers is False


_X = {"properties": {"x": {"type": "string"}}}
