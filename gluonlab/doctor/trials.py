"""Trials of ``gluonlab doctor --gpu-self-test``, which test the GPUs and the kvstores.

``python -m gluonlab.doctor.trials NAME DEVICES`` runs the trial NAME of TRIALS. Each trial runs in
a child process, which prints its answers as lines of JSON. If a trial hangs or crashes, its earlier
answers are kept, and the other trials still run. Only the child process imports MXNet.

The function ``run`` of a Trial runs in the child process and sends answers. In its docstring, "Send
device" means: send an answer with the key ``device``. The key ``trying`` names the current attempt.
The functions ``faults`` and ``summary`` evaluate the answers in the parent process.
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
from gluonlab.doctor.check_training import TOLERANCE, max_parameter_difference
from gluonlab.errors import GluonlabError
from gluonlab.files.atomic_files import temporary_folder
from gluonlab.gpu.isolated_process import ProcessOutcome, error_message, send_answer
from gluonlab.kvstores import KVSTORES, make_kvstore

if TYPE_CHECKING:
    import mxnet as mx
    from mxnet import nd

Array = Any  # numpy's
MAX_REASON_LENGTH = 300  # because traces of MXNet contain paths and fill pages


class Trial(NamedTuple):
    """A test of the GPUs.

    Attributes:
        title: The title on the page.
        timeout_s: The time limit in seconds.
        measurement_keys: The keys of answers that contain measurements.
        run: Function that runs the trial on the GPUs, and sends the answers.
        faults: Function that returns the faults as text, with CUDA's device numbers.
        summary: Function that describes the result of a trial without faults.
    """

    title: str
    timeout_s: float
    measurement_keys: Tuple[str, ...]
    run: Callable[[List[mx.Context]], None]
    faults: Callable[[ProcessOutcome], List[str]]
    summary: Callable[[ProcessOutcome], str]


def first_error_line(error: BaseException) -> str:
    """Return the first line of an error, with the folders of this machine removed."""
    words = error_message(error).strip().split("\n")[0].split()
    return " ".join(word.rpartition("/")[2] for word in words)[:MAX_REASON_LENGTH]


# --- copies: do copies between GPUs arrive unchanged, and how fast?

COPY_ELEMENTS = 2**20  # int32, for the comparison
TIMED_COPY_ELEMENTS = 2**24  # 64 MiB
REPEATS = 5


def check_copies(ctxs: List[mx.Context]) -> None:
    """Check the memory of each GPU, and the copies between all pairs of GPUs.

    For each GPU, send ``device`` and ``lost``, the number of elements that change in its memory.
    For each pair, send ``source``, ``target``, ``gb_per_s``, and ``wrong``, the number of elements
    that change in a copy.
    """
    from mxnet import nd

    values = np.random.RandomState(0).randint(-(2**31), 2**31 - 1, COPY_ELEMENTS).astype("int32")
    sources = {}
    for ctx in ctxs:
        send_answer(trying=f"memory of {ctx}")
        sources[ctx] = nd.array(values, ctx=ctx, dtype="int32")
        send_answer(device=str(ctx), lost=int((sources[ctx].asnumpy() != values).sum()))
    for source, target in itertools.permutations(ctxs, 2):
        send_answer(trying=f"a copy from {source} to {target}")
        copy = nd.zeros((COPY_ELEMENTS,), ctx=target, dtype="int32")
        wrong = int((sources[source].copyto(copy).asnumpy() != values).sum())
        send_answer(source=str(source), target=str(target), wrong=wrong, gb_per_s=_copy_speed(source, target))


def _copy_speed(source: mx.Context, target: mx.Context) -> float:
    """Return the speed of copies in GB/s."""
    from mxnet import nd

    array, copy = nd.zeros((TIMED_COPY_ELEMENTS,), ctx=source), nd.empty((TIMED_COPY_ELEMENTS,), ctx=target)
    array.copyto(copy).wait_to_read()
    start = time.perf_counter()
    for _ in range(REPEATS):
        array.copyto(copy)
    copy.wait_to_read()
    return 4 * TIMED_COPY_ELEMENTS * REPEATS / 1e9 / (time.perf_counter() - start)


def copy_faults(outcome: ProcessOutcome) -> List[str]:
    """Return a fault for each GPU that loses data, and for each pair with incorrect copies."""
    failing = [answer["device"] for answer in outcome.all_answers("lost") if answer["lost"]]
    return [f"{device} does not keep the values that are written to it" for device in failing] + [
        f"copies from {answer['source']} to {answer['target']} are wrong: "
        f"{answer['wrong']:,} of {COPY_ELEMENTS:,} numbers differ"
        for answer in outcome.all_answers("source")
        if answer["wrong"]
    ]


def copy_summary(outcome: ProcessOutcome) -> str:
    """Return text with the number of pairs of GPUs that copy correctly."""
    count = len(outcome.all_answers("source"))
    return f"copies between {count} pairs of GPUs are correct"


# --- arithmetic: does every GPU compute the same as the CPU, and do all GPUs give the same bits?

# relative to the largest number; a different order of thousands of float32 sums changes far less
ARITHMETIC_TOLERANCE = 1e-4
ROUNDS = 3  # to find GPUs that are only sometimes wrong

OPERATIONS: Dict[str, Tuple[Tuple[int, ...], ...]] = {
    "matrix product": ((64, 300), (300, 40)),
    "convolution": ((8, 6, 20, 20), (12, 6, 3, 3)),
    "pooling": ((8, 6, 20, 20),),
    "normalization": ((8, 6, 12, 12), (6,), (6,)),
    "softmax": ((64, 100),),
}


def run_operation(operation: str, arrays: List[nd.NDArray]) -> nd.NDArray:
    """Run an operation of OPERATIONS on the device of its arrays."""
    from mxnet import nd

    def normalize(x: nd.NDArray, gamma: nd.NDArray, beta: nd.NDArray) -> nd.NDArray:
        mean, variance = nd.zeros(beta.shape, ctx=x.context), nd.ones(beta.shape, ctx=x.context)
        return nd.BatchNorm(x, gamma, beta, mean, variance, fix_gamma=False)

    functions: Dict[str, Callable[..., nd.NDArray]] = {
        "matrix product": nd.dot,
        "convolution": lambda x, w: nd.Convolution(x, w, kernel=(3, 3), num_filter=12, no_bias=True),
        "pooling": lambda x: nd.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max"),
        "normalization": normalize,
        "softmax": nd.log_softmax,
    }
    return functions[operation](*arrays)


def forward_and_backward(operation: str, inputs: List[Array], ctx: mx.Context) -> List[Array]:
    """Return an operation's result and its inputs' gradients, for fixed output gradients."""
    from mxnet import autograd, nd

    arrays = [nd.array(value, ctx=ctx) for value in inputs]
    for array in arrays:
        array.attach_grad()
    with autograd.record():
        result = run_operation(operation, arrays)
    output_grad = np.random.RandomState(1).uniform(-1, 1, result.shape)
    result.backward(nd.array(output_grad, ctx=ctx))
    return [result.asnumpy(), *(array.grad.asnumpy() for array in arrays)]


def check_arithmetic(ctxs: List[mx.Context]) -> None:
    """Compare each operation's results on each GPU with those on the CPU and on the first GPU.

    Send ``device``, ``operation``, ``difference`` (the relative difference from the CPU's result)
    and ``alike`` (whether the result is bit-identical to the first GPU's).
    """
    from mxnet import cpu

    random = np.random.RandomState(0)
    for operation, shapes in OPERATIONS.items():
        inputs = [random.uniform(-1, 1, shape).astype("float32") for shape in shapes]
        reference = forward_and_backward(operation, inputs, cpu(0))
        first: List[Array] = []
        for ctx in ctxs:
            send_answer(trying=f"{operation} on {ctx}")
            rounds = [forward_and_backward(operation, inputs, ctx) for _ in range(ROUNDS)]
            first = first or rounds[0]
            difference = max(max_relative_difference(arrays, reference) for arrays in rounds)
            alike = all(np.array_equal(a, b) for arrays in rounds for a, b in zip(arrays, first))
            send_answer(device=str(ctx), operation=operation, difference=difference, alike=alike)


def max_relative_difference(arrays: List[Array], reference: List[Array]) -> float:
    """Return the largest |a - b| / max|b| of all arrays, or infinity if a number is not finite."""
    ratios = [float(np.max(np.abs(a - b))) / (float(np.max(np.abs(b))) or 1.0) for a, b in zip(arrays, reference)]
    return float(np.max(ratios)) if np.isfinite(ratios).all() else float("inf")


def arithmetic_faults(outcome: ProcessOutcome) -> List[str]:
    """Return a fault for each GPU whose results differ from the CPU's beyond rounding errors."""
    return [
        f"the result of {answer['operation']} on {answer['device']} is wrong: it differs from the CPU's by "
        f"{answer['difference']:.1e}"
        for answer in outcome.all_answers("operation")
        if not answer["difference"] <= ARITHMETIC_TOLERANCE
    ]


def arithmetic_summary(outcome: ProcessOutcome) -> str:
    """Return text with the largest difference, and whether all GPUs' results are bit-identical."""
    answers = outcome.all_answers("operation")
    differing = sorted({answer["operation"] for answer in answers if not answer["alike"]})
    bits = f"not bit-identical between GPUs or from run to run: {', '.join(differing)}"
    worst = max((answer["difference"] for answer in answers), default=0.0)
    return (
        f"{len(OPERATIONS)} operations and their gradients differ from the CPU's by at most {worst:.1e}; "
        f"{bits if differing else 'bit-identical on all GPUs'}"
    )


# --- stores: does every kvstore sum exactly, with the same bits in all replicas?

SUMMED_SHAPES = ((1000, 257), (13,), (1,))  # more than a piece, and fewer elements than chunks
SHARDED = "sharded-optimizer"


def check_stores(ctxs: List[mx.Context]) -> None:
    """Sum and train with each kvstore, and send one answer for each kvstore.

    Each answer contains the name (``store``) and these results, or the error (``refused``):

    - ``wrong``: the number of incorrect elements in the sums
    - ``unlike``: the number of sums whose bits differ between GPUs or between repetitions
    - ``differs``: the relative difference between the parameters and those after training on one
      GPU
    """
    for name in KVSTORES:
        send_answer(trying=f"kvstore {name}")
        try:
            # the sharded optimizer updates and returns no sums
            sums = {} if name == SHARDED else _check_sums(name, ctxs)
            send_answer(store=name, **sums, differs=max_parameter_difference(ctxs, name))
        except Exception as error:
            send_answer(store=name, refused=first_error_line(error))


def _check_sums(name: str, ctxs: List[mx.Context]) -> Dict[str, int]:
    """Count ``wrong`` elements, and ``unlike`` sums, whose bits differ from the first sum."""
    from mxnet import nd

    random, store = np.random.RandomState(0), make_kvstore(name, ctxs)
    wrong = unlike = 0
    for key, shape in enumerate(SUMMED_SHAPES):
        outs = [nd.empty(shape, ctx=ctx) for ctx in ctxs]
        store.broadcast(key, nd.zeros(shape, ctx=ctxs[0]), outs)
        integers = random.randint(-99, 99, (len(ctxs), *shape)).astype("float32")
        fractions = random.normal(size=(len(ctxs), *shape)).astype("float32")
        for _ in range(ROUNDS):
            wrong += sum(int((total != integers.sum(0)).sum()) for total in _sum_arrays(store, key, integers, ctxs))
        rounds = [_sum_arrays(store, key, fractions, ctxs) for _ in range(ROUNDS)]
        unlike += sum(not np.array_equal(total, rounds[0][0]) for totals in rounds for total in totals)
    return {"wrong": wrong, "unlike": unlike}


def _sum_arrays(store: Any, key: int, values: Array, ctxs: List[mx.Context]) -> List[Array]:
    """Sum ``values``, one array per device, with the store; return the sum on each device."""
    from mxnet import nd

    arrays = [nd.array(value, ctx=ctx) for value, ctx in zip(values, ctxs)]
    store.pushpull(key, arrays)
    return [array.asnumpy() for array in arrays]


def store_faults(outcome: ProcessOutcome) -> List[str]:
    """Return a fault for each store that fails, sums incorrectly or is not bitwise reproducible."""
    problems = {answer["store"]: _store_problem(answer) for answer in outcome.all_answers("store")}
    return [f"kvstore {name} {problem}" for name, problem in problems.items() if problem]


def _store_problem(answer: Dict[str, Any]) -> str:
    """Describe the problem in an answer of `check_stores`; "" if there is none."""
    if "refused" in answer:
        return f"fails: {answer['refused']}"
    if answer.get("wrong"):
        return f"computes wrong sums: {answer['wrong']:,} elements"
    if answer.get("unlike"):
        return "is not bit-identical on different GPUs, or from sum to sum"
    if not answer["differs"] <= TOLERANCE:
        return f"trains differently than one GPU: parameters differ by {answer['differs']:.1e}"
    return ""


def store_summary(outcome: ProcessOutcome) -> str:
    """Return text with the names of the stores that were tried."""
    stores = ", ".join(answer["store"] for answer in outcome.all_answers("store"))
    return f"{stores}: sums are exact, all replicas are bit-identical, and training matches one GPU"


# --- bits: do two runs with the same seed give the same bits?

RUNS = {"--deterministic": ["--deterministic"], "without --deterministic": []}
RUN_TIMEOUT_S = 60.0


def check_determinism(ctxs: List[mx.Context]) -> None:
    """Train twice with --deterministic and twice without, with the same seed.

    Send ``how``, and either ``alike`` (whether both runs end with bit-identical parameters) or
    ``refused`` (the error).
    """
    devices = "gpu:" + ",".join(str(ctx.device_id) for ctx in ctxs)
    for how, options in RUNS.items():
        send_answer(trying=f"two runs {how}")
        try:
            send_answer(how=how, alike=_train_and_hash(devices, options) == _train_and_hash(devices, options))
        except Exception as error:
            send_answer(how=how, refused=first_error_line(error))


def _train_and_hash(devices: str, options: List[str]) -> str:
    """Train, and return the SHA-256 of the final parameters."""
    with temporary_folder("prove") as folder:
        out = Path(folder) / "run"
        words = ["--devices", devices, "--epochs", "1", "--seed", "3", "--out", str(out), "--json"]
        process = subprocess.run(
            [sys.executable, "-m", "gluonlab.run", *words, *options], stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8", errors="replace",
            timeout=RUN_TIMEOUT_S, env=dict(os.environ), check=False,
        )  # fmt: skip
        if process.returncode:
            raise GluonlabError(([""] + process.stderr.strip().split("\n"))[-1])
        [parameters] = out.glob("*.params")
        return hashlib.sha256(parameters.read_bytes()).hexdigest()


def determinism_faults(outcome: ProcessOutcome) -> List[str]:
    """Return a fault for failed runs, and for --deterministic runs that differ."""
    answers = outcome.all_answers("how")
    failed = [f"runs {answer['how']} fail: {answer['refused']}" for answer in answers if "refused" in answer]
    if any(answer["how"] == "--deterministic" and answer.get("alike") is False for answer in answers):
        failed.append("two runs with --deterministic and the same seed are not bit-identical")
    return failed


def determinism_summary(outcome: ProcessOutcome) -> str:
    """Describe whether two runs without --deterministic end with bit-identical parameters."""
    alike = {answer["how"]: answer["alike"] for answer in outcome.all_answers("how")}
    without = "the same" if alike["without --deterministic"] else "different"
    return (
        f"two runs with --deterministic and the same seed are bit-identical; two runs without it end with {without} "
        "parameters"
    )


# --- counts: the number of operations of a training step on GPUs, by MXNet's profiler. The engine
# waits for a GPU's stream after each operation, so this number determines the overhead of a step.

COUNTED_NETWORK = "resnet18"
COUNTED_STORES = ("device", "ring", "sharded-optimizer")
COPIES = ("Copy", "_copyto")  # names of copies in MXNet
WARMUP_STEPS, STEPS, IMAGES = 3, 4, 2


def count_operators(ctxs: List[mx.Context]) -> None:
    """Count the operations of a training step with each of COUNTED_STORES.

    Send ``store``, ``queued`` (the operations per step on all devices together) and ``copies`` (how
    many of these operations are copies).
    """
    from mxnet import nd

    # Bind all graphs first: after the first profile, MXNet queues the operators of a new graph one
    # by one instead of in bulk.
    steps = {store: training_step(COUNTED_NETWORK, ctxs, store, IMAGES) for store in COUNTED_STORES}
    for step in steps.values():
        for _ in range(WARMUP_STEPS):
            step()
    nd.waitall()
    for store, step in steps.items():
        send_answer(trying=f"steps with {store}")
        counts = _profile_operators(step)
        copies = sum(count for name, count in counts.items() if name.startswith(COPIES))
        send_answer(store=store, queued=sum(counts.values()) / STEPS, copies=copies / STEPS)


def _profile_operators(step: Callable[[], Any]) -> "Counter[str]":
    """Run STEPS steps, and return how often each operator ran."""
    import mxnet as mx

    with temporary_folder("prove") as folder:
        file = str(Path(folder) / "profile.json")
        mx.profiler.set_config(profile_imperative=True, profile_symbolic=True, aggregate_stats=True, filename=file)
        mx.profiler.set_state("run")
        for _ in range(STEPS):
            step()
        mx.nd.waitall()
        mx.profiler.set_state("stop")
        profile: Dict[str, Any] = json.loads(mx.profiler.dumps(reset=True, format="json"))
    return Counter({name: int(row["Count"]) for name, row in profile["Time"].get("operator", {}).items()})


def count_summary(outcome: ProcessOutcome) -> str:
    """Return text with the number of operations, and the number of copies, for each store."""
    counts = "; ".join(
        f"{answer['store']} {answer['queued']:.0f}, {answer['copies']:.0f} of them copies"
        for answer in outcome.all_answers("store")
    )
    return f"a step of {COUNTED_NETWORK} queues: {counts}"


# --- speeds: images/s on one, two, ... all GPUs, and bytes/s of the sums of several kvstores

NETWORKS = ("lenet", "resnet18")
MIN_IMAGES, MAX_IMAGES = 8, 512  # per device; the smallest count with steps of MIN_STEP_S is used
MIN_STEP_S = 0.03
TIMED_STORES = ("device", "ring", "sharded")
SUM_BYTES = (2**16, 2**22, 2**26)
TIMED_ROUNDS = 5
MIN_ROUND_S, MAX_TOTAL_S = 0.2, 3.0  # least seconds of a round, most seconds of all rounds


def measure_speeds(ctxs: List[mx.Context]) -> None:
    """Measure how fast the GPUs train networks and sum arrays.

    For each network on 1, 2, 4, ... and all GPUs, send ``network``, ``devices``,
    ``images_per_device`` and ``images_per_s``. For each store and size, send ``store``, ``bytes``
    and ``gb_per_s``, the bus bandwidth.
    """
    for network in NETWORKS:
        send_answer(trying=f"{network} on one GPU")
        images = _find_image_count(network, ctxs[:1])
        for count in sorted({*(2**p for p in range(len(ctxs).bit_length())), len(ctxs)}):
            send_answer(trying=f"{network} on {count} GPUs")
            step = training_step(network, ctxs[:count], "device", images)
            rate = count * images / measure_seconds(step)
            send_answer(network=network, devices=count, images_per_device=images, images_per_s=rate)
    for store, size in itertools.product(TIMED_STORES, SUM_BYTES) if len(ctxs) > 1 else ():
        send_answer(trying=f"sums of {size} bytes with {store}")
        speed = bus_bytes(size, len(ctxs)) / 1e9 / measure_seconds(_make_sum(store, size, ctxs))
        send_answer(store=store, bytes=size, gb_per_s=speed)


def _find_image_count(network: str, ctxs: List[mx.Context]) -> int:
    """Double the number of images per device until a step takes MIN_STEP_S, and return it."""
    images = MIN_IMAGES
    while images < MAX_IMAGES:
        step = training_step(network, ctxs, "device", images)
        _time_repeats(step, 1)
        if _time_repeats(step, 1) >= MIN_STEP_S:
            break
        images *= 2
    return images


def bus_bytes(size: int, world_size: int) -> float:
    """Return the bytes that each device sends in an optimal allreduce, as in nccl-tests."""
    return size * 2 * (world_size - 1) / world_size


def measure_seconds(work: Callable[[], Any]) -> float:
    """Return how many seconds one call of ``work`` takes, as the median of several rounds.

    Each round has so many repetitions that the wait at the end of the round is negligible.
    """
    _time_repeats(work, 1)
    once = _time_repeats(work, 1)
    repeats = max(1, round(MIN_ROUND_S / max(once, 1e-6)))
    rounds = max(1, min(TIMED_ROUNDS, int(MAX_TOTAL_S / (once * repeats))))
    return statistics.median(_time_repeats(work, repeats) / repeats for _ in range(rounds))


def _time_repeats(work: Callable[[], Any], repeats: int) -> float:
    """Return how many seconds ``repeats`` calls of ``work`` and the queued operations take."""
    from mxnet import nd

    nd.waitall()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    nd.waitall()
    return time.perf_counter() - start


def _make_sum(name: str, size: int, ctxs: List[mx.Context]) -> Callable[[], None]:
    """Return a function that queues a sum of ``size`` bytes over the devices with a kvstore."""
    from mxnet import nd

    store, arrays = make_kvstore(name, ctxs), [nd.zeros((size // 4,), ctx=ctx) for ctx in ctxs]
    store.broadcast(0, arrays[0], arrays)
    return lambda: store.pushpull(0, arrays)


def speed_summary(outcome: ProcessOutcome) -> str:
    """Return text with the speed of each network on each number of GPUs."""
    rates = [
        f"{answer['network']} {answer['images_per_s']:,.0f} on {answer['devices']}"
        for answer in outcome.all_answers("network")
    ]
    return f"images/s: {', '.join(rates)}"


# --- the training step of counts and speeds

CLASSES = 10
SGD = {"learning_rate": 0.01, "momentum": 0.9, "wd": 1e-4}


def training_step(network: str, ctxs: Sequence[mx.Context], store: str, images: int) -> Callable[[], List[Any]]:
    """Return a function that queues a training step with ``images`` images per device."""
    import mxnet as mx
    from mxnet import nd

    from gluonlab.bucketed_trainer.trainer import BucketedTrainer
    from gluonlab.data.loading.augmentation import make_input_transform
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
    step = DataParallelStep(net, make_loss(), trainer, ctxs, make_input_transform(None))
    xs = [nd.zeros((images, *shape), ctx=ctx, dtype="uint8") for ctx in ctxs]
    ys = [nd.zeros((images,), ctx=ctx, dtype="int32") for ctx in ctxs]
    return partial(step, make_local_batch(xs, ys))


# Speeds come last, because they may be skipped if time runs out. Counts and speeds have no faults.
TRIALS: Dict[str, Trial] = {
    "copies": Trial("Copies from GPU to GPU", 60.0, ("source",), check_copies, copy_faults, copy_summary),
    "arithmetic": Trial(
        "Arithmetic, compared with the CPU",
        60.0,
        ("operation",),
        check_arithmetic,
        arithmetic_faults,
        arithmetic_summary,
    ),
    "stores": Trial(
        "Allreduce and training with every kvstore", 120.0, ("store",), check_stores, store_faults, store_summary
    ),
    "bits": Trial(
        "Reproducible with the same seed", 120.0, ("how",), check_determinism, determinism_faults, determinism_summary
    ),
    "counts": Trial(
        "Operations that a step queues", 60.0, ("store",), count_operators, lambda outcome: [], count_summary
    ),
    "speeds": Trial("Speeds", 90.0, ("network", "gb_per_s"), measure_speeds, lambda outcome: [], speed_summary),
}


def main(name: str, spec: str) -> None:
    """Run a trial on the devices ``spec``, and end the process."""
    gc.disable()
    try:
        TRIALS[name].run(devices(spec))
    except Exception as error:
        send_answer(error=first_error_line(error))
    sys.stdout.flush()
    # some libraries crash while Python exits; all answers are sent
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
