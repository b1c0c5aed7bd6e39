"""What is wrong with an agent card, of either version and anybody's: where, why, and how to mend it. No I/O.

An error is something that clients stumble over or that the specification forbids; a warning is something that is
allowed and probably not meant.
"""

from errands.wire.card_check.checks import check_card
from errands.wire.card_check.findings import Finding, Report

__all__ = ["Finding", "Report", "check_card"]
