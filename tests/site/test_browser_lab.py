"""The schedule labs that make docs has built, in Chromium: the page gives the verdicts, texts and
numbers of Python, ends code that does not end, and asks for nothing but its own files.
"""

import json
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.browser import BrowserPage, require_browser, start_browser
from support.cell_texts import run_cell, solution_text, wrong_texts
from support.legible import PAGE_WIDTH, emulate_screen, find_low_contrast_texts

from gluonlab.exercises.browser_lab import BROWSER_EXERCISES, judge_cell
from gluonlab.exercises.languages import LANGUAGE_VARIABLE

require_browser()
pytestmark = pytest.mark.browser
SITE = Path(__file__).resolve().parents[2] / "build" / "site"
PAGES = {"en": "index.html", "ja": "ja.html"}
READY = {"en": "Python is ready", "ja": "Python の準備ができました"}
ENDLESS = "def tell_everybody():\n    print('before')\n    while True:\n        pass\n"
CRASH = "class Step:\n    def __repr__(self):\n        return repr(self)\n\nprint('before')\nrepr(Step())\n"
NO_STORAGE = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('none'); }})"


class QuietHandler(SimpleHTTPRequestHandler):
    """A server without WebAssembly's media type. Under ``/broken``, the WebAssembly file is missing."""

    extensions_map = {**SimpleHTTPRequestHandler.extensions_map, ".wasm": "application/octet-stream"}

    def translate_path(self, path):
        is_missing = path.startswith("/broken/") and path.endswith(".wasm")
        return super().translate_path("/missing" if is_missing else path.replace("/broken/", "/"))

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def address():
    """The address of the page, in a folder of a server as `python -m http.server` starts one."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(SITE))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/lab/"
        server.shutdown()


@pytest.fixture(scope="module")
def driver():
    started = start_browser()
    yield started
    started.quit()


class LabPage(BrowserPage):
    """The page in one language, after Python was loaded."""

    def __init__(self, driver, address, language):
        self.driver, self.language = driver, language
        for kind in ("browser", "performance"):
            driver.get_log(kind)
        self.url = address + PAGES[language]
        driver.get(self.url)
        driver.execute_script("localStorage.clear()")
        driver.get(self.url)
        self.wait_until_ready()

    def wait_until_ready(self):
        self.wait(lambda: self.read_text("python") == READY[self.language])

    def select(self, id):
        self.driver.execute_script("location.hash = arguments[0]", id)
        self.wait(self.find_element(f"section-{id}").is_displayed)

    def write(self, id, text):
        script = "const [area, text] = arguments; area.value = text; area.dispatchEvent(new Event('input'))"
        self.driver.execute_script(script, self.find_element(f"code-{id}"), text)

    def run(self, id, text):
        """Run a cell, and return what the page shows: status, heading, message, lines."""
        self.select(id)
        self.write(id, text)
        self.in_section(id, ".run")[0].click()
        return self.read_verdict(id)

    def read_verdict(self, id):
        self.wait(lambda: self.in_section(id, ".verdict"))
        script = "return [...arguments[0].children].map((each) => [each.className, each.textContent])"
        box = self.in_section(id, ".verdict")[0]
        return [box.get_attribute("class").split()[1], *self.driver.execute_script(script, box)]

    def in_section(self, id, selector):
        return self.driver.find_elements("css selector", f"#section-{id} {selector}")


def expected_verdict(id, text, language):
    shown = json.loads(judge_cell(id, text, run_cell(id, text), language))
    message = [["message", shown["message"].replace("`", "")]] if shown["message"] else []
    return [shown["status"], ["", shown["heading"]], *message, *(["line", line] for line in shown["lines"])]


@pytest.mark.parametrize("language", PAGES)
def test_the_page_gives_the_verdicts_and_numbers_of_python(driver, address, language, monkeypatch):
    monkeypatch.setenv(LANGUAGE_VARIABLE, language)  # restored after judge_cell has changed it
    page = LabPage(driver, address, language)
    for id in BROWSER_EXERCISES:
        for text in wrong_texts(id):
            shown = page.run(id, text)
            assert shown == expected_verdict(id, text, language)
            assert shown[0] != "passed"
        shown = page.run(id, solution_text(id))
        assert shown == expected_verdict(id, solution_text(id), language)
        assert shown[0] == "passed"
        is_animated = id not in ("05-4", "05-6")
        assert len(page.in_section(id, "iframe")) == is_animated
        assert page.in_section(id, ".result")[0].get_attribute("aria-live") == "polite"
    assert [url for url in page.requested_urls() if not url.startswith((address, "about:", "blob:"))] == []
    assert page.console_messages() == []


def test_the_animation_shows_the_own_schedule(driver, address):
    page = LabPage(driver, address, "en")
    page.run("10-1", solution_text("10-1"))
    driver.switch_to.frame(page.in_section("10-1", "iframe")[0])
    try:
        assert "tell_everybody()" in driver.execute_script("return document.body.innerText")
        assert len(driver.find_elements("css selector", "[data-contributions]")) == 8
    finally:
        driver.switch_to.default_content()


def test_python_starts_again_after_an_endless_loop_and_after_a_crash(driver, address):
    page = LabPage(driver, address, "en")
    for text, expected in ((ENDLESS, "did not finish within 10 s"), (CRASH, "Python stopped in line 3")):
        status, _, *messages = page.run("10-1", text)
        assert status == "stopped" and expected in str(messages)
        assert page.in_section("10-1", ".output")[0].text == "before"
        page.wait_until_ready()
        assert page.find_element("code-10-1").get_attribute("value") == text
    assert page.run("10-1", solution_text("10-1"))[0] == "passed"


def test_an_error_is_explained(driver, address):
    page = LabPage(driver, address, "en")
    for text, expected in (
        ("def tell_everybody(:\n", "SyntaxError: invalid syntax\nin line 1: def tell_everybody(:"),
        ("def another():\n    return []\n", "does not define tell_everybody"),
        ("tell_everybody = None\n", "'NoneType' object is not callable"),
        ("import numpy\n", "No module named 'numpy'\nin line 1: import numpy"),
        ("import statistics\ndef tell_everybody():\n    statistics.mean([])\n", "line 3 of the cell of tell_everybody"),
        ("x = input()\n", "input() does not work on this page"),
        ("def tell_everybody():\n    raise KeyboardInterrupt\n", "KeyboardInterrupt\nin line 2"),
        ("def tell_everybody():\n    raise NotImplementedError\n", "write the body of tell_everybody, then press Run"),
    ):
        status, _, (_, message), *_ = page.run("10-1", text)
        assert status in ("raised", "unwritten") and expected in message


def test_output_is_shown_and_cut(driver, address):
    page = LabPage(driver, address, "en")
    for text, label, expected in (
        ("print('𝄞 日本語', end='')\n", "Your code printed:", "𝄞 日本語"),
        ("print('x' * 10**7)\nprint(1)\n", "Your code printed (only the first part is shown):", "x" * 10000),
        (solution_text("10-1").replace("    steps =", "    print('once')\n    steps ="), "Your code printed:", "once"),
    ):
        page.run("10-1", text)
        output = page.in_section("10-1", ".printed")[0].text
        assert output == f"{label}\n{expected}"


def test_a_page_without_python_gives_the_reason(driver, address):
    """Opens the page as a file without storage, and from a server that lacks a file."""
    added = driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": NO_STORAGE})
    page = BrowserPage(driver, SITE / "lab" / "index.html")
    driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    assert page.read_text("python").startswith("This page needs a web server: run python -m http.server in")
    assert page.find_element("not-saved").is_displayed()
    driver.get(address.replace("/lab/", "/broken/lab/"))
    page.wait(lambda: "pyodide.asm.wasm: 404" in page.read_text("python"))
    assert not page.find_element("not-saved").is_displayed()
    driver.get_log("browser")


def test_an_answer_is_kept_until_it_is_reset(driver, address):
    page = LabPage(driver, address, "en")
    stub = page.find_element("code-10-2").get_attribute("value")
    page.select("10-2")
    page.write("10-2", "# mine\n")
    driver.get(address + PAGES["ja"] + "#10-2")
    assert page.find_element("code-10-2").get_attribute("value") == "# mine\n"
    window = driver.current_window_handle
    driver.switch_to.new_window("tab")
    driver.get(address + PAGES["en"] + "#10-2")
    page.write("10-2", "# from another tab\n")
    driver.close()
    driver.switch_to.window(window)
    page.wait(lambda: page.find_element("code-10-2").get_attribute("value") == "# from another tab\n")
    page.in_section("10-2", ".reset")[0].click()
    driver.switch_to.alert.accept()
    assert page.find_element("code-10-2").get_attribute("value") == stub


def test_the_keyboard_is_enough(driver, address):
    """Tab indents, Escape and Tab leave the editor, and Ctrl+Enter runs. A run does not move the focus."""
    page = LabPage(driver, address, "en")
    page.find_element("skip").send_keys("\ue007")
    assert driver.switch_to.active_element.get_attribute("id") == "title-10-1"
    assert driver.current_url == page.url
    area = page.find_element("code-10-1")
    area.clear()
    area.send_keys("def tell_everybody():\n\ue004return []")
    assert area.get_attribute("value") == "def tell_everybody():\n        return []"  # the line was indented by Enter
    area.send_keys("\ue009\ue007")
    assert page.read_verdict("10-1")[0] == "wrong"
    area.send_keys("\ue00c\ue004")
    button = driver.switch_to.active_element
    assert button.get_attribute("class") == "run"
    button.send_keys("\ue007")
    assert driver.switch_to.active_element == button
    assert page.read_verdict("10-1")[0] == "wrong"


@pytest.mark.parametrize("language", PAGES)
def test_the_page_can_be_read(driver, address, language):
    """At three widths, light and dark; every control has a name."""
    page = LabPage(driver, address, language)
    for id in ("04-6", "10-5"):
        page.run(id, solution_text(id))
        for width in (390, 768, 1280):
            for scheme in ("light", "dark"):
                with emulate_screen(driver, width, scheme):
                    assert driver.execute_script(PAGE_WIDTH) <= width, (id, width)
                    assert find_low_contrast_texts(driver) == [], (id, width, scheme)
    unnamed = "return [...document.querySelectorAll('button, textarea, a, iframe')].filter((each) => !(each.innerText"
    unnamed += " || each.textContent || each.title || (each.labels && each.labels.length))).length"
    assert driver.execute_script(unnamed) == 0


def test_only_relative_addresses_are_used():
    for name in ("index.html", "ja.html", "page.js", "worker.js", "page.css"):
        text = (SITE / "lab" / name).read_text(encoding="utf-8")
        assert 'src="/' not in text and 'href="/' not in text and "cdn" not in text.lower(), name
