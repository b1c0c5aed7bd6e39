"""The benchmark agent on errands."""

import asyncio
import os

from bench_agent import GRPC_PORT, WAIT_S, chunks, echo
from errands_storage import storage

from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker

if os.environ.get("ERRANDS_OTEL"):
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

    class DroppingExporter(SpanExporter):
        def export(self, spans: object) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(DroppingExporter()))
    trace.set_tracer_provider(provider)


class BenchAgent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if WAIT_S:
            await asyncio.sleep(WAIT_S)
        pieces = chunks(ctx.user_text)
        if not pieces:
            await ctx.complete(echo(ctx.user_text))
            return
        last = len(pieces) - 1
        for index, piece in enumerate(pieces):
            await ctx.emit_text_artifact(piece, append=index > 0, last_chunk=index == last)
        await ctx.complete()


server = A2AServer(
    worker=BenchAgent(),
    agent_card=AgentCardConfig(
        name="Bench",
        description="Echoes and streams.",
        version="1.0.0",
        capabilities=CapabilitiesConfig(streaming=True),
    ),
    grpc_port=GRPC_PORT,
    storage=storage,
)
app = server.app
