"""Delivering push notifications to a real receiver."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from errands import A2AClient, AgentCardConfig, CapabilitiesConfig, TaskContext
from errands.engines.base import Engine
from errands.errors import ConfigurationError
from errands.model.core import Part
from errands.model.log import Change, PushConfig
from errands.model.requests import AuthenticationInfo, TaskPushNotificationConfig
from errands.outbound import Outbound
from errands.runtime import push
from errands.runtime.webhooks import signing_key
from errands.testing import BASE_URL, connect, http_client, serve
from errands.wire.card_signing import SigningKey
from tests.push.receiver import Receiver
from tests.unit.support import ANYBODY, Agent, Gate
from tests.waiting import happens, until

pytestmark = pytest.mark.anyio

ALLOWED: dict[str, Any] = {"push_allow": "127.0.0.1", "poll_interval": 0.02}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(push, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(push, "LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(push, "FIRST_BREAK", 0.05)
    monkeypatch.setattr(push, "LONGEST_BREAK", 0.1)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with Receiver().up() as receiver:
        yield receiver


async def talk(ctx: TaskContext) -> None:
    await ctx.send_status("thinking")
    await ctx.emit_text_artifact("one")
    await ctx.complete("done")


async def send(client: A2AClient, receiver: Receiver, **fields: Any) -> str:
    config = TaskPushNotificationConfig(url=receiver.url, **fields)
    return (await client.send("hi", push_notification_config=config)).task_id


async def ended(receiver: Receiver) -> None:
    await until(lambda: "completed" in receiver.states())


async def test_a_webhook_of_a_send_is_told_everything_in_order(receiver: Receiver, storage: str) -> None:
    async with connect(Agent(talk), storage=storage, **ALLOWED) as client:
        task_id = await send(client, receiver)
        await ended(receiver)
    assert list(dict.fromkeys(receiver.states())) == ["submitted", "working", "", "completed"]
    assert receiver.received[0].body["task"]["id"] == task_id
    assert len(set(receiver.ids())) == len(receiver.ids())


async def test_a_webhook_of_a_running_task_is_told_what_follows(receiver: Receiver) -> None:
    gate = Gate()

    async def wait(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete("done")

    async with connect(Agent(wait), **ALLOWED) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        await happens(gate.reached)
        config = await client.set_push_config(task_id, url=receiver.url)
        assert (config.task_id, config.id) == (task_id, task_id)
        gate.open()
        await ended(receiver)
    assert receiver.states() == ["", "completed"]


async def test_a_request_has_the_headers_that_were_asked_for(receiver: Receiver) -> None:
    async with connect(Agent(talk), **ALLOWED, push_secret="hush") as client:
        info = AuthenticationInfo(scheme="Bearer", credentials="pass")
        await send(client, receiver, token="token", authentication=info)
        await ended(receiver)
    for one in receiver.received:
        headers = one.headers
        assert headers["authorization"] == "Bearer pass"
        assert headers["x-a2a-notification-token"] == "token"
        assert headers["content-type"] == "application/a2a+json"
        assert headers["a2a-version"] == "1.0"
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + one.raw
        digest = hmac.new(b"hush", signed, hashlib.sha256).digest()
        assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize("kind", ["EC", "OKP", "RSA"])
@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_a_receiver_verifies_the_jwt_of_a_notification_through_the_key_set_of_the_server(
    receiver: Receiver, kind: str, version: str
) -> None:
    keys: dict[str, Any] = {"EC": ECKey, "OKP": OKPKey, "RSA": RSAKey}
    key = keys[kind].generate_key(private=True).as_dict(private=True)
    options = {"signing": [SigningKey(key, kid="k1")], "push_jwt": True, "public_url": BASE_URL}
    server = serve(Agent(talk), **ALLOWED, **options)
    async with connect(server, client={"version": version}) as client, http_client(server) as http:
        task_id = await send(client, receiver, id="hook", authentication=AuthenticationInfo(scheme="Bearer"))
        await until(lambda: b"completed" in receiver.received[-1].raw.lower() if receiver.received else False)
        published = KeySet.import_key_set((await http.get("/.well-known/jwks.json")).json())
    expected = jwt.JWTClaimsRegistry(
        iss={"essential": True, "value": BASE_URL},
        aud={"essential": True, "value": receiver.url},
        exp={"essential": True},
    )
    for one in receiver.received:
        token = jwt.decode(one.headers["webhook-jwt"], published, algorithms=["ES256", "EdDSA", "RS256"])
        expected.validate(token.claims)
        assert token.header["kid"] == "k1"
        assert (token.claims["sub"], token.claims["jti"]) == (task_id, one.headers["webhook-id"])
        assert token.claims["request_body_sha256"] == hashlib.sha256(one.raw).hexdigest()
        # Receivers that ask for a bearer token and have none to give get this one.
        assert one.headers["authorization"] == f"Bearer {one.headers['webhook-jwt']}"
    other = KeySet([ECKey.generate_key(parameters={"kid": "k1"})])
    with pytest.raises(JoseError):
        jwt.decode(receiver.received[0].headers["webhook-jwt"], other, algorithms=["ES256", "EdDSA", "RS256"])


async def test_a_jwt_leaves_the_credentials_of_a_config_as_they_are(receiver: Receiver) -> None:
    key = ECKey.generate_key(private=True).as_dict(private=True)
    async with connect(Agent(talk), **ALLOWED, signing=[SigningKey(key)], push_jwt=True, push_secret="hush") as client:
        await send(client, receiver, authentication=AuthenticationInfo(scheme="Bearer", credentials="pass"))
        await ended(receiver)
    headers = receiver.received[0].headers
    assert headers["authorization"] == "Bearer pass"
    assert {"webhook-jwt", "webhook-signature"} <= headers.keys()


def test_signing_with_a_jwt_needs_a_key() -> None:
    with pytest.raises(ConfigurationError, match="push_jwt needs a key to sign with"):
        serve(Agent(talk), push_jwt=True)


def test_a_secret_in_the_form_of_standard_webhooks_is_decoded() -> None:
    assert signing_key("whsec_aHVzaA==") == b"hush"
    assert signing_key("aHVzaA==") == b"aHVzaA=="


@pytest.mark.parametrize("setting", [{"push_secret": "whsec_hush!"}, {"push_allow": "http://x"}])
def test_a_setting_that_cannot_be_used_is_refused_at_once(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"push_secret|ERRANDS_PUSH_ALLOW") as refused:
        serve(Agent(talk), **setting)
    assert "hush" not in str(refused.value)


def test_a_card_that_offers_what_the_settings_turn_off_is_refused() -> None:
    card = AgentCardConfig(name="A", description="A.", capabilities=CapabilitiesConfig(push_notifications=True))
    with pytest.raises(ConfigurationError, match="the setting push_notifications is off"):
        serve(Agent(talk), agent_card=card, push_notifications=False)


async def test_a_config_made_in_0_3_is_told_the_task(receiver: Receiver) -> None:
    async with connect(Agent(talk), **ALLOWED, client={"version": "0.3"}) as client:
        task_id = await send(client, receiver)
        await until(lambda: receiver.received and receiver.received[-1].body["status"]["state"] == "completed")
    last = receiver.received[-1]
    assert (last.body["kind"], last.body["id"]) == ("task", task_id)
    assert last.headers["content-type"] == "application/json"


async def test_a_webhook_that_fails_gets_the_same_event_again_and_then_the_others(receiver: Receiver) -> None:
    refused: list[str] = []

    async def answer(one: Any) -> int:
        if one.state == "submitted" and len(refused) < 7:
            refused.append(one.headers["webhook-id"])
            return 500
        return 204

    receiver.answer = answer
    async with connect(Agent(talk), **ALLOWED) as client:
        await send(client, receiver)
        await ended(receiver)
    assert len(refused) == 7
    assert len(set(refused)) == 1
    assert receiver.ids()[:8] == [refused[0]] * 8
    assert len(set(receiver.ids()[7:])) == len(receiver.ids()[7:])


async def test_a_webhook_that_is_down_gets_everything_when_it_comes_back(storage: str) -> None:
    receiver = Receiver()
    async with connect(Agent(talk), storage=storage, **ALLOWED) as client:
        await send(client, receiver)
        async with receiver.up():
            await ended(receiver)
    assert receiver.states()[0] == "submitted"


async def test_what_was_not_delivered_is_delivered_by_the_next_process(receiver: Receiver, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    receiver.status = 503
    async with connect(Agent(talk), storage=url, **ALLOWED) as client:
        await send(client, receiver)
        await happens(receiver.came)
    first = receiver.received[0]
    receiver.status = 200
    async with serve(Agent(talk), storage=url, **ALLOWED):
        await ended(receiver)
    accepted = receiver.received[-len(set(receiver.ids())) :]
    assert accepted[0].headers["webhook-id"] == first.headers["webhook-id"]


async def test_a_hanging_host_holds_nobody_up(receiver: Receiver) -> None:
    hanging = Receiver()
    forever = asyncio.Event()

    async def answer(one: Any) -> int:
        await forever.wait()
        return 200

    hanging.answer = answer
    options = {**ALLOWED, "push_concurrency": 3, "push_concurrency_per_host": 2}
    async with hanging.up(), connect(Agent(talk), **options) as client:
        for _ in range(5):
            await send(client, hanging)
        await until(lambda: len(hanging.received) == 1)
        await send(client, receiver)
        await ended(receiver)
        assert len(hanging.received) == 1
        forever.set()
        await until(lambda: hanging.states().count("completed") == 5)


async def test_many_hosts_that_hang_do_not_hold_up_one_that_works(receiver: Receiver) -> None:
    forever = asyncio.Event()

    async def answer(one: Any) -> int:
        await forever.wait()
        return 200

    async with AsyncExitStack() as stack:
        hanging = [await stack.enter_async_context(Receiver().up()) for _ in range(4)]
        client = await stack.enter_async_context(connect(Agent(talk), **ALLOWED, push_concurrency=4))
        await send(client, receiver)
        await ended(receiver)
        for one in hanging:
            one.answer = answer
            await send(client, one)
        await until(lambda: sum(len(one.received) for one in hanging) == 2)
        receiver.received.clear()
        await send(client, receiver)
        await ended(receiver)
        assert sum(len(one.received) for one in hanging) == 2
        forever.set()


async def test_hosts_that_answer_slowly_do_not_hold_up_one_that_works(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "LATE", 0.0)
    forever = asyncio.Event()

    async def answer(one: Any) -> int:
        await forever.wait()
        return 200

    options = {**ALLOWED, "push_concurrency": 4, "push_concurrency_per_host": 4}
    async with AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(Receiver().up()) for _ in range(4)]
        server = serve(Agent(talk), **options)
        client = await stack.enter_async_context(connect(server))
        for one in slow:
            await send(client, one)
            await ended(one)
        while any(entry.due_at is not None for entry in await entries(server.engine)):
            await asyncio.sleep(0)
        for one in slow:
            one.received.clear()
            one.answer = answer
        monkeypatch.setattr(push, "LATE", 10.0)
        await send(client, receiver)
        await ended(receiver)
        for one in slow:
            for _ in range(4):
                await send(client, one)
        receiver.received.clear()
        await until(lambda: any(one.received for one in slow))
        await send(client, receiver)
        await ended(receiver)
        # They share a quarter of the requests.
        assert sum(len(one.received) for one in slow) == 1
        forever.set()


async def test_a_host_has_one_request_more_at_a_time_with_each_prompt_answer(receiver: Receiver) -> None:
    at_once: list[int] = []
    arrived = 0

    async def answer(one: Any) -> int:
        nonlocal arrived
        arrived += 1
        at_once.append(arrived)
        await asyncio.sleep(0)
        arrived -= 1
        return 200

    receiver.answer = answer
    async with connect(Agent(talk), **ALLOWED, push_concurrency_per_host=2) as client:
        for _ in range(10):
            await send(client, receiver)
        await until(lambda: receiver.states().count("completed") == 10)
    assert at_once[0] == 1
    assert max(at_once) <= 2


async def test_hosts_that_failed_and_hang_do_not_hold_up_a_new_one(receiver: Receiver) -> None:
    forever = asyncio.Event()

    async def answer(one: Any) -> int:
        await forever.wait()
        return 200

    async with AsyncExitStack() as stack:
        failing = [await stack.enter_async_context(Receiver().up()) for _ in range(4)]
        client = await stack.enter_async_context(connect(Agent(talk), **ALLOWED, push_concurrency=4))
        for one in failing:
            one.status = 500
            await send(client, one)
        await until(lambda: all(one.received for one in failing))
        for one in failing:
            one.received.clear()
            one.answer = answer
        await until(lambda: any(one.received for one in failing))
        await send(client, receiver)
        await ended(receiver)
        assert sum(len(one.received) for one in failing) == 1
        forever.set()


async def test_names_that_nobody_resolves_hold_up_no_other_name(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered, asked = threading.Event(), set[str]()
    receiver.headers = [(b"connection", b"close")]
    resolve = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **options: Any) -> Any:
        if host.endswith(".example"):
            asked.add(host)
            answered.wait()
            raise socket.gaierror("no such name")
        return resolve(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    options = {**ALLOWED, "push_allow": "127.0.0.1,localhost"}
    try:
        async with connect(Agent(talk), **options) as client:
            here = TaskPushNotificationConfig(url=receiver.url.replace("127.0.0.1", "localhost"))
            await client.send("hi", push_notification_config=here)
            await ended(receiver)
            for number in range(40):
                config = TaskPushNotificationConfig(url=f"http://h{number}.example/")
                await client.send("hi", push_notification_config=config)
            await until(lambda: len(asked) == 32)
            receiver.received.clear()
            await client.send("hi", push_notification_config=here)
            await asyncio.to_thread(lambda: None)  # other work in threads is not held up, either
            await ended(receiver)
            answered.set()
    finally:
        answered.set()


async def test_a_webhook_that_does_not_answer_in_time_has_failed(receiver: Receiver) -> None:
    forever = asyncio.Event()

    async def answer(one: Any) -> int:
        if len(receiver.received) == 1:
            await forever.wait()
        return 200

    receiver.answer = answer
    async with connect(Agent(talk), **ALLOWED, push_timeout=0.1) as client:
        await send(client, receiver)
        await ended(receiver)
        forever.set()
    assert receiver.ids()[0] == receiver.ids()[1]


async def entries(engine: Engine) -> list[Any]:
    return [entry async for entry in engine.outbox()]


async def test_a_webhook_that_fails_for_too_long_is_given_up(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.status = 500
    server = serve(Agent(talk), **ALLOWED, push_give_up_after=0.1)
    with caplog.at_level(logging.INFO):
        async with connect(server) as client:
            task_id = await send(client, receiver, token="hush", authentication=AuthenticationInfo(scheme="hush"))
            await until(lambda: "is given up" in caplog.text)
            while not (entry := (await entries(server.engine))[0]).dead:
                await asyncio.sleep(0)
            assert (entry.error, entry.due_at, entry.delivered) == ("HTTP 500", None, 0)
            receiver.status = 200
            # Clients choose how many webhooks fail how often: each has one line in the log.
            assert caplog.text.count("the webhook ") == 1
            assert await server.engine.retry_delivery(task_id, task_id)
            await ended(receiver)
    assert "hush" not in caplog.text
    assert "/hook" not in caplog.text


async def test_deliveries_are_counted_by_their_outcome(receiver: Receiver) -> None:
    server = serve(Agent(talk), **ALLOWED, push_give_up_after=0.1)

    def counted() -> dict[str, float]:
        assert server.reporter is not None
        [shown] = server.reporter.exposed()
        found = [one for one in shown.samples if one.name == "errands_deliveries_total"]
        return {one.labels["outcome"]: one.value for one in found}

    async with connect(server) as client:
        await send(client, receiver)
        await ended(receiver)
        await until(lambda: counted()["delivered"] == len(receiver.received))
        receiver.status = 500
        await send(client, receiver)
        await until(lambda: counted()["dead"] == 1)
        assert counted()["failed"] >= 1


async def test_a_webhook_that_is_gone_is_not_called_again(receiver: Receiver) -> None:
    receiver.status = 410
    server = serve(Agent(talk), **ALLOWED)
    async with connect(server) as client:
        await send(client, receiver)
        while not (await entries(server.engine))[0].dead:
            await asyncio.sleep(0)
    assert len(receiver.received) == 1


async def test_a_host_that_keeps_failing_is_left_alone_for_a_while(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(push, "FIRST_BREAK", 3600.0)
    monkeypatch.setattr(push, "LONGEST_BREAK", 3600.0)
    receiver.status = 500
    server = serve(Agent(talk), **ALLOWED, push_concurrency_per_host=1)
    async with connect(server) as client:
        for _ in range(10):
            await send(client, receiver)
        await until(lambda: len(receiver.received) == push.BREAK_AFTER)
        async with Receiver().up() as other:
            await send(client, other)
            await ended(other)
    assert len(receiver.received) == push.BREAK_AFTER


async def test_a_redirect_is_a_failure_and_not_followed(receiver: Receiver) -> None:
    async with Receiver().up() as other:
        receiver.status, receiver.headers = 302, [(b"location", other.url.encode())]
        async with connect(Agent(talk), **ALLOWED) as client:
            await send(client, receiver)
            await until(lambda: len(receiver.received) > 2)
        assert other.received == []


async def test_events_that_are_gone_are_told_as_the_task(receiver: Receiver, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    off = serve(Agent(talk), storage=url, push_allow="127.0.0.1", push_concurrency=0, keep_events=1)
    async with connect(off) as client:
        task_id = await send(client, receiver)
        await off.engine.sweep()
        assert (await off.engine.read(task_id, ANYBODY, 0)).gap
    async with serve(Agent(talk), storage=url, **ALLOWED):
        await ended(receiver)
    assert receiver.received[0].body["task"]["artifacts"]
    assert len(receiver.received) == 1


async def test_a_process_without_deliveries_leaves_them_to_others(receiver: Receiver, tmp_path: Any) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with connect(Agent(talk), storage=url, push_allow="127.0.0.1", push_concurrency=0) as client:
        await send(client, receiver)
        async with serve(Agent(talk), storage=url, **ALLOWED):
            await ended(receiver)


async def test_a_config_that_was_deleted_is_told_nothing_more(receiver: Receiver) -> None:
    gate = Gate()

    async def wait(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete("done")

    async with connect(Agent(wait), **ALLOWED) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        await happens(gate.reached)
        await client.set_push_config(task_id, url=receiver.url, config_id="a")
        await client.set_push_config(task_id, url=receiver.url + "/b", config_id="b")
        await client.delete_push_config(task_id, "a")
        await client.delete_push_config(task_id, "a")
        gate.open()
        await ended(receiver)
    assert {one.path for one in receiver.received} == {"/hook/b"}


async def test_a_name_that_changes_to_a_private_address_is_not_called(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the name was public when it was registered, and each connection is checked again."""
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    guard = Outbound(resolve=resolve, variable="ERRANDS_PUSH_ALLOW")
    monkeypatch.setattr("errands.server.app.push_guard", lambda settings: guard)
    server = serve(Agent(talk), poll_interval=0.02)
    async with connect(server) as client:
        config = TaskPushNotificationConfig(url=f"http://rebind.example:{receiver.port}/hook")
        await client.send("hi", push_notification_config=config)
        await until(lambda: len(asked) > 2)
        (entry,) = await entries(server.engine)
    assert "127.0.0.1, which is this machine" in entry.error
    assert receiver.received == []


async def test_a_long_answer_is_not_read(receiver: Receiver) -> None:
    class Endless(Receiver):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.came.set()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for _ in range(1000):
                await send({"type": "http.response.body", "body": b"x" * 10_000, "more_body": True})

    server = serve(Agent(talk), **ALLOWED)
    async with Endless().up() as endless, connect(server) as client:
        await send(client, endless)
        while (entry := (await entries(server.engine))[0]).due_at is not None:
            await asyncio.sleep(0)
        assert not entry.error
        await send(client, receiver)
        await ended(receiver)


@pytest.mark.parametrize("token", [" top-secret", "top-secret ", "top\nsecret"])
async def test_a_stored_token_that_no_header_can_have_is_in_no_log_and_no_error(
    token: str, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """Older releases have accepted some."""
    gate = Gate()

    async def wait(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete()

    server = serve(Agent(wait), **ALLOWED)
    with caplog.at_level(logging.DEBUG, logger="errands"), caplog.at_level(logging.INFO, logger="httpcore"):
        async with connect(server) as client:
            task_id = (await client.send("hi", blocking=False)).task_id
            await happens(gate.reached)
            config = PushConfig(id="c", url=receiver.url, host=f"127.0.0.1:{receiver.port}", token=token)
            at = server.engine.clock()
            await server.engine.commit(Change(task_id=task_id, scope=server.scope(), at=at, push=config, push_limit=9))
            gate.open()
            while not (entry := (await entries(server.engine))[0]).error:
                await asyncio.sleep(0)
    assert "secret" not in entry.error
    assert "secret" not in caplog.text
    assert receiver.received == []


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@pytest.mark.parametrize("tenant", ["", "a/b"])
async def test_a_webhook_is_told_addresses_of_large_files(
    version: str, tenant: str, receiver: Receiver, tmp_path: Path
) -> None:
    large = bytes(300_000)

    async def answer(ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="a", file_bytes=large, filename="x.bin")
        await ctx.emit_artifact(artifact_id="b", data={"note": '"url":"errands-blob:x"'})
        await ctx.complete("done")

    options = {"blobs": str(tmp_path), "public_url": BASE_URL, **ALLOWED}
    server = serve(Agent(answer), **options)
    if version == "0.3" and tenant:
        pytest.skip("0.3 has no tenants")
    async with connect(server, client={"version": version, "tenant": tenant or None, "protocol": "jsonrpc"}) as client:
        config = TaskPushNotificationConfig(url=receiver.url)
        await client.send([Part(raw=large)], push_notification_config=config)
        await until(lambda: any(b"ompleted" in one.raw.lower() for one in receiver.received))
    said = b"".join(one.raw for one in receiver.received)
    place = f"{BASE_URL}/a%2Fb/blobs/" if tenant else f"{BASE_URL}/blobs/"
    assert said.replace(b'\\"url\\":\\"errands-blob:', b"").count(b"errands-blob:") == 0
    assert said.count(place.encode()) >= 2
