"""The numbers that the text of lab 07 promises."""

from support.lab_probes import CALL_COUNT_SOURCE

PROBE = (
    f"{CALL_COUNT_SOURCE}\n"
    """
import json
import sys
calls = {size: calls_of(lambda: seconds(work[size])) for size in SIZES}
print(json.dumps({
    "images_per_second": images_per_second,
    "calls": calls,
    "difference": difference,
    "steps": {str(size): float(steps) for size, steps in steps_of.items()},
    "regimes": [list(part) for part in regimes],
    "best_rate": {str(size): float(rate) for size, rate in best_rate.items()},
    "by_rule": {
        str(k): {rule: float(share) for rule, share in of_rules.items()}
        for k, of_rules in by_rule.items()
    },
    "warm": {
        name: {what: found[what].tolist() for what in found} for name, found in warm.items()
    },
    "of_mxnet": of_mxnet.tolist(),
    "of_papers": of_papers.tolist(),
    "time": {str(size): [steps_of[size] * seconds_of[size], s] for size, s in time_of.items()},
    "errors": {
        what: {str(size): list(found) for size, found in of_sizes.items()}
        for what, of_sizes in errors.items()
    },
    "at_99": {str(size): [list(map(float, one)) for one in found]
              for size, found in at_99.items()},
}))
"""
)


def check(numbers):
    # a device that waits for Python is as fast with any batch: a step has the same calls
    calls = numbers["calls"]
    assert 512 / calls["512"] > 2 * 8 / calls["8"]
    assert min(numbers["images_per_second"].values()) > 0
    assert numbers["difference"] < 1e-3
    _check_steps(numbers["steps"], numbers["regimes"])
    _check_rates(numbers["best_rate"], numbers["by_rule"], numbers["warm"])
    _check_momentum(numbers["of_mxnet"], numbers["of_papers"])
    # ten times fewer steps, which are hardly longer
    assert numbers["steps"]["64"] * calls["64"] < numbers["steps"]["2"] * calls["2"]
    assert all(product == seconds > 0 for product, seconds in numbers["time"].values())
    _check_errors(numbers["errors"], numbers["at_99"])


def _check_steps(steps, regimes):
    assert [each[0] for each in regimes] == ["perfect", "diminishing", "stagnation"]
    (_, first, perfect), _, (_, plateau, last) = regimes
    assert first == 2 and 8 <= perfect <= 32 and 64 <= plateau <= 256 and last == 512
    assert 2.8 < steps["2"] / steps["8"] < 5.5  # 4 is perfect
    assert 3 < steps["8"] / steps["512"] < 7  # of 64
    assert steps["128"] / steps["512"] < 1.6  # of 4
    assert 10 < 512 * steps["512"] / (8 * steps["8"]) < 20  # images: "about 14 times"


def _check_rates(best, by_rule, warm):
    assert 1 < best["128"] / best["8"] < 16
    assert 2 <= best["16"] / best["2"] <= 8 and 1 <= best["128"] / best["16"] <= 4
    assert best["512"] == best["256"] == best["128"]
    one = by_rule["1"]["same"]
    for k in ("2", "4"):
        assert by_rule[k]["linear"] > one - 0.02
    same = [by_rule[k]["same"] for k in ("1", "2", "4", "8", "16")]
    assert same == sorted(same, reverse=True) and same[-1] < one - 0.2
    assert by_rule["16"]["linear"] < 0.6
    assert by_rule["16"]["square root"] > max(by_rule["16"]["same"] + 0.1, by_rule["16"]["linear"] + 0.1)
    without, with_one = warm["without"], warm["with"]
    assert without["survive"][:2] == with_one["survive"][:2] == [9, 9]
    assert without["survive"][2] <= 4 and with_one["survive"][2] >= 6
    for place in (0, 1):
        assert abs(without["share"][place] - with_one["share"][place]) < 0.02
    assert with_one["share"][1] > with_one["share"][2] + 0.03  # a smaller rate ends higher


def _check_momentum(of_mxnet, of_papers):
    assert abs(of_mxnet[39] - of_papers[39]) < 1e-4
    assert abs(of_papers[40] / of_papers[39] - 0.1) < 0.002
    assert 8.8 < of_mxnet[40] / of_papers[40] < 9.4
    assert of_mxnet[60] / of_papers[60] > 1.5  # twenty steps later


def _check_errors(errors, at_99):
    epochs, steps = errors["4 epochs"], errors["360 steps"]
    assert (epochs["8"][0], epochs["512"][0]) == (720, 12)
    for error in (1, 2):  # of training and of validation images
        assert epochs["512"][error] > epochs["8"][error] + 0.3
        assert steps["512"][error] < steps["8"][error]
    medians = {size: sorted(mistakes for _, mistakes in found)[4] for size, found in at_99.items()}
    assert max(medians.values()) - min(medians.values()) < 0.9 / 100
    assert abs(medians["512"] - medians["8"]) < 2 / 360
    spread = [mistakes for _, mistakes in at_99["8"]]
    assert max(spread) - min(spread) > abs(medians["512"] - medians["8"])
