"""What providers bring themselves (`model_capabilities`), and how each of them is asked for it."""

from __future__ import annotations

from typing import Any

from errands.errors import ConfigurationError

#: By capability and provider: what is added to the request. `tools` are added to those of the agent.
BUILTINS: dict[str, dict[str, dict[str, Any]]] = {
    "web-search": {
        "gemini": {"tools": [{"google_search": {}}]},
        "openai": {"web_search_options": {}},
        "openrouter": {"extra_body": {"plugins": [{"id": "web"}]}},
        # Its models search anyway.
        "perplexity": {},
        "vertexai": {"tools": [{"google_search": {}}]},
    },
}


def options_for(provider: str, builtins: tuple[str, ...]) -> dict[str, Any]:
    """What is added to a request. Raises `ConfigurationError` for what we cannot ask the provider for."""
    options: dict[str, Any] = {}
    for name in builtins:
        by_provider = BUILTINS.get(name, {})
        if provider not in by_provider:
            others = f"use a model of {', '.join(sorted(by_provider))}, or " if by_provider else ""
            problem = f"errands cannot ask {provider} for {name}"
            raise ConfigurationError(f"model_capabilities: {problem}: {others}take it away")
        options.update(by_provider[provider])
    return options
