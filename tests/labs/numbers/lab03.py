"""The numbers that the text of lab 03 promises."""

PROBE = """
import json

sums, plain = [], gluon.Trainer.allreduce_grads
gluon.Trainer.allreduce_grads = lambda trainer: (
    sums.append(len(trainer._contexts)), plain(trainer)
)
for devices in (one, two):
    parts_of_a_step(devices, 8, steps=2)
gluon.Trainer.allreduce_grads = plain
print(json.dumps({
    "data": here.data, "epochs": epochs, "parameters": int(numbers),
    "update_of_all_stores": max(
        float(abs(weights - after["local", True]).max()) for weights in after.values()
    ),
    "runs": {
        name: {"updates": history[-1][0], "accuracy": [float(one[2]) for one in history]}
        for name, (_, _, history) in runs.items()
    },
    "scaled": {
        "lr": result.plan.lr / lr,
        "images": result.plan.global_batch_size,
        "accuracy": result.val_accuracy,
    },
    "outputs": [float(value) for output in outputs for value in output.asnumpy().ravel()],
    "running_means": [float(mean.asscalar()) for mean in norm.running_mean.list_data()],
    "evaluated": [float(norm(nd.ones((1, 1), ctx=ctx)).asscalar()) for ctx in two],
    "parts": [
        [count, size, {name: time[0] for name, time in parts.items()}]
        for (count, size), parts in measured.items()
    ],
    "sums": sums, "their_ms": their_ms, "bytes_ms": bytes_ms,
}))
"""


def check(numbers):
    assert numbers["parameters"] == 129_068
    assert numbers["update_of_all_stores"] < 1e-6
    runs = {name: run["accuracy"] for name, run in numbers["runs"].items()}
    if numbers["data"] == "digits":
        assert {name: run["updates"] for name, run in numbers["runs"].items()} == {
            "A": 6 * 23,
            "B": 12 * 12,
            "C": 6 * 23,
        }
    # the same updates on one device and on two
    assert abs(runs["A"][0] - runs["C"][0]) < 0.02
    assert abs(runs["A"][-1] - runs["C"][-1]) < 0.05
    # half as many updates learn less; as many learn as much
    assert runs["B"][numbers["epochs"] - 1] < runs["A"][-1]
    assert runs["B"][-1] > runs["A"][-1] - 0.08
    assert numbers["scaled"]["lr"] == 2
    assert numbers["scaled"]["images"] == 128
    assert numbers["scaled"]["accuracy"] > runs["B"][0]
    # a shard of equal numbers is normalized to nothing, and each device keeps statistics of its own
    assert all(abs(output) < 1e-3 for output in numbers["outputs"])
    assert [round(mean, 4) for mean in numbers["running_means"]] == [0.0, 0.2]
    assert abs(numbers["evaluated"][0] - numbers["evaluated"][1]) > 0.1
    assert [part[:2] for part in numbers["parts"]] == [[1, 8], [2, 8], [1, 64], [2, 64]]
    assert all(parts["computing"] > 0 for _, _, parts in numbers["parts"])
    assert numbers["sums"] == [2] * 3  # in each step of two devices, and none of one
    # SageMaker's figures: a step on two GPUs took twice as long, and the bytes explain a twentieth
    # of what came on top
    more = numbers["their_ms"]["2"] - numbers["their_ms"]["1"]
    assert numbers["their_ms"]["2"] / numbers["their_ms"]["1"] > 2
    assert 15 < more / numbers["bytes_ms"] < 30
