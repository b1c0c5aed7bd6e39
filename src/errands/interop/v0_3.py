"""What an executor written for a2a-sdk 0.3 is given: the SDK's own classes around pydantic models.

The bridge is the JSON of version 0.3, which the models write and read themselves. Only one generation of the SDK can be
installed, so type checkers see the other one; hence Any.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any
