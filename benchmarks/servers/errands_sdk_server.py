"""The official SDK's executor, unchanged, on errands."""

from a2a_sdk_executor import BenchAgent, card
from errands_storage import storage

from errands import A2AServer

server = A2AServer(executor=BenchAgent(), agent_card=card, storage=storage)
