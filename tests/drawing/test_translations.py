"""The words of the pages that play schedules: the same in every language, and nothing of one
language on the page of another.
"""

import re
from functools import lru_cache

import pytest
from support.drawn_pages import (
    PageTexts,
    embedded_data,
    english_words,
    find_typography_faults,
    flatten_texts,
    format_fields,
    string_values,
)

from gluonlab.collectives import render as allreduce
from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.collectives.render import schedule_scene as allreduce_words
from gluonlab.errors import ConfigError
from gluonlab.exercises.languages import LANGUAGES
from gluonlab.parallel.pipeline import render as pipeline
from gluonlab.parallel.pipeline.pipeline_schedule import SCHEDULES, make_pipeline
from gluonlab.parallel.pipeline.render import pipeline_pictures as pipeline_words


@lru_cache(maxsize=None)
def allreduces(**language):
    return allreduce.draw("ring", 4, **language)


@lru_cache(maxsize=None)
def pipelines(**language):
    return pipeline.draw(make_pipeline("1f1b", 4, 8), **language)


# of each kind of scene: its words, the names that they describe, and a page of all of them
KINDS = {
    "allreduce": (allreduce_words.WORDS, ALGORITHMS, allreduces),
    "pipeline": (pipeline_words.WORDS, SCHEDULES, pipelines),
}
every_kind = pytest.mark.parametrize(("words", "names", "draw"), KINDS.values(), ids=KINDS)


@every_kind
def test_every_language_has_every_word_with_the_same_blanks_and_keys(words, names, draw):
    english = flatten_texts(words["en"])
    assert tuple(words) == LANGUAGES
    for language in words:
        own = flatten_texts(words[language])
        assert set(own) == set(english)
        for path, text in own.items():
            assert text.strip() or path == ("comma",)
            assert format_fields(text) == format_fields(english[path])
            assert re.findall("<[^>]+>", text) == re.findall("<[^>]+>", english[path])
        assert list(words[language].descriptions) == list(names)


@every_kind
def test_languages_differ_in_every_word_that_has_letters(words, names, draw):
    english = flatten_texts(words["en"])
    same = [text for path, text in flatten_texts(words["ja"]).items() if english[path] == text]
    assert [text for text in same if re.search("[A-Za-z]", re.sub("{.*?}", "", text))] == []


@every_kind
def test_no_english_is_left_on_the_japanese_page(words, names, draw):
    shown = PageTexts(draw(language="ja"))
    assert shown.lang == "ja"
    texts = " ".join(shown.texts + string_values(embedded_data(draw(language="ja"))))
    assert english_words(re.sub("{[a-z]+}", "", texts)) == set()


@every_kind
def test_the_japanese_is_written_by_the_rules_of_the_glossary(words, names, draw):
    texts = [re.sub("<.*?>", "", text) for text in flatten_texts(words["ja"]).values()]
    texts = [re.sub("{.*?}", "0", text) for text in texts] + string_values(embedded_data(draw(language="ja")))
    assert {text: found for text in texts for found in [find_typography_faults(text)] if found} == {}
    assert all(text.endswith("。") for text in words["ja"].descriptions.values())


@every_kind
def test_english_is_the_page_without_a_language(words, names, draw):
    assert draw() == draw(language="en") != draw(language="ja")
    assert PageTexts(draw()).lang == "en"
    assert english_words(" ".join(PageTexts(draw()).texts)) >= {"Speed", "Play", "Previous"}
    for language in ("de", "JA", ""):
        with pytest.raises(ConfigError, match=f"^unknown language {language!r}: choose en, ja"):
            draw(language=language)
