"""An agent on fasta2a that takes its time: `python server_fasta2a.py`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from behaviour import DESCRIPTION, NAME
from fasta2a import FastA2A, Worker
from fasta2a.broker import InMemoryBroker
from fasta2a.storage import InMemoryStorage
from serving import bound_socket, serve, url_of

#: Seconds that a task takes; a send is answered at once.
WORK_S = 0.3


class Slow(Worker[Any]):
    async def run_task(self, params: Any) -> None:
        await self.storage.update_task(params["id"], state="working")
        await asyncio.sleep(WORK_S)
        said = params["message"]["parts"][0]["text"]
        artifact = {"artifact_id": "answer", "parts": [{"text": f"Echo: {said}"}]}
        await self.storage.update_task(params["id"], state="completed", new_artifacts=[artifact])

    async def cancel_task(self, params: Any) -> None:
        await self.storage.update_task(params["id"], state="canceled")

    def build_message_history(self, history: list[Any]) -> list[Any]:
        return history

    def build_artifacts(self, result: Any) -> list[Any]:
        return []


storage: Any = InMemoryStorage()
broker = InMemoryBroker()


@asynccontextmanager
async def lifespan(app: FastA2A) -> AsyncIterator[None]:
    async with app.task_manager, Slow(storage=storage, broker=broker).run():
        yield


async def main() -> None:
    bound = bound_socket()
    app = FastA2A(
        storage=storage, broker=broker, name=NAME, description=DESCRIPTION, url=url_of(bound), lifespan=lifespan
    )
    await serve(app, bound)


asyncio.run(main())
