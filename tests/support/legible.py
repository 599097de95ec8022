"""Whether a page in the browser can be read: on a telephone, in the dark, without a mouse."""

from contextlib import contextmanager

MIN_CONTRAST = 4.5  # WCAG 2.1, 1.4.3, for text of any size

# Each text that is seen, its colour, and the grounds below it, the nearest first.
TEXTS = """const grounds = (each) => {
        const found = [];
        for (; each; each = each.parentElement) found.push(getComputedStyle(each).backgroundColor);
        return [...found, 'rgb(255, 255, 255)'];
    };
    const colour = (each) => getComputedStyle(each)[each instanceof SVGElement ? 'fill' : 'color'];
    const seen = [...document.querySelectorAll('body *')].filter(
        (each) => each.checkVisibility({opacityProperty: true, visibilityProperty: true})
            && each.getClientRects().length);
    const texts = seen.filter((each) => [...each.childNodes].some(
        (node) => node.nodeType === 3 && node.data.trim()));
    return texts.map((each) => [each.textContent.trim(), colour(each), grounds(each)]);"""

PAGE_WIDTH = "return document.scrollingElement.scrollWidth"
# A telephone, a desktop, and between them half a screen, a notebook's column, a tablet.
WIDTHS = (320, 390, 480, 561, 600, 680, 720, 800, 1024, 1280)

# By how many pixels the page is wider than the window, and its fields and buttons that are not
# wholly in it, or overlap another one.
CONTROLS_OUTSIDE = """const page = document.documentElement, width = page.clientWidth;
    const boxes = [...document.querySelectorAll('select, button, input, output, label')]
        .filter((each) => each.checkVisibility())
        .map((each) => [each.id || each.htmlFor, each.getBoundingClientRect()]);
    const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1
        && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    const found = boxes.filter(([, a], i) => a.left < 0 || a.right > width
        || boxes.some(([, b], j) => i !== j && meet(a, b)));
    return [page.scrollWidth - width, found.map(([id]) => id)];"""


def parse_color(colour):
    """Red, green, blue from 0 to 255, and alpha."""
    parts = [float(part) for part in colour[colour.index("(") + 1 :].strip(")").split(",")]
    return parts if len(parts) == 4 else [*parts, 1.0]


def blend_color(colour, ground):
    """A colour on an opaque ground."""
    *above, alpha = parse_color(colour) if isinstance(colour, str) else colour
    return [alpha * part + (1 - alpha) * below for part, below in zip(above, ground)] + [1.0]


def luminance(colour):
    red, green, blue = (
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4
        for part in (part / 255 for part in colour[:3])
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast_on_grounds(colour, grounds):
    """WCAG's ratio of a text's colour and what is below it, the nearest ground first."""
    below = [255.0, 255.0, 255.0, 1.0]
    for ground in reversed(grounds):
        below = blend_color(ground, below)
    dark, bright = sorted([luminance(blend_color(colour, below)), luminance(below)])
    return (bright + 0.05) / (dark + 0.05)


def find_low_contrast_texts(driver):
    """The texts of the page whose contrast is below WCAG's."""
    return [
        (text[:60], colour, grounds[0], round(ratio, 2))
        for text, colour, grounds in driver.execute_script(TEXTS)
        for ratio in [contrast_on_grounds(colour, grounds)]
        if ratio < MIN_CONTRAST
    ]


def find_hidden_controls(driver):
    """{(width, scheme): (pixels too many, fields and buttons that cannot be pressed)} of the player
    that the browser shows, for those `WIDTHS` at which there are any.
    """
    found = {}
    for scheme in ("light", "dark"):
        for width in WIDTHS:
            with emulate_screen(driver, width, scheme, mobile=False):
                over, outside = driver.execute_script(CONTROLS_OUTSIDE)
            if over > 0 or outside:
                found[width, scheme] = over, outside
    return found


@contextmanager
def emulate_screen(driver, width, scheme, mobile=None):
    """The browser as wide as that, in the light or in the dark; a telephone's below 600, unless
    ``mobile`` is given.
    """
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
