"""The JSON objects in which the operator API shows tasks, turns, webhooks, processes and policies."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.model import core
from errands.model.base import encode
from errands.model.log import OutboxEntry, ProcessReport
from errands.policy.agent_oversight import AgentOversight
from errands.runtime.leases import ActiveTask
from errands.runtime.processes import samples_of

#: Bytes of the largest task that is shown whole.
MOST_TASK = 2 * 2**20
#: The number of artifacts of a larger task that are named, without their contents, and characters of a name.
MOST_NAMED, MOST_NAME = 100, 200


def bounded_task(task: core.Task, most: int = MOST_TASK) -> tuple[core.Task, dict[str, Any]]:
    """Return a task of about `most` bytes, and what was left out: contents of artifacts, and the oldest messages."""
    # Each piece is encoded once: that takes long for a large task.
    status, metadata = task.status, task.metadata
    sizes = {"status": len(encode(status)), "metadata": len(encode(metadata))}
    contents = [(artifact, len(encode(artifact))) for artifact in task.artifacts or ()]
    said = [(message, len(encode(message))) for message in task.history or ()]
    if sum(sizes.values()) + sum(size for _, size in (*contents, *said)) <= most:
        return task, {}
    room = most // 2
    artifacts: list[core.Artifact] = []
    cut: list[dict[str, Any]] = []
    dropped = 0
    for artifact, size in contents:
        if size <= room:
            room -= size
            artifacts.append(artifact)
        elif len(cut) < MOST_NAMED:
            cut.append({"artifactId": artifact.artifact_id[:MOST_NAME], "bytes": size})
            name = artifact.name and artifact.name[:MOST_NAME]
            artifacts.append(core.Artifact(artifact_id=artifact.artifact_id[:MOST_NAME], name=name, parts=[]))
        else:
            dropped += 1
    room = most // 2
    messages: list[core.Message] = []
    for message, size in reversed(said):
        room -= size
        if room < 0:
            break
        messages.append(message)
    left_out: dict[str, Any] = {"artifacts": cut, "messages": len(said) - len(messages)}
    if dropped:
        left_out["moreArtifacts"] = dropped
    if sizes["status"] > most // 2:
        status = core.TaskStatus(state=status.state, timestamp=status.timestamp)
        left_out["statusMessage"] = True
    if sizes["metadata"] > most // 2:
        metadata, left_out["metadata"] = None, True
    bounded = msgspec.structs.replace(
        task, artifacts=artifacts or None, history=messages[::-1] or None, status=status, metadata=metadata
    )
    return bounded, left_out


def active_document(task: ActiveTask, *, is_operator: bool) -> dict[str, Any]:
    """Return the description of a running turn. Only operators see which machine runs it."""
    return {
        "taskId": task.task_id,
        "contextId": task.context_id,
        "agent": task.agent,
        "owner": task.owner,
        "tenant": task.tenant,
        "state": task.state.short,
        "worker": task.worker if is_operator else "",
        "attempt": task.attempt,
        "leaseUntil": task.lease_until,
        "age": task.age,
        "runningFor": task.running_for,
        "cancelRequested": task.cancel_requested,
    }


def by_urgency(entry: OutboxEntry) -> tuple[bool, int]:
    """Order entries of the outbox: dead ones first, then those that have failed for longest."""
    return not entry.dead, entry.failed_at if entry.failed_at is not None else 2**62


def webhook_document(entry: OutboxEntry) -> dict[str, Any]:
    """Return the description of an entry, without the path of the webhook and its credentials, which may be secrets."""
    return {
        "taskId": entry.task_id,
        "configId": entry.config.id,
        "agent": entry.scope.agent,
        "owner": entry.scope.owner,
        "tenant": entry.scope.tenant,
        "host": entry.config.host,
        "delivered": entry.delivered,
        "dueAt": entry.due_at,
        "attempts": entry.attempts,
        "failedAt": entry.failed_at,
        "error": entry.error,
        "dead": entry.dead,
    }


def process_document(report: ProcessReport) -> dict[str, Any]:
    """Return the description of a process."""
    try:
        figures = samples_of(report)
    except msgspec.DecodeError:
        figures = []  # written by another release
    return {
        "id": report.id,
        "agent": report.agent,
        "role": report.role,
        "version": report.version,
        "group": report.group,
        "startedAt": report.started_at,
        "at": report.at,
        "figures": figures,
    }


def policy_document(agent: str, oversight: AgentOversight | None) -> dict[str, Any]:
    """Return the compiled rules of an agent as a list and as text."""
    if oversight is None:
        return {"agent": agent, "version": "", "limits": {}, "rules": [], "text": ""}
    rules = oversight.rules
    limits = {name: value for name, value in msgspec.structs.asdict(rules.limits).items() if value is not None}
    lines = [f"{rules.limit_name(name)}: {value}" for name, value in limits.items()]
    listed = []
    for capability, steps in oversight.listed_steps():
        for step in steps.steps:
            rule = {
                "name": step.name,
                "phase": steps.phase.value,
                "capability": capability,
                "match": step.match or "",
                "action": step.action,
                "expression": "" if step.program is None else step.program.source,
                "condition": "" if step.condition is None else step.condition.source,
                "invoke": ":".join(step.target) if step.action == "invoke" else "",
                "onFail": step.on_fail,
            }
            listed.append(rule)
            action = f"{step.action} for {step.match}:" if step.match else step.action
            condition = f" when {rule['condition']}" if rule["condition"] else ""
            what = rule["invoke"] or rule["expression"]
            lines.append(f"{step.name}: {action} {what}{condition} (on failure: {step.on_fail})")
    return {
        "agent": agent,
        "version": rules.policy.version,
        "limits": limits,
        "rules": listed,
        "text": "\n".join(lines),
    }
