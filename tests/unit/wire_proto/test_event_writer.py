"""Events of a stream are written as one by one, whichever of them were written from what they have in common."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errands.model.base import encode
from errands.model.core import Artifact, Part, StreamResponse, TaskArtifactUpdateEvent
from errands.wire.proto.codec import CODECS, Codec, EventWriter, read_response
from tests.soak import examples
from tests.unit.wire_proto.strategies import events

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.version)

#: Quotes and backslashes are escaped in JSON; the lengths need one, two and three bytes in protobuf.
texts = st.text(st.sampled_from('ab é"\\\n'), max_size=4) | st.sampled_from([10, 127, 128, 300, 20_000]).map(
    "é".__mul__
)
#: Another text where one is looked for.
misleading = {"parts": [{"text": "b"}]}


def piece(text: str, **update: Any) -> StreamResponse:
    artifact = Artifact(artifact_id="a", parts=[Part(text=text)])
    fields = {"task_id": "t", "context_id": "c", "artifact": artifact, "append": True, **update}
    return StreamResponse(artifact_update=TaskArtifactUpdateEvent(**fields))


def written(codec: Codec, stream: list[StreamResponse]) -> list[StreamResponse]:
    """What the client reads of the events of one stream."""
    rpc = codec.rpcs["SendStreamingMessage"]
    writer = EventWriter(rpc)
    return [read_response(rpc, writer.write(encode(event))) for event in stream]


@BOTH
@settings(max_examples=examples(100), deadline=None)
@given(
    stream=st.lists(
        st.builds(
            piece,
            texts,
            last_chunk=st.sampled_from([False, False, False, True]),
            metadata=st.sampled_from([None, None, None, {"n": 1}, misleading]),
        )
        | events,
        max_size=10,
    )
)
def test_the_events_of_a_stream_come_back_as_they_were(codec: Codec, stream: list[StreamResponse]) -> None:
    assert written(codec, stream) == stream


@BOTH
@pytest.mark.parametrize(
    "artifact",
    [
        Artifact(artifact_id="a", parts=[Part(text="x"), Part(text="y")]),
        Artifact(artifact_id="a", parts=[Part(data={"parts": [{"text": "x"}]})]),
        Artifact(artifact_id='"parts":[{"text":"', parts=[Part(text="x", metadata=misleading)], metadata=misleading),
    ],
    ids=["two texts", "a text in data", "a text in metadata"],
)
def test_pieces_that_are_more_than_a_text_come_back_as_they_were(codec: Codec, artifact: Artifact) -> None:
    stream = [piece("", artifact=artifact)] * 4
    assert written(codec, stream) == stream


def test_a_stream_keeps_little_of_what_its_pieces_have_in_common() -> None:
    rpc = CODECS["1.0"].rpcs["SendStreamingMessage"]
    for metadata in (None, {"n": "x" * 100_000}):
        writer = EventWriter(rpc)
        events = [encode(piece("x" * length, metadata=metadata)) for length in range(255)]
        tracemalloc.start()
        for event in events:
            writer.write(event)
        kept = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert kept < 500_000
