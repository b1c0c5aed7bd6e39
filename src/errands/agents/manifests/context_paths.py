"""The paths of the context that an expression reads, as far as its text tells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from errands.policy.cel.tokens import CAPABILITIES, Token, closing, tokens

#: A step to some item of a list.
Item = None
Path = tuple[str | None, ...]

_ROOTS = ("context", "c")


def context_paths(source: str) -> Iterator[Path]:
    """Each path without its root: `context.input[0].region` is `("input", Item, "region")`; `cap` is written out.

    What `has(...)` asks for may be missing, so it is left out.
    """
    row = list(tokens(source))
    texts = [token.text for token in row]
    for index, token in enumerate(row):
        if token.kind != "name" or token.text not in _ROOTS or (index and texts[index - 1] == "."):
            continue
        is_asked = index > 1 and texts[index - 2 : index] == ["has", "("]
        if not is_asked and not _is_variable(token.text, texts):
            path = tuple(_steps(row, index + 1))
            if path:
                yield ("capabilities", *path[1:]) if path[0] in CAPABILITIES else path


def written(path: Path) -> str:
    """A path as people write it."""
    return "context" + "".join("[…]" if step is Item else f".{step}" for step in path)


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
            is_text = len(inside) == 1 and inside[0].kind == "string" and inside[0].text[0] in "'\""
            yield inside[0].text[1:-1] if is_text else Item
            index = end + 1
        elif texts == [".", "last", "(", ")"]:
            yield Item
            index += 4
        elif texts[0] == "." and len(texts) > 1 and row[index + 1].kind == "name" and texts[2:3] != ["("]:
            yield texts[1]
            index += 2
        else:
            return
