"""Tasks page by page: await it for one page, iterate over it for every task."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import Any

import msgspec

from errands.client.errors import ProtocolError
from errands.client.result import ClientResult, ListResult
from errands.client.session import Session
from errands.model.requests import ListTasksRequest, ListTasksResponse


class TaskPages:
    """`await` gives one page as a `ListResult`; `async for` gives the tasks of all pages from there on."""

    def __init__(self, session: Session, request: ListTasksRequest) -> None:
        self._session = session
        self._request = request

    def __await__(self) -> Generator[Any, Any, ListResult]:
        return self._page(self._request).__await__()

    async def __aiter__(self) -> AsyncGenerator[ClientResult, None]:
        request, asked = self._request, {self._request.page_token}
        while True:
            page = await self._page(request)
            for task in page.tasks:
                yield task
            if page.next_page_token is None:
                return
            if page.next_page_token in asked:
                raise ProtocolError(f"the pages of tasks go round in a circle at {page.next_page_token!r}")
            asked.add(page.next_page_token)
            request = msgspec.structs.replace(request, page_token=page.next_page_token)

    async def _page(self, request: ListTasksRequest) -> ListResult:
        response: ListTasksResponse = await self._session.call("ListTasks", request)
        return ListResult(
            tasks=[ClientResult.from_task(task) for task in response.tasks],
            next_page_token=response.next_page_token or None,
            total_size=response.total_size,
            page_size=response.page_size or request.page_size or len(response.tasks),
        )
