"""Queued jobs are cut into batches by their number and bytes, and keep the order of each key."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from errands.engines.commit import CommitJob, CommitQueue
from errands.model.log import Change, Draft, Scope

pytestmark = pytest.mark.anyio


def job(work: Any = "work", key: object = None, *, alone: bool = False) -> CommitJob:
    return CommitJob(work, asyncio.get_running_loop().create_future(), key, alone=alone)


def change(size: int) -> Change:
    return Change(task_id="t", scope=Scope(), at=0, events=(Draft("artifact", b"x" * size),))


def queued(*jobs: CommitJob, max_jobs: int = 10, max_bytes: int = 100) -> CommitQueue:
    queue = CommitQueue(max_jobs, max_bytes)
    queue.extend(jobs)
    return queue


async def test_a_batch_has_no_more_jobs_than_allowed() -> None:
    jobs = [job() for _ in range(5)]
    queue = queued(*jobs, max_jobs=2)
    assert [queue.take(), queue.take(), queue.take(), queue.take()] == [jobs[:2], jobs[2:4], jobs[4:], []]


async def test_a_batch_that_has_enough_bytes_takes_no_more_jobs() -> None:
    jobs = [job(change(60)) for _ in range(3)]
    queue = queued(*jobs)
    assert [queue.take(), queue.take()] == [jobs[:2], jobs[2:]]


async def test_a_job_of_a_busy_key_waits_and_others_pass_it() -> None:
    first, second, other = job(key="a"), job(key="a"), job(key="b")
    queue = queued(first)
    assert queue.take() == [first]
    queue.extend([second, other])
    assert queue.take() == [other]
    assert queue.take() == []
    queue.release([first])
    assert queue.take() == [second]


async def test_a_job_that_must_be_alone_shares_no_batch() -> None:
    before, alone, after = job(), job(alone=True), job()
    queue = queued(before, alone, after)
    assert [queue.take(), queue.take(), queue.take()] == [[before], [alone], [after]]


async def test_jobs_of_a_failed_batch_are_tried_one_by_one_before_the_others() -> None:
    jobs = [job(key="a"), job(key="a"), job(key="b")]
    queue = queued(*jobs)
    batch = queue.take()
    queue.append(job(key="a"))
    assert queue.retry_alone(batch)
    for each in jobs:
        assert queue.take() == [each]
        queue.release([each])
    assert not queue.retry_alone(jobs[:1])


async def test_a_batch_that_is_put_back_comes_first() -> None:
    jobs = [job(key="a"), job(key="b")]
    queue = queued(*jobs)
    batch = queue.take()
    later = job(key="a")
    queue.append(later)
    queue.put_back(batch)
    assert queue.take() == [*jobs, later]
