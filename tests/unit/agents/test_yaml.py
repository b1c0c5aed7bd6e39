"""YAML and its traps."""

from __future__ import annotations

from pathlib import Path

import pytest

from errands.agents.manifests import examine
from errands.agents.manifests.reading import MAX_FILE
from errands.agents.manifests.yaml_nodes import MAX_DEPTH, MAX_DOCUMENT, documents
from tests.unit.agents.support import text_report

_HEAD = "kind: commonagents.info/v1beta2/agent\nnamespace: a\nname: b\ndescription: c\n"


def only(folder: Path, text: str) -> str:
    [finding] = text_report(folder, text).findings
    return str(finding).removeprefix(f"{folder}/agent.yaml")


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    text = _HEAD + "prompt: one\nprompt: two\n"
    assert only(tmp_path, text) == ":6: has the key 'prompt' twice, first on line 5; keep one of the two"


@pytest.mark.parametrize(
    ("key", "shown"), [("1", "1"), ("true", "true"), ("~", "null"), ("[a]", "a list or an object")]
)
def test_a_key_that_is_no_text_is_refused(tmp_path: Path, key: str, shown: str) -> None:
    text = _HEAD + f"prompt: p\nexposes:\n  ? {key}\n  : 'now'\n"
    assert only(tmp_path, text) == f":7: has the key {shown}, which is not a string; put the key in quotes"


def test_a_merge_key_is_refused(tmp_path: Path) -> None:
    text = _HEAD + "prompt: p\nlimits: &l {max_turns: 1}\nexposes:\n  <<: *l\n"
    assert only(tmp_path, text).startswith(":8: has the merge key <<, which is not part of YAML 1.2; ")


def test_a_tag_is_refused(tmp_path: Path) -> None:
    text = _HEAD + "prompt: !!python/object:os.system p\n"
    assert only(tmp_path, text).startswith(":5: has the tag tag:yaml.org,2002:python/object:os.system; ")


def test_an_expression_that_begins_with_an_exclamation_mark_needs_quotes(tmp_path: Path) -> None:
    guardrail = _HEAD + "prompt: p\nguardrails:\n  before:\n    - assert: "
    told = only(tmp_path, guardrail + "!has(input.message)\n")
    assert told == ":8: begins with !has(input.message), which is a tag of YAML; put the string in quotes"
    told = only(tmp_path, guardrail + "!has(input.message) && now != ''\n")
    assert told.endswith("; put the string that begins with ! in quotes")
    assert only(tmp_path, _HEAD + "prompt: @support\n").endswith("; put the string that begins with @ in quotes")


def test_a_star_without_quotes_is_explained(tmp_path: Path) -> None:
    for capabilities in ("{x: *}", "\n  x: *", "\n  x: *  # all of it"):
        assert only(tmp_path, _HEAD + f"prompt: p\ncapabilities: {capabilities}\n").endswith(
            '; put the star in quotes: "*"'
        )


def test_a_colon_in_a_text_is_explained(tmp_path: Path) -> None:
    text = _HEAD + "prompt: p\nexposes:\n  a: now == '' ? 1 : 2\n"
    assert only(tmp_path, text).endswith(
        "put a string or expression that contains a colon in quotes, or fix the indentation"
    )


def test_a_control_character_has_its_line(tmp_path: Path) -> None:
    assert only(tmp_path, _HEAD + "prompt: p\a\n").startswith(":5: is not valid YAML (unacceptable character #x0007")


def test_an_anchor_does_not_reach_into_the_next_document(tmp_path: Path) -> None:
    text = _HEAD + "prompt: &p Help.\n---\n" + _HEAD.replace("name: b", "name: c") + "prompt: *p\n"
    assert "define it before in the same document" in only(tmp_path, text)


def test_what_should_have_been_indented_is_told_so(tmp_path: Path) -> None:
    text = _HEAD + "prompt: p\nlimits:\nmax_turns: 3\n"
    assert only(tmp_path, text) == ":7: max_turns: is unknown; indent it, if it belongs to limits, which is empty"


def test_a_tab_is_explained(tmp_path: Path) -> None:
    text = _HEAD + "prompt: p\nlimits:\n\tmax_turns: 1\n"
    assert only(tmp_path, text).endswith("indent with spaces; YAML does not allow tabs there")
    assert only(tmp_path, text).startswith(":7: is not valid YAML (")


def test_a_syntax_error_has_its_line(tmp_path: Path) -> None:
    assert only(tmp_path, _HEAD + "prompt: 'open\n").startswith(
        ":6: is not valid YAML (found unexpected end of stream)"
    )


def test_no_is_a_text_and_numbers_for_texts_need_quotes(tmp_path: Path) -> None:
    assert text_report(tmp_path, _HEAD + "prompt: no\n").valid
    assert only(tmp_path, _HEAD + "prompt: 1.10\n") == ':5: prompt: is a number, not a string; put it in quotes: "1.10"'


@pytest.mark.parametrize(("word", "meant"), [("yes", "true"), ("off", "false"), ("No", "false")])
def test_old_spellings_of_flags_are_explained(tmp_path: Path, word: str, meant: str) -> None:
    text = (
        "kind: commonagents.info/v1beta2/tool\nnamespace: a\nname: b\ndescription: c\n"
        f"synchronous: {word}\nactions: [{{name: x, description: y, execute: {{cel: {{expression: '1'}}}}}}]\n"
    )
    assert only(tmp_path, text) == f":5: synchronous: is a string, not true or false; write {meant}"


def values(text: str) -> object:
    [root] = documents(text, lambda line, problem, remedy: pytest.fail(problem))
    return root.plain()


def test_plain_words_are_read_as_yaml_1_2_says() -> None:
    assert values("[no, on, 2026-01-31, 012, 0o14, 0x1f, -3, 1e3, .5, ~, null, True, 1_000, '7', !!str 8, '']") == [
        *("no", "on", "2026-01-31", 12, 12, 31, -3, 1000.0, 0.5, None, None, True, "1_000", "7", "8", ""),
    ]


@pytest.mark.parametrize("number", ["9" * 5000 + ".0", "1e999"])
def test_a_number_without_end_is_refused(tmp_path: Path, number: str) -> None:
    text = _HEAD + f"prompt: p\npriority: {number}\n"
    assert "which is too large" in str(text_report(tmp_path, text).findings[0])


def test_anchors_may_be_used(tmp_path: Path) -> None:
    text = _HEAD + "prompt: p\nguardrails:\n  before: &g\n    - assert: 'true'\n  after: *g\n"
    assert text_report(tmp_path, text).valid


def test_a_bomb_of_aliases_is_stopped(tmp_path: Path) -> None:
    bomb = "a0: &a0 [1, 2]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 20))
    assert "contains more than 50000 values" in only(tmp_path, bomb)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("a: &a [*a]\n", ":1: uses *a inside itself"), ("a: *b\n", ":1: uses *b, which is not defined")],
)
def test_an_alias_without_a_meaning_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert only(tmp_path, text).startswith(problem)


def test_depth_is_bounded(tmp_path: Path) -> None:
    assert f"has more than {MAX_DEPTH} nested levels" in only(tmp_path, "a: " + "[" * 500 + "]" * 500)


def test_a_document_is_bounded(tmp_path: Path) -> None:
    text = _HEAD + "prompt: " + "x" * (MAX_DOCUMENT + 1) + "\nmodel: m\n"
    assert "is a document of more than 512 KB" in only(tmp_path, text)


def test_a_file_is_bounded(tmp_path: Path) -> None:
    assert "has more than 2 MB" in only(tmp_path, "#" * (MAX_FILE + 1))


def test_the_documents_of_a_file_are_bounded(tmp_path: Path) -> None:
    found = text_report(tmp_path, "--- {x: 1}\n" * 201).findings
    assert "is one of more than 200 documents; split the file" in str(found[-1])


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"kind: \xff")
    [finding] = examine(tmp_path).findings
    assert str(finding) == f"{tmp_path}/a.yaml: is not UTF-8 (at byte 6); save it as UTF-8"


def test_a_path_that_is_not_there_is_told(tmp_path: Path) -> None:
    [finding] = examine(tmp_path / "nowhere").findings
    assert finding.problem == "is neither a file nor a folder"


def test_a_folder_without_manifests_is_told(tmp_path: Path) -> None:
    [finding] = examine(tmp_path).findings
    assert finding.problem == "has no .yaml or .yml files"


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n---\n"])
def test_a_file_without_documents_is_told(tmp_path: Path, text: str) -> None:
    assert only(tmp_path, text) == ": has no agent, tool or mount; name a file or folder with manifests"


def test_a_document_that_is_no_object_is_told(tmp_path: Path) -> None:
    assert only(tmp_path, "- a\n").startswith(":1: is not an object; ")


def test_what_cannot_be_read_does_not_make_others_seem_missing(tmp_path: Path) -> None:
    (tmp_path / "tool.yaml").write_text("kind: [")
    (tmp_path / "agent.yaml").write_text(_HEAD + "prompt: p\ncapabilities: {crm: '*'}\n")
    assert [Path(finding.file).name for finding in examine(tmp_path).findings] == ["tool.yaml"]
