"""PraisonAI's dialect at `POST /a2a`: the same operations as on every binding, in the forms that its clients know."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from errands import errors
from errands.model.base import encode
from errands.model.requests import CancelTaskRequest, GetTaskRequest, ListTasksResponse, SendMessageResponse
from errands.operations import OPERATIONS, Operation
from errands.runtime.call import LARGE
from errands.runtime.streams import EventStream
from errands.server.asgi import HttpExchange
from errands.server.cards import CardForm, CardPublisher
from errands.server.dispatch import Dispatcher
from errands.server.errors import error_headers
from errands.server.request_guard import check_content_type
from errands.server.routing import Routes
from errands.wire import jsonrpc
from errands.wire.praisonai import PraisonStream, error_frame, read_request, write_error, write_task, write_tasks
from errands.wire.status import JSONRPC_HTTP
from errands.wire.v0_3_card import VERSION, to_v0_3

PATH = "/a2a"


def is_at(path: str, routes: Routes) -> bool:
    """Return whether the dialect is spoken at this path. It belongs to version 0.3 and is served together with it."""
    return path in (PATH, f"{PATH}/") and VERSION in routes.versions


async def serve(exchange: HttpExchange, dispatcher: Dispatcher, cards: CardPublisher) -> None:
    """Serve a request in PraisonAI's dialect."""
    request_id = b"null"
    # Its clients cannot name a task in a message.
    exchange.answers_by_context, exchange.binding = True, "praisonai"
    operation = None
    try:
        check_content_type(exchange)
        if dispatcher.checks_head:
            await dispatcher.check_head(exchange)
        body = await exchange.body()
        try:
            call = jsonrpc.read_request(body)
        except errors.A2AError:
            request_id = jsonrpc.read_id(body)
            raise
        request_id = call.id
        operation, request = read_request(call.method, call.params, dispatcher.max_parts)
        del body, call  # the answer may take hours
        if operation.name == "GetExtendedAgentCard":
            try:
                result: Any = to_v0_3(await dispatcher.dispatch(operation, request, exchange))
            except (errors.UnsupportedOperationError, errors.ExtendedAgentCardNotConfiguredError):
                result = cards.document(exchange, CardForm.V0_3).body
        else:
            result = await _perform(operation, request, exchange, dispatcher)
    except errors.A2AError as error:
        dispatcher.refused(operation, exchange, error)
        body = encode({"jsonrpc": "2.0", "id": msgspec.Raw(request_id), "error": write_error(error)})
        await exchange.respond(JSONRPC_HTTP.get(error.reason, 200), body, headers=error_headers(error))
        return
    if isinstance(result, EventStream):
        writer = PraisonStream()
        await exchange.send_frames(result, lambda item: writer.write(item.data), error_frame, end=writer.end)
        return
    if len(result) > LARGE:
        await asyncio.sleep(0)  # as in `respond`: copying it is another piece of work
    await exchange.respond(200, jsonrpc.result_bytes(request_id, result))


async def _perform(
    operation: Operation, request: Any, exchange: HttpExchange, dispatcher: Dispatcher
) -> bytes | EventStream:
    try:
        result = await dispatcher.dispatch(operation, request, exchange)
    except errors.TaskNotCancelableError:
        if not isinstance(request, CancelTaskRequest):
            raise
        # PraisonAI never refuses a cancel. A task that has ended stays as it is and is the answer.
        return await _task(request.id, exchange, dispatcher)
    if isinstance(result, EventStream):
        return result
    if isinstance(result, ListTasksResponse):
        return write_tasks(result.tasks)
    if isinstance(result, SendMessageResponse):
        if result.message is not None:
            # A direct reply: its task is in the store like any other, and in this dialect the answer is always a task.
            return await _task(result.message.task_id or "", exchange, dispatcher)
        result = result.task
    return write_task(result)


async def _task(task_id: str, exchange: HttpExchange, dispatcher: Dispatcher) -> bytes:
    exchange.extra_headers.clear()  # the second dispatch adds the same headers again
    return write_task(await dispatcher.dispatch(OPERATIONS["GetTask"], GetTaskRequest(id=task_id), exchange))
