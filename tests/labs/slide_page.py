"""A deck in the browser: the slides one by one, and what can go wrong in each."""

from handout_page import Handout

SIZES = ((1280, 720), (1920, 1080), (390, 844))


class Deck(Handout):
    """A deck in a window of so many CSS pixels."""

    def __init__(self, driver, path, size=SIZES[0], dark=False):
        super().__init__(driver, path, size[0], dark)
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False},
        )

    def count(self):
        return len(self.driver.find_elements("css selector", ".slide"))

    def at(self):
        """The number of the slide that is seen, from 1; there is one."""
        seen = self.driver.execute_script(
            "return [...document.querySelectorAll('.slide')].flatMap("
            "(slide, i) => slide.checkVisibility() ? [i + 1] : [])"
        )
        assert len(seen) == 1
        return seen[0]

    def go(self, number):
        self.driver.execute_script("location.hash = `#${arguments[0]}`", number)
        self.wait_for(number)

    def key(self, key):
        self.driver.switch_to.active_element.send_keys(key)

    def wait_for(self, number):
        self.wait(lambda: self.at() == number)

    def titles(self):
        return self.driver.execute_script(
            "return [...document.querySelectorAll('.slide')].map((slide) => slide.querySelector('h1, h2').textContent)"
        )

    def beyond(self):
        """What of the slide that is seen lies outside of it, or is cut off."""
        return self.driver.execute_script(BEYOND)


BEYOND = """const paper = [...document.querySelectorAll('.paper')].find((e) => e.checkVisibility());
    const box = paper.getBoundingClientRect(), found = [], narrow = innerWidth <= 640;
    const bar = document.querySelector('.bar').getBoundingClientRect();
    const bottom = narrow ? Infinity : Math.min(box.bottom, bar.top);
    for (const e of paper.querySelectorAll('*')) {
        if (e.closest('iframe') || (e.closest('svg') && e.localName !== 'svg')) continue;
        if (narrow && e.closest('pre *, table *, table, .wide *, .picture *')) continue;
        const {left, right, top, bottom: low, width, height} = e.getBoundingClientRect();
        if (!width || !height) continue;
        const out = left < box.left - 1 || right > box.right + 1
            || top < box.top - 1 || low > bottom + 1;
        const cut = !narrow && e.localName === 'pre'
            && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1);
        if (out || cut) found.push((cut ? 'cut: ' : 'out: ') + e.outerHTML.slice(0, 120));
    }
    const size = Math.min(...[...paper.querySelectorAll('li, p, pre, td, h2')].map(
        (e) => parseFloat(getComputedStyle(e).fontSize)));
    if (!narrow && size < innerHeight / 52) found.push(`letters of ${size} pixels`);
    if (document.documentElement.scrollWidth > innerWidth) found.push('wider than the window');
    const svg = paper.querySelector('figure svg');
    if (svg && svg.getBoundingClientRect().height < 0.2 * box.height) found.push('a small figure');
    return found;"""
