"""The decks as lecturers show them: in a browser, at a projector's sizes and a telephone's, in both
themes, printed, without a network.
"""

import html
import posixpath
import re

import pytest
from selenium.webdriver.common.keys import Keys
from slide_page import SIZES, Deck
from support.browser import require_browser, start_browser
from test_handouts import FETCHED
from the_labs import LABS, PLACE, SERIES

from gluonlab_labs.slides import lab_deck
from gluonlab_labs.source import LANGUAGES

require_browser()
pytestmark = pytest.mark.browser

DECKS = {lab.number: lab_deck(lab, SERIES, PLACE) for lab in SERIES.labs}
PAGES = [f"{language}/{lab.name}.html" for lab in LABS.values() for language in LANGUAGES]
SLIDE = (960, 540)  # 1280 x 720 CSS pixels in points


@pytest.fixture(scope="module")
def driver():
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def deck_at(executed, tmp_path_factory):
    """``deck_at("en/01-devices.html")``: that file, made when a test first asks for its lab."""
    from gluonlab_labs.slides import write_deck, write_index

    root = tmp_path_factory.mktemp("slides")
    write_index(SERIES, DECKS, root)

    def get(name):
        if not (root / name).exists():
            lab = next(lab for lab in SERIES.labs if name.endswith(f"/{lab.name}.html"))
            notebooks = executed(lab.number).notebooks
            write_deck(SERIES, lab, DECKS[lab.number], notebooks, PLACE, root)
        return root / name

    return get


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("name", PAGES)
def test_every_slide_is_reached_by_a_key_and_holds_what_it_shows(name, size, deck_at, driver):
    deck = Deck(driver, deck_at(name), size)
    beyond = {}
    for number in range(1, deck.count() + 1):
        deck.wait_for(number)
        assert deck.read_text("place") == f"{number} / {deck.count()}"
        if deck.beyond():
            beyond[number] = deck.beyond()
        deck.key(Keys.ARROW_RIGHT)
    assert beyond == {}
    assert deck.at() == deck.count()  # and stays there
    assert deck.requested_urls() == []
    assert deck.console_messages() == []


@pytest.mark.parametrize("name", PAGES)
def test_the_pictures_labels_can_be_read_on_a_telephone(name, deck_at, driver):
    deck, labels = Deck(driver, deck_at(name), SIZES[-1]), []
    for number in range(1, deck.count() + 1):
        deck.go(number)
        labels += [(text, pixels) for text, pixels, _ in deck.labels() if pixels]
    assert labels and [(text, pixels) for text, pixels in labels if pixels < 11] == []


def test_what_lies_beyond_a_slide_would_be_found(deck_at, driver):
    for size in SIZES:
        deck = Deck(driver, deck_at(PAGES[0]), size)
        deck.go(2)
        assert deck.beyond() == []
        driver.execute_script("""document.querySelectorAll('.points')[0].insertAdjacentHTML(
            'beforeend', '<p id="far" style="width: 200vw; font-size: 200vh">far</p>')""")
        assert any("far" in one for one in deck.beyond())


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_text_can_be_read_in_both_themes_and_pictures_have_a_text(name, dark, deck_at, driver):
    deck = Deck(driver, deck_at(name), dark=dark)
    assert deck.theme() == ("dark" if dark else "light")
    driver.execute_script("for (const slide of document.querySelectorAll('.slide')) slide.hidden = false")
    assert deck.low_contrast() == []
    assert deck.missing_glyphs() == []
    assert deck.without_alternative() == []
    ids = deck.ids()
    assert sorted(ids) == sorted(set(ids))


@pytest.mark.parametrize("name", PAGES)
def test_nothing_of_markdown_is_left_over(name, deck_at, driver):
    deck = Deck(driver, deck_at(name))
    assert deck.matches(r"\*\*|\]\(|^#+ |^> |\{(sec|fig|ex|lab):|\$|:::") == []


@pytest.mark.parametrize("lab", LABS)
def test_both_languages_have_the_same_slides(lab, deck_at, driver):
    """12 to 18 where somebody has written them, as many as people listen to."""
    names = [f"{language}/{LABS[lab].name}.html" for language in LANGUAGES]
    counts = [Deck(driver, deck_at(name)).count() for name in names]
    assert counts == [len(DECKS[lab]) + 1] * 2
    texts = [deck_at(name).read_text(encoding="utf-8") for name in names]
    for what in (r'class="paper (\w+)"', r'<figure id="([^"]+)"', r'<pre class="(code)"'):
        assert re.findall(what, texts[0]) == re.findall(what, texts[1])
    if (PLACE.slides / LABS[lab].path.name).is_file():
        assert 12 <= counts[0] <= 18
        assert '<p class="of">' in texts[0].split("<h2>", 1)[1]  # a guess is asked for


@pytest.mark.parametrize("name", PAGES)
def test_every_slide_has_a_title_and_notes_in_the_deck_s_language(name, deck_at, driver):
    deck = Deck(driver, deck_at(name))
    notes = driver.execute_script(
        "return [...document.querySelectorAll('.slide')].map("
        "(slide) => slide.querySelector('.notes').textContent.trim())"
    )
    assert all(title.strip() for title in deck.titles())
    if not (PLACE.slides / f"{posixpath.basename(name)[:-5]}.md").is_file():
        return  # from the lab's text alone
    assert len(set(deck.titles())) == deck.count()
    assert all(len(note) > 20 for note in notes), [len(note) for note in notes]
    if name.startswith("ja"):
        assert all(re.search("[\u3040-\u30ff\u4e00-\u9fff]", note) for note in notes)


def test_keys_lead_to_the_ends_and_back(deck_at, driver):
    deck = Deck(driver, deck_at(PAGES[0]))
    last = deck.count()
    for key, number in (
        (Keys.END, last),
        (Keys.ARROW_LEFT, last - 1),
        (Keys.HOME, 1),
        (Keys.SPACE, 2),
        (Keys.PAGE_DOWN, 3),
        (Keys.SHIFT + Keys.SPACE, 2),
        (Keys.NULL + Keys.PAGE_UP, 1),
        (Keys.ARROW_UP, 1),
    ):
        deck.key(key)
        deck.wait_for(number)
    assert driver.execute_script("return location.hash") == "#1"
    focused = driver.execute_script("return document.activeElement.className")
    assert focused == "slide"


def test_buttons_do_what_keys_do(deck_at, driver):
    deck = Deck(driver, deck_at(PAGES[0]))
    deck.find_element("next").click()
    deck.wait_for(2)
    deck.key(Keys.SPACE)  # of the slide, which has the focus now
    deck.wait_for(3)
    deck.find_element("previous").click()
    deck.wait_for(2)


def test_n_shows_the_notes_and_hides_them(deck_at, driver):
    deck = Deck(driver, deck_at(PAGES[0]))
    deck.go(2)
    notes = driver.find_elements("css selector", ".slide .notes")[1]
    assert not notes.is_displayed()
    deck.key("n")
    assert notes.is_displayed()
    assert deck.find_element("notes").get_attribute("aria-pressed") == "true"
    deck.key("n")
    assert not notes.is_displayed()


def test_f_fills_the_screen(deck_at, driver):
    deck = Deck(driver, deck_at(PAGES[0]))
    deck.key("f")
    deck.wait(lambda: driver.execute_script("return document.fullscreenElement !== null"))
    deck.key("f")
    deck.wait(lambda: driver.execute_script("return document.fullscreenElement === null"))


def test_the_speaker_s_window_goes_along_and_leads(deck_at, driver):
    deck = Deck(driver, deck_at(PAGES[0]))
    deck.go(4)
    audience = driver.current_window_handle
    deck.key("p")
    deck.wait(lambda: len(driver.window_handles) == 2)
    speaker = next(one for one in driver.window_handles if one != audience)
    seen = (
        "return [...document.querySelectorAll('.slide')].flatMap((slide, i) => slide.checkVisibility() ? [i + 1] : [])"
    )
    try:
        driver.switch_to.window(speaker)
        deck.wait(lambda: driver.execute_script(seen) == [4, 5])
        notes = driver.find_elements("css selector", ".slide .notes")
        assert notes[3].is_displayed()
        assert not notes[4].is_displayed()
        assert re.search(r"\d:\d\d", deck.read_text("clock"))
        deck.key(Keys.ARROW_RIGHT)
        deck.wait(lambda: driver.execute_script(seen) == [5, 6])
        driver.switch_to.window(audience)
        deck.wait_for(5)
        deck.key(Keys.ARROW_LEFT)
        driver.switch_to.window(speaker)
        deck.wait(lambda: driver.execute_script(seen) == [4, 5])
    finally:
        driver.switch_to.window(speaker)
        driver.close()
        driver.switch_to.window(audience)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_schedule_is_played_inside_its_slide_and_page_down_leads_on(language, deck_at, driver):
    deck = Deck(driver, deck_at(f"{language}/{LABS['04'].name}.html"))
    number = next(i for i, slide in enumerate(DECKS["04"], 2) if "player" in slide.options)
    deck.go(number)
    driver.switch_to.frame(driver.find_element("css selector", ".slide:not([hidden]) iframe"))
    assert driver.execute_script("return document.documentElement.lang") == language
    first = deck.read_state()
    deck.find_element("next").click()
    deck.wait(lambda: deck.read_state() != first)
    deck.key(Keys.PAGE_DOWN)
    driver.switch_to.default_content()
    deck.wait_for(number + 1)
    assert deck.console_messages() == []


@pytest.mark.parametrize("name", PAGES)
def test_a_deck_prints_one_slide_a_page(name, deck_at, driver):
    deck = Deck(driver, deck_at(name))
    assert deck.printed() == (deck.count(), {SLIDE})


@pytest.mark.parametrize("name", ["index.html", *PAGES])
def test_links_lead_to_what_is_there_and_nothing_is_fetched(name, deck_at, driver):
    deck = Deck(driver, deck_at(name))
    for link in deck.links():
        if not link.startswith("https://"):
            assert "#" not in link
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
            assert target in ("index.html", *PAGES), link
    text = deck_at(name).read_text(encoding="utf-8")
    assert re.findall(FETCHED, html.unescape(text)) == []


def test_the_switch_leads_to_the_same_slide_in_the_other_language(deck_at, driver):
    deck = Deck(driver, deck_at(PAGES[0]))
    deck.go(3)
    deck.find_element("other").click()
    deck.wait(lambda: "/ja/" in driver.current_url)
    deck.wait_for(3)


@pytest.mark.parametrize("size", [SIZES[0], SIZES[2]])
def test_the_index_can_be_read(size, deck_at, driver):
    page = Deck(driver, deck_at("index.html"), size)
    assert page.overflow()[0] <= 0
    assert page.low_contrast() == []
    assert page.missing_glyphs() == []
    assert page.requested_urls() == page.console_messages() == []
