"""Language models behind one port (`base`): those of providers (`any_llm`), and one that answers by a script.

`model_from` chooses the model that answers the agents of a server.
"""

from __future__ import annotations

from pathlib import Path

from errands.agents.models.any_llm import DEFAULT_TIMEOUT, AnyLlmModel
from errands.agents.models.base import Answer, Model, OnText, Question
from errands.agents.models.completions import MAX_BYTES
from errands.agents.models.scripted import FILE, NAME, ScriptedModel, is_scripted, script_file
from errands.errors import ConfigurationError


def model_from(
    name: str | None,
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    script: str | Path | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    max_bytes: int = MAX_BYTES,
) -> Model:
    """Return the model for a server's agents.

    `scripted` answers all of them, whatever model they name; `provider/model` answers those that name none. `script` is
    the file of the scripted model, or the folder that contains it as `scripted.json`. Raises `ConfigurationError`.
    """
    if is_scripted(name):
        return _scripted(name or NAME, script)
    model = AnyLlmModel(name, base_url=base_url, api_key=api_key, timeout=timeout, max_bytes=max_bytes)
    return _ModelByName(model, script)


def _scripted(name: str, script: str | Path | None) -> ScriptedModel:
    if script is None:
        raise ConfigurationError(f"the scripted model needs a script: put {FILE} next to the manifests")
    return ScriptedModel(script, name)


class _ModelByName(Model):
    """Providers for most agents, and the scripted model for those that name it."""

    def __init__(self, providers: AnyLlmModel, script: str | Path | None) -> None:
        self._providers = providers
        self._script = script
        self._scripted: ScriptedModel | None = None

    def resolve(self, model: str | None, builtins: tuple[str, ...] = ()) -> str:
        try:
            return self._model(model).resolve(model, builtins)
        except ConfigurationError as error:
            if is_scripted(model) or self._script is None or not script_file(self._script).is_file():
                raise
            raise ConfigurationError(f"{error}; or try --model {NAME}, which needs no key") from None

    async def ask(self, question: Question, on_text: OnText | None = None) -> Answer:
        return await self._model(question.model).ask(question, on_text)

    async def close(self) -> None:
        await self._providers.close()

    def _model(self, name: str | None) -> Model:
        if not is_scripted(name):
            return self._providers
        self._scripted = self._scripted or _scripted(NAME, self._script)
        return self._scripted
