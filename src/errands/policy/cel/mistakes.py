"""What people mistake the language for, and what they should write instead. It only makes messages better."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from errands.policy.cel.scopes import Scope
from errands.policy.cel.tokens import Token

#: Names of other languages.
_INSTEAD = {
    **dict.fromkeys(("len", "length", "count"), "size(...)"),
    **dict.fromkeys(("None", "nil", "undefined", "NULL"), "null"),
    **dict.fromkeys(("any", "some"), "list.exists(x, ...)"),
    "every": "list.all(x, ...)",
    "True": "true",
    "False": "false",
    "float": "double(...)",
    "str": "string(...)",
    "includes": "text.contains(...), or item in list",
}
#: How functions are called; what is not here takes what its name says.
_CALLS = {
    "review": "review('user')",
    "mount.read": "mount.read('path')",
    "mount.write": "mount.write('path', 'text')",
    "file": "file('path')",
    "has": "has(map.field)",
    "size": "size(value)",
    "contains": "text.contains('part')",
    "startsWith": "text.startsWith('part')",
    "endsWith": "text.endsWith('part')",
    "matches": "text.matches('pattern')",
    "all": "list.all(x, ...)",
    "exists": "list.exists(x, ...), or has(map.field)",
    "exists_one": "list.exists_one(x, ...)",
    "map": "list.map(x, ...)",
    "filter": "list.filter(x, ...)",
    "string": "string(value)",
    "int": "int(value)",
    "double": "double(value)",
    "timestamp": "timestamp('2026-05-20T03:45:00Z')",
    "duration": "duration('90s')",
    "put": "map.put('key', value)",
    "last": "list.last()",
}
_WAITING = ("review", "mount.read", "mount.write", "file")
_WORDS = {"and": "&&", "or": "||", "not": "!"}
_COMPARING = ("=", "!", "<", ">")
_EARLY = "mismatched input '<EOF>'"


def unknown_name(scope: Scope, name: str, row: Sequence[Token]) -> tuple[str, str]:
    """What is wrong with a name in an expression that the engine does not know in `scope`, and what to do."""
    root = name.partition(".")[0]
    if _is_key(root, row):
        return f"{root!r} is a key of a map without quotes", f"write '{root}'"
    known = [call for call in _CALLS if call not in _WAITING or call in scope.functions]
    called = [call for call in known if call == name or call.startswith(f"{root}.")]
    if called:
        return f"{root!r} is not called as it must be", f"write {' or '.join(_CALLS[call] for call in called)}"
    available = f"available are {scope.describe()}, and the functions of the language"
    close = difflib.get_close_matches(root, [*scope.variables, *scope.capabilities, *known], 1, 0.8)
    instead = _INSTEAD.get(root) or _arguments(scope, root)
    if instead:
        available = f"write {instead}; {available}"
    elif close:
        available = f"did you mean {close[0]}? {available}"
    return f"{root!r} is not available in {scope.name}", available


def _arguments(scope: Scope, root: str) -> str:
    """What the arguments of a call, or what the operator gives, are called in this scope."""
    if root in ("input", "i", "parameters", "params", "args", "arguments"):
        return next((f"{name}.NAME" for name in ("parameters", "input") if name in scope.variables), "")
    return "settings.NAME" if root in ("env", "environ", "secrets") and "settings" in scope.variables else ""


def _is_key(name: str, row: Sequence[Token]) -> bool:
    """Whether it stands in a map where a key must stand."""
    texts = [token.text for token in row]
    return any(
        texts[index] in ("{", ",") and texts[index + 1] == name and texts[index + 2] == ":" and "?" not in texts[:index]
        for index in range(len(texts) - 2)
    )


def syntax(problem: str, row: Sequence[Token]) -> tuple[str, str]:
    """The engine's complaint about syntax, shorter where it is long, and what to do if it is a known mistake."""
    if problem.startswith("Syntax error") and _EARLY in problem and "expecting {" in problem:
        problem = "Syntax error: the expression ends too early"
    if problem == "reserved identifier: if":
        return problem, "write condition ? value : other"
    return problem, next(filter(None, (_sign(row, index) for index in range(len(row)))), "")


def _sign(row: Sequence[Token], index: int) -> str:
    """What to write in place of the token at `index`, if it belongs to another language."""
    token = row[index]
    before = row[index - 1] if index and row[index - 1].start + len(row[index - 1].text) == token.start else None
    after = row[index + 1] if index + 1 < len(row) and row[index + 1].start == token.start + 1 else None
    if token.kind == "name" and token.text in _WORDS and (index == 0 or row[index - 1].text != "."):
        return f"write {_WORDS[token.text]} for {token.text}"
    if token.kind != "sign":
        return ""
    if token.text == "=" and before is not None and before.text in ("=", "!") and after is not None:
        return f"write {before.text}= to compare" if after.text == "=" else ""
    if token.text == "=" and (before is None or before.text not in _COMPARING):
        if after is None or after.text not in ("=", ">"):
            return "write == to compare"
        return "write list.filter(x, ...) and the like" if after.text == ">" else ""
    if token.text in "&|" and not any(near is not None and near.text == token.text for near in (before, after)):
        return f"write {token.text * 2}"
    if token.text in "'\"":
        return "close the text with the quote that it begins with"
    return ""
