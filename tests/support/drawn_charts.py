"""Contents of the charts of `gluonlab.drawing`, read from their SVG."""

import math
import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def svg_texts(tree):
    return [element.text for element in tree.iter(f"{SVG}text")]


def find_group(tree, name):
    """Return the group with this id, or None."""
    return next((group for group in tree.iter(f"{SVG}g") if group.get("id") == name), None)


def mark_positions(tree, name):
    """Return the pixel coordinates (x, y) of the marks of a curve."""
    uses = find_group(tree, name).iter(f"{SVG}use")
    return [(float(use.get("x")), float(use.get("y"))) for use in uses]


def read_ticks(tree, axis):
    """Return (number, pixel) of each tick of the axis ``x`` or ``y``."""
    ticks = []
    for group in tree.iter(f"{SVG}g"):
        if group.get("id", "").startswith(f"{axis}tick_"):
            [text] = svg_texts(group)
            if axis == "x":
                pixel = float(next(group.iter(f"{SVG}use")).get("x"))
            else:
                pixel = float(next(group.iter(f"{SVG}path")).get("d").split()[2])
            ticks.append((float(text.replace(",", "").split()[0]), pixel))
    return ticks


def pixels_to_values(tree, axis, pixels, log):
    """Convert pixels to numbers by the first and the last tick of an axis."""
    (first, begin), *_, (last, end) = read_ticks(tree, axis)
    scale, unscale = (math.log, math.exp) if log else (float, float)
    shares = [(pixel - begin) / (end - begin) for pixel in pixels]
    return [unscale(scale(first) + share * (scale(last) - scale(first))) for share in shares]


def curve_points(tree, name, log_x=False, log_y=False):
    """Return the points of a curve in the units of its axes."""
    xs, ys = zip(*mark_positions(tree, name))
    return list(zip(pixels_to_values(tree, "x", xs, log_x), pixels_to_values(tree, "y", ys, log_y)))


def parse_svg(svg):
    return ElementTree.fromstring(svg)
