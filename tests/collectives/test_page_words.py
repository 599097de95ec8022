"""The words of the page that draws schedules: the same in every language, and nothing of one
language on the page of another.
"""

import json
import re
from html.parser import HTMLParser
from string import Formatter

import pytest
from support.japanese import english_words, faults_of_writing

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.render import as_page, draw
from gluonlab.collectives.render.scene import in_few_words, in_words
from gluonlab.collectives.render.words import ENGLISH, JAPANESE, WORDS
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.errors import ConfigError
from gluonlab.exercises.languages import LANGUAGES

TWICE = Schedule(
    "twice", "allreduce", 2, 1, (0,), ((Transfer(1, 0, 0, "add"),), (Transfer(1, 0, 0, "add"),))
)


def flat(words, path=()):
    """{path of the word: text} for all words of a language."""
    if isinstance(words, str):
        return {path: words}
    named = (
        words
        if isinstance(words, dict)
        else words._asdict()
        if hasattr(words, "_asdict")
        else dict(enumerate(words))
    )
    return {
        place: text
        for name, inner in named.items()
        for place, text in flat(inner, (*path, name)).items()
    }


def blanks(text):
    return sorted(name for _, name, _, _ in Formatter().parse(text) if name is not None)


class Texts(HTMLParser):
    """What a page shows and says before its script runs, one text after the other."""

    def __init__(self, page):
        super().__init__()
        self.texts, self.lang, self._inside = [], "", ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self._inside = tag
        self.texts += [
            value for name, value in attrs if name in ("aria-label", "title", "alt", "placeholder")
        ]
        self.lang = dict(attrs).get("lang", self.lang)

    def handle_data(self, data):
        if self._inside not in ("style", "script"):
            self.texts += [" ".join(data.split())] if data.strip() else []

    def handle_endtag(self, tag):
        self._inside = ""


def strings(data):
    """All texts in what the script is given, without the names of what is there."""
    if isinstance(data, dict):
        return [text for inner in data.values() for text in strings(inner)]
    return (
        [data]
        if isinstance(data, str)
        else [text for inner in data for text in strings(inner)]
        if isinstance(data, list)
        else []
    )


def embedded(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    )


@pytest.fixture(scope="module")
def japanese():
    return draw("ring", 4, language="ja")


def test_the_page_speaks_the_languages_of_the_labs():
    assert tuple(WORDS) == LANGUAGES


@pytest.mark.parametrize("language", WORDS)
def test_every_language_has_every_word_with_the_same_blanks_and_keys(language):
    english, words = flat(ENGLISH), flat(WORDS[language])
    assert list(words) == list(english)
    assert all(text.strip() or path == ("comma",) for path, text in words.items())
    assert {path: blanks(text) for path, text in words.items()} == {
        path: blanks(text) for path, text in english.items()
    }
    tags = {path: re.findall("<[^>]+>", text) for path, text in words.items()}
    assert tags == {path: re.findall("<[^>]+>", text) for path, text in english.items()}


@pytest.mark.parametrize("language", WORDS)
def test_every_algorithm_is_described(language):
    assert list(WORDS[language].descriptions) == list(ALGORITHMS)


def test_languages_differ_in_every_word_that_has_letters():
    english = {
        path: text
        for path, text in flat(ENGLISH).items()
        if re.search("[A-Za-z]", re.sub("{.*?}", "", text))
    }
    assert len(english) > 40
    assert [path for path, text in flat(JAPANESE).items() if english.get(path) == text] == []


def test_no_english_is_left_on_the_japanese_page(japanese):
    for page in (japanese, as_page([TWICE], ("twice", 2), language="ja")):
        shown = Texts(page)
        assert shown.lang == "ja"
        words = " ".join(shown.texts + strings(embedded(page)))
        assert english_words(re.sub("{[a-z]+}", "", words)) - {"twice"} == set()


def test_english_that_is_left_would_be_found():
    assert english_words(" ".join(Texts(draw("ring", 4)).texts)) >= {
        "Algorithm",
        "Play",
        "Previous",
        "whole",
    }


def test_the_japanese_is_written_by_the_rules_of_the_glossary(japanese):
    texts = [re.sub("<.*?>", "", text) for text in flat(JAPANESE).values()]
    texts = [re.sub("{.*?}", "0", text) for text in texts] + strings(embedded(japanese))
    assert {text: found for text in texts for found in [faults_of_writing(text)] if found} == {}
    assert all(text.endswith("。") for text in JAPANESE.descriptions.values())


@pytest.mark.parametrize(
    "wrong", ["2台", "チャンク0", "\uff081\uff09", "ランク 、チャンク", "和 を", "和(1)", "( 1)"]
)
def test_what_breaks_the_rules_would_be_found(wrong):
    assert faults_of_writing(wrong)


def test_contributions_in_japanese():
    assert in_words((0, 1, 0), JAPANESE) == "ランク 1 の寄与"
    assert in_words((1, 1, 0, 2), JAPANESE) == "ランク 0, 1, 3 (2 回) の寄与"
    assert in_words((0, 0), JAPANESE) == in_few_words((0, 0), JAPANESE) == "なし"


def test_the_english_page_says_what_it_said(japanese):
    page = draw("ring", 4)
    assert page == draw("ring", 4, language="en") != japanese
    shown = Texts(page)
    assert shown.lang == "en"
    assert shown.texts[:3] == [
        "ring, step by step",
        "ring",
        "allreduce, 4 ranks, 4 chunks, 6 steps, 24 transfers",
    ]
    assert shown.texts[3].startswith(
        "Chunks travel twice around a ring of neighbours: to be summed,"
    )
    assert {
        "Algorithm",
        "Ranks",
        "slow",
        "Play",
        "Next step",
        "came with the step",
        "= copied over",
    } <= set(shown.texts)
    assert "Keys: ← → step, space plays and pauses, Home and End jump." in " ".join(shown.texts)


@pytest.mark.parametrize("language", ["de", "JA", ""])
def test_a_language_that_the_page_does_not_speak_is_one_line(language):
    with pytest.raises(ConfigError, match=f"^unknown language {language!r}: choose en, ja"):
        draw("ring", 4, language=language)
    with pytest.raises(ConfigError, match="choose en, ja"):
        as_page([TWICE], ("twice", 2), language=language)
