"""The numbers that the text of lab 02 promises."""

PROBE = """
import json
print(json.dumps({
    "moved": moved, "score_size": score_size, "reduced": reduced, "one_or_two": one_or_two,
    "between": between_replicas, "one": one.accuracies, "two": two.accuracies,
    "one_losses": one.losses, "two_losses": two.losses, "drift": apart(*two.replicas),
    "chapter": chapter.accuracies, "chapter_loss": chapter.losses[-1],
    "parts": list(parts.values()), "digits": here.data == "digits",
    "scaling": [base.losses[-1], same_rate.losses[-1], twice_the_rate.losses[-1]],
}))
"""


def check(numbers):
    fewest = {n: min(ways, key=ways.get) for n, ways in numbers["moved"].items()}
    assert fewest == {"32": "between layers", "256": "data", "1024": "data"}
    # gradients do not grow with the batch
    assert len({ways["data"] for ways in numbers["moved"].values()}) == 1
    assert numbers["score_size"]["chapter"] < 1e-3 and 0.3 < numbers["score_size"]["he"] < 3
    assert numbers["reduced"] == [[[3.0, 3.0]], [[3.0, 3.0]]]
    # rounding: some biases are sums of large numbers that nearly cancel
    assert numbers["one_or_two"] < 5e-5
    # replicas are equal bit for bit, after a step and after all of them
    assert numbers["between"] == numbers["drift"] == 0
    assert numbers["one"][-1] > 0.88 and abs(numbers["one"][-1] - numbers["two"][-1]) < 0.02
    assert abs(numbers["one_losses"][0] - numbers["two_losses"][0]) < 1e-2
    assert min(value for row in numbers["parts"] for value in row) > 0
    if numbers["digits"]:
        # it only guesses
        assert max(numbers["chapter"]) < 0.15 and abs(numbers["chapter_loss"] - 2.303) < 0.01
    base, same, twice = numbers["scaling"]
    assert base < twice < same  # the larger batch gets nearer with twice the rate
