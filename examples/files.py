"""An agent that takes files and returns a file.

Run it:

    errands serve examples/files.py

Try:

    errands send http://localhost:8000 --file README.md --file Makefile     # [file: report.csv, text/csv, ...]
    errands send http://localhost:8000 "nothing"                            # it declines: there is no file

--json shows the report itself, in base64.
"""

import hashlib

from errands import A2AServer, AgentCardConfig, TaskContext, Worker


class Archivist(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        # A file has bytes or a URL; this agent does not fetch URLs.
        files = [(file.filename, file.content) for file in ctx.files if file.content is not None]
        if not files:
            await ctx.reject("Send me at least one file.")
            return
        lines = [f"{name},{len(content)},{hashlib.sha256(content).hexdigest()}" for name, content in files]
        await ctx.emit_artifact(
            artifact_id="report",
            file_bytes="\n".join(["name,bytes,sha256", *lines, ""]).encode(),
            media_type="text/csv",
            filename="report.csv",
            last_chunk=True,
        )
        await ctx.complete()


server = A2AServer(
    worker=Archivist(),
    agent_card=AgentCardConfig(
        name="Archivist",
        description="Measures and fingerprints files.",
        input_modes=["*/*"],
        output_modes=["text/csv"],
    ),
)
