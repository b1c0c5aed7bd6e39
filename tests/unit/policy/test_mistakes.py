"""What the messages say to people who mistake the language for another."""

from __future__ import annotations

import pytest

from errands.policy import cel
from errands.policy.cel import CelError, scopes
from errands.policy.template import compile_template


def complaint(source: str, scope: cel.NameScope = scopes.BEFORE) -> str:
    with pytest.raises(CelError) as caught:
        cel.compile(scope, source)
    return f"{caught.value.problem}; {caught.value.hint}"


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("input.a = 2", "write == to compare"),
        ("input.a === 2", "write == to compare"),
        ("input.a !== 2", "write != to compare"),
        ("input.a and input.b", "write && for and"),
        ("input.a or input.b", "write || for or"),
        ("not input.a", "write ! for not"),
        ("input.a & input.b", "write &&"),
        ("input.a | input.b", "write ||"),
        ("input.a.filter(x => x > 1)", "write list.filter(x, ...) and the like"),
        ("input.a == 'x", "close the text with the quote that it begins with"),
        ("if (input.a) 1 else 2", "write condition ? value : other"),
        ("1 + 1.0", "the operands have types that do not go together"),
    ],
)
def test_signs_and_words_of_other_languages_are_explained(source: str, hint: str) -> None:
    assert hint in complaint(source)


def test_signs_that_are_right_are_not_complained_about() -> None:
    assert "write" not in complaint("input.a == 'x = y & z' && input.b <= 3 && input.order.and != 2 ||")


def test_an_expression_that_ends_too_early_is_told_so_in_words() -> None:
    assert complaint("input.a &&") == "Syntax error: the expression ends too early; "


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("len(input.a) > 1", "write size(...); available are context (c)"),
        ("input.a == None", "write null; "),
        ("input.a == True", "write true; "),
        ("input.a.startswith('x')", "did you mean startsWith? "),
        ("inptu.a", "did you mean input? available are context (c)"),
        ("parameters.a == 1", "write input.NAME; available are context (c)"),
        ("{text: input.a}", "'text' is a key of a map without quotes; write 'text'"),
        ("{'a': 1, text: input.a}", "'text' is a key of a map without quotes; write 'text'"),
    ],
)
def test_names_of_other_languages_are_explained(source: str, hint: str) -> None:
    assert hint in complaint(source)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("review()", "'review' is not called as it must be; write review('user')"),
        ("review('a', 'b')", "'review' is not called as it must be; write review('user')"),
        (
            "mount.read()",
            "'mount' is not called as it must be; write mount.read('path') or mount.write('path', 'text')",
        ),
        ("exists(input.a)", "'exists' is not called as it must be; write list.exists(x, ...), or has(map.field)"),
        ("contains(input.a, 'b')", "'contains' is not called as it must be; write text.contains('part')"),
    ],
)
def test_a_function_that_is_called_wrongly_is_not_said_to_be_missing(source: str, hint: str) -> None:
    assert complaint(source, scopes.TOOL_WITH_MOUNT) == hint


def test_a_function_of_another_scope_is_said_to_be_missing() -> None:
    assert complaint("review('a')", scopes.BINDING).startswith("'review' is not available in a binding; available are")
    assert complaint("mount.read('a')").startswith("'mount' is not available in a before step; ")


def test_requests_of_tools_have_parameters_and_settings() -> None:
    for source, hint in (("{input.a}", "write parameters.NAME; "), ("{env.TOKEN}", "write settings.NAME; ")):
        with pytest.raises(CelError) as caught:
            compile_template(scopes.REQUEST, source)
        assert hint in caught.value.hint


def test_braces_with_nothing_in_them_have_their_line() -> None:
    with pytest.raises(CelError, match="there is nothing between the braces") as caught:
        compile_template(scopes.PROMPT, "One {now}.\nTwo { }.")
    assert (caught.value.line, caught.value.column) == (2, 5)
