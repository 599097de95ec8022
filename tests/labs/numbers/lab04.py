"""The numbers that the text of lab 04 promises."""

import re
from pathlib import Path

from support.lab_probes import HELD_ARRAY_SOURCE

PROBE = (
    f"{HELD_ARRAY_SOURCE}\n"
    """
import json

def comes_first(piece, limit_s):
    # whether the last layer's gradient comes while the second layer's is held up, for so long
    traced, late = Traced(piece), held(limit_s)
    for grad in traced.net[1].weight.list_grad():
        grad[:] = late.array.as_in_context(grad.context)
    traced.forward()
    autograd.backward(traced.losses)
    for grad in traced.net[-1].weight.list_grad():
        grad.wait_to_read()
    late.come()
    nd.waitall()
    return late.in_time == [True]

print(json.dumps({
    "proved": proved,
    "counts": {
        name: [*busiest(algorithm(8)), len(algorithm(8).steps)]
        for name, algorithm in ALGORITHMS.items()
    },
    "sent": {
        schedule.name: [device.sent for device in traffic(schedule, 1)]
        for schedule in (ring(4), star(4))
    },
    "link_mb": [[network, count, *numbers] for (network, count), numbers in link_mb.items()],
    "share": max(networks["LeNet"]) / sum(networks["LeNet"]),
    "resnet": [len(networks["ResNet-18"]), sum(networks["ResNet-18"])],
    "order": list(order),
    "prices_us": {
        size: {
            name: estimate_cost(schedule, p3, size).seconds * 1e6 for name, schedule in schedules.items()
        }
        for size in (10**3, 10**8)
    },
    "lower_bound": [times_floor, lower_bounds],
    "best_of_eight": min(estimate_cost(one, p3, 1e8).seconds for one in schedules.values()) * 1e6,
    "busbw": busbw_of,
    "ready": ready,
    "comes_first": {"1": comes_first(1, 300), "15": comes_first(15, 0.5)},
    "overlap": {piece: timeline.overlap() for piece, timeline in timelines.items()},
    "errors": [row.error for row in report.rows],
    "rows": [[row.algorithm, row.size_bytes, row.time_s] for row in report.rows],
    "weights": {
        name: float(abs(replicas[0] - weights["device"][0]).max())
        for name, replicas in weights.items()
    },
    "apart": max(
        float(abs(replica - replicas[0]).max())
        for replicas in weights.values() for replica in replicas
    ),
}))
"""
)


def check(numbers):
    assert numbers["proved"] == 8 * 16
    assert numbers["sent"] == {"ring": [1.5] * 4, "star": [3.0, 1.0, 1.0, 1.0]}
    counts = numbers["counts"]
    assert counts["star"] == [14, 14.0, 2]
    assert counts["ring"] == [14, 1.75, 14]
    assert counts["halving_doubling"] == [6, 1.75, 6]
    # nobody needs less than the ring
    assert min(arrays for _, arrays, _ in counts.values()) == 2 * 7 / 8
    assert round(numbers["share"], 2) == 0.79
    assert numbers["resnet"] == [62, 11_689_512]
    for network, devices, by_star, by_parameter, by_chunk in numbers["link_mb"]:
        assert abs(by_star / by_chunk - devices) < 1e-6  # the answer to "why is it more efficient?"
        assert by_chunk <= by_parameter * 1.000001 < by_star
        assert network != "LeNet" or by_parameter > 0.75 * by_star  # one parameter holds most of it
    assert numbers["order"] == [0, 3, 2, 1, 5, 6, 7, 4]
    short, long = numbers["prices_us"]["1000"], numbers["prices_us"]["100000000"]
    assert min(short, key=short.get) == "hierarchical"
    assert min(long, key=long.get) == "bidirectional_ring placed"
    assert max(long, key=long.get) == "star"
    assert long["ring"] / long["ring placed"] > 4
    (of_short, _, of_long), (bound_us, *_) = numbers["lower_bound"]
    assert 1 <= of_short < 1.01 and round(of_long, 1) == 1.5
    assert 40 <= bound_us < 41  # four messages of 10 us
    # the figures of "Beat the eight algorithms" and of its hints
    assert (round(numbers["best_of_eight"]), round(numbers["lower_bound"][1][2])) == (2182, 1479)
    assert round(of_long, 2) == 1.47
    busbw = numbers["busbw"]
    wires = {name: round(wires, 1) for name, (wires, _, _) in busbw.items()}
    assert wires == {
        "g4dn.12xlarge": 12, "g5.12xlarge": 24, "p3.8xlarge": 112.5, "p3.16xlarge": 152.5,
        "p4d.24xlarge": 300,
    }  # fmt: skip
    page = Path(__file__).parents[3] / "docs" / "allreduce.md"
    rows = re.findall(r"^\| (\S+) \| \d \|(.*)\|$", page.read_text(encoding="utf-8"), re.M)
    told = {name: [float(cell) for cell in cells.split("|")] for name, cells in rows}
    assert told == {name: [round(one, 1) for one in speeds] for name, speeds in busbw.items()}
    assert all(best <= by_bound <= wires for wires, by_bound, best in busbw.values())
    assert round(100e6 * 1.75 / long["ring"] / 1e3) == 10  # GB/s of busbw
    # the last layer's gradient: in a piece with nearly all of backward, or behind two operators
    assert numbers["comes_first"] == {"1": True, "15": False}
    assert all(0 < share <= 1 for share in numbers["ready"].values())
    assert all(0 <= share <= 1 for share in numbers["overlap"].values())
    assert set(numbers["errors"]) == {0}
    assert len(numbers["rows"]) == 2 * 7
    assert all(seconds > 0 for _, _, seconds in numbers["rows"])
    assert len(numbers["weights"]) == 9
    assert max(numbers["weights"].values()) < 1e-5
    assert numbers["apart"] == 0
