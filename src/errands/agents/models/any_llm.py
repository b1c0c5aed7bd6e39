"""Models of any provider that any-llm knows, and of any server that speaks OpenAI's protocol, behind the port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from errands.agents.models.assembling import MAX_BYTES, AnswerTooLongError, Assembly
from errands.agents.models.base import Answer, Model, ModelError, OnText, Question
from errands.agents.models.builtins import options_for
from errands.agents.models.failures import Asked, empty, failed_try, is_caused_by, too_long, unfinished
from errands.agents.models.messages import messages, tools
from errands.agents.models.providers import Provider, Providers, split
from errands.agents.models.retrying import FailedTry, Patience
from errands.errors import ConfigurationError
from errands.unpacking import AnswerTooLargeError

DEFAULT_TIMEOUT = 300.0


class AnyLlmModel(Model):
    """`default` answers agents that name no model; `base_url` and `api_key` are for its provider."""

    def __init__(
        self,
        default: str | None = None,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_bytes: int = MAX_BYTES,
        patience: Patience | None = None,
    ) -> None:
        self._default = default
        self._providers = Providers(split(default)[0] if default else None, base_url, api_key, max_bytes)
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._patience = patience or Patience()

    def resolve(self, model: str | None, builtins: tuple[str, ...] = ()) -> str:
        chosen = super().resolve(model or self._default)
        provider, name = split(chosen)
        self._providers.get(provider)
        options_for(provider, builtins)
        return f"{provider}/{name}"

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        try:
            provider, name = split(question.model)
            found = self._providers.get(provider)
            exchange = _Exchange(found, self._providers.asked(provider, name), question, self._max_bytes)
            exchange.options.update(options_for(provider, question.builtins))
        except ConfigurationError as error:
            raise ModelError(str(error)) from None
        if exchange.provider.TIMEOUT_SUPPORT != "unsupported":
            # Ours must end first: it covers every try, and says what to do.
            exchange.options["timeout"] = 2 * self._timeout
        try:
            async with asyncio.timeout(self._timeout) as limit:
                return await self._patience.run(lambda: exchange.attempt(on_text), lambda: not exchange.has_told)
        except TimeoutError:
            if not limit.expired():
                raise
            told = f"{exchange.asked.address} did not finish its answer in {self._timeout:g} s{exchange.before}"
            raise ModelError(
                f"{told}: try again, or set ERRANDS_MODEL_TIMEOUT to more seconds",
                told="The model of this agent took too long; try again later",
                broke_off=exchange.has_told,
            ) from None

    async def close(self) -> None:
        await self._providers.close()


class _Exchange:
    """One question on its way to a provider, until it is answered."""

    def __init__(self, provider: Provider, asked: Asked, question: Question, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.provider = provider
        self.asked = asked
        self.question = question
        #: Beside the messages and the functions.
        self.options: dict[str, Any] = {}
        #: Whether somebody has heard a part of the answer.
        self.has_told = False
        #: What is to be said about the try before.
        self.before = ""
        #: What all tries together took, as far as they came to an end.
        self._prompt_tokens = self._completion_tokens = 0

    async def attempt(self, on_text: OnText | None) -> Answer:
        """One try. Raises `FailedTry`, and what `on_text` raises."""
        try:
            return await self._attempt(on_text)
        except FailedTry as failure:
            self.before = f" (before, {failure})"
            raise

    async def _attempt(self, on_text: OnText | None) -> Answer:
        assembly = Assembly(self.question, self.asked.provider, self._max_bytes)
        try:
            return await self._assembled(assembly, on_text)
        except FailedTry as failure:
            failure.broke_off = failure.is_passing and assembly.is_begun and not assembly.is_finished
            raise

    async def _assembled(self, assembly: Assembly, on_text: OnText | None) -> Answer:
        async with aclosing(self._texts(assembly, on_text is not None)) as texts:
            async for text in texts:
                if text and on_text is not None:
                    self.has_told = True
                    await on_text(text)
        if not assembly.is_finished:
            raise unfinished(self.asked, is_begun=assembly.is_begun)
        answer = assembly.answer()
        self._prompt_tokens += answer.prompt_tokens
        self._completion_tokens += answer.completion_tokens
        if assembly.is_empty and (answer.incomplete or not self.question.tells_results):
            raise empty(self.asked, answer.incomplete)
        return msgspec.structs.replace(
            answer, prompt_tokens=self._prompt_tokens, completion_tokens=self._completion_tokens
        )

    async def _texts(self, assembly: Assembly, streaming: bool) -> AsyncGenerator[str, None]:
        """The text of an answer as it comes. Nothing that the caller does with it is taken for a failure."""
        try:
            if not (streaming and self.provider.SUPPORTS_COMPLETION_STREAMING):
                yield assembly.whole(await self._send())
                return
            async with aclosing(await self._send(stream=True, stream_options={"include_usage": True})) as chunks:
                async for chunk in chunks:
                    yield assembly.piece(chunk)
        except Exception as error:
            if is_caused_by(error, AnswerTooLongError, AnswerTooLargeError):
                raise too_long(self.asked, self._max_bytes) from error
            raise failed_try(error, self.asked) from error

    async def _send(self, **streaming: Any) -> Any:
        options = dict(self.options)
        offered = [*tools(self.question.offers), *options.pop("tools", [])]
        if offered:
            options["tools"] = offered
        _, name = split(self.question.model)
        return await self.provider.acompletion(name, messages(self.question), **options, **streaming)
