"""Checks that a page in the browser is legible on small screens and in the dark theme."""

from contextlib import contextmanager

MIN_CONTRAST = 4.5  # WCAG 2.1, 1.4.3, for text of any size

# JavaScript: each visible text, its color, and the background colors below it, nearest first.
TEXTS = """const grounds = (each) => {
        const found = [];
        for (; each; each = each.parentElement) found.push(getComputedStyle(each).backgroundColor);
        return [...found, 'rgb(255, 255, 255)'];
    };
    const color = (each) => getComputedStyle(each)[each instanceof SVGElement ? 'fill' : 'color'];
    const seen = [...document.querySelectorAll('body *')].filter(
        (each) => each.checkVisibility({opacityProperty: true, visibilityProperty: true})
            && each.getClientRects().length);
    const texts = seen.filter((each) => [...each.childNodes].some(
        (node) => node.nodeType === 3 && node.data.trim()));
    return texts.map((each) => [each.textContent.trim(), color(each), grounds(each)]);"""

PAGE_WIDTH = "return document.scrollingElement.scrollWidth"
# From a telephone to a desktop, with half a screen, the column of a notebook, and a tablet.
WIDTHS = (320, 390, 480, 561, 600, 680, 720, 800, 1024, 1280)

# JavaScript: how many pixels the page is wider than the window, and its fields and buttons that are
# partly outside of the window, or overlap another one.
CONTROLS_OUTSIDE = """const page = document.documentElement, width = page.clientWidth;
    const boxes = [...document.querySelectorAll('select, button, input, output, label')]
        .filter((each) => each.checkVisibility())
        .map((each) => [each.id || each.htmlFor, each.getBoundingClientRect()]);
    const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    const found = boxes.filter(([, a], i) => a.left < 0 || a.right > width
        || boxes.some(([, b], j) => i !== j && meet(a, b)));
    return [page.scrollWidth - width, found.map(([id]) => id)];"""


def parse_color(color):
    """Return red, green and blue from 0 to 255, and alpha."""
    parts = [float(part) for part in color[color.index("(") + 1 :].strip(")").split(",")]
    return parts if len(parts) == 4 else [*parts, 1.0]


def blend_color(color, ground):
    """Blend a color with an opaque background."""
    *above, alpha = parse_color(color) if isinstance(color, str) else color
    return [alpha * part + (1 - alpha) * below for part, below in zip(above, ground)] + [1.0]


def luminance(color):
    """Return the relative luminance of WCAG 2.1."""
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
        for part in (part / 255 for part in color[:3])
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def luminance_ratio(one, other):
    """Return the contrast ratio of WCAG 2.1 of two colors."""
    dark, bright = sorted([luminance(one), luminance(other)])
    return (bright + 0.05) / (dark + 0.05)


def contrast_on_grounds(color, grounds):
    """Return the contrast ratio of a text and the backgrounds below it, nearest first."""
    below = [255.0, 255.0, 255.0, 1.0]
    for ground in reversed(grounds):
        below = blend_color(ground, below)
    return luminance_ratio(blend_color(color, below), below)


def find_low_contrast_texts(driver):
    """Return the texts of the page with less than MIN_CONTRAST."""
    return [
        (text[:60], color, grounds[0], round(ratio, 2))
        for text, color, grounds in driver.execute_script(TEXTS)
        for ratio in [contrast_on_grounds(color, grounds)]
        if ratio < MIN_CONTRAST
    ]


def find_hidden_controls(driver):
    """Return {(width, scheme): (superfluous pixels, hidden fields and buttons)} of the page.

    It contains the `WIDTHS` at which the page has such faults.
    """
    faults = {}
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            with emulate_screen(driver, width, scheme, mobile=False):
                overflow, outside = driver.execute_script(CONTROLS_OUTSIDE)
            if overflow > 0 or outside:
                faults[width, scheme] = overflow, outside
    return faults


@contextmanager
def emulate_screen(driver, width, scheme, mobile=None):
    """Emulate a screen of a width and a color scheme; by default mobile below 600 pixels."""
    media = {"media": "", "features": [{"name": "prefers-color-scheme", "value": scheme}]}
    mobile = width < 600 if mobile is None else mobile
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": mobile}
    try:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield
    finally:
        driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
