"""bench overlap: its rows, by arithmetic of their own, and one whole measurement."""

import json
import statistics

import pytest
from hypothesis import given, strategies

from benchmarks import overlap
from benchmarks.__main__ import main
from gluonlab.bench.harness.record import Series

RATES = strategies.lists(strategies.floats(1, 1e5), min_size=6, max_size=6)
SHARES = strategies.lists(strategies.floats(0, 1), min_size=6, max_size=6)


@strategies.composite
def measured(draw):
    """By overlap: images/s and shares by round, or why there are none."""
    reason = strategies.one_of(strategies.none(), strategies.none(), strategies.just("it died"))
    return {
        str(one): (draw(RATES), draw(SHARES), draw(reason) if one != overlap.OFF else None)
        for one in overlap.OVERLAPS
    }


def as_series(found):
    made = []
    for name, (rates, shares, reason) in found.items():
        for unit, values in ((overlap.SPEED, rates), (overlap.BESIDE, shares)):
            own = () if reason else tuple(values)
            made.append(Series(f"{name} {unit}", name, unit, own, reason))
    return made


@given(measured())
def test_a_row_is_the_medians_and_the_ratio_to_none(found):
    rows = overlap.make_rows(as_series(found))
    assert [row.overlap for row in rows] == [str(one) for one in overlap.OVERLAPS]
    off = found[overlap.OFF][0]
    for row in rows:
        rates, shares, reason = found[row.overlap]
        assert row.reason == reason
        if reason:
            assert row.images_per_second is None
            continue
        assert row.images_per_second == statistics.median(rates)
        assert row.beside == statistics.median(shares)
        if row.overlap != overlap.OFF:
            ratio = statistics.median(a / b for a, b in zip(rates, off))
            assert row.ratio.value == pytest.approx(ratio)
            assert row.ratio.lowest <= row.ratio.value <= row.ratio.highest
    lines = overlap.text("lenet", as_series(found), 6).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("it died" in line for line in lines) == sum(row.reason is not None for row in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--network", "lenett"],
            "unknown network 'lenett': choose lenet, resnet18 (did you mean 'lenet'?)",
        ),
        (["--devices", "cpu"], "--devices cpu: one device has nothing to sum: name two or more"),
    ],
)
def test_mistakes_are_one_line(capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        main(["overlap", *options])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and error.count("\n") == 1


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::gluonlab.errors.GluonlabWarning")
def test_small_pieces_lay_more_of_the_sums_beside_backward(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["overlap", "--network", "resnet18", "--rounds", "1", "--json"])
    assert ended.value.code == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)["series"]}
    beside = {
        name: found[f"{name} {overlap.BESIDE}"]["values"][0] for name in map(str, overlap.OVERLAPS)
    }
    assert all(0 <= share <= 1 for share in beside.values())
    assert beside["1"] > beside[overlap.OFF]
