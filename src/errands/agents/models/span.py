"""The span of a question to a model: the model, the tokens and, if content may be captured, the messages."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from errands.agents.models.base import Answer, FunctionSaid, ModelError, ModelSaid, Question, Said, UserSaid
from errands.agents.models.completions import tools
from errands.tracing import Tracer

#: The names of OpenTelemetry for providers to which any-llm gives other names.
_PROVIDERS = {
    "azure": "azure.ai.inference",
    "azureopenai": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "vertexai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}


async def trace_answer(
    tracer: Tracer, question: Question, asked: Coroutine[Any, Any, Answer], conversation: str
) -> Answer:
    """Wait for the answer of a model in a span. `conversation` is the context of the task."""
    provider, _, name = question.model.rpartition("/")
    span = tracer.span(
        "chat",
        name,
        provider=_PROVIDERS.get(provider, provider or name),
        agent=question.agent or None,
        conversation=conversation or None,
    )
    if span.captures_content:
        span.note(
            system=_json([{"type": "text", "content": question.system}]) if question.system else None,
            input_messages=_json([_message(said) for said in question.said]),
            tools=_json(tools(question.offers)) if question.offers else None,
        )
    try:
        with span.active():
            answer = await asked
        finish = answer.incomplete or ("tool_call" if answer.calls else "stop")
        span.note(
            response_model=answer.model.rpartition("/")[2],
            input_tokens=answer.prompt_tokens,
            output_tokens=answer.completion_tokens,
            finish_reasons=[finish],
        )
        if span.captures_content:
            message = _message(ModelSaid(answer.text, answer.calls))
            span.note(output_messages=_json([{**message, "finish_reason": finish}]))
    except BaseException as error:
        span.fail("broke_off" if isinstance(error, ModelError) and error.broke_off else type(error).__name__)
        raise
    finally:
        span.end()
    return answer


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _message(said: Said) -> dict[str, Any]:
    """Return a message as the semantic conventions write it."""
    match said:
        case UserSaid(parts):
            return {"role": "user", "parts": [_part(part) for part in parts]}
        case ModelSaid(text, calls):
            spoken: list[dict[str, Any]] = [{"type": "text", "content": text}] if text else []
            called = [
                {"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments or {}}
                for call in calls
            ]
            return {"role": "assistant", "parts": spoken + called}
        case FunctionSaid(call, _, content):
            return {"role": "tool", "parts": [{"type": "tool_call_response", "id": call, "response": content}]}


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "content": part["text"]}
    if "data" in part:
        return {"type": "text", "content": _json(part["data"])}
    # Without the bytes of files.
    address = str(part.get("file", ""))
    return {
        "type": "uri",
        "mime_type": part.get("mimeType"),
        "uri": "data:" if address.startswith("data:") else address,
    }
