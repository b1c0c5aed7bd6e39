"""The model port: what the loop asks of a language model, whichever provider it comes from.

Resolve   when an agent is loaded: `Model.resolve` returns the model that answers it, or raises.
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
from errands.policy.records import FunctionCall as FunctionCall

#: Called with each piece of text as it arrives.
OnText = Callable[[str], Awaitable[None]]


class ModelError(ErrandsError):
    """The model gave no answer, and asking again would not help or did not.

    The message is for the operator: it may name addresses and settings, but contains no secret.
    """

    def __init__(
        self, message: str, *, for_caller: str = "The model of this agent could not be asked", broke_off: bool = False
    ) -> None:
        super().__init__(message)
        #: The message for the caller of the agent, without a full stop.
        self.for_caller = for_caller
        #: Whether the answer had begun when it failed: the same question may well be answered later.
        self.broke_off = broke_off


class Offer(msgspec.Struct, frozen=True):
    """A function that the model may call."""

    name: str
    description: str
    parameters: Schema


# The conversation so far, in order.


class UserSaid(msgspec.Struct, frozen=True, tag="user"):
    """A message of the user."""

    #: Content parts: `mimeType` and one of `text`, `data` and `file`, and for a file perhaps its `filename`. Only
    #: `data:` and `https:` URLs of files are sent; for any other file the model is given its name.
    parts: list[dict[str, Json]]


class ModelSaid(msgspec.Struct, frozen=True, tag="model"):
    """An answer of the model: text, calls, or both."""

    text: str = ""
    calls: tuple[FunctionCall, ...] = ()


class FunctionSaid(msgspec.Struct, frozen=True, tag="function"):
    """The result of a call. Every call has one before the model is asked again."""

    call: str
    name: str
    content: Json


Said = UserSaid | ModelSaid | FunctionSaid


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a model is given when it is asked."""

    #: What `Model.resolve` returned: `provider/model`.
    model: str
    #: The system instruction.
    system: str
    #: The conversation so far.
    said: tuple[Said, ...]
    #: The functions that the model may call.
    offers: tuple[Offer, ...] = ()
    #: Capabilities of the provider itself, as manifests name them: `web-search` and the like.
    builtins: tuple[str, ...] = ()
    #: The name of the agent that asks. Only the scripted model uses it; it is not sent to providers.
    agent: str = ""

    @property
    def tells_results(self) -> bool:
        """Return whether it ends with results of calls: then the model may have nothing to add."""
        return bool(self.said) and isinstance(self.said[-1], FunctionSaid)


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of a model and its cost. Unless the question ends with results, it has text, a call, or both."""

    text: str = ""
    calls: tuple[FunctionCall, ...] = ()
    #: Why it ended before the model was done: `length` or `content_filter`.
    incomplete: str | None = None
    #: As the provider names it, in the form `provider/model`.
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    #: Whether the tokens are estimated because the provider did not count them.
    estimated: bool = False


class Model(ABC):
    """Answers for agents. Subclass it to connect a model that errands does not support."""

    def resolve(self, model: str | None, builtins: tuple[str, ...] = ()) -> str:
        """Return what answers an agent that names `model`, or none: the value of `Question.model`.

        Raises `ConfigurationError` if it is certain that the agent could not be answered.
        """
        if model:
            return model
        raise ConfigurationError("the agent names no model: add model: provider/model to it, or set ERRANDS_MODEL")

    @abstractmethod
    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        """Return one answer. With `on_text` its text is also streamed.

        Temporary failures (a connection, a 429, a 5xx) are retried as long as no text was passed on. Raises
        `ModelError`, and what `on_text` raises.
        """

    async def close(self) -> None:  # noqa: B027 - most models have nothing to close
        """Close connections."""
