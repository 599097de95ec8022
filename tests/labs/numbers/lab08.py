"""The numbers that the text of lab 08 promises."""

PROBE = """
import json
print(json.dumps({
    "on_gpus": here.on_gpus,
    "apart": apart,
    "processes": len(parts("dist_sync", [], [0, 0], [0], [loopback], 9091)),
    "training_share": training_s / wall_s,
    "moved": moved,
    "unused": unused,
    "last_sizes": last_sizes,
    "idle": idle[8],
    "stale": stale,
    "pushes": [sum(epoch) for epoch in pushes],
    "at_kill": at_kill,
    "saved": saved,
    "goes_on_from": goes_on_from,
    "steps": [step["step"] for step in lines_of("killed", "step")],
    "undisturbed": len(losses["two"]),
    "different": different,
}))
"""


def check(numbers):
    if not numbers["on_gpus"]:
        assert numbers["apart"] == 0  # "What differs is where the sum is computed"
    assert numbers["processes"] == 4
    assert numbers["training_share"] < 1  # the rest is the start
    # "With two devices both move 2 P"
    assert abs(numbers["moved"]["copied"] - 2) < 1e-9
    assert abs(numbers["moved"]["lasting"] - 2) < 1e-9
    # "a quarter for two ranks, 34 % for eight"
    assert abs(numbers["unused"]["2 ranks"] - 1 / 4) < 0.03
    assert abs(numbers["unused"]["8 ranks"] - 0.344) < 0.04
    first, second = numbers["last_sizes"]
    assert first in (second, second + 1)
    assert abs(numbers["idle"] - 0.615) < 0.001
    # two workers that may overtake each other, and 2 pushes in each step
    assert 0 < numbers["stale"] < 5
    assert len(numbers["pushes"]) == 2 and len(set(numbers["pushes"])) == 1
    # "10 steps after the last one (and one after each epoch that is the best so far)"
    assert numbers["at_kill"] >= 30
    assert numbers["on_gpus"] or numbers["saved"][:4] == [10, 20, 23, 33]
    assert numbers["goes_on_from"] in numbers["saved"]
    assert 20 <= numbers["goes_on_from"] < numbers["undisturbed"]
    # "as if nothing had happened, bit for bit", and each step once
    assert numbers["steps"] == list(range(1, numbers["undisturbed"] + 1))
    assert numbers["different"] == 0
