"""The words of the pages that play schedules: the same in every language, and nothing of one
language on the page of another.
"""

import re
from functools import lru_cache

import pytest
from support.drawn_pages import (
    Texts,
    blanks,
    embedded,
    english_words,
    faults_of_writing,
    flat,
    strings,
)

from gluonlab.collectives import render as allreduce
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.render import scene as allreduce_words
from gluonlab.errors import ConfigError
from gluonlab.exercises.languages import LANGUAGES
from gluonlab.parallel.pipeline import render as pipeline
from gluonlab.parallel.pipeline.render import pictures as pipeline_words
from gluonlab.parallel.pipeline.schedule import SCHEDULES, make_pipeline

# of each kind of scene: its words, the names that they describe, and a page of all of them
KINDS = {
    "allreduce": (
        allreduce_words.WORDS,
        ALGORITHMS,
        lru_cache(maxsize=None)(lambda language="en": allreduce.draw("ring", 4, language=language)),
    ),
    "pipeline": (
        pipeline_words.WORDS,
        SCHEDULES,
        lru_cache(maxsize=None)(
            lambda language="en": pipeline.draw(make_pipeline("1f1b", 4, 8), language=language)
        ),
    ),
}
every_kind = pytest.mark.parametrize(("words", "names", "draw"), KINDS.values(), ids=KINDS)


@every_kind
def test_a_page_speaks_the_languages_of_the_labs(words, names, draw):
    assert tuple(words) == LANGUAGES


@every_kind
def test_every_language_has_every_word_with_the_same_blanks_and_keys(words, names, draw):
    english = flat(words["en"])
    for language in words:
        own = flat(words[language])
        assert set(own) == set(english)
        assert all(text.strip() or path == ("comma",) for path, text in own.items())
        assert {path: blanks(text) for path, text in own.items()} == {
            path: blanks(text) for path, text in english.items()
        }
        tags = {path: re.findall("<[^>]+>", text) for path, text in own.items()}
        assert tags == {path: re.findall("<[^>]+>", text) for path, text in english.items()}
        assert list(words[language].descriptions) == list(names)


@every_kind
def test_languages_differ_in_every_word_that_has_letters(words, names, draw):
    english = {
        path: text
        for path, text in flat(words["en"]).items()
        if re.search("[A-Za-z]", re.sub("{.*?}", "", text))
    }
    assert len(english) > 40
    assert [path for path, text in flat(words["ja"]).items() if english.get(path) == text] == []


@every_kind
def test_no_english_is_left_on_the_japanese_page(words, names, draw):
    shown = Texts(draw("ja"))
    assert shown.lang == "ja"
    texts = " ".join(shown.texts + strings(embedded(draw("ja"))))
    assert english_words(re.sub("{[a-z]+}", "", texts)) == set()


@every_kind
def test_english_that_is_left_would_be_found(words, names, draw):
    assert english_words(" ".join(Texts(draw()).texts)) >= {"Speed", "Play", "Previous"}


@every_kind
def test_the_japanese_is_written_by_the_rules_of_the_glossary(words, names, draw):
    texts = [re.sub("<.*?>", "", text) for text in flat(words["ja"]).values()]
    texts = [re.sub("{.*?}", "0", text) for text in texts] + strings(embedded(draw("ja")))
    assert {text: found for text in texts for found in [faults_of_writing(text)] if found} == {}
    assert all(text.endswith("。") for text in words["ja"].descriptions.values())


@pytest.mark.parametrize(
    "wrong", ["2台", "チャンク0", "\uff081\uff09", "ランク 、チャンク", "和 を", "和(1)", "( 1)"]
)
def test_what_breaks_the_rules_would_be_found(wrong):
    assert faults_of_writing(wrong)


@every_kind
def test_english_is_the_page_without_a_language(words, names, draw):
    assert draw() == draw("en") != draw("ja")
    assert Texts(draw()).lang == "en"


@every_kind
@pytest.mark.parametrize("language", ["de", "JA", ""])
def test_a_language_that_the_page_does_not_speak_is_one_line(words, names, draw, language):
    with pytest.raises(ConfigError, match=f"^unknown language {language!r}: choose en, ja"):
        draw(language)
