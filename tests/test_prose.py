"""The documents, help texts and error messages follow the rules for plain prose of tests/support/prose.py."""

import re
from pathlib import Path

import pytest
from support.prose import MAX_SEMICOLONS, MAX_WORDS, check_page, read_error_messages, split_sentences

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("sagemaker/*.md"), ROOT / "labs/AUTHORING.md"]
    if path.name not in ("README.ja.md", "options.md")  # Japanese; made of the help texts
)
LABS = sorted(ROOT.glob("labs/source/*.md"))
JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


def test_the_rules_find_what_they_forbid_and_nothing_else():
    assert check_page("It prints a table. It's short, isn't it?\n\n- Save the file; close it.") == []
    long = " ".join(["word"] * (MAX_WORDS + 1)) + "."
    for text in (long, "What checkpoints cost, it measures.", "It works there, too.", "Its size is that of a batch."):
        assert len(check_page(text)) == 1, text
        assert check_page(f"```\n{text}\n```\n") == []
    assert [place.line for place in check_page("a; b\n\n" * (MAX_SEMICOLONS + 2))] == [5 + 2 * k for k in range(2)]
    assert check_page("## What is trusted\n\n| What | x |\n|---|---|\n\nWhat is it?") == []
    sentences = split_sentences("Use `a. B`, e.g. Adam. gluonlab runs. See [x](y. Z).")
    assert sentences == ["Use x, e.g.\u00a0Adam.", "gluonlab runs.", "See x."]
    code = "raise ConfigError(f'{name} is no name: {hint}')\nprint('is no name')\n"
    assert [text for _, text in read_error_messages(code)] == ["x is no name: x"]


@pytest.mark.parametrize("path", [*PAGES, *LABS], ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_plain_prose(path):
    text = re.sub(r"\A---\n.*?^---$", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)  # a lab's metadata
    places = [place for place in check_page(text) if not JAPANESE.search(place.text)]
    broken = [f"{path.name}:{line}: {rule}: {text}" for line, rule, text in places]
    assert not broken, "\n".join(broken)
