"""An agent that needs a credential for another service and pauses until it gets one.

Run it:

    errands serve examples/auth_required.py

Try:

    errands send http://localhost:8000 "my repositories"                        # it asks for a token
    errands send http://localhost:8000 "go on" --task TASK_ID --token secret    # it continues with it

The first command prints the second. The token reaches the worker in `ctx.request_context` and is never stored.
"""

from starlette.requests import Request

from errands import A2AMiddleware, A2AServer, AgentCardConfig, RequestEnvelope, TaskContext, Worker


class TakeToken(A2AMiddleware):
    """Passes a bearer token to the worker, and accepts requests without one."""

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            envelope.context["github_token"] = token


class Librarian(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        token = ctx.request_context.get("github_token")
        if token is None:
            await ctx.request_auth(
                "I need a GitHub token to see your repositories.",
                schemes=["Bearer"],
                auth_url="https://github.com/settings/tokens",
            )
            return
        wish = ctx.history[0].text if ctx.history else ctx.user_text
        await ctx.complete(f"Looked up {wish!r} with a token of {len(token)} characters")


server = A2AServer(
    worker=Librarian(),
    agent_card=AgentCardConfig(name="Librarian", description="Looks after your repositories."),
    middlewares=[TakeToken()],
)
