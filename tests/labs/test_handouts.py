"""The pages as people read them: in a browser, wide and narrow, light and dark, printed, without a
network.
"""

import html
import re

import pytest
from handout_page import Handout
from support.browser import require_browser, start_browser
from the_labs import LABS

from gluonlab.exercises.guesses import all_guesses
from gluonlab_labs.source import LANGUAGES

require_browser()
pytestmark = pytest.mark.browser

PAGES = ["index.html", *(f"{language}/{lab.name}.html" for lab in LABS.values() for language in LANGUAGES)]
A4 = (595, 842)
# the color of each picture's ground, its first shape
GROUNDS = r"""return [...document.querySelectorAll('figure svg')].map((svg) =>
    getComputedStyle(svg.querySelector('rect')).fill.match(/\d+/g).map(Number));"""
FETCHED = (
    r"""(?:src|srcset|action)=["'](?!data:)[^"'>]+|url\(["']?(?!#|data:)[^)]+"""
    r"""|@import|<link[^>]+href="(?!data:)"""
)


@pytest.fixture(scope="module")
def driver():
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_stands_for_itself_at_every_width(name, handouts, driver):
    page = Handout(driver, handouts / name)
    assert page.overflow_at_all_widths() == {}
    assert page.requested_urls() == []
    assert page.console_messages() == []


@pytest.mark.parametrize("name", PAGES)
def test_every_character_has_a_glyph_and_every_picture_a_text(name, handouts, driver):
    page = Handout(driver, handouts / name)
    assert page.missing_glyphs() == []
    assert page.without_alternative() == []
    ids = page.ids()
    assert sorted(ids) == sorted(set(ids))


def test_a_character_without_a_glyph_would_be_found(handouts, driver):
    page = Handout(driver, handouts / "index.html")
    # one that no font has, and one that a font has
    driver.execute_script("document.querySelector('h1').append('\\u0380\\u6f22')")
    assert page.missing_glyphs() == ["\u0380"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_text_can_be_read_in_both_themes(name, dark, handouts, driver):
    page = Handout(driver, handouts / name, dark=dark)
    assert page.theme() == ("dark" if dark else "light")
    assert page.low_contrast() == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", PAGES[1:])
def test_the_pictures_labels_can_be_read_on_a_telephone_and_in_the_dark(name, dark, handouts, driver):
    labels = Handout(driver, handouts / name, 390, dark).labels()
    assert len(labels) > 10
    assert [text for text, pixels, _ in labels if pixels < 11] == []
    assert [(text, ratio) for text, _, ratio in labels if ratio < 4.5] == []
    [ground] = {tuple(color) for color in driver.execute_script(GROUNDS)}
    assert (sum(ground) < 150) == dark


def test_a_pale_or_small_label_would_be_found(handouts, driver):
    page = Handout(driver, handouts / PAGES[1])
    driver.execute_script("""const text = document.querySelector('figure svg text');
        text.textContent = 'changed'; text.setAttribute('fill', '#eeeeee');
        text.setAttribute('font-size', '5');""")
    [(_, pixels, ratio)] = [label for label in page.labels() if label[0] == "changed"]
    assert pixels < 11 and ratio < 4.5


@pytest.mark.parametrize("name", PAGES[1:])
def test_a_result_lies_below_its_question_until_it_is_opened_or_printed(name, handouts, driver):
    Handout(driver, handouts / name)
    folded = driver.find_elements("css selector", "details.guess")
    questions = [one.question for one in all_guesses() if name[3:5] == one.id[:2]]
    said = " ".join(each.find_element("css selector", "summary").text for each in folded)
    assert folded and all(question[name[:2]] in said for question in questions)
    is_open = "return [...document.querySelectorAll('details.guess')].map((each) => each.open)"
    assert not any(driver.execute_script(is_open))
    shown = folded[0].find_element("css selector", ".output")
    assert not shown.is_displayed()
    folded[0].find_element("css selector", "summary").click()
    assert shown.is_displayed()
    before = driver.execute_script(is_open)
    driver.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert all(driver.execute_script(is_open))
    driver.execute_script("dispatchEvent(new Event('afterprint'))")
    assert driver.execute_script(is_open) == before


def test_the_index_introduces_the_labs_in_order_with_their_times(handouts, driver):
    Handout(driver, handouts / "index.html")
    for language, section in zip(LANGUAGES, driver.find_elements("css selector", "section")):
        assert section.get_attribute("lang") == language
        text = section.text
        assert len(section.find_elements("css selector", "p")) >= 4
        rows = section.find_elements("css selector", "tbody tr")
        assert [row.text[:2] for row in rows] == list(LABS)
        for row, lab in zip(rows, LABS.values()):
            assert lab.title[language] in row.text
            assert str(lab.minutes) in row.text
            assert all(number in row.text for number in lab.needs)
        hours = round(sum(lab.minutes for lab in LABS.values()) / 60)
        assert {"en": f"about {hours} hours", "ja": f"約 {hours} 時間"}[language] in text


def test_faults_of_a_page_would_be_found(handouts, driver):
    page = Handout(driver, handouts / PAGES[1], 390)
    before = page.overflow_at_all_widths()
    driver.execute_script("""document.querySelector('main').insertAdjacentHTML('beforeend',
        '<p style="width: 500px; color: #cccccc">pale **and** wide <img src="data:,"></p>')""")
    assert before == {}
    assert set(page.overflow_at_all_widths()) == {320, 390, 480}  # a margin beside 500 pixels
    assert [text for ratio, text in page.low_contrast()] == ["pale **and** wide"]
    assert page.matches(r"\*\*") == ["pale **and** wide "]
    assert len(page.without_alternative()) == 1


def test_the_button_changes_the_theme_and_other_pages_follow(handouts, driver):
    page = Handout(driver, handouts / PAGES[1])
    page.find_element("theme").click()
    assert page.theme() == "dark"
    assert Handout(driver, handouts / PAGES[2]).theme() == "dark"
    driver.execute_script("localStorage.clear()")


@pytest.mark.parametrize("name", PAGES[1:])
def test_a_page_prints_on_a4(name, handouts, driver):
    count, sizes = Handout(driver, handouts / name).printed()
    assert count > 1
    assert sizes == {A4}


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_pages_and_places_that_are_there(name, handouts, driver):
    page = Handout(driver, handouts / name)
    for link in page.links():
        if link.startswith("https://"):
            continue
        file, _, anchor = link.partition("#")
        target = (handouts / name).parent / file if file else handouts / name
        assert target.is_file(), link
        assert handouts in target.resolve().parents, link
        assert not anchor or f'id="{anchor}"' in target.read_text(encoding="utf-8"), link


@pytest.mark.parametrize("lab", LABS)
def test_the_switch_leads_to_the_same_place_in_the_other_language(lab, handouts, driver):
    page = Handout(driver, handouts / "en" / f"{LABS[lab].name}.html")
    driver.execute_script("location.hash = 'section-2'")
    page.find_element("other").click()
    page.wait(lambda: "/ja/" in driver.current_url)
    assert driver.current_url.endswith(f"/ja/{LABS[lab].name}.html#section-2")
    assert driver.execute_script("return document.documentElement.lang") == "ja"


@pytest.mark.parametrize("name", PAGES[1:])
def test_nothing_of_markdown_is_left_over(name, handouts, driver):
    """Such as ** beside Japanese brackets, which Markdown does not read as the writer does."""
    page = Handout(driver, handouts / name)
    assert page.matches(r"\*\*|\]\(|^#+ |\{(sec|fig|ex|lab):|\$") == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_allreduce_player_works_inside_the_page(language, handouts, driver):
    page = Handout(driver, handouts / language / f"{LABS['04'].name}.html")
    frames = driver.find_elements("css selector", "iframe")
    assert frames
    driver.switch_to.frame(frames[0])
    assert driver.execute_script("return document.documentElement.lang") == language
    first = page.read_state()
    page.find_element("next").click()
    page.wait(lambda: page.read_state() != first)
    while page.find_element("next").is_enabled():
        page.find_element("next").click()
    everything = page.read_state()
    world_size = len(everything)
    assert all(
        tuple(range(world_size)) in chunks or all(len(chunk) == world_size for chunk in chunks) for chunks in everything
    )
    driver.switch_to.default_content()
    assert page.console_messages() == []
    assert page.requested_urls() == []


@pytest.mark.parametrize("name", PAGES)
def test_the_file_names_no_place_of_the_network_but_in_links(name, handouts):
    """Check that a browser would fetch no script, style, picture or font from the network."""
    text = (handouts / name).read_text(encoding="utf-8")
    assert re.findall(FETCHED, html.unescape(text)) == []
