"""Rules for plain prose that a program can check, and the text of pages, help texts and messages.

``python tests/support/prose.py FILE.md ...`` prints every place that breaks a rule.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Iterator, List, NamedTuple, Tuple

MAX_WORDS = 30  # of a sentence on a page
MAX_SEMICOLONS = 2  # on a page

# pattern -> what to write instead
BANNED_WORDS = {
    r"(?<![?] )\b(?:that|those) of\b(?! (?:a|the) (?:kind|sort))": "repeat the noun",
    r", too\b": '"also", before the verb',
    r"\bso (?:does|do|is|are|did|was|were) (?!that)\w+[.,;]": "two sentences, each with its verb",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer|more\b|\w+er\b|way\b|need\b)": '"is not"',
    r"\bof (?:its|their|your|one's|his|my|our) own\b": '"your own X", or leave it out',
    r"\b(?:go|goes|went|going|gone) on\b(?! (?:a|the) )": '"continue" or "resume"',
    r"\b(?:anew|for ever|likewise|whoever|whichever one|surely|as it comes)\b": "a plain word",
    r"\b(?:at hand|all the same|for want of|as ever)\b": "a plain word",
    r"\b(?:mend|mends|mended|cure|cures|cured|remedy|remedies)\b": '"fix"',
    r"\bbeside\b": '"next to", "compared with" or "besides"',
    r"\b(?:same bits|to the bits?)\b": '"bit-identical"',
    r"\bundisturbed\b": '"uninterrupted"',
    r"\b(?:nobody|no one|nothing) (?:\w+ )+but\b": '"only"',
    r"\b(?:the )?floor (?:of|under|for)\b": '"lower bound"',
    r"\bput right\b": '"fix"',
    r"\bstands? in\b": '"replace", "fall back to"',
    r"\bpromises?\b": '"guarantee"',
}
# A statement does not begin with these words; a question may.
BANNED_OPENINGS = (
    "What", "Whatever", "Who", "Whoever", "Whose", "Whom", "Where", "Wherever", "Those", "Of", "Nobody", "Nothing",
)  # fmt: skip


class Break(NamedTuple):
    """A place that breaks a rule."""

    line: int
    rule: str
    text: str


def read_sentences(markdown: str) -> Iterator[Tuple[int, str, bool]]:
    """Yield (line, text, whether it is a sentence of running text) of a page without its code.

    Table cells and headings are yielded with False. Inline code and formulas become the word ``x``.
    """
    block: List[str] = []
    start, fence = 1, ""
    for number, line in enumerate([*markdown.splitlines(), ""], 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence or mark:
            if mark and (not fence or mark[1] == fence):
                fence = "" if fence else mark[1]
            line = ""
        is_list_item = bool(re.match(r"\s*(?:[-*+]|\d+[.)]) ", line))
        is_other = bool(re.match(r"\s*(?:[#|<!]|:::|!!!|---|\[\^?[\w-]+\]:)", line))
        if not line.strip() or is_list_item or is_other:
            yield from ((start, sentence, True) for sentence in split_sentences(" ".join(block)))
            block = []
        if is_other:
            cells = [line.lstrip("# ")] if not line.lstrip().startswith("|") else line.strip().strip("|").split("|")
            yield from ((number, to_plain_text(cell), False) for cell in cells if not line.lstrip().startswith("<!"))
        elif line.strip():
            start = number if not block else start
            block.append(re.sub(r"^\s*(?:[-*+]|\d+[.)]|>) +", "", line).strip())


def to_plain_text(markdown: str) -> str:
    """Return the text of inline markdown, with ``x`` for code, formulas and addresses."""
    text = re.sub(r"``.*?``|`[^`]*`|\$[^$]+\$", "x", markdown)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"https?://\S+", "x", text)
    return re.sub(r"[*_]{1,2}(?=\S)|(?<=\S)[*_]{1,2}", "", text).strip()


def split_sentences(markdown: str) -> List[str]:
    """Return the sentences of a paragraph."""
    text = to_plain_text(markdown)
    text = re.sub(r"\b(e\.g|i\.e|etc|vs|Fig|No|Dr|approx)\. ", lambda match: match[0].replace(". ", ".\u00a0"), text)
    parts = re.split(r"(?<=[.!?])[)\"]* +(?=[\"(]?(?:[A-Z0-9{]|x\b|gluonlab\b))", text)
    return [part.strip() for part in parts if part.strip()]


def check_wording(text: str) -> List[Tuple[str, str]]:
    """Return (rule, match) for each rule about words that a text breaks."""
    breaks = [
        (f"{match[0]!r}: write {advice}", match[0])
        for pattern, advice in BANNED_WORDS.items()
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]
    opening = re.match(r"[\W_]*(\w+)", text)
    if opening and opening[1] in BANNED_OPENINGS and not text.rstrip(")\"'").endswith("?"):
        breaks.append((f"begins with {opening[1]!r}: begin with a concrete noun or an imperative", opening[1]))
    return breaks


def check_page(markdown: str) -> List[Break]:
    """Return the places of a page that break a rule."""
    breaks, semicolons = [], []
    for line, text, is_sentence in read_sentences(markdown):
        breaks += [
            Break(line, rule, text) for rule, _ in check_wording(text) if is_sentence or not rule.startswith("begins")
        ]
        words = len(text.split())
        if is_sentence and words > MAX_WORDS:
            breaks.append(Break(line, f"a sentence of {words} words: at most {MAX_WORDS}", text))
        if is_sentence:
            semicolons += [Break(line, f"more than {MAX_SEMICOLONS} semicolons on the page", text)] * text.count(";")
    return breaks + semicolons[MAX_SEMICOLONS:]


def read_error_messages(source: str) -> Iterator[Tuple[int, str]]:
    """Yield (line, text) of the messages that Python code raises, with ``x`` for values in f-strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            parts = [part for argument in node.exc.args for part in ast.walk(argument)]
            inner = {id(part) for string in parts if isinstance(string, ast.JoinedStr) for part in string.values}
            for part in parts:
                text = _constant_text(part)
                if id(part) not in inner and " " in text:
                    yield part.lineno, text  # type: ignore[attr-defined]


def _constant_text(node: ast.AST) -> str:
    """Return the text of a string or an f-string, or ""."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for line, rule, text in check_page(Path(name).read_text(encoding="utf-8")):
            print(f"{name}:{line}: {rule}\n    {text}")
