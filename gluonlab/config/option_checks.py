"""Checks the values of options, and converts command-line text to values.

Each check is a function ``check_...(name, value)``. Its arguments are the option's name, which
error messages show, and the option's value. It returns the converted value, or raises ConfigError.
Some checks return the text unchanged. A function ``parse_...`` then converts the text where the
value is used.
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

# Larger than any useful number, but small enough to fit float32 after a multiplication by the
# number of devices.
LARGEST_NUMBER = 1e31
BALANCED = "balanced"  # a value of --class-weights
SMALLEST_LIMIT = 1e-30  # smallest threshold or norm; products with it still fit float32
MAX_OPERATORS = 10**6  # more than the operators of any network
_DECIMAL_PATTERN = re.compile(r"\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?\s*", re.IGNORECASE)
MAX_COUNT = 2**63 - 1  # more than any number of things that can be counted


def whole_number_check(minimum: int, maximum: int = MAX_COUNT) -> Check:
    """Return a check that a value, which may be text, is a whole number in [minimum, maximum]."""
    range_text = f"a whole number from {minimum} to {maximum}"
    minimum_text = f"a whole number of at least {minimum}"

    def check(name: str, value: Any) -> int:
        """Return ``value`` as an int, or raise a ConfigError whose message contains ``name``."""
        text = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9]+", text):
            possible = minimum_text if maximum == MAX_COUNT else range_text
            raise ConfigError(f"{_quote_setting(name, value)}: must be {possible}")
        # Python refuses to convert texts of several thousand digits.
        if len(text.lstrip("+-0")) > len(str(MAX_COUNT)):
            raise ConfigError(f"{_quote_setting(name, value)}: must be {range_text}")
        number = int(text)
        if not minimum <= number <= maximum:
            possible = minimum_text if number < minimum and maximum == MAX_COUNT else range_text
            raise ConfigError(f"{_quote_setting(name, value)}: must be {possible}")
        return number

    return check


def check_gpu_count(name: str, value: Any) -> int:
    """Check a number of GPUs. If the value names GPUs, the error message suggests --devices."""
    try:
        return int(whole_number_check(1)(name, value))
    except ConfigError as error:
        is_list = isinstance(value, (list, tuple)) and value
        text = ",".join(map(str, value)) if is_list else str(value).strip().lower()
        numbers = text.replace("gpu:", "").replace("cuda:", "")
        suggestion = ""
        if re.fullmatch(r"[0-9]+(\s*,\s*[0-9]+)*,?", numbers):
            suggestion = f"gpu:{numbers.replace(' ', '').rstrip(',')}"
        elif text in ("all", "auto", "*", "gpu:*", "-1"):
            suggestion = "gpu:*"
        if suggestion:
            raise ConfigError(f"{error}; to select GPUs, use --devices {suggestion}") from None
        raise


def is_positive_integer(value: Any) -> bool:
    """Return whether a value is a Python or NumPy integer of at least 1."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1


def as_number(value: Any) -> float:
    """Convert a value or text to a float; return NaN if that is impossible.

    Unlike Python's ``float``, this function does not accept underscores, as in 1_0, or non-ASCII
    digits.
    """
    if isinstance(value, bool) or (isinstance(value, str) and not _DECIMAL_PATTERN.fullmatch(value)):
        return math.nan
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _decimal_point_hint(value: Any) -> str:
    """Return a hint if ``value`` is a number with a decimal comma; otherwise an empty string."""
    comma = re.fullmatch(r"\s*([+-]?[0-9]+),([0-9]+)\s*", str(value))
    return f": write a decimal point, {comma[1]}.{comma[2]}" if comma else ""


def real_number_check(minimum: float, below: float = math.inf, *, above_minimum: bool = False) -> Check:
    """Return a check that a number x is finite and minimum <= x < below.

    ``above_minimum``: whether x must be larger than ``minimum``.
    """
    requirement = f"a number greater than {minimum:g}" if above_minimum else f"a number of at least {minimum:g}"
    if below < LARGEST_NUMBER:
        requirement += f" and less than {below:g}"

    def check(name: str, value: Any) -> float:
        """Return ``value`` as a float, or raise a ConfigError whose message contains ``name``."""
        number = as_number(value)
        if LARGEST_NUMBER <= number < math.inf:
            raise ConfigError(f"{_quote_setting(name, value)}: must be less than {min(below, LARGEST_NUMBER):g}")
        if not math.isfinite(number) or number < minimum or number >= below or (above_minimum and number == minimum):
            raise ConfigError(f"{_quote_setting(name, value)}: must be {requirement}{_decimal_point_hint(value)}")
        return number

    return check


IMAGE_SIZE = whole_number_check(8, 2048)
DECODERS = whole_number_check(1, 256)
SHARE = real_number_check(0, below=1, above_minimum=True)


def check_size_in_bytes(name: str, value: Any) -> int:
    """Check a number of bytes, such as ``268435456``, ``256M`` or ``1.5GiB``; return an int.

    Units are powers of 1024.
    """
    match = re.fullmatch(r"\s*([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([kmgt]?)(?:i?b)?\s*", str(value).lower())
    if not match or isinstance(value, bool):
        raise ConfigError(f"{_quote_setting(name, value)}: must be a number of bytes, such as 0, 64M or 2G")
    return int(Fraction(match[1]) * 1024 ** " kmgt".index(match[2] or " "))


def _join_list(value: Any) -> str:
    """Return a list as text such as ``10,20``, and other values as text."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def check_epoch_list(name: str, value: Any) -> str:
    """Check increasing epoch numbers: text such as ``10,20``, or a list. Return the text."""
    text = _join_list(value)
    parts = text.split(",")
    if isinstance(value, bool) or not all(re.fullmatch(r"\s*0*[1-9][0-9]{0,17}\s*", part, re.ASCII) for part in parts):
        raise ConfigError(f"{_quote_setting(name, text)}: must be epoch numbers, such as 10 or 10,20")
    epochs = [int(part) for part in parts]
    if any(later <= earlier for earlier, later in zip(epochs, epochs[1:])):
        raise ConfigError(f"{_quote_setting(name, text)}: epoch numbers must increase, such as 10,20")
    return ",".join(map(str, epochs))


def check_layer_list(name: str, value: Any) -> str:
    """Check layer indices: text such as ``3,7``, or a list. Return the text."""
    text = _join_list(value)
    if isinstance(value, bool) or not re.fullmatch(r"\s*[0-9]{1,9}\s*(,\s*[0-9]{1,9}\s*)*", text, re.ASCII):
        raise ConfigError(f"{_quote_setting(name, text)}: must be layer indices, such as 3 or 3,7")
    return ",".join(str(int(part)) for part in text.split(","))


class Period(NamedTuple):
    """An interval, such as 10 minutes. ``unit`` is "steps", "minutes" or "epochs"."""

    number: int
    unit: str


UNITS = {
    "": "steps", "step": "steps", "steps": "steps", "min": "minutes", "minute": "minutes",
    "minutes": "minutes", "epoch": "epochs", "epochs": "epochs",
}  # fmt: skip


def check_period(name: str, value: Any) -> str:
    """Check an interval such as ``50 steps``, ``10 minutes`` or ``1 epoch``; return its text.

    A number without a unit is a number of steps. The returned unit is always plural, as in
    ``1 epochs``.
    """
    match = re.fullmatch(r"\s*([0-9]{1,15})\s*([a-z]*)\s*", str(value).lower(), re.ASCII)
    unit = UNITS.get(match[2]) if match else None
    if match is None or unit is None or not int(match[1]):
        raise ConfigError(
            f"{_quote_setting(name, value)}: must be a period, such as '50 steps', '10 minutes' or '1 epoch'"
        )
    return f"{int(match[1])} {unit}"


def parse_period(text: str) -> Period:
    """Parse the text from `check_period`."""
    number, unit = text.split()
    return Period(int(number), unit)


ACCURACY, LOSS = "accuracy", "loss"


class Patience(NamedTuple):
    """Settings of early stopping: the number of epochs without improvement, and the metric."""

    epochs: int
    monitored: str


def check_patience(name: str, value: Any) -> Union[int, str]:
    """Check the patience of early stopping: a number of epochs, and optionally the metric.

    Returns ``"5:loss"`` for ``5:loss``, and 5 for ``5`` and ``5:accuracy``.
    """
    epochs, _, monitored = str(value).strip().partition(":")
    try:
        count = int(whole_number_check(1)(name, epochs if isinstance(value, str) else value))
    except ConfigError:
        monitored = "?"
    if monitored.strip().lower() not in ("", ACCURACY, LOSS):
        raise ConfigError(
            f"{_quote_setting(name, value)}: use a number of epochs, such as 5 to "
            f"monitor the validation accuracy, or 5:{LOSS} to monitor the validation loss"
        )
    return f"{count}:{LOSS}" if monitored.strip().lower() == LOSS else count


def parse_patience(value: Union[int, str]) -> Patience:
    """Parse the value from `check_patience`."""
    epochs, _, monitored = str(value).partition(":")
    return Patience(int(epochs), monitored or ACCURACY)


def check_compression_setting(name: str, value: Any) -> str:
    """Check a gradient compression: ``fp16`` or ``2bit:THRESHOLD``; ``2bit`` means ``2bit:0.5``."""
    if str(value).strip() == "fp16":
        return "fp16"
    kind, _, threshold = str(value).strip().partition(":")
    if kind != "2bit" or (":" in str(value) and not threshold.strip()):
        raise ConfigError(f"{_quote_setting(name, value)}: use 2bit:THRESHOLD, such as 2bit:0.5, or fp16")
    try:
        number = real_number_check(SMALLEST_LIMIT, LARGEST_NUMBER)("the threshold", threshold or 0.5)
    except ConfigError as error:
        requirement = str(error).replace(f"{_quote_setting('the threshold', threshold)}: ", "the threshold ", 1)
        raise ConfigError(f"{_quote_setting(name, value)}: {requirement}") from None
    return f"2bit:{number!r}"


def check_operator_count(name: str, value: Any) -> Union[int, str]:
    """Check --backward-bulk-size: the operators in each bulk of the backward pass, or ``off``."""
    text = str(value).strip().lower()
    if text == "off":
        return text
    try:
        return int(whole_number_check(1, MAX_OPERATORS)(name, value))
    except ConfigError as error:
        raise ConfigError(f"{error}, or off") from None


def check_color_normalization(name: str, value: Any) -> str:
    """Check a normalization: a name such as ``imagenet``, or ``M,M,M/S,S,S``; return the text.

    Each M is the mean, and each S the standard deviation, of one channel. The value may also be a
    list of two lists: the means and the standard deviations.
    """
    if isinstance(value, (list, tuple)):
        lists = [part if isinstance(part, (list, tuple)) else [part] for part in value]
        value = "/".join(",".join(map(str, numbers)) for numbers in lists)
    normalized = check_text(name, value).strip().lower()
    if re.fullmatch("[a-z][a-z0-9-]*", normalized):
        return normalized
    parts = [part.split(",") for part in normalized.split("/")]
    try:
        means, deviations = [[as_number(number) for number in part] for part in parts]
    except ValueError:
        means, deviations = [], []
    are_finite = means and len(means) == len(deviations) and all(map(math.isfinite, [*means, *deviations]))
    if not are_finite or min(deviations) < SMALLEST_LIMIT or max(map(abs, [*means, *deviations])) >= LARGEST_NUMBER:
        raise ConfigError(
            f"{_quote_setting(name, value)}: use imagenet, none, "
            "or means/standard deviations such as 0.5,0.5,0.5/0.25,0.25,0.25"
        )
    return "/".join(",".join(map(repr, numbers)) for numbers in (means, deviations))


def check_text(name: str, value: Any) -> str:
    """Check that a text is not empty, and return it. Paths and integers are converted to text."""
    if isinstance(value, bool) or not isinstance(value, (str, int, os.PathLike)):
        if isinstance(value, (bool, float, type(None))):
            raise ConfigError(f"{_quote_setting(name, value)}: must be text")
        kind = type(value).__name__
        raise ConfigError(f"{name} has type {kind}: pass a name that gluonlab list prints")
    if not str(value).strip():
        raise ConfigError(f"{name} is empty: add a value or remove {name}")
    return str(value)


def check_machine(name: str, value: Any) -> str:
    """Check a machine for --topology: a name, or a .json file, whose path is made absolute."""
    machine_name = check_text(name, value)
    if machine_name.lower().endswith(".json"):
        # A run may be resumed from another folder than the one in which it was started.
        with suppress(OSError):  # the current folder has been removed
            return str(Path(machine_name).absolute())
    return machine_name


def check_device_names(name: str, value: Any) -> Union[str, Tuple[str, ...]]:
    """Check device names (see `gluonlab.devices`). Contexts are converted to names."""
    if isinstance(value, (list, tuple)):
        if not value:
            raise ConfigError(f"{name} is empty: add a device or remove {name}")
        return tuple(_check_device_name(name, part) for part in value)
    return _check_device_name(name, value)


def _check_device_name(name: str, value: Any) -> str:
    if hasattr(value, "device_type") and hasattr(value, "device_id"):
        return f"{value.device_type}:{value.device_id}"
    return check_text(name, value)


EXPORTS = MXNET, ONNX = ("mxnet", "onnx")


def check_export_format(name: str, value: Any) -> Optional[str]:
    """Check the name of an export format, one of EXPORTS.

    Older versions recorded True instead of ``mxnet``, and False instead of None.
    """
    if isinstance(value, bool):
        return MXNET if value else None
    format_name = check_text(name, value).strip().lower()
    if format_name not in EXPORTS:
        raise ConfigError(f"{_quote_setting(name, value)}: must be {' or '.join(EXPORTS)}")
    return format_name


def check_flag(name: str, value: Any) -> bool:
    """Check that a value is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{_quote_setting(name, value)}: must be True or False")
    return value


def plain_value(value: Any) -> Any:
    """Convert NumPy values, even in lists, to Python values; return other values unchanged."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(plain_value, value))
    has_numpy_value = hasattr(value, "tolist") and not isinstance(value, (str, type))
    return value.tolist() if has_numpy_value else value


def check_type_name(name: str, value: Any) -> str:
    """Return the name of a data type: ``float32`` for "float32", ``numpy.float32`` or its dtype."""
    return check_text(name, getattr(value, "__name__", None) or getattr(value, "name", None) or value)


def _quote_setting(name: str, value: Any) -> str:
    """Return ``name value`` on one line, for error messages."""
    shown = str(value)
    if not isinstance(value, str):  # the text of an array may have several lines
        shown = " ".join(shown.split())
    return f"{name} {shown if shown.strip() else repr(shown)}"


WEIGHT_PATTERN = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def check_device_weights(name: str, value: Any) -> str:
    """Check positive weights: text such as ``2,1`` or ``1.5,1``, or a list. Return the text."""
    value = _array_to_list(value)
    text = _join_list(value)
    parts = [part.strip() for part in text.split(",")]
    if isinstance(value, bool) or not all(WEIGHT_PATTERN.fullmatch(part) and Fraction(part) > 0 for part in parts):
        raise ConfigError(
            f"{name} {text.strip() or repr(text)}: use a number greater than 0 for each device, such as 2,1 or 1.5,1"
        )
    return ",".join(parts)


def _array_to_list(value: Any) -> Any:
    """Convert a NumPy or MXNet array to a list; return other values unchanged."""
    if hasattr(value, "asnumpy"):
        value = value.asnumpy()
    return value.tolist() if hasattr(value, "tolist") else value


def parse_device_weights(text: str) -> List[Fraction]:
    """Parse the text from `check_device_weights`."""
    return [Fraction(part) for part in text.split(",")]


def check_class_weights(name: str, value: Any) -> str:
    """Check class weights: ``balanced``, or numbers >= 0 as text or as a list. Return the text."""
    value = _array_to_list(value)
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    parts = [str(weight).strip() for weight in (value if is_list else str(value).split(","))]
    if not is_list and parts == [BALANCED]:
        return BALANCED
    numbers = [as_number(part) for part in parts]
    if isinstance(value, bool) or not all(0 <= number < LARGEST_NUMBER for number in numbers):
        shown = ",".join(parts)
        raise ConfigError(
            f"{name} {shown.strip() or repr(shown)}: use {BALANCED}, or a number of at least 0 for "
            "each class, such as 1,2.5"
        )
    if not any(numbers):
        raise ConfigError(
            f"{name} {','.join(parts)}: the model learns nothing if all classes have weight 0: "
            "set at least one weight above 0"
        )
    # Equal weights must have equal texts, because a resumed run compares the texts.
    return ",".join(str(int(number) if number.is_integer() else number) for number in numbers)


def parse_class_weights(text: str) -> Union[str, List[float]]:
    """Parse the text from `check_class_weights`: ``balanced``, or the numbers."""
    return text if text == BALANCED else [as_number(part) for part in text.split(",")]
