"""What listings of every engine have in common, beside their tokens (`errands.engines.paging`)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from errands.model.log import ListQuery, StoredTask


def still_matching(tasks: Iterable[StoredTask | None], query: ListQuery) -> list[StoredTask]:
    """Those that are still there and still match: they were found before they were looked at."""
    return [stored for stored in tasks if stored is not None and _matches(stored, query)]


def _matches(stored: StoredTask, query: ListQuery) -> bool:
    return (
        stored.scope == query.scope
        and (query.state is None or stored.state is query.state)
        and (query.status_after is None or stored.head.status_at >= query.status_after)
    )


def whole(tasks: Iterable[StoredTask]) -> list[StoredTask]:
    """Those that are not damaged."""
    return [stored for stored in tasks if not stored.damage]


def leave_out_artifacts(tasks: Iterable[StoredTask]) -> None:
    for stored in tasks:
        stored.task = msgspec.structs.replace(stored.task, artifacts=None)
