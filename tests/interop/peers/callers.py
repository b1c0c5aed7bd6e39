"""Who calls, by a header: what a program's own middleware does."""

from typing import Any

from errands import A2AMiddleware, RequestEnvelope


class Headers(A2AMiddleware):
    async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
        envelope.owner = request.headers.get("x-user", "")
        envelope.context["note"] = request.headers.get("x-note", "")
