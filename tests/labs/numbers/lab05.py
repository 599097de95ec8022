"""The numbers that the text of lab 05 promises."""

PROBE = """
import json
from unittest.mock import patch
from gluonlab.parallel.pipeline import network_stages as balance

def products(layers, plan, ctx):
    # of each layer for one image, or the numbers that it reads where it has no weight
    shapes = balance._layer_shapes(layers, plan)
    weights = [
        max([one.data(one.list_ctx()[0]).size for name, one in layer.collect_params().items()
             if name.endswith("weight")], default=1)
        for layer in layers
    ]
    return [float(max(weight * np.prod(after[2:]), np.prod(before[1:])))
            for weight, before, after in zip(weights, shapes, shapes[1:])]

with patch.object(balance, "measure_layer_seconds", products):
    counted = start(strategy="layers", balance="time").strategy.cuts
grown = {}
for name in ("1f1b", "gpipe"):  # as a learner measures it
    before = resident()
    pipelines[name].step()
    grown[name] = (resident() - before) / MIB
works = {
    name: [seconds(work) > 0 for work in (way.step, *make_stage_work(way))]
    for name, way in pipelines.items()
}
print(json.dumps({
    "on_gpus": here.on_gpus,
    "full": full,
    "taken": {name: [list(one) for one in planned_memory(way)] for name, way in ways.items()},
    "apart": apart,
    "sizes": [sum(param.data().size for param in part.collect_params().values())
              for part in (part_1, part_2)],
    "spans": [[what, who, end - begin] for what, who, begin, end in spans],
    "cuts": cuts,
    "counted": counted,
    "saved": [everything, crossing],
    "moved": {" ".join(key): [each.total_bytes, len(each.messages), len(each.sums)]
              for key, each in moved.items()},
    "factors": factors,
    "bubbles": bubbles,
    "planned": planned,
    "kept": {name: peaks(make_pipeline(name, 2, MICROBATCHES)) for name in pipelines},
    "expected": {name: [timeline.seconds, *timeline.bubbles]
                 for name, timeline in expected.items()},
    "stages": [forward_s, backward_s],
    "grown": grown,
    "works": works,
    "parameters": language_models,
    "gpus_needed": gpus_needed,
}))
"""


def check(numbers):
    _check_panels(numbers)
    assert numbers["apart"] < 1e-6
    assert numbers["sizes"][1] / sum(numbers["sizes"]) > 0.8  # part_2 has four fifths
    assert [who for _, who, _ in numbers["spans"]] == [0, "bus", 1, 1, "bus", 0]
    if not numbers["on_gpus"]:
        [in_memory], [in_time] = numbers["cuts"].values()
        assert 0 < in_time < 10
        [in_products] = numbers["counted"]
        assert in_memory > in_products  # between the convolutions: behind the first one's pooling
    everything, crossing = numbers["saved"]
    assert (everything, crossing) == (260_448, 60_672)
    _check_moves(numbers)
    assert abs(numbers["bubbles"]["sequential"] - 3 / 4) < 1e-9
    assert abs(numbers["bubbles"]["gpipe"] - 3 / 11) < 1e-9
    _check_pipelines(numbers)
    gpt2, gpt3 = numbers["parameters"].values()
    assert gpt2 == 1_557_611_200  # as OpenAI counts it: 1,558M
    assert 174e9 < gpt3 < 176e9
    assert list(numbers["gpus_needed"].values()) == [1, 82]
    assert 0.25 < 1 - 16 * gpt2 / (32_508 * 2**20) < 0.3  # left for activations: a quarter


def _check_panels(numbers):
    full, taken = numbers["full"], numbers["taken"]
    assert 17 < full["one device"] < 33  # 20 to 30 MiB, depending on the CPU
    for split in ("layers", "channels"):
        assert full[split] > 0.9 * full["one device"]
    assert full["data"] < 0.6 * full["one device"]
    whole, (one, other) = taken["one device"][0], taken["channels"]
    for kind in range(3):  # parameters, gradients, state
        assert one[kind] == other[kind] < 0.55 * whole[kind]
        assert sum(device[kind] for device in taken["layers"]) == whole[kind]


def _check_moves(numbers):
    moved, factors = numbers["moved"], numbers["factors"]
    assert factors["lenet-avg"] > 5 and factors["mlp"] < 0.8
    for model in factors:
        assert moved[f"{model} layers"][2] == 0 and moved[f"{model} tensor"][2] >= 2


def _check_pipelines(numbers):
    assert numbers["kept"] == {"gpipe": [8, 8], "1f1b": [2, 1]}
    gpipe, few = numbers["planned"]["gpipe"], numbers["planned"]["1f1b"]
    assert 3 < gpipe[0] / few[0] <= 4.2 and gpipe[1] / few[1] > 4
    (forward, backward), m = numbers["stages"], 8
    gpipe_s = sum(forward) + sum(backward) + (m - 1) * (max(forward) + max(backward))
    seconds, *idle = numbers["expected"]["gpipe"]
    assert abs(seconds - gpipe_s) < 1e-6 * gpipe_s
    for stage, share in enumerate(idle):
        assert abs(share - (1 - m * (forward[stage] + backward[stage]) / gpipe_s)) < 1e-6
    if not numbers["on_gpus"]:
        assert numbers["grown"]["gpipe"] > 1.5 * numbers["grown"]["1f1b"]
    assert numbers["works"] == {"gpipe": [True] * 3, "1f1b": [True] * 3}
