"""Texts, data and colors of the pages that gluonlab writes."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES
from support.legible import luminance_ratio


def flatten_texts(words, path=()):
    """Return {path: text} of all texts in the nested translations of a language."""
    if isinstance(words, str):
        return {path: words}
    children = words._asdict() if hasattr(words, "_asdict") else words
    children = children if isinstance(children, dict) else dict(enumerate(children))
    return {
        inner_path: text
        for name, inner in children.items()
        for inner_path, text in flatten_texts(inner, (*path, name)).items()
    }


def format_fields(text):
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)


class PageTexts(HTMLParser):
    """The texts and labels of a page before its script runs."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.lang, self._current_tag = [], "", ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._current_tag = tag
        self.texts += [value for name, value in attrs if name in ("aria-label", "title", "alt", "placeholder")]
        self.lang = dict(attrs).get("lang", self.lang)

    def handle_data(self, data):
        if self._current_tag not in ("style", "script"):
            self.texts += [" ".join(data.split())] if data.strip() else []

    def handle_endtag(self, tag):
        self._current_tag = ""


def string_values(data):
    """Return all strings in JSON data, without keys."""
    if isinstance(data, dict):
        return [text for inner in data.values() for text in string_values(inner)]
    inner = data if isinstance(data, list) else []
    return [data] if isinstance(data, str) else [text for each in inner for text in string_values(each)]


def embedded_data(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])


def theme_colors(*packages):
    """Return {name: color} of the styles of some packages, for the light and the dark theme."""
    merged = [{}, {}]
    for package in packages:
        [path] = (Path(package.__file__).parent / "template").glob("*.css")
        blocks = re.findall(r":root {(.*?)}", path.read_text(encoding="utf-8"), re.S)
        assert len(blocks) == 2
        for theme, block in zip(merged, blocks):
            theme.update(re.findall(r"--([\w-]+): (#\w{6})", block))
    return merged


def contrast_ratio(one, two):
    """Return the contrast ratio of WCAG of two colors, #rrggbb."""
    return luminance_ratio(*[[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in (one, two)])


def check_self_contained(html):
    assert len(html.encode()) < 300_000
    assert (
        "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:;"
    ) in html
    assert set(re.findall(r"https?://[^\s\"']+", html)) == {"http://www.w3.org/2000/svg"}


# Words that remain English: names in code, keys of the keyboard, and the title of a book.
UNTRANSLATED_WORDS = {*ALGORITHMS, *SCHEDULES, "GPipe", "allreduce", "log", "JavaScript", "Home", "End"}
UNTRANSLATED_WORDS |= {"Dive", "into", "Deep", "Learning", "Training", "on", "Multiple", "GPUs"}
JAPANESE = "[\u3041-\u30ff\u4e00-\u9fff]"
TYPOGRAPHY_FAULTS = [
    "[\uff01-\uff5e\u3000]",  # full-width digits, letters, brackets, colons and spaces
    f"{JAPANESE}[0-9A-Za-z]|[0-9A-Za-z]{JAPANESE}",  # no space between the scripts
    f"{JAPANESE} +{JAPANESE}|[、。] | [、。]",  # a superfluous space
    rf"{JAPANESE}\(|\){JAPANESE}|\( | \)",  # brackets
]


def english_words(text):
    """Return the words of three letters and more that must be translated."""
    return set(re.findall("[A-Za-z_]{3,}", text)) - UNTRANSLATED_WORDS


def find_typography_faults(text):
    """Return the parts of a Japanese text that break the typography rules of the glossary.

    The text has no HTML, and its format fields are filled in.
    """
    return [match[0] for pattern in TYPOGRAPHY_FAULTS for match in re.finditer(pattern, text)]
