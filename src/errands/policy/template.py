"""`{expression}` inside of text: prompts, error messages, addresses, headers and bodies.

- The expression is evaluated in the scope of the field; usually it is a dotted path.
- `{{` and `}}` are single braces.
- A text that is exactly one expression keeps the type of its value; otherwise values become text: strings as they are,
  everything else as JSON (`null`, `true`, `[1,2]`).
- A value that is missing is an error, never an empty string.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from errands.policy import cel
from errands.policy.cel import CelError, NameScope, Program, Session, Variables, evaluate
from errands.policy.cel.syntax import tokens
from errands.policy.cel.values import Json, as_text

_NAMES_MOUNT = re.compile(r"\{\s*mount\.")
_ESCAPE = "write {{ and }} for braces that are text"


class Template(msgspec.Struct, frozen=True, eq=False):
    """A compiled text: literal pieces and programs."""

    source: str
    pieces: tuple[str | Program, ...]

    @property
    def programs(self) -> list[Program]:
        """The expressions of the text."""
        return [piece for piece in self.pieces if isinstance(piece, Program)]

    async def value(self, variables: Variables, session: Session) -> Json:
        """Return the text, or the value itself when the text is exactly one expression. Raises `CelError`."""
        if len(self.pieces) == 1 and isinstance(self.pieces[0], Program):
            return await evaluate(self.pieces[0], variables, session)
        return await self.text(variables, session)

    async def text(self, variables: Variables, session: Session) -> str:
        """Return the text. Raises `CelError`."""
        filled = [
            piece if isinstance(piece, str) else as_text(await evaluate(piece, variables, session))
            for piece in self.pieces
        ]
        return "".join(filled)


@lru_cache(maxsize=1024)
def compile_template(scope: NameScope, source: str) -> Template:
    """Compile a text. Raises `CelError` for unbalanced braces and for expressions that are not valid in `scope`."""
    pieces: list[str | Program] = []
    literal = ""
    position = 0
    while position < len(source):
        character = source[position]
        if character in "{}" and source[position : position + 2] == character * 2:
            literal += character
            position += 2
        elif character == "{":
            if literal:
                pieces.append(literal)
            literal = ""
            program, position = _expression(scope, source, position)
            pieces.append(program)
        elif character == "}":
            raise CelError.at(source, position, "`}` without `{`", hint=_ESCAPE)
        else:
            literal += character
            position += 1
    if literal or not pieces:
        pieces.append(literal)
    return Template(source, tuple(pieces))


def compile_binding(scope: NameScope, source: str) -> Template:
    """Compile a binding, which is an expression or, to name the mount, a text with `{mount.bucket}` in it.

    The specification writes bindings as expressions everywhere but on its page about mounts. Raises `CelError`.
    """
    try:
        return Template(source, (cel.compile(scope, source),))
    except CelError:
        if not _NAMES_MOUNT.search(source):
            raise
        return compile_template(scope, source)


def _expression(scope: NameScope, source: str, opening: int) -> tuple[Program, int]:
    """Compile the expression in the braces that open here, and return where the text continues."""
    texts: list[str] = []
    depth = 1
    for token in tokens(source, opening + 1):
        depth += (token.text == "{") - (token.text == "}")
        if depth == 0:
            break
        texts.append(token.text)
    else:
        raise CelError.at(source, opening, "`{` without `}`", hint=_ESCAPE)
    if not texts:
        raise CelError.at(source, opening, "there is nothing between the braces", hint=_ESCAPE)
    expression = source[opening + 1 : token.start].strip()
    if texts[:2] == ["auth", "."] and texts[3:] == ["(", ")"]:
        # The specification writes both `{auth.name()}` and `{auth.name}`.
        expression = "".join(texts[:3])
    try:
        return cel.compile(scope.without_calls(), expression), token.start + 1
    except CelError as error:
        raise CelError(error.source, error.problem, hint=error.hint or _ESCAPE) from None
