"""What the writers write, and where they wait to be killed."""

import os

PIECES = [f"{number};" for number in range(20)]
#: Before this piece they wait until a file is there, whose path is in this environment variable.
HALF = 10
GATE = "WRITER_GATE"
TICK_S = 0.01


def is_gate_open() -> bool:
    return os.path.exists(os.environ[GATE])
