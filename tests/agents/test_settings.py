"""The settings of models."""

from __future__ import annotations

from errands import Settings
from tests.agents.support import KEY


def test_the_settings_of_models_come_from_the_environment() -> None:
    settings = Settings.from_env(
        {
            "ERRANDS_MODEL": "openai/gpt-4o-mini",
            "ERRANDS_MODEL_BASE_URL": "http://localhost:11434/v1",
            "ERRANDS_MODEL_API_KEY": KEY,
            "ERRANDS_MODEL_TIMEOUT": "20",
        }
    )
    told = (settings.model, settings.model_base_url, settings.model_api_key, settings.model_timeout)
    assert told == ("openai/gpt-4o-mini", "http://localhost:11434/v1", KEY, 20.0)


def test_the_key_is_not_shown() -> None:
    settings = Settings(model_api_key=KEY, model="openai/gpt-4o-mini")
    assert KEY not in repr(settings) + str(settings) + f"{settings}"
    assert "model='openai/gpt-4o-mini', model_base_url=None, model_api_key='…'" in repr(settings)
    assert "model_api_key=None" in repr(Settings())
