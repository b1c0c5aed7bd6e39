"""The model port: what the loop asks of a language model, whoever provides it.

Resolve   when an agent is loaded: `Model.resolve` says which model answers it, or why none can.
Ask       each turn: `Model.ask`.
Close     when the server stops: `Model.close`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable

import msgspec

from errands.agents.manifests.schemas import Schema
from errands.errors import ConfigurationError, ErrandsError
from errands.policy.cel.values import Json
from errands.policy.records import FunctionCall

__all__ = [
    "Answer",
    "FunctionCall",
    "FunctionSaid",
    "Model",
    "ModelError",
    "ModelSaid",
    "Offer",
    "OnText",
    "Question",
    "Said",
    "UserSaid",
]

#: Told each piece of text as it comes.
OnText = Callable[[str], Awaitable[None]]


class ModelError(ErrandsError):
    """The model could not be asked, and asking again would not help, or did not.

    The message is for the operator: it may name addresses and settings, but has no secret in it.
    """

    def __init__(
        self, message: str, *, told: str = "The model of this agent could not be asked", broke_off: bool = False
    ) -> None:
        super().__init__(message)
        #: What the caller of the agent is told, without a full stop.
        self.told = told
        #: Whether the answer had begun when it failed: the same question may well be answered later.
        self.broke_off = broke_off


class Offer(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str
    parameters: Schema


# What was said so far, in order.


class UserSaid(msgspec.Struct, frozen=True, tag="user"):
    """A message of the user."""

    #: Content parts: `mimeType` and one of `text`, `data` and `file`; beside a file may be its `filename`. A file that
    #: can be sent is an address: `data:` with the content itself, or `https:`. Of any other the model hears the name.
    parts: list[dict[str, Json]]


class ModelSaid(msgspec.Struct, frozen=True, tag="model"):
    """An answer of the model: words, calls, or both."""

    text: str = ""
    calls: tuple[FunctionCall, ...] = ()


class FunctionSaid(msgspec.Struct, frozen=True, tag="function"):
    """The result of a call; there is one for every call before the model is asked again."""

    call: str
    name: str
    content: Json


Said = UserSaid | ModelSaid | FunctionSaid


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """All that a model is told when it is asked."""

    #: What `Model.resolve` gave: `provider/model`.
    model: str
    system: str
    said: tuple[Said, ...]
    offers: tuple[Offer, ...] = ()
    #: What the provider brings itself, as manifests name it: `web-search` and the like.
    builtins: tuple[str, ...] = ()
    #: The name of the agent that asks: by it the scripted model finds its rules. No provider is told.
    agent: str = ""

    @property
    def tells_results(self) -> bool:
        """Whether it ends with results of calls: then the model may have nothing to add."""
        return bool(self.said) and isinstance(self.said[-1], FunctionSaid)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a model says, and what it took. Unless it was told results, there is a text, or a call, or both."""

    text: str = ""
    calls: tuple[FunctionCall, ...] = ()
    #: Why it was ended before the model was done: `length` or `content_filter`.
    incomplete: str | None = None
    #: As the provider calls it, in the form `provider/model`.
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Whether the tokens are a guess, because the provider did not count them.
    estimated: bool = False


class Model(ABC):
    """Answers for agents. Subclass it to connect a model that errands does not know."""

    def resolve(self, model: str | None, builtins: tuple[str, ...] = ()) -> str:
        """What answers an agent that names `model`, or none: it goes into `Question.model` and into the context.

        Raises `ConfigurationError` when it is certain that the agent could not be answered.
        """
        if model:
            return model
        raise ConfigurationError("the agent names no model: add model: provider/model to it, or set ERRANDS_MODEL")

    @abstractmethod
    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        """One answer. With `on_text` it is streamed; the whole text is in the answer all the same.

        What may pass by itself (a connection, a 429, a 5xx) is tried again, as long as no text has been told.
        Raises `ModelError`, and what `on_text` raises.
        """

    async def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Lets go of connections."""
