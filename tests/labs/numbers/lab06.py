"""The numbers that the text of lab 06 promises."""

from support.lab_probes import CALL_COUNT_SOURCE

PROBE = (
    f"{CALL_COUNT_SOURCE}\n"
    """
import json
import sys
made = {
    len(devices): calls_of(lambda: passes_s(devices))
    for devices in (here.devices[:1], here.devices[:2])
}
print(json.dumps({
    "on_gpus": here.on_gpus,
    "growth": growth,
    "difference": difference,
    "times_too_large": times_too_large,
    "ragged_difference": ragged_difference,
    "peaks": {str(parts): peak for parts, peak in peaks.items()},
    "same_update": same_update,
    "activations": {str(count): mib for count, (mib, rate) in measured.items()},
    "found": {
        str(part): {"images": best.images, "taken": best.taken} for part, best in found.items()
    },
    "budget": budget,
    "running": {str(parts): value for parts, value in running.items()},
    "with_norm": with_norm,
    "without_norm": without_norm,
    "ground": ground,
    "accuracies": {str(size): result.val_accuracy for size, result in sizes.items()},
    "quoted": quoted,
    "starts": {str(count): spans for count, spans in starts.items()},
    "made": {str(count): calls for count, calls in made.items()},
}))
"""
)


def check(numbers):
    growth = numbers["growth"]
    assert growth["parameters"] == growth["gradients"] == growth["optimizer_state"] == 1
    assert 3.9 < growth["activations"] < 4.1
    assert 1 < growth["total"] < growth["activations"]
    assert numbers["difference"] < 1e-5
    assert abs(numbers["times_too_large"] - 4) < 1e-3
    assert 0.02 < numbers["ragged_difference"] < 1
    assert max(numbers["same_update"].values()) < 1e-4
    if not numbers["on_gpus"]:
        assert numbers["peaks"]["1"] > numbers["peaks"]["4"] + 10
        assert numbers["peaks"]["1"] > 30  # MiB, of 256 images through LeNet
    assert 60 < numbers["activations"]["1"] / numbers["activations"]["64"] < 68
    whole, cut = numbers["found"]["None"], numbers["found"]["16"]
    assert whole["taken"] < numbers["budget"] and cut["taken"] < numbers["budget"]
    if not numbers["on_gpus"]:
        assert cut["images"] > 2 * whole["images"]
    assert abs(numbers["running"]["1"] - 0.1) < 1e-6
    assert abs(numbers["running"]["4"] - 0.3439) < 1e-4
    assert numbers["without_norm"] < 1e-5
    assert numbers["with_norm"] > 0.05
    # parameters, gradients and Adam's two states, of which each of two devices keeps half
    assert abs(numbers["ground"]["sharded-optimizer"] / numbers["ground"]["device"] - 3 / 4) < 0.01
    assert numbers["accuracies"]["512"] < numbers["accuracies"]["16"]
    assert numbers["quoted"]["one GPU"][0] / numbers["quoted"]["two GPUs"][0] > 1.45
    # the first pass contains the start: Python has far more to do than in the second
    assert set(numbers["starts"]) == set(numbers["made"]) == {"1", "2"}
    assert all(seconds > 0 for spans in numbers["starts"].values() for seconds in spans)
    assert all(first > 2 * second > 0 for first, second in numbers["made"].values())
