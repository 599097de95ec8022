"""What the value of an option may be.

Each check turns text, as it comes from a command line, into a value, or raises ConfigError. A
``Check`` takes the option's name, for the message, and what was given.
"""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from fractions import Fraction
from numbers import Integral
from pathlib import Path
from typing import Any, Callable, List, NamedTuple, Optional, Tuple, Union

from gluonlab.errors import ConfigError

Check = Callable[[str, Any], Any]

# far beyond use, and still a float32 when it is scaled by the number of devices
LARGEST_RATE = 1e31
BALANCED = "balanced"  # a value of --class-weights
SMALLEST_LIMIT = 1e-30  # still a float32 when it is multiplied
MOST_OPERATORS = 10**6  # no network has more
_DECIMAL = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*", re.IGNORECASE)
LARGEST = 2**63 - 1  # nothing that is counted here comes near it


def whole(minimum: int, maximum: int = LARGEST) -> Check:
    """A check for whole numbers from ``minimum`` to ``maximum``, also as text."""
    up, to = f"a whole number from {minimum} up", f"a whole number from {minimum} to {maximum}"

    def check(name: str, value: Any) -> int:
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9]+", text):
            raise ConfigError(f"{_given(name, value)}: give {up if maximum == LARGEST else to}")
        # Python itself refuses to convert some thousands of digits
        if len(text.lstrip("+-0")) > len(str(LARGEST)):
            raise ConfigError(f"{_given(name, value)}: give {to}")
        number = int(text)
        if not minimum <= number <= maximum:
            possible = up if number < minimum and maximum == LARGEST else to
            raise ConfigError(f"{_given(name, value)}: give {possible}")
        return number

    return check


def gpu_count(name: str, value: Any) -> int:
    """Check a number of GPUs. If names of GPUs are given, the error suggests --devices."""
    try:
        return int(whole(1)(name, value))
    except ConfigError as error:
        several = isinstance(value, (list, tuple)) and value
        shown = ",".join(map(str, value)) if several else str(value).strip().lower()
        numbers = shown.replace("gpu:", "").replace("cuda:", "")
        instead = ""
        if re.fullmatch(r"[0-9]+(\s*,\s*[0-9]+)*,?", numbers):
            instead = f"gpu:{numbers.replace(' ', '').rstrip(',')}"
        elif shown in ("all", "auto", "*", "gpu:*", "-1"):
            instead = "gpu:*"
        if instead:
            raise ConfigError(f"{error}, or name GPUs: --devices {instead}") from None
        raise


def is_count(value: Any) -> bool:
    """Whether this, in a program, is a whole number from 1 up, as it may also be NumPy's."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def as_number(value: Any) -> float:
    """The number that a value is, or its text says in ASCII without underscores; else NaN.

    Python's own ``float`` reads 1_0 as 10, and digits of other scripts.
    """
    if isinstance(value, bool) or (isinstance(value, str) and not _DECIMAL.fullmatch(value)):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _with_point(value: Any) -> str:
    """What to write instead of a decimal comma."""
    comma = re.fullmatch(r"\s*([+-]?[0-9]+),([0-9]+)\s*", str(value))
    return f", with a point: {comma[1]}.{comma[2]}" if comma else ""


def real(minimum: float, below: float = math.inf, *, above_minimum: bool = False) -> Check:
    """A check for finite numbers x: minimum <= x < below, or minimum < x if ``above_minimum``."""
    wanted = f"a number above {minimum:g}" if above_minimum else f"a number from {minimum:g}"
    if below < LARGEST_RATE:
        wanted += f" and below {below:g}"
    elif not above_minimum:
        wanted += " up"

    def check(name: str, value: Any) -> float:
        number = as_number(value)
        if LARGEST_RATE <= number < math.inf:
            raise ConfigError(
                f"{_given(name, value)}: give a number below {min(below, LARGEST_RATE):g}"
            )
        if (
            not math.isfinite(number)
            or number < minimum
            or number >= below
            or (above_minimum and number == minimum)
        ):
            raise ConfigError(f"{_given(name, value)}: give {wanted}{_with_point(value)}")
        return number

    return check


IMAGE_SIZE = whole(8, 2048)
DECODERS = whole(1, 256)
SHARE = real(0, below=1, above_minimum=True)


def size_in_bytes(name: str, value: Any) -> int:
    """A number of bytes: ``268435456``, ``256M``, ``1.5GiB``; the units are powers of 1024."""
    match = re.fullmatch(
        r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)(?:i?b)?\s*", str(value).lower()
    )
    if not match or isinstance(value, bool):
        raise ConfigError(f"{_given(name, value)}: give a number of bytes such as 0, 64M or 2G")
    return int(Fraction(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


def epoch_list(name: str, value: Any) -> str:
    """Growing numbers of epochs as text, ``10,20``; a list of them becomes such a text."""
    shown = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    parts = shown.split(",")
    if isinstance(value, bool) or not all(
        re.fullmatch(r"\s*0*[1-9][0-9]{0,17}\s*", part, re.ASCII) for part in parts
    ):
        raise ConfigError(f"{_given(name, shown)}: give numbers of epochs such as 10 or 10,20")
    epochs = [int(part) for part in parts]
    if any(later <= earlier for earlier, later in zip(epochs, epochs[1:])):
        raise ConfigError(
            f"{_given(name, shown)}: give each number of epochs once, in order, such as 10,20"
        )
    return ",".join(map(str, epochs))


def layer_list(name: str, value: Any) -> str:
    """Numbers of layers as text, ``3,7``; a list of them becomes such a text."""
    shown = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if isinstance(value, bool) or not re.fullmatch(
        r"\s*[0-9]{1,9}\s*(,\s*[0-9]{1,9}\s*)*", shown, re.ASCII
    ):
        raise ConfigError(f"{_given(name, shown)}: give numbers of layers such as 3 or 3,7")
    return ",".join(str(int(part)) for part in shown.split(","))


class Period(NamedTuple):
    """How often: every ``number`` of a ``unit``, which is steps, minutes or epochs."""

    number: int
    unit: str


UNITS = {
    "": "steps", "step": "steps", "steps": "steps", "min": "minutes", "minute": "minutes",
    "minutes": "minutes", "epoch": "epochs", "epochs": "epochs",
}  # fmt: skip


def period(name: str, value: Any) -> str:
    """``50 steps``, ``10 minutes`` or ``1 epochs`` as text; a number alone counts steps."""
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", str(value).lower(), re.ASCII)
    unit = UNITS.get(match[2]) if match else None
    if match is None or unit is None or not int(match[1]):
        raise ConfigError(
            f"{_given(name, value)}: give how often, such as '50 steps', '10 minutes' or '1 epoch'"
        )
    return f"{int(match[1])} {unit}"


def read_period(text: str) -> Period:
    """What `period` gave, in its parts."""
    number, unit = text.split()
    return Period(int(number), unit)


ACCURACY, LOSS = "accuracy", "loss"


class Patience(NamedTuple):
    """So many epochs without a better test accuracy, or loss."""

    epochs: int
    monitored: str


def patience(name: str, value: Any) -> Union[int, str]:
    """A number of epochs, or with what is looked at: ``5:loss``; ``5:accuracy`` is 5."""
    epochs, _, monitored = str(value).strip().partition(":")
    try:
        count = int(whole(1)(name, epochs if isinstance(value, str) else value))
    except ConfigError:
        monitored = "?"
    if monitored.strip().lower() not in ("", ACCURACY, LOSS):
        raise ConfigError(
            f"{_given(name, value)}: give a number of epochs, such as 5, which look at the "
            f"test accuracy, or 5:{LOSS}"
        )
    return f"{count}:{LOSS}" if monitored.strip().lower() == LOSS else count


def read_patience(value: Union[int, str]) -> Patience:
    """What `patience` gave, in its parts."""
    epochs, _, monitored = str(value).partition(":")
    return Patience(int(epochs), monitored or ACCURACY)


def compression(name: str, value: Any) -> str:
    """``fp16``, ``2bit:THRESHOLD``, or ``2bit``, which is ``2bit:0.5`` as in MXNet."""
    if str(value).strip() == "fp16":
        return "fp16"
    kind, _, threshold = str(value).strip().partition(":")
    if kind != "2bit" or (":" in str(value) and not threshold.strip()):
        raise ConfigError(f"{_given(name, value)}: give 2bit:THRESHOLD, such as 2bit:0.5, or fp16")
    try:
        number = real(SMALLEST_LIMIT, LARGEST_RATE)("the threshold", threshold or 0.5)
    except ConfigError as error:
        raise ConfigError(f"{_given(name, value)}: {error}") from None
    return f"2bit:{number!r}"


def operators(name: str, value: Any) -> Union[int, str]:
    """A number of operators, or ``off``."""
    text = str(value).strip().lower()
    if text == "off":
        return text
    try:
        return int(whole(1, MOST_OPERATORS)(name, value))
    except ConfigError as error:
        raise ConfigError(f"{error}, or off") from None


def colours(name: str, value: Any) -> str:
    """A name such as ``imagenet``, or ``M,M,M/S,S,S``: channels' means and deviations.

    Two lists of numbers become such a text.
    """
    if isinstance(value, (list, tuple)):
        lists = [each if isinstance(each, (list, tuple)) else [each] for each in value]
        value = "/".join(",".join(map(str, each)) for each in lists)
    wanted = text(name, value).strip().lower()
    if re.fullmatch("[a-z][a-z0-9-]*", wanted):
        return wanted
    parts = [part.split(",") for part in wanted.split("/")]
    try:
        means, deviations = [[as_number(number) for number in part] for part in parts]
    except ValueError:
        means, deviations = [], []
    fits = (
        means and len(means) == len(deviations) and all(map(math.isfinite, [*means, *deviations]))
    )
    if (
        not fits
        or min(deviations) < SMALLEST_LIMIT
        or max(map(abs, [*means, *deviations])) >= LARGEST_RATE
    ):
        raise ConfigError(
            f"{_given(name, value)}: give imagenet, none, "
            "or means and deviations such as 0.5,0.5,0.5/0.25,0.25,0.25"
        )
    return "/".join(",".join(map(repr, each)) for each in (means, deviations))


def text(name: str, value: Any) -> str:
    """A check for text that is not empty; a path or a whole number becomes text."""
    if isinstance(value, bool) or not isinstance(value, (str, int, os.PathLike)):
        if isinstance(value, (bool, float, type(None))):
            raise ConfigError(f"{_given(name, value)}: give text")
        kind = type(value).__name__
        raise ConfigError(f"{name} of type {kind}: give a name, see --list")
    if not str(value).strip():
        raise ConfigError(f"{name} is empty: give a value or leave it out")
    return str(value)


def machine(name: str, value: Any) -> str:
    """A machine's name, or a file's, ``m.json``, with the folder that it is in.

    A run may go on from another folder than the one that it was started in.
    """
    given = text(name, value)
    if given.lower().endswith(".json"):
        with suppress(OSError):  # the folder that it would be in is gone
            return str(Path(given).absolute())
    return given


def device_names(name: str, value: Any) -> Union[str, Tuple[str, ...]]:
    """One text or several, as `gluonlab.devices` reads them; a Context becomes its name."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ConfigError(f"{name} names no device: give a value or leave it out")
        return tuple(_device_name(name, part) for part in value)
    return _device_name(name, value)


def _device_name(name: str, value: Any) -> str:
    if hasattr(value, "device_type") and hasattr(value, "device_id"):
        return f"{value.device_type}:{value.device_id}"
    return text(name, value)


EXPORTS = MXNET, ONNX = ("mxnet", "onnx")


def export_format(name: str, value: Any) -> Optional[str]:
    """One of EXPORTS; True and False, as older versions recorded it, are ``mxnet`` and none."""
    if isinstance(value, bool):
        return MXNET if value else None
    wanted = text(name, value).strip().lower()
    if wanted not in EXPORTS:
        raise ConfigError(
            f"{_given(name, value)}: give {' or '.join(EXPORTS)}, or {name} alone, which is {MXNET}"
        )
    return wanted


def flag(name: str, value: Any) -> bool:
    """A check for yes or no."""
    if not isinstance(value, bool):
        raise ConfigError(f"{_given(name, value)}: give True or False")
    return value


def plain_value(value: Any) -> Any:
    """Convert NumPy values, also in a list, to Python values; return other values unchanged."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain_value, value))
    is_numpys = hasattr(value, "tolist") and not isinstance(value, (str, type))
    return value.tolist() if is_numpys else value


def type_name(name: str, value: Any) -> str:
    """Return ``float32``, also for ``numpy.float32`` and ``numpy.dtype("float32")``."""
    return text(name, getattr(value, "__name__", None) or getattr(value, "name", None) or value)


def _given(name: str, value: Any) -> str:
    shown = str(value)
    if not isinstance(value, str):  # an array's has several lines
        shown = " ".join(shown.split())
    return f"{name} {shown if shown.strip() else repr(shown)}"


NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def device_weights(name: str, value: Any) -> str:
    """Numbers above 0 as text, ``2,1`` or ``1.5,1``; a list of them becomes such a text."""
    value = _listed(value)
    shown = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    parts = [part.strip() for part in shown.split(",")]
    if isinstance(value, bool) or not all(
        NUMBER.fullmatch(part) and Fraction(part) > 0 for part in parts
    ):
        raise ConfigError(
            f"{name} {shown.strip() or repr(shown)}: give a number above 0 for each device, such "
            "as 2,1 or 1.5,1"
        )
    return ",".join(parts)


def _listed(value: Any) -> Any:
    """An array of NumPy or MXNet as a list, and anything else as it is."""
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    return value.tolist() if hasattr(value, "tolist") else value


def read_weights(text: str) -> List[Fraction]:
    """What `device_weights` gave, one by one."""
    return [Fraction(part) for part in text.split(",")]


def class_weights(name: str, value: Any) -> str:
    """Check class weights, ``balanced`` or numbers from 0 up (text or list); return the text."""
    value = _listed(value)
    several = isinstance(value, (list, tuple)) and len(value) > 0
    parts = [str(each).strip() for each in (value if several else str(value).split(","))]
    if not several and parts == [BALANCED]:
        return BALANCED
    numbers = [as_number(part) for part in parts]
    if isinstance(value, bool) or not all(0 <= number < LARGEST_RATE for number in numbers):
        shown = ",".join(parts)
        raise ConfigError(
            f"{name} {shown.strip() or repr(shown)}: give {BALANCED}, or a number from 0 up for "
            "each class, such as 1,2.5"
        )
    if not any(numbers):
        raise ConfigError(
            f"{name} {','.join(parts)}: the network learns nothing if every class has weight 0: "
            "give at least one of them more than 0"
        )
    # one text for the same weights, since a run that goes on compares it
    return ",".join(str(int(each) if each.is_integer() else each) for each in numbers)


def read_class_weights(text: str) -> Union[str, List[float]]:
    """Parse the text from `class_weights`: ``balanced``, or the numbers."""
    return text if text == BALANCED else [as_number(part) for part in text.split(",")]
