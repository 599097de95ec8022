"""The figures, the table and the sentences of the study, in a language."""

from __future__ import annotations

from typing import Any, Dict, List

from gluonlab.bench.harness.machine import cpu_model
from gluonlab.drawing.chart import Axis, Chart, Curve, number
from gluonlab.study.learning_rate.measure import Curve as OfDevices
from gluonlab.study.learning_rate.measure import Effect, Found
from gluonlab.study.learning_rate.names import LINEAR, MODEL, MOMENTUM, SAME, WAYS, Options
from gluonlab.study.page import Report, Table, words


def report(found: Found, options: Options, language: str) -> Report:
    """What the study says."""
    said = words(__file__, language)
    charts = {way: _chart(way, found, options, said) for way in WAYS}
    lines = [_best(way, found, said) for way in WAYS]
    lines += [_effect(each, said) for each in found.effects]
    method = said["method"].format(
        model=MODEL.upper(), batch=options.batch_size, epochs=options.epochs, momentum=MOMENTUM,
        seeds=options.seeds,
    )  # fmt: skip
    named = said["settings"]
    settings = {
        named["devices"]: ", ".join(map(str, options.devices)),
        named["seeds"]: str(options.seeds),
        named["epochs"]: str(options.epochs),
        named["machine"]: cpu_model(),
    }
    return Report(
        said["title"], lines, charts, [_table(found, options, said)], [method], settings, language
    )


def _of_way(way: str, found: Found) -> List[OfDevices]:
    """Its curves; for one device the linear rule changes nothing."""
    return [
        each
        for each in found.curves
        if each.way == way or (way == LINEAR and (each.way, each.devices) == (SAME, 1))
    ]


def _chart(way: str, found: Found, options: Options, said: Dict[str, Any]) -> Chart:
    curves = []
    for each in _of_way(way, found):
        points = [(rate, 100 * share.value) for rate, share in zip(found.rates, each.shares)]
        ends = [
            None if share.ends is None else (100 * share.ends[0], 100 * share.ends[1])
            for share in each.shares
        ]
        name = said["devices"]["one" if each.devices == 1 else "several"].format(
            count=each.devices, batch=number(each.devices * options.batch_size)
        )
        curves.append(Curve(name, points, options.devices.index(each.devices) % 6, ends))
    return Chart(
        said["chart"].format(way=said["ways"][way]),
        Axis(said["x"], log=True, ticks=found.rates),
        Axis(said["y"], lowest=0, highest=100),
        curves,
        notes=[_best(way, found, said)],
    )


def _devices(count: int, said: Dict[str, Any]) -> str:
    return str(said["device"] if count == 1 else said["several"].format(count=count))


def _best(way: str, found: Found, said: Dict[str, Any]) -> str:
    rates = said["and"].join(
        said["rate"].format(rate=number(each.best), devices=_devices(each.devices, said))
        for each in _of_way(way, found)
    )
    return str(said["best"].format(way=said["ways"][way], rates=rates))


def _effect(effect: Effect, said: Dict[str, Any]) -> str:
    gain = effect.gain
    ends = ""
    if gain.ends is not None:
        ends = said["ends"].format(low=100 * gain.ends[0], high=100 * gain.ends[1])
    return str(said["effect"].format(
        devices=_devices(effect.devices, said), rate=number(effect.rate),
        of=said["ways"][effect.of], beside=said["ways"][effect.beside],
        gain=100 * gain.value, ends=ends,
    ))  # fmt: skip


def _table(found: Found, options: Options, said: Dict[str, Any]) -> Table:
    rows = []
    for each in found.curves:
        best = each.shares[found.rates.index(each.best)]
        rows.append([
            said["ways"][each.way],
            str(each.devices),
            number(each.devices * options.batch_size),
            number(each.best),
            f"{100 * best.value:.1f} %",
            "" if best.ends is None else "..".join(f"{100 * end:.1f}" for end in best.ends),
            number(each.largest),
        ])  # fmt: skip
    return Table(said["title"], said["heads"], rows, said["note"])
