"""An agent with dependencies: a database that is opened and closed with the server, and a setting.

Run it:

    errands serve examples/dependency_injection.py

Try:

    errands send http://localhost:8000 "tea"        # tea costs 3.50 EUR
    errands send http://localhost:8000 "gold"       # We do not sell gold
"""

import sqlite3

from errands import A2AServer, AgentCardConfig, Dependency, TaskContext, Worker


class Prices(Dependency):
    """A resource: `startup` runs before the first request, `shutdown` after the last."""

    async def startup(self) -> None:
        self._database = sqlite3.connect(":memory:")
        self._database.execute("CREATE TABLE prices (name TEXT PRIMARY KEY, cents INTEGER)")
        self._database.executemany("INSERT INTO prices VALUES (?, ?)", [("tea", 350), ("coffee", 420)])

    async def shutdown(self) -> None:
        self._database.close()

    def of(self, name: str) -> int | None:
        row = self._database.execute("SELECT cents FROM prices WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])


class Shopkeeper(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        prices: Prices = ctx.deps[Prices]
        cents = prices.of(ctx.user_text)
        if cents is None:
            await ctx.respond(f"We do not sell {ctx.user_text}")
        else:
            await ctx.complete(f"{ctx.user_text} costs {cents / 100:.2f} {ctx.deps['currency']}")


server = A2AServer(
    worker=Shopkeeper(),
    agent_card=AgentCardConfig(name="Shopkeeper", description="Knows the prices."),
    dependencies={Prices: Prices(), "currency": "EUR"},
)
