"""Records what the official SDKs really send and answer, for the tests that replay it.

    python scripts/record_golden.py FOLDER

makes one environment per SDK under FOLDER (from the package index, once), runs the SDK's own server and client against
each other there, and writes every request and its answer to tests/golden/.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from environment import install_python, make

ROOT = Path(__file__).parent.parent
#: Each SDK's version and the program that knows its API.
SDKS = {"0.3.26": "sdk_0_3.py", "1.3.0": "sdk_1_0.py"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the environments are made and kept")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "golden")
    options = parser.parse_args()
    for version, program in SDKS.items():
        requirements = [f"a2a-sdk[http-server]=={version}", "httpx", "uvicorn"]
        folder = options.folder / f"a2a-sdk-{version}"
        make(folder, requirements, install_python)
        python = folder / "bin" / "python"
        for old in options.out.glob(f"{version}-*.json"):
            old.unlink()
        subprocess.run([python, ROOT / "scripts" / "golden" / program, version, options.out], check=True)


if __name__ == "__main__":
    main()
