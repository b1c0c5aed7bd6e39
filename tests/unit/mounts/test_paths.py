"""Paths below a mount."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from errands.agents.mounts import MAX_NAME, MAX_PATH, MountError, names, one_name, wrong


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.txt", ("a.txt",)),
        ("notes/today.txt", ("notes", "today.txt")),
        ("./a.txt", ("a.txt",)),
        ("a/./b", ("a", "b")),
        (".hidden", (".hidden",)),
        ("...a", ("...a",)),
        ("größe/日本.md", ("größe", "日本.md")),
        ("a" * MAX_NAME, ("a" * MAX_NAME,)),
        ("console.log", ("console.log",)),
    ],
)
def test_a_path_is_a_row_of_names(path: str, expected: tuple[str, ...]) -> None:
    assert names(path) == expected


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("", "is empty"),
        ("..", "leads out"),
        ("../a", "leads out"),
        ("a/../../b", "leads out"),
        ("a/..", "leads out"),
        ("/etc/passwd", "is absolute"),
        ("//server/share", "is absolute"),
        ("C:/windows", "':'"),
        ("a.txt:stream", "':'"),
        ("..\\a", "'\\\\'"),
        ("a\\..\\b", "'\\\\'"),
        ("a\0b", "'\\x00'"),
        ("a\nb", "'\\n'"),
        ("a//b", "two / in a row"),
        ("a/", "that of a folder"),
        (".", "names no file"),
        (". ", "ends with a dot or a space"),
        (".. ", "ends with a dot or a space"),
        ("...", "ends with a dot or a space"),
        ("a./b", "ends with a dot or a space"),
        ("NUL", "device"),
        ("con.txt", "device"),
        ("a/Com1", "device"),
        ("a/lpt¹.x", "device"),
        ("a" * (MAX_NAME + 1), f"{MAX_NAME} bytes"),
        ("a/" * MAX_PATH + "b", f"{MAX_PATH} bytes"),
        ("ü" * (MAX_NAME // 2 + 1), f"{MAX_NAME} bytes"),
        ("\ud800", "not valid Unicode"),
    ],
)
def test_a_path_that_could_mean_something_else_is_refused(path: str, problem: str) -> None:
    with pytest.raises(MountError) as caught:
        names(path)
    assert problem in str(caught.value)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("value", ["a/b", "..", ".", "", "a\\b", "con", "a.", "{task}", "x\0", "\ud800", "a b", "日本"])
def test_any_value_of_a_token_is_one_name(value: str) -> None:
    name = one_name(value)
    assert wrong(name) == ""
    assert not set("/\\{}\0") & set(name)


@given(st.text(max_size=60), st.text(max_size=60))
def test_different_values_have_different_names(one: str, other: str) -> None:
    try:
        assert (one_name(one) == one_name(other)) == (one == other)
    except MountError as error:
        assert f"more than {MAX_NAME} bytes" in str(error)  # noqa: PT017 - only what is too long is refused
