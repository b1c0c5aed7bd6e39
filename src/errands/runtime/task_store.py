"""A server's tasks for the program that runs it: the same as clients see, without HTTP and without middleware."""

from __future__ import annotations

from errands.model.core import Task, TaskState
from errands.model.log import Scope
from errands.model.requests import CancelTaskRequest, GetTaskRequest, ListTasksRequest
from errands.runtime.call import CallContext
from errands.runtime.task_manager import TaskManager
from errands.runtime.validation import own_task

Tasks = list[Task]

_PAGE = 100


class TaskStore:
    """The tasks of one owner: `await server.tasks.list(context_id=...)`. Returns copies; the engine keeps the tasks."""

    def __init__(self, tasks: TaskManager, scope: Scope) -> None:
        self._tasks = tasks
        self._scope = scope

    def of(self, owner: str = "", tenant: str = "") -> TaskStore:
        """The tasks of somebody else. Owners are what middleware made of the callers; "" is those without a name."""
        return TaskStore(self._tasks, self._scope._replace(owner=owner, tenant=tenant))

    async def list(
        self, *, context_id: str | None = None, state: TaskState | None = None, limit: int | None = None
    ) -> Tasks:
        """All tasks, or those of one context or in one state, the latest change first; at most `limit` of them."""
        found: Tasks = []
        token = ""
        while limit is None or len(found) < limit:
            page = await self._tasks.list_tasks(
                ListTasksRequest(
                    context_id=context_id,
                    status=state,
                    page_size=_PAGE,
                    page_token=token,
                    include_artifacts=True,
                ),
                self._call,
            )
            found += map(own_task, page.tasks)
            token = page.next_page_token
            if not token:
                break
        return found[:limit]

    async def get(self, task_id: str) -> Task:
        """Raises `TaskNotFoundError`."""
        return own_task(await self._tasks.get_task(GetTaskRequest(id=task_id), self._call))

    async def cancel(self, task_id: str) -> Task:
        """The task once it is canceled. Raises `TaskNotFoundError`, and `TaskNotCancelableError` when it has ended."""
        return own_task(await self._tasks.cancel_task(CancelTaskRequest(id=task_id), self._call))

    @property
    def _call(self) -> CallContext:
        return CallContext(self._scope)
