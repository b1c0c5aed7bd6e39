"""The four operations on push configs, and configs inside a send, over every dialect."""

from __future__ import annotations

from typing import Any

import pytest

from errands import errors
from errands.model.requests import AuthenticationInfo, TaskPushNotificationConfig
from errands.testing import connect, serve
from tests.interaction.agents import Asks, ByHeader, Echo
from tests.interaction.conftest import Connect, Dialect, one_dialect
from tests.interaction.wire import CARD, call, http, message

pytestmark = pytest.mark.anyio

URL = "https://hooks.example.com/a?key=1"
#: Nothing is sent in these tests.
QUIET: dict[str, Any] = {"push_concurrency": 0}


async def test_a_config_is_created_returned_listed_and_deleted(connected: Connect) -> None:
    async with connected(Asks(), **QUIET) as client:
        task_id = (await client.send("hi")).task_id
        info = AuthenticationInfo(scheme="Bearer", credentials="pass")
        made = await client.set_push_config(task_id, url=URL, token="token", config_id="b", authentication=info)
        assert (made.task_id, made.id, made.url, made.token) == (task_id, "b", URL, "token")
        assert made.authentication == info
        assert await client.get_push_config(task_id, "b") == made
        other = await client.set_push_config(task_id, url="https://hooks.example.com/other", config_id="a")
        assert await client.list_push_configs(task_id) == [other, made]
        again = await client.set_push_config(task_id, url="https://hooks.example.com/new", config_id="a")
        assert await client.list_push_configs(task_id) == [again, made]
        await client.delete_push_config(task_id, "a")
        await client.delete_push_config(task_id, "a")
        assert await client.list_push_configs(task_id) == [made]
        with pytest.raises(errors.TaskNotFoundError):
            await client.get_push_config(task_id, "a")


async def test_a_config_inside_a_send_is_there_when_the_task_is(connected: Connect) -> None:
    async with connected(Asks(), **QUIET) as client:
        sent = await client.send("hi", push_url=URL, push_token="token")
        (config,) = await client.list_push_configs(sent.task_id)
        assert (config.url, config.token, config.id) == (URL, "token", sent.task_id)
        more = TaskPushNotificationConfig(url=URL, id="second")
        await client.send("answer", task_id=sent.task_id, push_notification_config=more)
        assert [config.id for config in await client.list_push_configs(sent.task_id)] == sorted(
            [sent.task_id, "second"]
        )


@one_dialect
async def test_a_config_without_an_id_has_that_of_the_task(connected: Connect) -> None:
    async with connected(Asks(), **QUIET) as client:
        task_id = (await client.send("hi")).task_id
        for _ in range(2):
            assert (await client.set_push_config(task_id, url=URL)).id == task_id
        assert len(await client.list_push_configs(task_id)) == 1


async def test_a_task_that_does_not_exist_has_no_configs(dialect: Dialect, connected: Connect) -> None:
    async with connected(Asks(), **QUIET) as client:
        for operation in (
            client.set_push_config("unknown", url=URL),
            client.get_push_config("unknown", "a"),
            client.list_push_configs("unknown"),
            client.delete_push_config("unknown", "a"),
        ):
            with pytest.raises(errors.TaskNotFoundError):
                await operation


async def test_a_task_has_no_more_configs_than_the_setting_allows(binding: str) -> None:
    async with http(serve(Asks(), push_configs_per_task=2, **QUIET)) as client:
        _, asked = await call(client, "SendMessage", {"message": message()}, binding)
        params = {"taskId": asked["task"]["id"], "url": URL}
        for config_id in "aba":
            reason, _ = await call(client, "CreateTaskPushNotificationConfig", {**params, "id": config_id}, binding)
            assert reason is None
        reason, error = await call(client, "CreateTaskPushNotificationConfig", {**params, "id": "c"}, binding)
        assert reason == "TOO_MANY_PUSH_CONFIGS"
        assert "delete one first" in error["message"]


@pytest.mark.parametrize("name", ["Create", "Get", "List", "Delete"])
async def test_configs_of_somebody_elses_task_are_not_found(binding: str, name: str) -> None:
    async with http(serve(Asks(), middlewares=[ByHeader()], **QUIET)) as client:
        alice, bob = {"X-User": "alice"}, {"X-User": "bob"}
        _, asked = await call(client, "SendMessage", {"message": message()}, binding, **alice)
        task_id = asked["task"]["id"]
        config = {"taskId": task_id, "url": URL, "id": "a", "token": "hush"}
        await call(client, "CreateTaskPushNotificationConfig", config, binding, **alice)
        operation = f"{name}TaskPushNotificationConfig{'s' if name == 'List' else ''}"
        params = config if name == "Create" else {"taskId": task_id, "id": "a"}
        reason, error = await call(client, operation, params, binding, **bob)
        assert reason == "TASK_NOT_FOUND"
        unknown = await call(client, operation, {**params, "taskId": "unknown"}, binding, **bob)
        assert {**error, "details": 0, "data": 0} == {**unknown[1], "details": 0, "data": 0}
        _, listed = await call(client, "ListTaskPushNotificationConfigs", {"taskId": task_id}, binding, **alice)
        assert [one["id"] for one in listed["configs"]] == ["a"]


async def test_configs_are_listed_in_pages() -> None:
    async with http(serve(Asks(), **QUIET)) as client:
        task_id = (await client.post("/message:send", json={"message": message()})).json()["task"]["id"]
        path = f"/tasks/{task_id}/pushNotificationConfigs"
        for config_id in "abc":
            await client.post(path, json={"url": URL, "id": config_id})
        first = (await client.get(path, params={"pageSize": 2})).json()
        rest = (await client.get(path, params={"pageSize": 2, "pageToken": first["nextPageToken"]})).json()
        assert [one["id"] for one in first["configs"] + rest["configs"]] == ["a", "b", "c"]
        assert "nextPageToken" not in rest


#: Addresses of machines that a stranger must not reach through this server, in every notation.
CLOSED = [
    "http://127.0.0.1/",
    "http://localhost/",
    "http://a.localhost/",
    "http://localhost./",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://0177.1/",
    "http://127.1/",
    "http://0/",
    "http://169.254.169.254/latest/meta-data",
    "http://10.0.0.1/",
    "http://[fd00::1]/",
]
MALFORMED = [
    "ftp://example.com/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    "example.com",
    "//example.com/",
    "http://",
    "http:///path",
    "http://user:password@example.com/",
    "http://user@example.com/",
    "http://example.com@127.0.0.1/",
    "http://example.com/\r\nX-Injected: 1",
    "http://example.com/\n",
    "http://exam ple.com/",
    "http://example.com\\@127.0.0.1/",
    "http://example.com:99999/",
    "http://example.com:port/",
    "http://example.com:0/",
    "http://example.com:-1/",
    "http://xn--/",
    "http://xn--a.com/",
    "http://example.com/" + "a" * 3000,
    "http://exämple.com/",
]


@pytest.mark.parametrize("url", CLOSED + MALFORMED)
async def test_a_webhook_that_may_not_be_called_is_refused(url: str) -> None:
    async with http(serve(Echo(), **QUIET)) as client:
        body = {"message": message(), "configuration": {"taskPushNotificationConfig": {"url": url}}}
        reason, error = await call(client, "SendMessage", body, "jsonrpc")
        assert reason == "INVALID_PARAMS"
        assert error["data"][1]["fieldViolations"][0]["field"] == "configuration.taskPushNotificationConfig.url"
        assert "password" not in error["message"].replace("user name and password", "")
        assert (await client.get("/tasks")).json()["totalSize"] == 0
        task_id = (await client.post("/message:send", json={"message": message()})).json()["task"]["id"]
        params = {"taskId": task_id, "url": url}
        assert (await call(client, "CreateTaskPushNotificationConfig", params, "jsonrpc"))[0] == "INVALID_PARAMS"


@pytest.mark.parametrize(
    "fields",
    [
        {"token": "a\r\nX-Injected: 1"},
        {"token": "ä"},
        {"token": " X-Injected"},
        {"token": "X-Injected "},
        {"token": "a" * 5000},
        {"authentication": {"scheme": "Bearer\r\nX-Injected: 1"}},
        {"authentication": {"scheme": ""}},
        {"authentication": {"scheme": "Bearer", "credentials": "a\nb"}},
        {"id": "a" * 300},
        {"id": "a\x00b"},
    ],
)
async def test_a_value_that_no_header_can_have_is_refused(fields: dict[str, Any]) -> None:
    async with http(serve(Asks(), **QUIET)) as client:
        _, asked = await call(client, "SendMessage", {"message": message()}, "jsonrpc")
        params = {"taskId": asked["task"]["id"], "url": URL, **fields}
        reason, error = await call(client, "CreateTaskPushNotificationConfig", params, "jsonrpc")
        assert reason == "INVALID_PARAMS"
        assert "X-Injected" not in error["message"]


async def test_private_addresses_can_be_opened() -> None:
    async with connect(Asks(), push_allow="127.0.0.0/8,localhost", **QUIET) as client:
        task_id = (await client.send("hi")).task_id
        for url in ("http://127.0.0.1:1/", "http://localhost:1/", "http://2130706433/"):
            await client.set_push_config(task_id, url=url)
        with pytest.raises(errors.InvalidParamsError, match="ERRANDS_PUSH_ALLOW"):
            await client.set_push_config(task_id, url="http://10.0.0.1/")


async def test_the_card_offers_push_notifications() -> None:
    async with http(serve(Echo())) as client:
        assert (await client.get(CARD)).json()["capabilities"]["pushNotifications"] is True
