"""A call that hands work to another agent, as the errand that it is: the same whenever it is made."""

from __future__ import annotations

from errands.agents.delegation.base import Errand
from errands.agents.loop.course import Course
from errands.agents.manifests.functions import MESSAGE
from errands.model.log import Scope
from errands.policy.records import CapabilityBegan, DelegationBegan


def errand_of(course: Course, began: CapabilityBegan, *, parent: str, scope: Scope, depth: int) -> Errand:
    """`depth` is the parent's own."""
    children = course.progress.children

    async def start(task_id: str) -> None:
        if children.get(began.call) != task_id:
            await course.append(DelegationBegan(at=course.run.now(), call=began.call, task_id=task_id))

    return Errand(
        call=began.call,
        message=began.arguments[MESSAGE],
        parameters={name: value for name, value in began.arguments.items() if name != MESSAGE},
        parent=parent,
        scope=scope,
        email=course.run.context.user.email or "",
        depth=depth + 1,
        task_id=children.get(began.call),
        began=start,
    )
