"""The decision log for operators: one line for each decision of a policy, beside the record in the task's log."""

from __future__ import annotations

import logging

from errands.policy.records import Decided

logger = logging.getLogger("errands.policy")


def log_decision(task_id: str, decided: Decided) -> None:
    # The detail stays in the record: it may repeat what somebody has said.
    policy = f", policy {decided.policy}" if decided.policy else ""
    logger.info("task %s: %s %s%s", task_id, decided.step, decided.outcome, policy)
