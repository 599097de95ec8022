"""05-3: two dense layers whose units are divided among devices, so that one sum is enough."""

from __future__ import annotations

from typing import Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.lab05.lists import listed
from gluonlab.exercises.shared.counterexamples import (
    NOTHING,
    Case,
    Pair,
    looks_like,
    returned,
)

NAMES = ("w1", "b1", "w2", "b2")
Part = Tuple[Any, Any, Any, Any]


class Layers(NamedTuple):
    """Two dense layers with ReLU between them: (n, in) -> (n, hidden) -> (n, out)."""

    w1: Any  # (hidden, in)
    b1: Any  # (hidden,)
    w2: Any  # (out, hidden)
    b2: Any  # (out,)

    def of(self, x: Any) -> Any:
        """What they make of some inputs (n, in)."""
        return np.maximum(x @ self.w1.T + self.b1, 0) @ self.w2.T + self.b2


class _Wrong(NamedTuple):
    """A case whose sum is another one: what came out, and of which parts."""

    case: Case
    got: Any
    want: Any
    layers: Layers
    devices: int
    parts: Sequence[Layers]
    x: Any

    def first_bias_divided(self) -> bool:
        """Whether the sum is right once each part's b1 is multiplied by the devices."""
        undone = [part._replace(b1=self.devices * part.b1) for part in self.parts]
        return np.allclose(sum(part.of(self.x) for part in undone), self.want, 1e-4, 1e-6)


@exercise("05-3")
def parts_of(answer: Callable[..., Sequence[Part]]) -> None:
    """Each device's units of two layers, whose results add up to those of the whole network."""
    random = draws(53)
    sizes = [(3, 4, 2, 1), (3, 4, 2, 2), (3, 7, 2, 3), (5, 64, 10, 4)]  # in, hidden, out, devices
    for _ in range(6):
        devices = int(random.randint(2, 7))
        given, put_out = int(random.randint(1, 9)), int(random.randint(1, 9))
        sizes.append((given, devices + int(random.randint(0, 20)), put_out, devices))
    wrong: List[_Wrong] = []
    for given, hidden, put_out, devices in sizes:
        layers = _layers(random, given, hidden, put_out)
        en = (f"{given} -> {hidden} -> {put_out} units on {devices} "
              f"device{'s' * (devices > 1)}")  # fmt: skip
        case = Case(en, f"{given} -> {hidden} -> {put_out} ユニット、デバイス {devices} 台")
        parts = _parts(case, answer(*_frozen(layers), devices), devices)
        _check_shapes(case, parts, layers)
        _check_shares(case, parts, hidden, devices)
        x = random.normal(size=(6, given))
        got, want = sum(part.of(x) for part in parts), layers.of(x)
        if not np.allclose(got, want, rtol=1e-4, atol=1e-6):
            wrong.append(_Wrong(case, got, want, layers, devices, parts, x))
    if wrong:
        raise _unequal(wrong)


def _layers(random: Any, given: int, hidden: int, put_out: int) -> Layers:
    return Layers(
        random.normal(size=(hidden, given)),
        random.normal(size=hidden),
        random.normal(size=(put_out, hidden)),
        1 + random.uniform(size=put_out),  # never near 0: a bias too many is seen
    )


def _frozen(layers: Layers) -> List[Any]:
    """Copies that cannot be written into."""
    copies = [array.copy() for array in layers]
    for array in copies:
        array.flags.writeable = False
    return copies


def _parts(case: Case, given: Any, devices: int) -> List[Layers]:
    en = "a list with (w1, b1, w2, b2) for each device"
    ja = "デバイスごとの (w1, b1, w2, b2) を並べたリスト"
    parts = listed(given)
    if not isinstance(parts, list):
        raise returned(given, case.en, en, ja)
    case.check(
        (len(parts) != devices,
         f"there are {len(parts)} parts, expected {devices}: one for each device",
         f"部分が {len(parts)} 個あります。デバイスごとに 1 個、{devices} 個のはずです"),
    )  # fmt: skip
    found = []
    for part in map(listed, parts):
        if not isinstance(part, list) or len(part) != len(NAMES):
            raise returned(given, case.en, en, ja)
        found.append(Layers(*(np.asarray(array, dtype=float) for array in part)))
    return found


def _check_shapes(case: Case, parts: Sequence[Layers], whole: Layers) -> None:
    """Raise Wrong where two layers of a device do not fit together, or are too small."""
    given, put_out = whole.w1.shape[1], whole.w2.shape[0]
    for device, part in enumerate(parts):
        units = len(part.w1) if part.w1.ndim else 0
        wants = {"w1": (units, given), "b1": (units,), "w2": (put_out, units), "b2": (put_out,)}
        for name, array in zip(NAMES, part):
            if array.shape == wants[name]:
                continue
            raise case.wrong(
                f"device {device} has {units} units of the first layer, and {name} of shape "
                f"{array.shape}, expected {wants[name]}",
                f"デバイス {device} には最初の層のユニットが {units} 個ありますが、"
                f"{name} の形状は {array.shape} です。正しくは {wants[name]} です",
                _why_shape(name, array, part, whole, units),
            )


def _why_shape(name: str, array: Any, part: Layers, whole: Layers, units: int) -> Pair:
    hidden, put_out = whole.w1.shape[0], whole.w2.shape[0]
    wants_w2 = (put_out, units)
    rows = array.ndim == 2 and name == "w2" and array.shape[0] < put_out
    return looks_like(
        (rows and array.shape[1] == hidden,
         "that is a part of its outputs, for which a device needs the hidden units of all others; "
         "a device has its own, which are columns of w2",
         "それは出力の一部で、計算にはほかのデバイスの隠れユニットもすべて必要です。"
         "手元にあるのは自分のユニットだけで、w2 の列にあたります"),
        (name == "w2" and array.shape == (put_out, hidden) and units < hidden,
         "the other hidden units are on other devices",
         "残りの隠れユニットはほかのデバイスにあります"),
        (name == "w1" and array.shape == (units, 0),
         "every unit takes all inputs", "どのユニットも入力全部を使います"),
        (name == "w1" and array.ndim == 2 and units == hidden and array.shape[1] > 0,
         "that is divided by input; the first layer is divided by output, and a device's units "
         "take all inputs",
         "それは入力で分割しています。最初の層は出力で分割し、各ユニットは入力全部を使います"),
        (name == "w2" and array.shape == wants_w2[::-1] and wants_w2[0] != wants_w2[1],
         "it is transposed", "転置されています"),
        (name == "b1" and array.shape == (hidden,),
         "each unit has one bias", "バイアスはユニットごとに 1 個です"),
        (name == "b2" and array.size < put_out,
         "every device adds to all outputs", "どのデバイスもすべての出力に足し込みます"),
    )  # fmt: skip


def _check_shares(case: Case, parts: Sequence[Layers], hidden: int, devices: int) -> None:
    counts = [len(part.w1) for part in parts]
    case.check(
        (devices > 1 and all(count == hidden for count in counts),
         f"every device has all {hidden} units: nothing is divided",
         f"全デバイスが {hidden} 個のユニットをすべて持っています。分割されていません"),
        (sum(counts) != hidden,
         f"the devices have {counts} units, {sum(counts)} together, expected {hidden}",
         f"デバイスのユニット数は {counts} で、合計 {sum(counts)} 個です。{hidden} 個のはずです"),
        (max(counts) - min(counts) > 1,
         f"the devices have {counts} units, which can differ by one at most",
         f"デバイスのユニット数が {counts} です。差は多くても 1 個にしてください"),
    )  # fmt: skip


def _unequal(wrong: Sequence[_Wrong]) -> Exception:
    case, got, want, *_ = wrong[0]
    at = tuple(int(place) for place in np.argwhere(~np.isclose(got, want, 1e-4, 1e-6))[0])
    return case.wrong(
        f"output {at[1]} of an input is {got[at]:.4g} after the sum, expected {want[at]:.4g}",
        f"ある入力の出力 {at[1]} は合計後に {got[at]:.4g} でしたが、正しくは {want[at]:.4g} です",
        _why(wrong),
    )


def _why(wrong: Sequence[_Wrong]) -> Pair:
    """What explains all sums that are wrong; two at least."""
    if len(wrong) < 2:
        return NOTHING
    several = [(one.got - one.want, one.layers.b2, one.devices) for one in wrong]
    return looks_like(
        (all(np.allclose(off, (devices - 1) * b2, 1e-3, 1e-5) for off, b2, devices in several),
         "every device adds b2, so that the sum has it once for each device",
         "どのデバイスも b2 を足しているため、合計にはデバイスの台数だけ入ります"),
        (all(np.allclose(off, -b2, 1e-3, 1e-5) for off, b2, _ in several),
         "b2 is missing", "b2 が入っていません"),
        (all(np.allclose(off, (1 / devices - 1) * b2, 1e-3, 1e-5) for off, b2, devices in several),
         "b2 is divided by the number of devices, and only one of them has it",
         "デバイス数で割った b2 を、1 台だけが足しています"),
        (all(one.first_bias_divided() for one in wrong),
         "b1 is divided by the number of devices: a unit is on one device, with its whole bias",
         "b1 がデバイス数で割られています。ユニットは 1 台だけにあり、バイアスもそのまま使います"),
    )  # fmt: skip
