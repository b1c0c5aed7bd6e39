"""What the program in `lua/` can be asked to do, as it travels: one struct for each function of its table `jobs`.

Times are text: Redis reads them exactly, while Lua would write large numbers in its own way.
"""

from __future__ import annotations

from importlib.resources import files

import msgspec

from errands.engines.redis.records import Blob, Fields
from errands.model.log import EventKind

#: A command of Redis with its arguments.
Command = list[str | Blob]


class Job(msgspec.Struct, tag_field="job", kw_only=True, gc=False):
    pass


class Commit(Job, tag="commit"):
    id: str
    #: None: only look.
    expected: Fields | None = None
    #: The key of a receipt that must not be there since `receipt_since`.
    receipt: str | None = None
    receipt_since: int = 0
    #: Kinds and data in turn; the first has the version `first`.
    events: list[EventKind | Blob] = []
    first: int = 0
    commands: list[Command] = []
    #: Hardly anything will follow: the log is to be kept in as little memory as possible.
    ends: bool = False
    #: For those who hear of the events: who wrote them, and the task's state after them.
    origin: str = ""
    state: str = ""


class Forget(Job, tag="forget"):
    id: str
    expected: Fields
    commands: list[Command]
    #: Fields of the task's hash that are gone through at most.
    most: int = 1000


class Trim(Job, tag="trim"):
    id: str
    expected: Fields
    upto: str
    commands: list[Command]


class Run(Job, tag="run"):
    commands: list[Command]


class Claim(Job, tag="claim"):
    agents: list[str]
    worker: str
    limit: int
    now: str
    expires: str


class Extend(Job, tag="extend"):
    worker: str
    #: Ids and attempts in turn.
    leases: list[str]
    expires: str


class ForgetContexts(Job, tag="forget_contexts"):
    before: str
    #: How many of them to pass over: those that were left where they are.
    skip: int
    limit: int
    #: The listings of live tasks, by state, as the ends of their names: a conversation that is in one is left alone.
    live: list[str]


class Load(Job, tag="load"):
    ids: list[str]
    with_artifacts: bool = True
    #: Bytes of content; the tasks after the one that goes beyond are left out, but never the first.
    most: int | None = None


class Read(Job, tag="read"):
    id: str
    after: str
    limit: int
    bytes: int


class Records(Job, tag="records"):
    id: str


class Stands(Job, tag="stands"):
    ids: list[str]


class Changed(Job, tag="changed"):
    listing: str
    #: The highest score of what changed since, and the moment that the listing began.
    newer: str
    as_of: int
    limit: int


class Running(Job, tag="running"):
    now: str


class Canceling(Job, tag="canceling"):
    worker: str


pack = msgspec.msgpack.Encoder().encode

_LUA = files(__package__).joinpath("lua")

#: The whole program, its files in the order of their numbers.
PROGRAM = "\n".join(
    file.read_text("utf-8") for file in sorted(_LUA.iterdir(), key=lambda file: file.name) if file.name.endswith(".lua")
)
