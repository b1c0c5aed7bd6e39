"""The official SDKs: what their environments hold, and their side of the conversation as processes."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.unit.cli.processes import LongServed, Served

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(__file__).parent / "peers"
#: Seconds after which a conversation that hangs is given up.
CONVERSATION_S = 170.0


@dataclass(frozen=True)
class Sdk:
    release: str
    #: The version of the protocol it speaks.
    protocol: str
    client: str
    server: str
    #: Its executor under errands: the agent of the conversation, and one for the contract of executors.
    executor: str
    contract: str

    @property
    def requirements(self) -> list[str]:
        """The SDK, and what errands needs to run its executors there."""
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        return [f"a2a-sdk[http-server,grpc]=={self.release}", *project["dependencies"]]


def _sdk(release: str, protocol: str, suffix: str) -> Sdk:
    return Sdk(release, protocol, *(f"{part}_{suffix}.py" for part in ("client", "server", "errands", "contract")))


SDKS = {"1.3.0": _sdk("1.3.0", "1.0", "1_3"), "0.3.26": _sdk("0.3.26", "0.3", "0_3")}
BINDINGS = {"JSONRPC": "jsonrpc", "HTTP+JSON": "http+json", "GRPC": "grpc"}


@functools.cache
def environment(name: str, *requirements: str, npm: bool = False) -> str:
    """Return the interpreter of an environment with these requirements, which is made once and kept."""
    command = [sys.executable, str(ROOT / "scripts" / "environment.py"), *(["--npm"] if npm else [])]
    made = subprocess.run(
        [*command, str(ROOT / ".interop" / name), *requirements], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def interpreter(sdk: Sdk) -> str:
    """Return the interpreter that has this SDK: our own, or that of an environment."""
    if version("a2a-sdk") == sdk.release:
        return sys.executable
    return environment(f"a2a-sdk-{sdk.release}", *sdk.requirements)


def conversation(sdk: Sdk, url: str, binding: str) -> dict[str, Any]:
    """What came of each step when the SDK's client talked to the agent at this address."""
    return outcomes(interpreter(sdk), str(PEERS / sdk.client), url, binding)


def outcomes(*command: str) -> dict[str, Any]:
    """Return what the program says came of each step."""
    played = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=CONVERSATION_S,
        check=False,
    )
    assert played.returncode == 0, played.stderr
    lines = (json.loads(line) for line in played.stdout.splitlines())
    return {line["step"]: line["outcome"] for line in lines}


def serving(sdk: Sdk) -> AbstractContextManager[str]:
    """Serve the agent on this SDK and return its address."""
    return serving_peer(interpreter(sdk), sdk.server)


@contextmanager
def serving_peer(python: str, script: str, *arguments: str) -> Iterator[str]:
    """Run a script of `peers` that serves an agent, and return the agent's address."""
    command = [python, str(PEERS / script), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    with process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.kill()


def serving_executor(sdk: Sdk, target: str, port: int = 0, **settings: str) -> Served:
    """`errands serve` with an executor of this SDK, in the environment that has it."""
    # gRPC needs the stubs of 1.3, which our own environment has.
    python = sys.executable if sdk.protocol == "1.0" else interpreter(sdk)
    path = os.pathsep.join([str(ROOT / "src"), str(PEERS)])
    return LongServed(PEERS / target, cwd=ROOT, python=python, python_path=path, port=port, **settings)
