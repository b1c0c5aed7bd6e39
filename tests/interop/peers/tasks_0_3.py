"""Tasks of a2a-sdk 0.3.26 in the words of the conversation."""

from a2a.types import Message, Task
from conversation import Answer
from parts_0_3 import plain_part, text_of


def of_task(task: Task) -> Answer:
    parts = [part for artifact in task.artifacts or [] for part in artifact.parts]
    return Answer(
        task.id,
        task.context_id,
        task.status.state.value,
        text_of(parts),
        text_of(task.status.message.parts) if task.status.message else "",
        [(message.role.value, text_of(message.parts)) for message in task.history or []],
        [plain_part(part) for part in parts],
    )


def of_message(message: Message) -> Answer:
    return Answer(text=text_of(message.parts), is_message=True)
