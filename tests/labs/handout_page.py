"""A handout in the browser: what can go wrong in a page is asked of the page itself."""

import base64
import re

from support.browser import BrowserPage
from support.legible import WIDTHS


class Handout(BrowserPage):
    """A page at a width in CSS pixels; ``dark``: as on a system whose theme is dark."""

    def __init__(self, driver, path, width=1280, dark=False):
        self._set_width(driver, width)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
        super().__init__(driver, path)

    def requested_urls(self):
        """All that the browser asked for; the documents of frames are in the page."""
        return [url for url in super().requested_urls() if not url.startswith(("about:", self.url))]

    def overflow(self):
        """By how many pixels the page is wider than the window, and the first element that is."""
        return self.driver.execute_script(OVERFLOW)

    def overflow_at_all_widths(self):
        """{width: `overflow`} of the page, and of the pages in it, where there is any."""
        found, frames = {}, self.driver.find_elements("css selector", "iframe")
        for width in WIDTHS:
            self._set_width(self.driver, width)
            over = [self.overflow()]
            for frame in frames:
                self.driver.switch_to.frame(frame)
                over.append(self.overflow())
                self.driver.switch_to.default_content()
            if max(over)[0] > 0:
                found[width] = max(over)
        return found

    @staticmethod
    def _set_width(driver, width):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def missing_glyphs(self):
        """The characters of the page that are drawn as this browser draws a character that no font
        has.
        """
        return self.driver.execute_script(GLYPHS)

    def without_alternative(self):
        return self.driver.execute_script(ALTERNATIVES)

    def low_contrast(self):
        """(ratio, text) of texts that WCAG 2.1, 1.4.3, calls hard to read: less than 4.5 to 1."""
        return self.driver.execute_script(CONTRAST)

    def matches(self, pattern):
        """The texts, those of code and pictures left out, in which a regular expression of
        JavaScript finds something.
        """
        return self.driver.execute_script(MATCHES, pattern)

    def labels(self):
        """(text, pixels of its font, contrast with the shape below it) of all texts in figures."""
        return self.driver.execute_script(LABELS)

    def theme(self):
        return self.driver.execute_script("return document.documentElement.dataset.theme")

    def links(self):
        return self.driver.execute_script(
            "return [...document.querySelectorAll('a[href]')].map((a) => a.getAttribute('href'))"
        )

    def ids(self):
        return self.driver.execute_script("return [...document.querySelectorAll('[id]')].map(({id}) => id)")

    def printed(self):
        """(number of pages, their sizes in points) as a PDF."""
        made = self.driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": True})
        text = base64.b64decode(made["data"]).decode("latin-1")
        boxes = re.findall(r"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", text)
        return len(boxes), {(round(float(width)), round(float(height))) for width, height in boxes}


OVERFLOW = """const page = document.documentElement, width = page.clientWidth;
    const wide = page.scrollWidth - width;
    const beyond = (e) => e.getBoundingClientRect().right > width + 1
        && !e.parentElement.closest('pre, .wide, .picture, .math.block, svg');
    const first = wide > 0 && [...document.body.querySelectorAll('*')].find(beyond);
    return [wide, first ? first.outerHTML.slice(0, 200) : ''];"""

GLYPHS = r"""const canvas = document.createElement('canvas'), size = 40;
    canvas.width = canvas.height = size;
    const pen = canvas.getContext('2d', {willReadFrequently: true});
    const drawn = (font, text) => {
        pen.clearRect(0, 0, size, size);
        pen.font = font;
        pen.fillText(text, 4, 30);
        return String(pen.getImageData(0, 0, size, size).data);
    };
    const absent = new Map(), missing = new Set(), seen = new Set();
    const look = (font, character) => {
        if (seen.has(character) || /[\p{Z}\p{Cc}\p{Cf}\p{M}]/u.test(character)) return;
        seen.add(character);
        // a code point that Unicode has not assigned
        if (!absent.has(font)) absent.set(font, drawn(font, '\u0378'));
        if (drawn(font, character) === absent.get(font)) missing.add(character);
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode, element = text.parentElement;
        if (element.closest('script, style')) continue;
        const style = getComputedStyle(element);
        const font = `${style.fontWeight} 24px ${style.fontFamily}`;
        for (const character of text.data) look(font, character);
        // MathML draws a single letter in the italics of Unicode's block for mathematics
        if (element.localName === 'mi' && /^[A-Za-z]$/.test(text.data) && text.data !== 'h') {
            const letter = text.data.charCodeAt(0);
            const italic = letter < 97 ? 0x1D434 + letter - 65 : 0x1D44E + letter - 97;
            look(font, String.fromCodePoint(italic));
        }
    }
    const [a, one, other] = ['A', '\u0378', '\u0379'].map((text) => drawn('24px sans-serif', text));
    if (one !== other) missing.add('this check finds nothing');
    if (a === one) missing.add('this check finds everything');
    return [...missing];"""

ALTERNATIVES = """const all = (which) => [...document.querySelectorAll(which)];
    return [...all('img').filter((e) => !(e.alt || '').trim()),
            ...all('iframe').filter((e) => !(e.title || '').trim()),
            ...all('figure svg, .drawn svg').filter(
                (e) => !e.closest('[role=img][aria-label]') && !e.closest('svg svg')),
            ...all('figure').filter((e) => !e.querySelector('figcaption').innerText.trim()),
           ].map((e) => e.outerHTML.slice(0, 200));"""

MATCHES = """const main = document.querySelector('main'), found = [];
    const walker = document.createTreeWalker(main, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const text = walker.currentNode;
        const counts = !text.parentElement.closest('pre, code, iframe, svg, script, style');
        if (counts && new RegExp(arguments[0], 'm').test(text.data)) found.push(text.data);
    }
    return found;"""

CONTRAST = """const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (e) => {
        for (; e; e = e.parentElement) {
            const [r, g, b, a = 1] = parts(getComputedStyle(e).backgroundColor);
            if (a > 0) return [r, g, b];
        }
        return [255, 255, 255];
    };
    const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const e = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || e.closest('script, style, svg')) continue;
        const lights = [light(parts(getComputedStyle(e).color)), light(ground(e))];
        const [low, high] = lights.sort((a, b) => a - b);
        const ratio = (high + 0.05) / (low + 0.05);
        if (ratio < 4.5) found.push([ratio, walker.currentNode.data.trim().slice(0, 40)]);
    }
    return found;"""

LABELS = """const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const linear = (v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    const light = (color) => parts(color).slice(0, 3).map((v) => linear(v / 255))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
    const over = (a, color, b) => `rgb(${parts(color).slice(0, 3).map(
        (v, i) => a * v + (1 - a) * parts(b)[i])})`;
    const opacity = (e) => e && e.nodeName !== 'svg'
        ? getComputedStyle(e).opacity * getComputedStyle(e).fillOpacity * opacity(e.parentNode) : 1;
    const found = [];
    for (const svg of document.querySelectorAll('figure svg')) {
        const shapes = 'rect, circle, path, ellipse, text', defined = (e) => e.closest('defs');
        const all = [...svg.querySelectorAll(shapes)].filter((e) => !defined(e));
        const scale = svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
        all.forEach((text, place) => {
            if (text.nodeName !== 'text' || !text.textContent.trim()) return;
            const {left, top, width, height} = text.getBoundingClientRect();
            const [x, y] = [left + width / 2, top + height / 2];
            let ground = getComputedStyle(document.body).backgroundColor;
            for (const shape of all.slice(0, place)) {
                const fill = getComputedStyle(shape).fill, box = shape.getBoundingClientRect();
                const holds = box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;
                const filled = shape.nodeName === 'path' ? shape.isPointInFill(
                    new DOMPoint(x, y).matrixTransform(shape.getScreenCTM().inverse())) : true;
                if (shape.nodeName !== 'text' && fill.startsWith('rgb') && holds && filled)
                    ground = over(opacity(shape), fill, ground);
            }
            const style = getComputedStyle(text);
            const pair = [light(style.fill), light(ground)].sort((a, b) => a - b);
            found.push([text.textContent.trim(), parseFloat(style.fontSize) * scale,
                        (pair[1] + 0.05) / (pair[0] + 0.05)]);
        });
    }
    return found;"""
