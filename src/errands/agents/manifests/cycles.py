"""Agents that can come back to themselves by asking each other. Allowed, bounded when they run, and worth a warning."""

from __future__ import annotations

from errands.agents.manifests.library import Key, Library


def check_cycles(library: Library) -> None:
    done: set[Key] = set()
    for key in library.agents:
        _follow(key, done, library)


def _follow(key: Key, done: set[Key], library: Library) -> None:
    """Depth first; beside each agent stands how we came to it."""
    stack: list[tuple[Key, list[Key]]] = [(key, [])]
    while stack:
        current, path = stack.pop()
        if current in done:
            continue
        done.add(current)
        agent = library.agents[current].document
        for ref, capability in agent.capabilities.items():
            target = (agent.namespace, ref)
            if target not in library.agents or capability.url is not None:
                continue
            if target in [*path, current]:
                names = [name for _, name in [*path, current, target]]
                round_trip = " → ".join(names[names.index(ref) :])
                place = library.agents[current].place / "capabilities" / ref
                place.warn(f"comes back to itself: {round_trip}", "see that it ends; errands bounds the depth")
            else:
                stack.append((target, [*path, current]))
