"""Record the requests and responses of the official SDKs for the tests that replay them.

    python scripts/record_golden.py FOLDER

This creates one environment per SDK under FOLDER (from the package index, once), runs the SDK's server and client
against each other, and writes every request and its response to tests/golden/.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from environment import install_python, make

ROOT = Path(__file__).parent.parent
#: The version of each SDK and the program that uses its API.
SDKS = {"0.3.26": "sdk_0_3.py", "1.3.0": "sdk_1_0.py"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the folder of the environments")
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
