"""The page that draws schedules, in a real Chromium, compared with simulated states."""

import re
import time
from dataclasses import replace

import pytest
from support.browser import open_pages, require_browser, start_browser
from support.drawn_pages import english_words
from support.legible import find_hidden_controls

from gluonlab.collectives.algorithms import ALGORITHMS, HALVES
from gluonlab.collectives.render import as_page, draw
from gluonlab.collectives.schedule import Schedule, Transfer
from gluonlab.collectives.verify_schedule import simulate_contributions

pytestmark = pytest.mark.browser
require_browser()

# All visible texts, and the texts for screen readers.
WORDS = """const all = (which, read) => [...document.querySelectorAll(which)].map(read);
    return [document.title, document.body.innerText, ...all('[aria-label]', (e) => e.ariaLabel),
            ...all('svg title', (e) => e.textContent),
            document.getElementById('slider').ariaValueText].join(' ');"""


@pytest.fixture(scope="module")
def browser():
    driver = start_browser()
    yield driver
    driver.quit()


@pytest.fixture
def opened(browser, tmp_path):
    with open_pages(browser, tmp_path) as show:
        yield show


@pytest.fixture(scope="module")
def everything():
    return draw("ring", 4)


def list_states(schedule=None):
    return list(simulate_contributions(schedule or ALGORITHMS["ring"](4)))


def test_stepping_shows_what_every_device_holds(opened, everything):
    page, expected = opened(everything), list_states()
    assert page.read_text("name") == "ring"
    assert page.read_text("size") == "allreduce, 4 ranks, 4 chunks, 6 steps, 24 transfers"
    for number, state in enumerate(expected):
        assert (page.read_text("counter"), page.read_state()) == (f"step {number} of 6", state)
        page.find_element("next").click()
    assert not page.find_element("next").is_enabled()
    assert page.find_element("slider").get_attribute("value") == "6"
    for state in expected[5:2:-1]:
        page.find_element("previous").click()
        assert page.read_state() == state
    page.slide(0)
    assert not page.find_element("previous").is_enabled()


def test_every_algorithm_and_world_size_can_be_chosen_and_shows_its_states(opened, everything):
    page = opened(everything)
    for name in ALGORITHMS:
        page.choose("algorithm", name)
        for ranks, states in enumerate(page.read_all_states("world-size"), 1):
            assert states == list_states(ALGORITHMS[name](ranks))
    page.slide(3)
    page.choose("world-size", 7)
    page.choose("algorithm", "halving_doubling")  # the world size stays, and the first step comes
    assert page.read_text("size").startswith("allreduce, 7 ranks, 4 chunks")
    assert page.read_text("counter") == "step 0 of 6"


def test_it_plays_pauses_and_stops_at_the_end(opened, everything):
    page = opened(everything)
    page.choose("speed", "fast")
    page.watch("counter")
    page.find_element("play").click()
    assert page.read_text("play") == "Pause"
    page.wait(lambda: "step 2 of 6" in page.watched_texts())
    page.find_element("play").click()
    paused = page.read_text("counter")
    assert page.read_text("play") == "Play"
    time.sleep(0.5)  # more than a step takes
    assert page.read_text("counter") == paused
    page.slide(5)
    page.find_element("play").click()
    page.wait(lambda: page.read_text("counter") == "step 6 of 6")
    assert page.read_text("play") == "Play"
    assert page.read_state() == list_states()[-1]
    page.watch("counter")
    page.find_element("play").click()  # and once more, from the start
    page.wait(lambda: "step 1 of 6" in page.watched_texts())
    assert page.watched_texts()[:3] == ["step 6 of 6", "step 0 of 6", "step 1 of 6"]


def test_keys_and_the_slider_step_through_it(opened, everything):
    from selenium.webdriver.common.keys import Keys

    page, expected = opened(everything), list_states()
    at = {Keys.ARROW_RIGHT: 1, Keys.END: 6, Keys.ARROW_LEFT: 5, Keys.HOME: 0}
    for key, step in at.items():
        page.press(key)
        assert (page.read_text("counter"), page.read_state()) == (f"step {step} of 6", expected[step])
    for label in ("Pause", "Play"):
        page.press(Keys.SPACE)
        assert page.read_text("play") == label
    page.slide(4)
    assert page.read_state() == expected[4]
    page.find_element("slider").send_keys(Keys.ARROW_LEFT)  # the slider's own: one step, not two
    assert page.read_text("counter") == "step 3 of 6"


def test_every_transfer_of_a_step_is_an_arrow(opened, everything):
    page = opened(everything)
    for name in ("star", "sharded", "halving_doubling"):
        page.choose("algorithm", name)
        assert page.read_arrows() == []
        for step in ALGORITHMS[name](4).steps:
            page.find_element("next").click()
            assert sorted(page.read_arrows()) == sorted(map(tuple, step))


def test_the_current_step_is_announced_to_screen_readers(opened, everything):
    page = opened(everything)
    page.choose("algorithm", "star")
    for text in ("1-3 → 0: chunk 0 +", "0 → 1-3: chunk 0 ="):
        page.find_element("next").click()
        assert page.read_text("told") == text
    page.find_element("as-table").find_element("tag name", "summary").click()
    page.wait(lambda: "0, 1, 2 and 3" in page.read_text("as-table"))


@pytest.mark.parametrize("language", ["en", "ja"])
def test_controls_are_within_the_window_at_every_width(opened, language):
    page = opened(draw("bidirectional_ring", 16, language=language))
    page.slide(20)  # the counter is longest then
    assert find_hidden_controls(page.driver) == {}


def test_a_name_that_is_too_long_for_the_window_is_cut(opened):
    """A learner's function may have any name. Controls outside of the window would be found."""
    name = "my_" + 12 * "very_" + "long_name()"
    page = opened(as_page([replace(ALGORITHMS["ring"](4), name=name)], (name, 4)))
    assert find_hidden_controls(page.driver) == {}
    page.driver.execute_script("document.querySelector('.choices').style.minWidth = '700px'")
    hidden = find_hidden_controls(page.driver)
    assert {width for width, _ in hidden} == {320, 390, 480, 561, 600, 680}
    assert hidden[680, "dark"][0] == 40  # 700 and a margin of 20


def test_a_frame_that_gets_its_width_late_is_drawn_for_it(opened, everything):
    narrow = "<style id='early'>main { max-width: 320px }</style>"
    late = "<script>document.getElementById('early').remove()</script>"
    page = opened(everything.replace("</head>", f"{narrow}</head>").replace("</body>", f"{late}</body>"))
    labels = "return [...document.querySelectorAll('#stage text')].map((label) => label.textContent)"
    # a narrow picture has the numbers alone
    page.wait(lambda: "chunk 3" in page.driver.execute_script(labels))


def test_every_step_is_in_japanese_on_the_japanese_page(opened):
    page, texts = opened(draw("ring", 4, language="ja")), []
    page.find_element("as-table").find_element("tag name", "summary").click()
    page.wait(lambda: "チャンク 3" in page.read_text("as-table"))
    for number, state in enumerate(list_states()):
        assert (page.read_text("counter"), page.read_state()) == (f"ステップ {number} / 6", state)
        texts.append(page.driver.execute_script(WORDS))
        page.find_element("next").click()
    assert "最初の状態" in texts[0]
    assert "ステップ 1 の転送 (送信元 → 送信先)\n0 → 1: チャンク 0 +" in texts[1]
    assert "ランク 0、チャンク 1: ランク 0, 1, 2, 3 の寄与" in texts[6]
    page.find_element("play").click()
    assert page.read_text("play") == "一時停止"
    assert english_words(" ".join(texts)) == set()
    assert re.findall("undefined|null|[{}]", " ".join(texts)) == []


def test_the_printed_page_is_light_and_has_no_controls(opened, everything):
    page = opened(everything)
    page.find_element("next").click()
    dark = {"name": "prefers-color-scheme", "value": "dark"}

    def read_style(selector, key):
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]]"
        return page.driver.execute_script(script, selector, key)

    assert read_style(".bar", "display") != "none"
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
    try:
        assert read_style("body", "backgroundColor") == "rgba(0, 0, 0, 0)"
        assert read_style("body", "color") == "rgb(28, 36, 48)"
        assert read_style("#stage svg", "maxWidth") == "100%"  # it was drawn for a window
        assert {read_style(selector, "display") for selector in (".bar", "#as-table", "footer")} == {"none"}
        assert page.read_text("told").startswith("0 → 1: chunk 0 +")
    finally:
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def test_halves_and_wrong_schedules_can_be_shown(opened):
    wrong = Schedule("wrong", "allreduce", 3, 1, (0,), 2 * ((Transfer(1, 0, 0, "add"),),))
    scatter, gather = (replace(half(3), name=half.__name__) for half in HALVES["ring"])
    page = opened(as_page([scatter, gather, wrong], ("wrong", 3)))
    for schedule in (scatter, gather, wrong):
        page.choose("algorithm", schedule.name)
        assert page.read_all_states("world-size") == [list_states(schedule)]
    complete = page.driver.execute_script("return document.querySelectorAll('[data-whole=true]').length")
    assert complete == 0  # the wrong one, at its end


def test_a_name_does_not_become_code(opened):
    name = '</script><script>document.title = "broken"</script><img src=x onerror=alert(1)> & \u2028'
    page = opened(as_page([Schedule(name, "allreduce", 1, 1, (0,), ())], (name, 1)))
    assert page.read_text("name") == name
    assert page.driver.title != "broken"
