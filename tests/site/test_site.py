"""The site that make docs has built, in Chromium: it asks for nothing from elsewhere, complains of
nothing, and can be read on a telephone, in the dark, and without a mouse.
"""

import re
from pathlib import Path

import pytest
from support.browser import BrowserPage, require_browser, start_browser
from support.legible import PAGE_WIDTH, emulate_screen, find_low_contrast_texts

require_browser()
pytestmark = pytest.mark.browser
SITE = Path(__file__).resolve().parents[2] / "build" / "site"
PAGES = sorted(page.name for page in SITE.glob("*.html") if page.name != "404.html")
SOURCES = Path(__file__).resolve().parents[2] / "docs"

UNNAMED = """const said = (each) => each.innerText || each.ariaLabel || each.title
        || each.placeholder || each.querySelector('img[alt]');
    const asked = [...document.querySelectorAll('a, button, input, label[tabindex]')];
    const mute = asked.filter((each) => each.checkVisibility() && !said(each)
        && !each.classList.contains('headerlink') && !each.closest('[hidden]'));
    return [...document.querySelectorAll('img:not([alt]), img[alt=""]'), ...mute].map(
        (each) => each.outerHTML.slice(0, 120))"""
LEVELS = """return [...document.querySelectorAll('article h1, article h2, article h3, article h4')]
    .map(e => +e.tagName[1])"""


@pytest.fixture(scope="module")
def driver():
    started = start_browser()
    yield started
    started.quit()


def test_every_page_of_docs_is_a_page_of_the_site():
    assert {page.stem for page in SOURCES.glob("*.md")} <= {Path(name).stem for name in PAGES}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read(driver, name):
    """In its width on a telephone and on a desk, light and dark; with titles in order."""
    page = BrowserPage(driver, SITE / name)
    here = SITE.as_uri()
    assert [url for url in page.requested_urls() if not url.startswith(here)] == []
    levels = driver.execute_script(LEVELS)
    assert levels[0] == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:]))
    assert driver.execute_script(UNNAMED) == []
    for width, scheme in ((1280, "light"), (390, "dark")):
        with emulate_screen(driver, width, scheme):
            assert driver.execute_script(PAGE_WIDTH) <= width, width
            assert find_low_contrast_texts(driver) == [], (width, scheme)
    assert page.console_messages() == []


def test_what_is_looked_for_is_found_without_a_server(driver):
    page = BrowserPage(driver, SITE / "index.html")
    page.press("/")
    page.press("checkpoint")
    result = ".md-search-result__item"
    page.wait(lambda: driver.find_elements("css selector", result))
    titles = [each.text for each in driver.find_elements("css selector", f"{result} h1")]
    assert "Train a model" in titles
    assert page.console_messages() == []


def test_the_keyboard_reaches_the_text(driver):
    """The first Tab offers to skip to the content, as a reader of screens wants."""
    page = BrowserPage(driver, SITE / "running.html")
    page.press("\ue004")
    assert "md-skip" in driver.switch_to.active_element.get_attribute("class")
    page.press("\ue007")
    assert driver.current_url.endswith("#train-a-model")


def test_nothing_leads_out_of_the_site_but_to_the_web():
    """No link is left that only GitHub's copy of the page can follow."""
    for name in PAGES:
        text = (SITE / name).read_text(encoding="utf-8")
        assert re.findall(r'href="\.\./[^"]*"', text) == [], name
        assert re.findall(r"\]\([^)]*\.md", re.sub(r"<code>.*?</code>", "", text, flags=re.S)) == [], name
