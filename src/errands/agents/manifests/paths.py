"""The paths of the context and the input that an expression reads, as far as its text tells, and whether they exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from errands.agents.manifests.findings import Place, suggestion
from errands.policy.cel.tokens import CAPABILITIES, Token, closing, tokens

#: A step to some item of a list.
Item = None
Path = tuple[str | None, ...]

#: What a value has below it: fields by name, the same for each item of a list, or nothing that is known.
Shape = dict[str, Any] | list[Any] | None

#: What is missing after this beginning of a path.
_WORDS: dict[Path, str] = {
    ("input",): "there is no such parameter",
    ("context", "input", Item): "the agent has no such parameter",
    ("context", "output", Item): "the agent exposes nothing of that name",
    ("context", "capabilities"): "there is no such function",
}
_FUNCTIONS: Path = ("context", "capabilities")

_ROOTS = {"context": "context", "c": "context", "input": "input", "i": "input"}


def paths_in(source: str) -> Iterator[Path]:
    """Each path, such as `("context", "input", Item, "region")` for `c.input[0].region`; short names are written out.

    What `has(...)` asks for may be missing, so it is left out.
    """
    row = list(tokens(source))
    texts = [token.text for token in row]
    for index, token in enumerate(row):
        if token.kind != "name" or token.text not in _ROOTS or (index and texts[index - 1] == "."):
            continue
        is_asked = index > 1 and texts[index - 2 : index] == ["has", "("]
        if not is_asked and not _is_variable(token.text, texts):
            root = _ROOTS[token.text]
            first, *others = [*_steps(row, index + 1), None]
            if first is not None:
                is_short = root == "context" and first in CAPABILITIES
                yield (root, "capabilities" if is_short else first, *others[:-1])


def written(path: Path) -> str:
    """A path as people write it."""
    return "".join("[…]" if step is Item else f".{step}" for step in path).removeprefix(".")


def _is_variable(name: str, texts: Sequence[str]) -> bool:
    """Whether a macro has a variable of this name, as in `list.exists(c, c > 1)`."""
    return any(list(texts[index : index + 3]) == ["(", name, ","] for index in range(len(texts)))


def _steps(row: Sequence[Token], index: int) -> Iterator[str | None]:
    """The steps from the token at `index` on, up to the first that is no field and no item."""
    while index < len(row):
        texts = [token.text for token in row[index : index + 4]]
        if texts[0] == "[":
            end = closing(row, index)
            inside = row[index + 1 : end]
            yield _literal(inside[0]) if len(inside) == 1 else Item
            index = end + 1
        elif texts == [".", "last", "(", ")"]:
            yield Item
            index += 4
        elif texts[0] == "." and len(texts) > 1 and row[index + 1].kind == "name" and texts[2:3] != ["("]:
            yield texts[1]
            index += 2
        else:
            return


def _literal(token: Token) -> str | None:
    """The text of a plain literal. Others are not worth reading: what they name is not known."""
    if token.kind == "string" and "\\" not in token.text:
        for quote in ('"""', "'''", '"', "'"):
            if token.text.startswith(quote):
                return token.text.removeprefix(quote).removesuffix(quote)
    return None


# Whether it is there


def check_reads(shape: Shape, source: str, place: Place, prefixes: tuple[str, ...] = ()) -> None:
    """Warns about what an expression reads and `shape` does not have.

    Functions that begin with one of `prefixes` are only known when the agent runs.
    """
    for path in dict.fromkeys(paths_in(source)):
        depth, names = _missing(shape, path)
        step, before = (path[depth], path[:depth]) if names else (None, ())
        if step is None or (before == _FUNCTIONS and step.startswith(prefixes)):
            continue
        word = _WORDS.get(before, "there is no such field")
        place.warn(f"reads {written((*before, step))}, and {word}", suggestion(step, names, "change the name"))


def _missing(shape: Shape, path: Path) -> tuple[int, list[str]]:
    """The first step of a path that leads nowhere, and where one could go instead; nowhere when all is well."""
    for depth, step in enumerate(path):
        if isinstance(shape, list) and step is Item:
            shape = shape[0]
        elif isinstance(shape, dict) and isinstance(step, str):
            if step not in shape:
                return depth, list(shape)
            shape = shape[step]
        else:
            break
    return 0, []
