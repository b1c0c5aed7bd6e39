"""A parent whose child is somewhere else, for crash tests: it can be stopped between sending and noting the child."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import uvicorn

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, Settings
from errands.agents.delegation import Delegated, Delegation, RemoteDelegate
from tests.unit.delegation.support import Parent


class Holding(RemoteDelegate):
    """Leaves a file `sent` when the child has begun, and notes it when there is no file `hold`."""

    folder = Path()

    async def run(self, delegation: Delegation) -> Delegated:
        async def began(task_id: str) -> None:
            (self.folder / "sent").write_text(task_id)
            while (self.folder / "hold").exists():
                await asyncio.sleep(0.01)
            await delegation.began(task_id)

        return await super().run(msgspec.structs.replace(delegation, began=began))


if __name__ == "__main__":
    port, folder, lease, far_away = int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
    delegate = Holding("far", far_away)
    delegate.folder = folder
    settings = Settings(
        storage=f"sqlite:///{folder / 'tasks.db'}",
        lease_seconds=lease,
        poll_interval=0.2,
        max_attempts=1000,
        cancel_force_timeout=1.0,
    )
    card = AgentCardConfig(name="Parent", description=".", capabilities=CapabilitiesConfig(streaming=True))
    server = A2AServer(worker=Parent(delegate), agent_card=card, settings=settings)
    uvicorn.run(server.app, host="127.0.0.1", port=port, log_level="error")
