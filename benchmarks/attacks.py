"""What twenty honest clients and the memory of a server notice of attacks: those in tests/interaction/test_bounds.py,
and large messages over gRPC, with a key and without one.

    .venv/bin/python benchmarks/attacks.py [NAME ...]

The server is `errands serve` on SQLite, its default. The attack is repeated for three seconds. For each attack the p99
of the honest clients is printed without and with it, and by how many megabytes the server has grown at most.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import grpc
from tests.grpc_binding.serving import send
from tests.interaction.test_bounds import ATTACKS, BUDGET, MEGABYTE, PROGRAM, Attack, Prepare, Run, Target
from tests.unit.cli.processes import Served
from tests.unit.cli.programs import write

CLIENTS = 20
SECONDS = 3.0


def grpc_messages(part_bytes: int, *metadata: tuple[str, str]) -> Prepare:
    """Sends messages of 9.5 MB, in parts of this size, over gRPC."""

    def prepare(target: Target) -> Run:
        [address] = re.findall(r"^grpc +(\S+)$", target.greeting, re.MULTILINE)
        text = "x" * part_bytes
        body = send(parts=[{"text": text}] * (19 * MEGABYTE // 2 // (part_bytes + 8))).SerializeToString()
        call = grpc.insecure_channel(address).unary_unary("/lf.a2a.v1.A2AService/SendMessage")

        def run() -> None:
            for pending in [call.future(body, metadata=metadata) for _ in range(3)]:
                pending.exception()

        return run

    return prepare


ALL_ATTACKS = [
    *ATTACKS,
    Attack("gRPC: 10 MB without a key", grpc_messages(1), most=0, asks=True),
    Attack("gRPC: 10 MB of tiny parts", grpc_messages(1, ("x-api-key", "key")), most=0, asks=True),
]


class HonestClients:
    """A process in which each client sends one message after the other."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        command = [sys.executable, __file__, "--clients", str(address.hostname), str(address.port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def p99(self) -> float:
        """Return the p99 of what was sent since the last call, in milliseconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(json.loads(self._process.stdout.readline()))

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


def measure(attack: Attack, folder: Path) -> str:
    program = PROGRAM.replace("MIDDLEWARE", str(attack.asks)).replace('    storage="memory",\n', "")
    path = write(folder, program)
    with (
        Served(path, "--grpc-port", "0", cwd=folder, max_buffered_bytes=str(BUDGET)) as served,
        ExitStack() as opened,
    ):
        target = Target(served, opened)
        run = attack.prepare(target)
        clients = HonestClients(served.url)
        opened.callback(clients.stop)
        time.sleep(1)
        clients.p99()
        time.sleep(SECONDS)
        quiet, before = clients.p99(), target.megabytes("VmRSS")
        attacker = threading.Thread(target=keep_running, args=(run,))
        attacker.start()
        attacker.join()
        attacked, most = clients.p99(), target.megabytes("VmHWM")
    return f"{attack.name:45} {quiet:7.1f} ms -> {attacked:7.1f} ms  {attacked / quiet:5.1f} x  {most - before:6.0f} MB"


def keep_running(run: Run) -> None:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        run()


def request(client: int, number: int) -> bytes:
    message = {"messageId": f"{client}-{number}", "role": "ROLE_USER", "parts": [{"text": "hello"}]}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}).encode()
    head = (
        "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\n"
        f"X-API-Key: key\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def send_for_ever(client: int, host: str, port: int, taken: list[float]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    number = 0
    while True:
        number += 1
        began = time.perf_counter()
        writer.write(request(client, number))
        head = await reader.readuntil(b"\r\n\r\n")
        answer = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]))
        taken.append(time.perf_counter() - began)
        assert b'"TASK_STATE_COMPLETED"' in answer, answer


async def honest_clients(host: str, port: int) -> None:
    taken: list[float] = []
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with asyncio.TaskGroup() as clients:
        for client in range(CLIENTS):
            clients.create_task(send_for_ever(client, host, port, taken))
        while await lines.readline():
            window = sorted(taken)
            taken.clear()
            print(json.dumps(window[len(window) * 99 // 100] * 1000 if window else 0.0), flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--clients"]:
        asyncio.run(honest_clients(sys.argv[2], int(sys.argv[3])))
        return
    for attack in ALL_ATTACKS:
        if not sys.argv[1:] or attack.name in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as folder:
                print(measure(attack, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
