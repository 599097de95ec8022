"""Both languages are one lab, and the notebooks in the repository are what the sources make."""

import json
import re

import pytest
from the_labs import LABS, PLACE, REPOSITORY, SERIES

from gluonlab.exercises.exercise_registry import all_exercises
from gluonlab.exercises.guesses import all_guesses
from gluonlab_labs.build import find_differences, make_files, read_labs
from gluonlab_labs.dark import DARK
from gluonlab_labs.guesses import guess_ids
from gluonlab_labs.source import LANGUAGES

ANCHOR = re.compile(r'<a id="([^"]+)"></a>')
LINK = re.compile(r"\]\(([^)\s]+)\)")


def cells(lab, language):
    path = REPOSITORY / "labs" / language / f"{LABS[lab].name}.ipynb"
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def text(lab, language):
    return "\n\n".join("".join(cell["source"]) for cell in cells(lab, language) if cell["cell_type"] == "markdown")


def test_the_sources_have_no_fault():
    read_labs(PLACE, {one.id for one in all_exercises()}, {one.id for one in all_guesses()})


def test_the_notebooks_in_the_repository_are_what_the_sources_make():
    assert find_differences(make_files(SERIES, PLACE), PLACE.root) == []


def test_the_same_sources_make_the_same_files():
    assert make_files(read_labs(PLACE), PLACE) == make_files(SERIES, PLACE)


@pytest.mark.parametrize("lab", LABS)
def test_the_code_of_both_languages_is_the_same_and_has_no_outputs(lab):
    english, japanese = (
        [cell for cell in cells(lab, language) if cell["cell_type"] == "code"] for language in LANGUAGES
    )
    assert english == japanese and len(english) > 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in english)


@pytest.mark.parametrize("lab", LABS)
def test_cells_sections_figures_exercises_and_links_are_the_same_in_both_languages(lab):
    english, japanese = (text(lab, language) for language in LANGUAGES)
    assert [cell["cell_type"] for cell in cells(lab, "en")] == [cell["cell_type"] for cell in cells(lab, "ja")]
    assert ANCHOR.findall(english) == ANCHOR.findall(japanese)
    heading = re.compile(r"^(#+) (?:<a [^>]*></a>)?(\d+\.)?", re.M)
    assert heading.findall(english) == heading.findall(japanese)
    links = [sorted(re.sub(r"\.\./(ja|en)/", "../", link) for link in LINK.findall(one)) for one in (english, japanese)]
    assert links[0] == links[1]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("lab", LABS)
def test_sections_and_figures_are_numbered_in_order(lab, language):
    sections = [int(number) for number in re.findall(r"^## (?:<a [^>]*></a>)?(\d+)\. ", text(lab, language), re.M)]
    assert sections == list(range(1, len(sections) + 1))
    figures = [int(number) for number in re.findall(r"^\*\*(?:Figure|図) (\d+)\*\*", text(lab, language), re.M)]
    assert figures and figures == list(range(1, len(figures) + 1))


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("lab", LABS)
def test_links_lead_to_what_is_there(lab, language):
    folder = REPOSITORY / "labs" / language
    for link in LINK.findall(text(lab, language)):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve() if path else None
        assert target is None or target.is_file(), link
        if anchor:
            other = next((one for one in LABS if target and LABS[one].name == target.stem), lab)
            assert anchor in ANCHOR.findall(text(other, language)), link


@pytest.mark.parametrize("lab", LABS)
def test_a_lab_has_its_parts(lab):
    """Goals first; a setup cell before all other code; a guess before a measurement; a summary and
    references last.
    """
    titles = re.findall(r"^## (?:<a [^>]*></a>)?\d+\. (.+)$", text(lab, "en"), re.M)
    assert (titles[0], *titles[-2:]) == ("Goals", "Summary", "Further reading")
    code = [cell.source for cell in LABS[lab].code_cells()]
    assert code[0].startswith("import gluonlab") and "here = setup(" in code[0]
    assert re.search(r"from gluonlab\.exercises import .*\bcheck\b.*\bsetup\b", code[0])
    guesses = [id for source in code for id in guess_ids(source, "predict")]
    assert len(guesses) >= 4 and code[-1] == "surprises()"
    assert text(lab, "en").count("Write down your guess") >= len(guesses) / 2
    assert not any("your guess" in source for source in code)
    assert "https://" in text(lab, "en").split("Further reading")[-1]


@pytest.mark.parametrize("lab", LABS)
def test_japanese_text_has_no_english_paragraphs(lab):
    """Every paragraph of the Japanese notebook has Japanese in it; references and code may stand
    alone.
    """
    for paragraph in re.split(r"\n\s*\n", re.sub(r"^```.*?^```", "", text(lab, "ja"), flags=re.M | re.S)):
        words = re.sub(r"`[^`]*`|\$[^$]*\$|\[[^\]]*\]\([^)]*\)|<[^>]*>|https?://\S+", "", paragraph)
        is_reference = re.match(r"\s*[-*] ", paragraph) and "http" in paragraph
        if len(re.findall(r"[A-Za-z]{3,}", words)) > 12 and not is_reference:
            assert re.search("[\u3040-\u30ff\u4e00-\u9fff]", words), paragraph


@pytest.mark.parametrize("path", sorted(PLACE.figures.glob("*.svg")), ids=lambda path: path.stem)
def test_a_picture_has_no_color_that_a_dark_page_does_not_know(path):
    named = re.findall(r"""(?:fill|stroke)=["']([^"']+)""", path.read_text(encoding="utf-8"))
    others = {one for one in named if one not in DARK and not one.startswith("url(#")}
    assert others <= {"none"}, "see labs/gluonlab_labs/dark.py"


@pytest.mark.parametrize("language", LANGUAGES)
def test_notebooks_say_their_language_and_a_kernel_that_everybody_has(language):
    for lab in LABS:
        path = REPOSITORY / "labs" / language / f"{LABS[lab].name}.ipynb"
        metadata = json.loads(path.read_text(encoding="utf-8"))["metadata"]
        assert metadata["gluonlab"] == {"language": language, "lab": lab}
        assert metadata["kernelspec"]["name"] == "python3"
