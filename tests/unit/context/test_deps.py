"""`ctx.deps`: the dependency container registered on the server."""

from __future__ import annotations

import pytest

from errands import Dependency, DependencyContainer, StorageError, TaskContext
from errands.testing import connect, serve
from tests.unit.support import Agent, Gate, running

pytestmark = pytest.mark.anyio


class DatabasePool(Dependency):
    """Notes in `log` what happens to it."""

    def __init__(self, log: list[str], name: str = "pool", *, breaks: str | None = None) -> None:
        self._log = log
        self._name = name
        self._breaks = breaks

    async def startup(self) -> None:
        self._note("startup")

    async def shutdown(self) -> None:
        self._note("shutdown")

    def _note(self, what: str) -> None:
        self._log.append(f"{what} {self._name}")
        if self._breaks == what:
            raise RuntimeError(f"{self._name} cannot {what}")


async def nothing(ctx: TaskContext) -> None:
    await ctx.complete()


async def test_deps_are_accessed_by_type_key_or_string_key() -> None:
    pool = DatabasePool([])
    seen: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        db = ctx.deps[DatabasePool]
        key = ctx.deps.get("api_key", "default")
        seen.extend([db, key])
        await ctx.complete()

    async with running(handle, dependencies={DatabasePool: pool, "api_key": "k"}) as client:
        await client.send("hi")
    assert seen == [pool, "k"]


async def test_deps_get_gives_the_default_when_nothing_is_registered() -> None:
    seen: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend([ctx.deps.get("api_key", "default"), ctx.deps.get("api_key"), "api_key" in ctx.deps])
        await ctx.complete()

    async with running(handle) as client:
        await client.send("hi")
    assert seen == ["default", None, False]


async def test_deps_is_a_dependency_container_even_when_nothing_is_registered() -> None:
    seen: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.deps)
        await ctx.complete()

    async with running(handle) as client:
        await client.send("hi")
    assert isinstance(seen[0], DependencyContainer)


def test_a_missing_dependency_is_a_key_error_that_names_what_is_registered() -> None:
    deps = DependencyContainer({DatabasePool: DatabasePool([]), "api_key": "k"})
    with pytest.raises(KeyError, match=r"no dependency 'cache'; registered: DatabasePool, 'api_key'"):
        deps["cache"]


async def test_dependencies_start_in_the_order_of_registration_and_shut_down_in_reverse() -> None:
    log: list[str] = []
    dependencies = {name: DatabasePool(log, name) for name in ("a", "b", "c")}
    async with running(nothing, dependencies=dependencies) as client:
        assert log == ["startup a", "startup b", "startup c"]
        await client.send("hi")
        assert len(log) == 3
    assert log[3:] == ["shutdown c", "shutdown b", "shutdown a"]


async def test_plain_values_are_neither_started_nor_shut_down() -> None:
    class Plain:
        def startup(self) -> None:
            raise AssertionError("only a Dependency has a life of its own")

    async with running(nothing, dependencies={"plain": Plain()}) as client:
        assert (await client.send("hi")).completed


async def test_when_a_dependency_does_not_start_those_before_it_are_shut_down_and_the_server_does_not_start() -> None:
    log: list[str] = []
    dependencies = {
        "a": DatabasePool(log, "a"),
        "b": DatabasePool(log, "b"),
        "c": DatabasePool(log, "c", breaks="startup"),
        "d": DatabasePool(log, "d"),
    }
    server = serve(Agent(nothing), dependencies=dependencies)
    with pytest.raises(RuntimeError, match="c cannot startup"):
        await server.start()
    assert log == ["startup a", "startup b", "startup c", "shutdown b", "shutdown a"]
    assert not server.started


async def test_a_dependency_that_does_not_shut_down_is_logged_and_does_not_keep_the_others_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[str] = []
    dependencies = {
        "a": DatabasePool(log, "a"),
        "b": DatabasePool(log, "b", breaks="shutdown"),
        "c": DatabasePool(log, "c"),
    }
    async with running(nothing, dependencies=dependencies):
        log.clear()
    assert log == ["shutdown c", "shutdown b", "shutdown a"]
    assert "DatabasePool did not shut down" in caplog.text
    assert "b cannot shutdown" in caplog.text


async def test_dependencies_are_shut_down_when_the_storage_cannot_be_opened() -> None:
    log: list[str] = []
    server = serve(Agent(nothing), dependencies={"a": DatabasePool(log, "a")}, storage="sqlite:////dev/null/tasks.db")
    with pytest.raises(StorageError, match="/dev/null"):
        await server.start()
    assert log == ["startup a", "shutdown a"]


async def test_dependencies_stay_open_until_the_last_turn_has_ended(storage: str) -> None:
    log: list[str] = []
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        log.append("turn ended")
        await ctx.complete()

    server = serve(Agent(handle), storage=storage, dependencies={"a": DatabasePool(log, "a")})
    async with connect(server) as client:
        await client.send("hi", blocking=False)
        await gate.reached.wait()
        gate.open()
    assert log == ["startup a", "turn ended", "shutdown a"]


async def test_starting_and_stopping_the_container_twice_does_nothing_more() -> None:
    log: list[str] = []
    deps = DependencyContainer({"a": DatabasePool(log, "a")})
    await deps.startup()
    await deps.startup()
    await deps.shutdown()
    await deps.shutdown()
    assert log == ["startup a", "shutdown a"]
