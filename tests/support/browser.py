"""A headless Chromium for tests of pages. It needs chromium and chromedriver, which pip lacks."""

import json
import os
import shutil
import time
from contextlib import contextmanager

import pytest

from support.waiting import LIMIT_S

INSTALL = "apt-get install chromium chromium-driver"


def find_program(*names):
    return next(filter(None, map(shutil.which, names)), None)


def describe_missing_programs():
    """Return a line that names the missing programs; None if none is missing."""
    chromium, driver = (find_program("chromium", "chromium-browser", "google-chrome"), find_program("chromedriver"))
    missing = [name for name, path in (("Chromium", chromium), ("chromedriver", driver)) if path is None]
    return f"no {' and no '.join(missing)} here: {INSTALL}" if missing else None


def require_browser():
    """Skip the calling module if there is no browser; with GLUONLAB_BROWSER=required it fails."""
    if describe_missing_programs() and os.environ.get("GLUONLAB_BROWSER") != "required":
        pytest.skip(describe_missing_programs(), allow_module_level=True)


def start_browser():
    """Return a WebDriver."""
    if describe_missing_programs():
        pytest.fail(describe_missing_programs())
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = find_program("chromium", "chromium-browser", "google-chrome")
    for name in (
        "headless=new",
        "disable-gpu",
        "disable-dev-shm-usage",
        "hide-scrollbars",
        "force-prefers-reduced-motion",
    ):
        options.add_argument(f"--{name}")
    options.add_argument("--window-size=1200,900")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # its sandbox refuses to run as root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # with a path, selenium downloads no driver
    return webdriver.Chrome(options=options, service=Service(find_program("chromedriver")))


class BrowserPage:
    """A page in the browser, with the actions of its users."""

    def __init__(self, driver, path):
        self.driver = driver
        for kind in ("browser", "performance"):
            driver.get_log(kind)  # discard those of the previous page
        self.url = path.as_uri()
        driver.get(self.url)

    def find_element(self, id):
        return self.driver.find_element("id", id)

    def read_text(self, id):
        return self.driver.execute_script("return document.getElementById(arguments[0]).innerText", id)

    def press(self, key):
        self.driver.switch_to.active_element.send_keys(key)

    def choose(self, id, value):
        from selenium.webdriver.support.ui import Select

        Select(self.find_element(id)).select_by_visible_text(str(value))

    def slide(self, step):
        script = "const [s, to] = arguments; s.value = to; s.dispatchEvent(new Event('input', {bubbles: true}))"
        self.driver.execute_script(script, self.find_element("slider"), step)

    def read_state(self):
        """Return the contributions ``state[rank][chunk]``."""
        return parse_state(self.driver.execute_script(f"{READ} return read();"))

    def read_all_states(self, id):
        """Return all states for each choice of a field, by clicks on the "next" button."""
        return [
            [parse_state(text) for text in texts]
            for texts in self.driver.execute_script(f"{READ} {READ_ALL}", self.find_element(id))
        ]

    def read_arrows(self):
        """Return the transfers of the step, read from the columns and rows of the arrows."""
        heads, cells, lines = self.driver.execute_script(READ_ARROWS)
        ranks = {round(x): int(rank) for x, _, rank, _ in cells}
        chunks = {round(y): int(chunk) for _, y, _, chunk in cells}
        assert {round(x): int(rank) for x, rank in heads} == ranks
        transfers = []
        for op, way in ((op, way) for op, path in lines for way in path.split("M")[1:]):
            up, across, down = (part.split() for part in way.split("Q"))
            xs = [float(up[0]), *map(float, across[2:4:2]), float(across[3].split("H")[1]), float(down[2])]
            assert xs in (sorted(xs), sorted(xs)[::-1])  # straight there
            transfers.append(
                (ranks[round(xs[0])], ranks[round(xs[-1])], chunks[round(float(up[1].split("V")[0]) + 1)], op)
            )
        return transfers

    def watch(self, id):
        """Record every text of an element from now on, for `watched_texts`."""
        self.driver.execute_script(WATCH, self.find_element(id))

    def watched_texts(self):
        """Return all texts of the watched element, in order."""
        return self.driver.execute_script("return window.seen")

    def wait(self, condition):
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"waited for {LIMIT_S} s in {self.driver.current_url}"
            time.sleep(0.02)

    def requested_urls(self):
        """Return the URLs that the browser requested, without that of the page."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]
        entries = self.driver.execute_script(
            "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        return [url for url in sent + entries if url != self.url and not url.startswith("data:")]

    def console_messages(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]


WATCH = """const [element] = arguments, seen = [element.innerText];
    window.seen = seen;
    new MutationObserver(() => {
        if (seen[seen.length - 1] !== element.innerText) seen.push(element.innerText);
    }).observe(element, {childList: true, characterData: true, subtree: true});"""
READ = """const read = () => [...document.querySelectorAll('[data-contributions]')].map(
    ({dataset: cell}) => `${cell.rank} ${cell.chunk} ${cell.contributions}`).join('\\n');"""
READ_ALL = """const field = arguments[0], next = document.getElementById('next');
    return [...field.options].map(({value}) => {
        field.value = value;
        field.dispatchEvent(new Event('change', {bubbles: true}));
        const all = [read()];
        while (!next.disabled) { next.click(); all.push(read()); }
        return all;
    });"""

READ_ARROWS = """const all = (which, read) => [...document.querySelectorAll(which)].map(read);
    return [all('#stage text.middle', (text) => [text.x.baseVal[0].value, text.textContent]),
            all('#stage rect', (cell) => [
                cell.x.baseVal.value + cell.width.baseVal.value / 2, cell.y.baseVal.value,
                cell.parentNode.dataset.rank, cell.parentNode.dataset.chunk]),
            all('.line[data-op]', (line) => [line.dataset.op, line.getAttribute('d')])];"""


def parse_state(text):
    state = {}
    for rank, chunk, contributions in map(str.split, text.splitlines()):
        state.setdefault(int(rank), {})[int(chunk)] = tuple(map(int, contributions.split(",")))
    return [[chunks[chunk] for chunk in sorted(chunks)] for _, chunks in sorted(state.items())]


def check_no_requests(page):
    assert page.requested_urls() == []
    assert page.console_messages() == []


@contextmanager
def open_pages(driver, folder):
    """Yield ``show(html)``, which opens a page; check at the end that no page sent a request."""
    pages = []

    def show(html):
        path = folder / "page.html"
        path.write_text(html, encoding="utf-8")
        pages.append(BrowserPage(driver, path))
        return pages[-1]

    yield show
    for page in pages:
        check_no_requests(page)
