"""The trials of python -m gluonlab.doctor --prove: do the GPUs, and all that runs on them, work?

``python -m gluonlab.doctor.trials NAME DEVICES`` runs one of TRIALS in a process of its own, which
answers line by line. So a trial that hangs or crashes ends no other, and the answers that it has
given count. What loads MXNet is imported by that process alone.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from gluonlab.devices import devices
from gluonlab.doctor.check_training import TOLERANCE, difference
from gluonlab.errors import GluonlabError
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.gpu.isolated_process import ProcessExit, message_of, tell
from gluonlab.kvstores import KVSTORES, make_kvstore

if TYPE_CHECKING:
    import mxnet as mx
    from mxnet import nd

Array = Any  # numpy's
LONGEST_REASON = 300  # letters; MXNet's traces name files of the machine, and go on for pages


class Trial(NamedTuple):
    """A question about the GPUs.

    ``longest_s``: the longest that it may take. ``numbers``: the keys of the answers that are
    measurements. ``run`` tells the answers. ``faults``: what is wrong, in words; devices have
    CUDA's numbers. ``summary``: what a trial without faults found.
    """

    title: str
    longest_s: float
    numbers: Tuple[str, ...]
    run: Callable[[List[mx.Context]], None]
    faults: Callable[[ProcessExit], List[str]]
    summary: Callable[[ProcessExit], str]


def _no_faults(outcome: ProcessExit) -> List[str]:
    """A count or a speed is neither right nor wrong."""
    return []


def reason_of(error: BaseException) -> str:
    """The first line of an error, without the folders of this machine."""
    words = message_of(error).strip().split("\n")[0].split()
    return " ".join(word.rpartition("/")[2] for word in words)[:LONGEST_REASON]


# --- copies: does what is copied from GPU to GPU arrive as it was, and how fast?

COPIED = 2**20  # int32, for what must arrive
TIMED_COPY = 2**24  # 64 MiB
REPEATS = 5


def try_copies(ctxs: List[mx.Context]) -> None:
    """Answers device, lost; then source, target, wrong, gb_per_s of each pair."""
    from mxnet import nd

    sent = np.random.RandomState(0).randint(-(2**31), 2**31 - 1, COPIED).astype("int32")
    sources = {}
    for ctx in ctxs:
        tell(trying=f"memory of {ctx}")
        sources[ctx] = nd.array(sent, ctx=ctx, dtype="int32")
        tell(device=str(ctx), lost=int((sources[ctx].asnumpy() != sent).sum()))
    for source, target in itertools.permutations(ctxs, 2):
        tell(trying=f"a copy from {source} to {target}")
        there = nd.zeros((COPIED,), ctx=target, dtype="int32")
        changed = int((sources[source].copyto(there).asnumpy() != sent).sum())
        speed = _copy_speed(source, target)
        tell(source=str(source), target=str(target), wrong=changed, gb_per_s=speed)


def _copy_speed(source: mx.Context, target: mx.Context) -> float:
    from mxnet import nd

    here, there = nd.zeros((TIMED_COPY,), ctx=source), nd.empty((TIMED_COPY,), ctx=target)
    here.copyto(there).wait_to_read()
    began = time.perf_counter()
    for _ in range(REPEATS):
        here.copyto(there)
    there.wait_to_read()
    return 4 * TIMED_COPY * REPEATS / 1e9 / (time.perf_counter() - began)


def copy_faults(outcome: ProcessExit) -> List[str]:
    """Each GPU that does not hold what it was given, and each pair whose copies change."""
    forgetful = [told["device"] for told in outcome.all("lost") if told["lost"]]
    return [f"{device} does not keep what is written to it" for device in forgetful] + [
        f"copies from {told['source']} to {told['target']} are wrong: "
        f"{told['wrong']:,} of {COPIED:,} numbers differ"
        for told in outcome.all("source")
        if told["wrong"]
    ]


def copy_summary(outcome: ProcessExit) -> str:
    """How many pairs were tried."""
    count = len(outcome.all("source"))
    return f"what is copied between {count} pairs of GPUs arrives unchanged"


# --- arithmetic: does every GPU compute what the CPU computes, and all the same bits?

# of the largest number; sums of thousands of float32 products in another order are far nearer
ARITHMETIC_TOLERANCE = 1e-4
ROUNDS = 3  # a GPU that is now and then wrong is wrong

OPERATIONS: Dict[str, Tuple[Tuple[int, ...], ...]] = {
    "matrix product": ((64, 300), (300, 40)),
    "convolution": ((8, 6, 20, 20), (12, 6, 3, 3)),
    "pooling": ((8, 6, 20, 20),),
    "normalisation": ((8, 6, 12, 12), (6,), (6,)),
    "softmax": ((64, 100),),
}


def compute(operation: str, arrays: List[nd.NDArray]) -> nd.NDArray:
    """The result of an operation of OPERATIONS, on the device of its arrays."""
    from mxnet import nd

    def normalise(x: nd.NDArray, gamma: nd.NDArray, beta: nd.NDArray) -> nd.NDArray:
        mean, variance = nd.zeros(beta.shape, ctx=x.context), nd.ones(beta.shape, ctx=x.context)
        return nd.BatchNorm(x, gamma, beta, mean, variance, fix_gamma=False)

    computing: Dict[str, Callable[..., nd.NDArray]] = {
        "matrix product": nd.dot,
        "convolution": lambda x, w: nd.Convolution(
            x, w, kernel=(3, 3), num_filter=12, no_bias=True
        ),
        "pooling": lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max"),
        "normalisation": normalise,
        "softmax": nd.log_softmax,
    }
    return computing[operation](*arrays)


def forward_and_backward(operation: str, inputs: List[Array], ctx: mx.Context) -> List[Array]:
    """An operation's result and its inputs' gradients, under fixed weights of the result."""
    from mxnet import autograd, nd

    arrays = [nd.array(given, ctx=ctx) for given in inputs]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        result = compute(operation, arrays)
    weights = np.random.RandomState(1).uniform(-1, 1, result.shape)
    result.backward(nd.array(weights, ctx=ctx))
    return [result.asnumpy(), *(array.grad.asnumpy() for array in arrays)]


def try_arithmetic(ctxs: List[mx.Context]) -> None:
    """Answers device, operation, difference and alike.

    difference: from the CPU's numbers; alike: whether they have the bits of the first GPU's.
    """
    from mxnet import cpu

    random = np.random.RandomState(0)
    for operation, shapes in OPERATIONS.items():
        inputs = [random.uniform(-1, 1, shape).astype("float32") for shape in shapes]
        reference = forward_and_backward(operation, inputs, cpu(0))
        first: List[Array] = []
        for ctx in ctxs:
            tell(trying=f"{operation} on {ctx}")
            rounds = [forward_and_backward(operation, inputs, ctx) for _ in range(ROUNDS)]
            first = first or rounds[0]
            difference = max(distance(found, reference) for found in rounds)
            alike = all(np.array_equal(a, b) for found in rounds for a, b in zip(found, first))
            tell(device=str(ctx), operation=operation, difference=difference, alike=alike)


def distance(found: List[Array], reference: List[Array]) -> float:
    """The largest |a - b| / max|b| of all arrays; infinite where something is not finite."""
    ratios = [
        float(np.max(np.abs(a - b))) / (float(np.max(np.abs(b))) or 1.0)
        for a, b in zip(found, reference)
    ]
    return float(np.max(ratios)) if np.isfinite(ratios).all() else float("inf")


def arithmetic_faults(outcome: ProcessExit) -> List[str]:
    """Each GPU whose numbers are not those of the CPU; different bits alone are not a fault."""
    return [
        f"{answer['device']} computes {answer['operation']} wrongly: "
        f"it differs from the CPU's by {answer['difference']:.1e}"
        for answer in outcome.all("operation")
        if not answer["difference"] <= ARITHMETIC_TOLERANCE
    ]


def arithmetic_summary(outcome: ProcessExit) -> str:
    """By how much results differ from the CPU's, and whether they have the same bits."""
    answers = outcome.all("operation")
    unlike = sorted({answer["operation"] for answer in answers if not answer["alike"]})
    bits = f"bits that differ between GPUs or from run to run: {', '.join(unlike)}"
    worst = max((answer["difference"] for answer in answers), default=0.0)
    return (
        f"{len(OPERATIONS)} operations and their gradients differ from the CPU's by {worst:.1e} "
        f"at most; {bits if unlike else 'the same bits on all GPUs'}"
    )


# --- stores: does every kvstore sum exactly, with the same bits in all replicas?

SUMMED_SHAPES = ((1000, 257), (13,), (1,))  # more than a piece, fewer elements than chunks
SHARDED = "sharded-optimizer"


def try_stores(ctxs: List[mx.Context]) -> None:
    """Answers store with wrong, unlike and differs, or refused.

    wrong: elements of exact sums; unlike: sums with other bits; differs: its training from one
    GPU's.
    """
    for name in KVSTORES:
        tell(trying=f"kvstore {name}")
        try:
            # it updates, and sums for nobody else
            sums = {} if name == SHARDED else _sums(name, ctxs)
            tell(store=name, **sums, differs=difference(ctxs, name))
        except Exception as error:
            tell(store=name, refused=reason_of(error))


def _sums(name: str, ctxs: List[mx.Context]) -> Dict[str, int]:
    """Whole numbers have exact sums in float32; others at least the same bits, each time."""
    from mxnet import nd

    random, store = np.random.RandomState(0), make_kvstore(name, ctxs)
    off = unlike = 0
    for key, shape in enumerate(SUMMED_SHAPES):
        outs = [nd.empty(shape, ctx=ctx) for ctx in ctxs]
        store.broadcast(key, nd.zeros(shape, ctx=ctxs[0]), outs)
        whole = random.randint(-99, 99, (len(ctxs), *shape)).astype("float32")
        broken = random.normal(size=(len(ctxs), *shape)).astype("float32")
        for _ in range(ROUNDS):
            off += sum(int((one != whole.sum(0)).sum()) for one in _summed(store, key, whole, ctxs))
        rounds = [_summed(store, key, broken, ctxs) for _ in range(ROUNDS)]
        unlike += sum(not np.array_equal(one, rounds[0][0]) for found in rounds for one in found)
    return {"wrong": off, "unlike": unlike}


def _summed(store: Any, key: int, values: Array, ctxs: List[mx.Context]) -> List[Array]:
    from mxnet import nd

    arrays = [nd.array(value, ctx=ctx) for value, ctx in zip(values, ctxs)]
    store.pushpull(key, arrays)
    return [array.asnumpy() for array in arrays]


def store_faults(outcome: ProcessExit) -> List[str]:
    """Each store that fails, sums wrongly or gives replicas different bits."""
    problems = {told["store"]: _store_problem(told) for told in outcome.all("store")}
    return [f"kvstore {name} {problem}" for name, problem in problems.items() if problem]


def _store_problem(told: Dict[str, Any]) -> str:
    if "refused" in told:
        return f"fails: {told['refused']}"
    if told.get("wrong"):
        return f"sums wrongly: {told['wrong']:,} elements"
    if told.get("unlike"):
        return "gives different bits on different GPUs, or from sum to sum"
    if not told["differs"] <= TOLERANCE:
        return f"trains differently from one GPU: parameters differ by {told['differs']:.1e}"
    return ""


def store_summary(outcome: ProcessExit) -> str:
    """The stores that were tried."""
    stores = ", ".join(told["store"] for told in outcome.all("store"))
    return f"{stores}: exact sums, the same bits in all replicas, and training as on one GPU"


# --- bits: does a run with the same seed end with the same bits?

RUNS = {"--deterministic": ["--deterministic"], "without --deterministic": []}
RUN_TIMEOUT_S = 60.0


def try_bits(ctxs: List[mx.Context]) -> None:
    """Answers ``how`` and whether two runs of it were ``alike``, or ``refused``."""
    devices = "gpu:" + ",".join(str(ctx.device_id) for ctx in ctxs)
    for how, options in RUNS.items():
        tell(trying=f"two runs {how}")
        try:
            tell(how=how, alike=_parameters(devices, options) == _parameters(devices, options))
        except Exception as error:
            tell(how=how, refused=reason_of(error))


def _parameters(devices: str, options: List[str]) -> str:
    """The SHA-256 of the parameters that a run ends with."""
    with temporary_folder("prove") as folder:
        out = Path(folder) / "run"
        words = ["--devices", devices, "--epochs", "1", "--seed", "3", "--out", str(out), "--json"]
        ended = subprocess.run(
            [sys.executable, "-m", "gluonlab.run", *words, *options], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
            timeout=RUN_TIMEOUT_S, env=dict(os.environ), check=False,
        )  # fmt: skip
        if ended.returncode:
            raise GluonlabError(([""] + ended.stderr.strip().split("\n"))[-1])
        [parameters] = out.glob("*.params")
        return hashlib.sha256(parameters.read_bytes()).hexdigest()


def bits_faults(outcome: ProcessExit) -> List[str]:
    """Runs that fail, and runs of --deterministic that differ; others promise no equal bits."""
    answers = outcome.all("how")
    failed = [
        f"runs {told['how']} fail: {told['refused']}" for told in answers if "refused" in told
    ]
    if any(told["how"] == "--deterministic" and told.get("alike") is False for told in answers):
        failed.append("two runs with --deterministic and the same seed end with different bits")
    return failed


def bits_summary(outcome: ProcessExit) -> str:
    """Whether runs without --deterministic repeat, too."""
    alike = {told["how"]: told["alike"] for told in outcome.all("how")}
    without = "the same" if alike["without --deterministic"] else "different"
    return (
        "two runs with --deterministic and the same seed end with the same bits; "
        f"two without it end with {without} bits"
    )


# --- counts: what a step of training queues on the GPUs, as MXNet's profiler counts it. The engine
# waits for a GPU's stream after each thing that it has queued, so a step costs its number of waits.

COUNTED_NETWORK = "resnet18"
COUNTED_STORES = ("device", "ring", "sharded-optimizer")
COPIES = ("Copy", "_copyto")  # MXNet's names of them
WARM, STEPS, IMAGES = 3, 4, 2


def try_counts(ctxs: List[mx.Context]) -> None:
    """Answers ``store`` with ``queued`` and ``copies`` per step on all devices together."""
    from mxnet import nd

    # a graph that is bound after the first profile is no longer queued in pieces of several
    # operators, but one by one
    steps = {store: training_step(COUNTED_NETWORK, ctxs, store, IMAGES) for store in COUNTED_STORES}
    for step in steps.values():
        for _ in range(WARM):
            step()
    nd.waitall()
    for store, step in steps.items():
        tell(trying=f"steps with {store}")
        counted = _profiled(step)
        copies = sum(count for name, count in counted.items() if name.startswith(COPIES))
        tell(store=store, queued=sum(counted.values()) / STEPS, copies=copies / STEPS)


def _profiled(step: Callable[[], Any]) -> "Counter[str]":
    """How often each thing was queued in STEPS steps, by its name."""
    import mxnet as mx

    with temporary_folder("prove") as folder:
        file = str(Path(folder) / "profile.json")
        mx.profiler.set_config(
            profile_imperative=True, profile_symbolic=True, aggregate_stats=True, filename=file
        )
        mx.profiler.set_state("run")
        for _ in range(STEPS):
            step()
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        told: Dict[str, Any] = json.loads(mx.profiler.dumps(reset=True, format="json"))
    return Counter(
        {name: int(of_name["Count"]) for name, of_name in told["Time"].get("operator", {}).items()}
    )


def count_summary(outcome: ProcessExit) -> str:
    """The counts of each store."""
    counts = "; ".join(
        f"{told['store']} {told['queued']:.0f}, {told['copies']:.0f} of them copies"
        for told in outcome.all("store")
    )
    return f"a step of {COUNTED_NETWORK} queues: {counts}"


# --- speeds: images/s on one, two, ... all GPUs, and bytes/s of several kvstores' sums

NETWORKS = ("lenet", "resnet18")
FEWEST, MOST = 8, 512  # images of each device; as few as keep it busy for LONG_ENOUGH_S
LONG_ENOUGH_S = 0.03
TIMED_STORES = ("device", "ring", "sharded")
SUM_BYTES = (2**16, 2**22, 2**26)  # bytes
TIMED_ROUNDS = 5
LEAST_S, MOST_S = 0.2, 3.0  # of a round, of all of them


def try_speeds(ctxs: List[mx.Context]) -> None:
    """Answers network, devices, images_per_s, ...; then store, bytes, gb_per_s."""
    for network in NETWORKS:
        tell(trying=f"{network} on one GPU")
        images = _enough_images(network, ctxs[:1])
        for count in sorted({*(2**p for p in range(len(ctxs).bit_length())), len(ctxs)}):
            tell(trying=f"{network} on {count} GPUs")
            step = training_step(network, ctxs[:count], "device", images)
            rate = count * images / seconds_of(step)
            tell(network=network, devices=count, images_per_device=images, images_per_s=rate)
    for store, size in itertools.product(TIMED_STORES, SUM_BYTES) if len(ctxs) > 1 else ():
        tell(trying=f"sums of {size} bytes with {store}")
        speed = bus_bytes(size, len(ctxs)) / 1e9 / seconds_of(_sum_over(store, size, ctxs))
        tell(store=store, bytes=size, gb_per_s=speed)


def _enough_images(network: str, ctxs: List[mx.Context]) -> int:
    images = FEWEST
    while images < MOST:
        step = training_step(network, ctxs, "device", images)
        _timed(step, 1)
        if _timed(step, 1) >= LONG_ENOUGH_S:
            break
        images *= 2
    return images


def bus_bytes(size: int, world_size: int) -> float:
    """What each device sends in the best allreduce; its rate is nccl-tests' bus bandwidth."""
    return size * 2 * (world_size - 1) / world_size


def seconds_of(work: Callable[[], Any]) -> float:
    """Seconds of one repetition, the median of some rounds.

    Each round has enough repetitions to make the wait at its end negligible.
    """
    _timed(work, 1)
    once = _timed(work, 1)
    repeats = max(1, round(LEAST_S / max(once, 1e-6)))
    rounds = max(1, min(TIMED_ROUNDS, int(MOST_S / (once * repeats))))
    return statistics.median(_timed(work, repeats) / repeats for _ in range(rounds))


def _timed(work: Callable[[], Any], repeats: int) -> float:
    from mxnet import nd

    nd.waitall()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    nd.waitall()
    return time.perf_counter() - began


def _sum_over(name: str, size: int, ctxs: List[mx.Context]) -> Callable[[], None]:
    from mxnet import nd

    store, arrays = make_kvstore(name, ctxs), [nd.zeros((size // 4,), ctx=ctx) for ctx in ctxs]
    store.broadcast(0, arrays[0], arrays)
    return lambda: store.pushpull(0, arrays)


def speed_summary(outcome: ProcessExit) -> str:
    """The speed of each network on each number of GPUs."""
    rates = [
        f"{told['network']} {told['images_per_s']:,.0f} on {told['devices']}"
        for told in outcome.all("network")
    ]
    return f"images/s: {', '.join(rates)}"


# --- what counts and speeds measure

CLASSES = 10
SGD = {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4}


def training_step(
    network: str, ctxs: Sequence[mx.Context], store: str, images: int
) -> Callable[[], List[Any]]:
    """``step()`` queues a step with ``images`` images per device, as gluonlab.run makes it."""
    import mxnet as mx
    from mxnet import nd

    from gluonlab.bucketed_trainer.trainer import BucketedTrainer
    from gluonlab.data.loading.augmentation import make_input
    from gluonlab.data.loading.split_batch import make_local_batch
    from gluonlab.models import get_model
    from gluonlab.models.infer_shapes import complete_initialization
    from gluonlab.parallel.data.strategy import DataParallelStep
    from gluonlab.parallel.training_loss import make_loss

    shape = (1, 28, 28) if network == "lenet" else (3, 32, 32)
    net = get_model(network, CLASSES, list(ctxs))
    net.initialize(mx.init.Xavier(), ctx=list(ctxs))
    complete_initialization(net, network, shape, CLASSES)
    trainer = BucketedTrainer(net.collect_params(), "sgd", dict(SGD), make_kvstore(store, ctxs))
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input(None))
    xs = [nd.zeros((images, *shape), ctx=ctx, dtype="uint8") for ctx in ctxs]
    ys = [nd.zeros((images,), ctx=ctx, dtype="int32") for ctx in ctxs]
    return partial(step, make_local_batch(xs, ys))


# Speeds come last, because they are what may be left out.
TRIALS: Dict[str, Trial] = {
    "copies": Trial(
        "Copies from GPU to GPU", 60.0, ("source",), try_copies, copy_faults, copy_summary
    ),
    "arithmetic": Trial(
        "Arithmetic, beside the CPU's", 60.0, ("operation",), try_arithmetic, arithmetic_faults,
        arithmetic_summary,
    ),
    "stores": Trial(
        "Sums and training with every kvstore", 120.0, ("store",), try_stores, store_faults,
        store_summary,
    ),
    "bits": Trial(
        "The same seed, the same bits", 120.0, ("how",), try_bits, bits_faults, bits_summary
    ),
    "counts": Trial(
        "What a step queues", 60.0, ("store",), try_counts, _no_faults, count_summary
    ),
    "speeds": Trial(
        "Speeds", 90.0, ("network", "gb_per_s"), try_speeds, _no_faults, speed_summary
    ),
}  # fmt: skip


def main(name: str, spec: str) -> None:
    """Run a trial on the devices that ``spec`` names, and end the process."""
    gc.disable()
    try:
        TRIALS[name].run(devices(spec))
    except Exception as error:
        tell(error=reason_of(error))
    sys.stdout.flush()
    # all is told, and what libraries do while Python ends, some crash, is of no interest
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
