"""The documentation is true: its programs run, its tables say what the code says, and nothing is left out."""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import msgspec
import pytest
import typer
from markdown_tables import code, tables
from table_pages import commands

import errands
from errands import (
    A2AClient,
    A2AServer,
    ActiveTask,
    AgentCardConfig,
    CapabilitiesConfig,
    ClientResult,
    Conversation,
    LifecycleHooks,
    RequestContext,
    RequestEnvelope,
    Retention,
    ServerCallContext,
    Settings,
    TaskContext,
    TaskUpdater,
    Worker,
    client,
    testing,
)
from errands.agents import manifests
from errands.agents.manifests import documents
from errands.agents.manifests.reading import field_names
from errands.agents.models import scripted
from errands.agents.models.any_llm import BUILTINS
from errands.agents.models.base import Model
from errands.cli.failures import EXIT_CODES
from errands.cli.main import app
from errands.client import A2AClientError, ArtifactInfo, StreamEvent
from errands.client.conversation import MessageOptions
from errands.operations import OPERATIONS
from errands.policy.limits import Limits
from errands.policy.steps import StepConfig
from errands.policy.timeline import Timeline, TimelineSpan
from errands.runtime.settings import ENV_PREFIX
from errands.server import blobs, praisonai
from errands.server.admin import ENDPOINTS
from errands.server.http import CARD_PATHS
from errands.server.task_table import TableRow
from errands.testing import InProcessTransport, connect, serve
from errands.wire.status import ERRORS, JSONRPC_HTTP, STATUS
from tests.docs.pages import (
    PAGES,
    ROOT,
    Block,
    Link,
    anchors,
    blocks,
    links,
    names_in_code,
    programs,
    sections,
    table,
)

EVERYTHING = "\n".join(page.read_text() for page in PAGES)


# Programs


@asynccontextmanager
async def agent_at_localhost(example: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Lets http://localhost:8000 lead to the server of a file, in memory and without a socket."""
    server: A2AServer = runpy.run_path(str(ROOT / example))["server"]
    server.settings.storage = "memory"
    transport = InProcessTransport(server.app)

    async def handle(_: object, request: httpx.Request) -> httpx.Response:
        assert str(request.url).startswith("http://localhost:8000/"), f"nothing answers at {request.url}"
        return await transport.handle_async_request(request)

    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
    async with server:
        yield


async def run(block: Block, namespace: dict[str, Any]) -> list[str]:
    """What the block prints."""
    # Line breaks before it make tracebacks name the line of the page.
    source = "\n" * (block.line - 1) + block.source
    program = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with redirect_stdout(printed):
        result = eval(program, namespace)
        if inspect.isawaitable(result):
            await result
    return [line.rstrip() for line in printed.getvalue().splitlines()]


def place_of(program: list[Block]) -> str:
    return program[0].place


@pytest.fixture
def fresh_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, and no settings from outside."""
    monkeypatch.chdir(tmp_path)
    for field in Settings.__struct_fields__:
        monkeypatch.delenv(ENV_PREFIX + field.upper(), raising=False)


@pytest.mark.anyio
@pytest.mark.usefixtures("fresh_place")
@pytest.mark.parametrize("program", programs(), ids=place_of)
async def test_every_program_runs_and_prints_what_the_page_says(
    program: list[Block], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("documented")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in program:
        if "fragment" in block.directives:
            compile(block.source, block.place, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        elif example := block.directives.get("agent"):
            async with agent_at_localhost(example, monkeypatch):
                printed = await run(block, vars(module))
            assert printed == (block.expected_output() or printed)
        else:
            printed = await run(block, vars(module))
            assert printed == (block.expected_output() or printed)


# Commands


def command_lines() -> list[tuple[str, list[str]]]:
    """The arguments of every `errands` in a bash block, with the line they are from."""
    found: list[tuple[str, list[str]]] = []
    for block in (block for page in PAGES for block in blocks(page) if block.language == "bash"):
        for words in split(block.source.replace("\\\n", " ")):
            while words and "=" in words[0]:
                words.pop(0)
            if words and Path(words[0]).name == "errands":
                found.append((f"{block.place}: {shlex.join(words)}", words[1:]))
    return found


def split(script: str) -> Iterator[list[str]]:
    """The words of each command; one whose quotes are open at the end of a line goes on in the next."""
    held = ""
    for line in script.splitlines():
        held += line + "\n"
        try:
            words = shlex.split(held, comments=True)
        except ValueError:
            continue
        held = ""
        yield words
    assert not held, f"a quote is not closed: {held}"


COMMAND_LINES = command_lines()


@pytest.mark.parametrize("arguments", [words for _, words in COMMAND_LINES], ids=[line for line, _ in COMMAND_LINES])
def test_every_command_line_can_be_parsed(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    root = typer.main.get_command(app)
    reached: list[str] = []
    for name, command in commands(root):
        if not hasattr(command, "commands"):
            monkeypatch.setattr(command, "callback", lambda name=name, **_: reached.append(name))
    root.main(args=arguments, prog_name="errands", standalone_mode=False)
    assert reached or "--version" in arguments


CURLS = [
    (f"{block.place}: {line}", shlex.split(line))
    for page in PAGES
    for block in blocks(page)
    if block.language == "bash"
    for line in block.source.replace("\\\n", " ").splitlines()
    if line.startswith("curl ")
]


@pytest.mark.anyio
@pytest.mark.usefixtures("fresh_place")
@pytest.mark.parametrize("words", [words for _, words in CURLS], ids=[line for line, _ in CURLS])
async def test_every_request_with_curl_is_answered(words: list[str], tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-H", action="append", default=[])
    parser.add_argument("-d")
    parser.add_argument("--data-binary")
    parser.add_argument("url")
    curl = parser.parse_args(words[1:])
    content = curl.d if curl.data_binary is None else curl.data_binary.removeprefix("@")

    class Echo(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.complete(f"Echo: {ctx.user_text}")

    server = serve(Echo(), console="on", metrics_public=True, blobs=str(tmp_path / "blobs"))
    async with server, httpx.AsyncClient(transport=InProcessTransport(server.app)) as http:
        headers = dict(header.split(": ", 1) for header in curl.H)
        method = "GET" if content is None else "POST"
        answer = await http.request(method, curl.url, headers=headers, content=content)
    assert answer.is_success, answer.text


def test_every_extra_that_is_installed_exists() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = re.findall(r"pip install '(?:errands|\.)\[([\w,]+)\]'", EVERYTHING)
    assert named
    assert {extra for group in named for extra in group.split(",")} <= extras


def test_every_example_that_is_served_exists() -> None:
    targets = {word for _, words in COMMAND_LINES if words[:1] == ["serve"] for word in words if "examples/" in word}
    assert [target for target in targets if not (ROOT / target.partition(":")[0]).exists()] == []


def options_of(command: Any) -> set[str]:
    options = [p for p in command.params if p.param_type_name == "option"]
    return {name for option in options for name in (*option.opts, *option.secondary_opts)}


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_command_is_documented_with_exactly_its_options(name: str, command: Any) -> None:
    pages = sections("docs/cli.md")
    assert name in pages, f"docs/cli.md has no heading for `{name}`"
    section = pages[name]
    if "(#shared-options)" in section:
        section += pages["Shared options"]
    rows = [row for found in tables(section) if found.header[0] == "option" for row in found.rows]
    documented = {word for row in rows for word in code(row[0]).split() if word.startswith("--")}
    assert documented == options_of(command)


def test_no_help_text_is_taken_for_markup() -> None:
    """Rich takes the end of `errands[grpc]` for a colour and leaves it out."""
    texts = [
        (name, each.help or "")
        for name, command in commands()
        for each in (command, *command.params)
        if hasattr(each, "help")
    ]
    assert [name for name, text in texts if "[" in text] == []


def test_every_extra_is_named_where_the_installation_is_explained() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = re.findall(r"pip install '\.\[(\w+)\]'", (ROOT / "docs/index.md").read_text())
    assert named == sorted(project["optional-dependencies"])


def test_every_exit_code_is_documented() -> None:
    assert set(table("docs/cli.md", "exit code")) == {str(exit_code.value) for exit_code in EXIT_CODES}


# Names


@pytest.mark.parametrize("name", sorted({*errands.__all__, *errands._MODULES}))
def test_every_public_name_is_mentioned(name: str) -> None:
    assert name in names_in_code(EVERYTHING)


@pytest.mark.parametrize("name", client.__all__)
def test_every_name_of_the_client_is_mentioned(name: str) -> None:
    assert name in names_in_code(EVERYTHING)


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_everything_for_tests_is_documented() -> None:
    own = {name for name, value in vars(testing).items() if getattr(value, "__module__", "") == testing.__name__}
    documented = {name.partition("(")[0] for name in table("docs/testing.md", "name")}
    assert documented == public(own) | {"BASE_URL"}


def arguments_of(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters) - {"self"}


@pytest.mark.anyio
async def test_every_member_of_the_context_is_documented() -> None:
    members: set[str] = set()

    class Mirror(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            members.update(public(dir(ctx)))
            await ctx.complete()

    async with connect(Mirror()) as connected:
        await connected.send("look")
    documented = {**table("docs/agents.md", "member"), **table("docs/agents.md", "method")}
    assert {name.removeprefix("ctx.").partition("(")[0] for name in documented} == members


def fields_of(model: type) -> set[str]:
    return set(getattr(model, "__struct_fields__", None) or inspect.signature(model).parameters)


def members_of(kind: object) -> set[str]:
    return {name for name in public(dir(kind)) if not name.startswith("from_")}


#: What the table of a page whose first column has this heading is about.
LISTED = {
    ("serving.md", "argument"): arguments_of(A2AServer) - {"overrides"},
    ("serving.md", "member"): members_of(A2AServer)
    | {"from_manifest", "started", "settings", "agent_card", "task_manager", "engine"},
    ("client.md", "argument"): arguments_of(A2AClient),
    ("client.md", "member"): members_of(A2AClient),
    ("client.md", "option"): set(MessageOptions.__annotations__),
    ("client.md", "field of `ClientResult`"): members_of(ClientResult),
    ("client.md", "field of `StreamEvent`"): members_of(StreamEvent),
    ("client.md", "field of `ArtifactInfo`"): members_of(ArtifactInfo),
    ("agents.md", "field"): fields_of(AgentCardConfig),
    ("agents.md", "field of `CapabilitiesConfig`"): fields_of(CapabilitiesConfig),
    ("agents.md", "field of `RequestEnvelope`"): fields_of(RequestEnvelope),
    ("agents.md", "hook"): fields_of(LifecycleHooks),
    ("durability.md", "field of `Retention`"): fields_of(Retention),
    ("serving.md", "field of `ActiveTask`"): fields_of(ActiveTask),
    ("executors.md", "member of `RequestContext`"): members_of(RequestContext(ServerCallContext())),
    ("executors.md", "field of `ServerCallContext`"): fields_of(ServerCallContext),
    ("executors.md", "method of `TaskUpdater`"): members_of(TaskUpdater),
    ("manifests.md", "argument of `from_manifest`"): arguments_of(A2AServer.from_manifest) - {"options"},
    ("manifests.md", "field of an agent"): set(field_names(documents.Agent)),
    ("manifests.md", "limit"): set(field_names(Limits)),
    ("manifests.md", "field of a capability"): set(field_names(documents.Capability)),
    ("manifests.md", "field of a step"): set(field_names(StepConfig)),
    ("manifests.md", "field of a tool"): set(field_names(documents.Tool)),
    ("manifests.md", "field of an action"): set(field_names(documents.Action)),
    ("manifests.md", "backend"): set(field_names(documents.Execute)),
    ("manifests.md", "field of a mount"): set(field_names(documents.Mount)),
    ("manifests.md", "field of a descriptor"): set(field_names(documents.Descriptor)),
    ("models.md", "field of a rule"): set(field_names(scripted.ScriptRule)),
    ("models.md", "field of `when`"): set(field_names(scripted.ScriptCondition)),
    ("models.md", "field of a call"): set(field_names(scripted.ScriptCall)),
    ("models.md", "capability"): set(BUILTINS),
    ("models.md", "method of `Model`"): members_of(Model),
}


@pytest.mark.parametrize(("page", "header"), LISTED)
def test_a_table_lists_exactly_what_there_is(page: str, header: str) -> None:
    documented = {name.partition("(")[0] for name in table(f"docs/{page}", header)}
    assert documented == LISTED[page, header]


@pytest.mark.parametrize("name", field_names(documents.Execute))
def test_every_field_of_a_backend_is_documented(name: str) -> None:
    kind = inspect.get_annotations(documents.Execute, eval_str=True)[name].__args__[0]
    assert re.findall(r"`(\w+)`", table("docs/manifests.md", "backend")[name][1]) == list(field_names(kind))


@pytest.mark.parametrize("name", ["manifests.md", "tools.md"])
def test_the_manifests_of_a_page_are_valid_together(name: str, tmp_path: Path) -> None:
    page = ROOT / "docs" / name
    bundle = tmp_path / "bundle.yaml"
    bundle.write_text("---\n".join(block.source for block in blocks(page) if block.language == "yaml"))
    assert manifests.examine(bundle).findings == []


def test_every_member_of_a_conversation_is_mentioned() -> None:
    members = public(vars(Conversation(A2AClient("http://localhost")))) | public(vars(Conversation))
    assert members <= names_in_code(sections("docs/client.md")["Conversations"])


def test_every_error_of_the_client_is_documented() -> None:
    own = {name for name in client.__all__ if is_client_error(getattr(client, name))}
    assert own <= set(table("docs/client.md", "error"))


def is_client_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, A2AClientError) and value is not A2AClientError


# Tables of values


def test_every_setting_is_documented_with_its_variable_and_default() -> None:
    documented = {
        name: [code(cell) for cell in row[1:3]] for name, row in table("docs/configuration.md", "setting").items()
    }
    assert documented == {
        field.name: [ENV_PREFIX + field.name.upper(), written(field.default)]
        for field in msgspec.structs.fields(Settings)
    }


def written(default: Any) -> str:
    """A default as the table has it."""
    if isinstance(default, int | float) and not isinstance(default, bool):
        return f"{default:.10g}"
    return str(default)


VARIABLES = re.compile(rf"\b{ENV_PREFIX}[A-Z0-9_]*[A-Z0-9]\b")


def test_every_variable_that_is_named_exists() -> None:
    settings = {ENV_PREFIX + name.upper() for name in Settings.__struct_fields__}
    of_commands = {
        name for path in (ROOT / "src/errands/cli").glob("*.py") for name in VARIABLES.findall(path.read_text())
    }
    of_tests = {"ERRANDS_SOAK"}
    named = {name for name in VARIABLES.findall(EVERYTHING) if not name.startswith(f"{ENV_PREFIX}TOOL_")}
    assert named - settings - of_commands - of_tests == set()


def test_every_test_that_is_cited_exists() -> None:
    cited = set(re.findall(r"tests/[\w/]+\.py", EVERYTHING))
    assert "tests/auth/test_matrix.py" in cited
    assert [path for path in cited if not (ROOT / path).is_file()] == []


RATES = re.compile(r"[\d,.]+/s")


@pytest.mark.parametrize(("page", "header"), [("README.md", "side by side"), ("docs/scaling.md", "store")])
def test_a_figure_is_the_same_wherever_it_stands(page: str, header: str) -> None:
    [work] = [found for found in tables((ROOT / "docs/performance.md").read_text()) if found.header[0] == "work"]
    measured = RATES.findall(str(work.rows))
    repeated = RATES.findall(str(table(page, header)))
    assert repeated
    assert set(repeated) <= set(measured)


def test_every_reason_is_documented_with_its_codes() -> None:
    documented = {
        reason: [code(cell) for cell in row[1:6]] for reason, row in table("docs/serving.md", "reason").items()
    }
    assert documented == {
        reason: [
            str(status.jsonrpc),
            str(status.http),
            status.grpc,
            str(JSONRPC_HTTP.get(reason, 200)),
            ERRORS[reason].__name__,
        ]
        for reason, status in STATUS.items()
    }


def test_every_http_path_is_documented() -> None:
    class Silent(Worker):
        async def handle(self, ctx: TaskContext) -> None: ...

    pages = {f"GET {path}" for path in serve(Silent()).app._pages}
    assert {f"GET {path}" for path in CARD_PATHS} <= pages
    operations = {f"{operation.http_method} {operation.path}" for operation in OPERATIONS.values()}
    assert set(table("docs/serving.md", "request")) == {
        *("POST /", f"POST {praisonai.PATH}", *blobs.REQUESTS, *pages, *operations)
    }


def test_every_endpoint_for_operators_is_documented_with_what_it_shows() -> None:
    page = "docs/operator-api.md"
    assert set(table(page, "endpoint")) == {f"{endpoint.method} {endpoint.path}" for endpoint in ENDPOINTS}
    for header, model in (("field of a row", TableRow), ("field of a span", TimelineSpan)):
        rows = [row for found in tables((ROOT / page).read_text()) if found.header[0] == header for row in found.rows]
        documented = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
        assert documented == {field.encode_name for field in msgspec.structs.fields(model)}
    assert {field.encode_name for field in msgspec.structs.fields(Timeline)} <= names_in_code((ROOT / page).read_text())


def test_every_operation_stands_beside_its_path() -> None:
    rows = table("docs/serving.md", "request")
    for operation in OPERATIONS.values():
        assert operation.name in rows[f"{operation.http_method} {operation.path}"][1]


# Links


@pytest.mark.parametrize("link", links(), ids=lambda link: f"{link.page.name}-{link.target}")
def test_every_link_leads_somewhere(link: Link) -> None:
    path, _, anchor = link.target.partition("#")
    target = (link.page.parent / path).resolve() if path else link.page
    assert target.exists()
    if anchor:
        assert anchor in anchors(target)


def test_every_page_is_linked_from_the_index() -> None:
    linked = {link.target for link in links() if link.page.name == "index.md"}
    assert {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"} <= linked
