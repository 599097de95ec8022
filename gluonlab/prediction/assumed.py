"""The assumptions of a prediction, as sentences."""

from __future__ import annotations

from typing import List

from gluonlab.prediction.machines import Machine
from gluonlab.prediction.steps import HOST_S, KEY_S, OFF, Training
from gluonlab.prediction.sums import LOCAL


def assumptions(training: Training, optimizer: str, store: str, arithmetic: str) -> List[str]:
    """What is taken for granted; ``store``: the one that is priced."""
    machine = training.machine
    gpu = machine.gpu
    sentences = [
        "Predicted, not measured: operations counted in the network's graph, a roofline for each "
        f"kernel on {gpu.name} ({gpu.flops[arithmetic] / 1e12:g} TFLOP/s in {arithmetic}, "
        f"{gpu.bytes_per_s / 1e9:g} GB/s: {gpu.sheet.partition(':')[0]}), constants fitted to "
        "published speeds of V100 and K80.",
        f"Training with gluonlab's loop and {optimizer}; images are uint8 and copied at 12 GB/s; "
        "reading and decoding them keeps up, and changing them takes no time.",
        f"The sum is {store}'s, priced on {_links(machine)}.",
        _about_buckets(training),
        f"One thread of the host queues a step in {HOST_S * 1e6:.0f} us for each GPU of the host "
        f"and microbatch, as measured with `bench host` on a core of an EPYC, and {KEY_S * 1e6:g} "
        "us for each further bucket.",
    ]
    if store == LOCAL:
        sentences.append(
            "The host sums at 10.5 GB/s, as measured with `bench gradients` on two cores of an "
            "EPYC: a larger host may be faster, and one of 2015 was five times slower."
        )
    return sentences


def _links(machine: Machine) -> str:
    note = machine.topology.note
    if machine.nominal:
        return f"the machine's links at nominal speed: {note}"
    return f"the links of {machine.name}" + (
        f": {note}" if note else ", which says no more of them"
    )


def _about_buckets(training: Training) -> str:
    most = training.bucket_bytes
    if most == 0:
        buckets = "Parameters are summed one by one"
    else:
        size = "25 MiB, smaller ones with the store device," if most is None else f"{most:,} bytes"
        buckets = f"Buckets of {size} are summed"
    if training.overlap == OFF:
        return f"{buckets} after backward (--overlap off)."
    return (
        f"{buckets} while backward goes on, and do not slow it down; exposed is what is left of "
        "the sum at its end."
    )
