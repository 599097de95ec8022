"""What charts of `gluonlab.drawing` show, read back from their SVG."""

import math
import re
import xml.etree.ElementTree as ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def svg_texts(tree):
    return [each.text for each in tree.iter(f"{SVG}text")]


def find_group(tree, name):
    """The group with this id; None where there is none."""
    return next((each for each in tree.iter(f"{SVG}g") if each.get("id") == name), None)


def mark_positions(tree, name):
    """Where the marks of a curve lie, in px."""
    uses = find_group(tree, name).iter(f"{SVG}use")
    return [(float(each.get("x")), float(each.get("y"))) for each in uses]


def line_points(tree, name):
    """Where the line of a curve goes, in px."""
    path = find_group(tree, name).find(f"{SVG}path").get("d")
    return [tuple(map(float, place)) for place in re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path)]


def read_ticks(tree, axis):
    """(number, px) of each tick of ``x`` or ``y``."""
    found = []
    for group in tree.iter(f"{SVG}g"):
        if group.get("id", "").startswith(f"{axis}tick_"):
            [text] = svg_texts(group)
            if axis == "x":
                place = float(next(group.iter(f"{SVG}use")).get("x"))
            else:
                place = float(next(group.iter(f"{SVG}path")).get("d").split()[2])
            found.append((float(text.replace(",", "").split()[0]), place))
    return found


def pixels_to_values(tree, axis, places, log):
    """The numbers at these px, by the first and the last tick of an axis."""
    (first, begin), *_, (last, end) = read_ticks(tree, axis)
    of, back = (math.log, math.exp) if log else (float, float)
    shares = [(place - begin) / (end - begin) for place in places]
    return [back(of(first) + share * (of(last) - of(first))) for share in shares]


def curve_points(tree, name, log_x=False, log_y=False, places=mark_positions):
    """The points of a curve, as its axes tell them."""
    xs, ys = zip(*places(tree, name))
    return list(zip(pixels_to_values(tree, "x", xs, log_x), pixels_to_values(tree, "y", ys, log_y)))


def parse_svg(svg):
    return ElementTree.fromstring(svg)
