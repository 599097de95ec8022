"""Pipeline schedules: the order in which each device runs the passes of microbatches.

A network is cut into stages, and a batch into microbatches. Every microbatch passes forward through
all stages, and then backward. Each device has a program, which is the list of its instructions. The
programs determine the cost and the memory of the schedule.

All commands, tests and pages read the list of schedules from SCHEDULES. Each entry is a function
``f(devices, microbatches, stages_per_device=1) -> PipelineSchedule``, which raises ScheduleError
for impossible arguments. A definition only yields the order of forward and backward passes.
Messages are then added: each recv just before it is needed, and each send as soon as possible.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from gluonlab.config.option_checks import is_positive_integer
from gluonlab.errors import ScheduleError, unknown

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
SEND_FORWARD, RECV_FORWARD = "send_forward", "recv_forward"
SEND_BACKWARD, RECV_BACKWARD = "send_backward", "recv_backward"
OPS = (FORWARD, BACKWARD, SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD, UPDATE)
NO_MICROBATCH = -1  # the microbatch of an update, which is for all microbatches


class Instruction(NamedTuple):
    """An instruction of a device: ``op``, one of OPS, for a stage and a microbatch.

    ``send_forward`` of stage s sends the stage's activation to ``recv_forward`` of stage s+1.
    ``send_backward`` of stage s sends the gradient of the stage's input to ``recv_backward`` of
    stage s-1. For ``update``, the microbatch is -1.
    """

    op: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        of = "" if self.op == UPDATE else f" of microbatch {self.microbatch}"
        return f"{self.op}{of}, stage {self.stage}"


Program = Tuple[Instruction, ...]
# The passes of one device, in order: (FORWARD or BACKWARD, stage, microbatch).
Order = Iterable[Tuple[str, int, int]]


@dataclass(frozen=True)
class PipelineSchedule:
    """The instructions of all devices for one batch.

    Stage s of the network is on device ``s % devices``. Neighboring stages on one device exchange
    no messages. ``programs``: the instructions of each device, in order.
    `gluonlab.parallel.pipeline.verify_pipeline_schedule.verify` lists the properties of a valid
    schedule.
    """

    name: str
    devices: int
    stages: int
    microbatches: int
    programs: Tuple[Program, ...]

    def device(self, stage: int) -> int:
        """Return the device of a stage."""
        return stage % self.devices

    def stages_of(self, device: int) -> range:
        """Return the stages on a device."""
        return range(device, self.stages, self.devices)

    def crosses_devices(self, boundary: int) -> bool:
        """Return True if stages ``boundary`` and ``boundary`` + 1 exchange messages."""
        return 0 <= boundary < self.stages - 1 and self.devices > 1


Definition = Callable[[int, int, int], Iterator[Order]]
Maker = Callable[..., PipelineSchedule]


def _schedule_maker(name: str, several_stages: bool) -> Callable[[Definition], Maker]:
    """Return a decorator for a schedule's definition, a function that yields each device's order.

    The decorated function returns a PipelineSchedule. ``several_stages``: whether the definition
    supports several stages per device.
    """

    def decorate(definition: Definition) -> Maker:
        """Return a function that creates a PipelineSchedule from this definition."""

        @wraps(definition)
        def make(devices: int, microbatches: int, stages_per_device: int = 1) -> PipelineSchedule:
            """Create the schedule. Raise ScheduleError for impossible numbers."""
            counts = {"device": devices, "microbatch": microbatches, "stage": stages_per_device}
            for noun, count in counts.items():
                if not is_positive_integer(count):
                    where = " on each device" * (noun == "stage")
                    raise ScheduleError(
                        f"{name}: the number of {noun}{'es' if noun == 'microbatch' else 's'}{where} is {count!r}, but "
                        "must be a whole number of at least 1"
                    )
            if stages_per_device > 1 and not several_stages:
                raise ScheduleError(
                    f"{name} does not support {stages_per_device} stages on each device: use one stage per "
                    "device, or choose interleaved or sequential"
                )
            orders = definition(devices, microbatches, stages_per_device)
            return from_orders(name, list(orders), microbatches, stages_per_device)

        del make.__wrapped__  # type: ignore[attr-defined]  # so that help() shows make's signature
        return make

    return decorate


def from_orders(name: str, orders: Sequence[Order], microbatches: int, stages_per_device: int = 1) -> PipelineSchedule:
    """Create the schedule in which device d runs its passes in the order ``orders[d]``.

    Messages and updates are added. `gluonlab.parallel.pipeline.verify_pipeline_schedule` reports
    mistakes.
    """
    devices = len(orders)
    empty = PipelineSchedule(name, devices, devices * stages_per_device, microbatches, ())
    programs = tuple(tuple(_add_messages(empty, device, order)) for device, order in enumerate(orders))
    return replace(empty, programs=programs)


def _add_messages(schedule: PipelineSchedule, device: int, order: Order) -> Iterator[Instruction]:
    """Yield a device's program: its passes in order, with sends and recvs, and then the updates."""
    for op, stage, microbatch in order:
        receives_activation, sends_activation = schedule.crosses_devices(stage - 1), schedule.crosses_devices(stage)
        if op == FORWARD and receives_activation:
            yield Instruction(RECV_FORWARD, stage, microbatch)
        if op == BACKWARD and sends_activation:
            yield Instruction(RECV_BACKWARD, stage, microbatch)
        yield Instruction(op, stage, microbatch)
        if op == FORWARD and sends_activation:
            yield Instruction(SEND_FORWARD, stage, microbatch)
        if op == BACKWARD and receives_activation:
            yield Instruction(SEND_BACKWARD, stage, microbatch)
    for stage in schedule.stages_of(device):
        yield Instruction(UPDATE, stage, NO_MICROBATCH)


@_schedule_maker("sequential", several_stages=True)
def sequential(devices: int, microbatches: int, stages_per_device: int) -> Iterator[Order]:
    """One microbatch at a time goes forward and backward: one device works, and the others wait.

    The schedule is naive model parallelism without a pipeline: Huang et al., "GPipe" (2019), figure
    2b.
    """
    for device in range(devices):
        stages = range(device, devices * stages_per_device, devices)
        yield [
            (op, stage, microbatch)
            for microbatch in range(microbatches)
            for op, stage_order in ((FORWARD, stages), (BACKWARD, stages[::-1]))
            for stage in stage_order
        ]


@_schedule_maker("gpipe", several_stages=False)
def gpipe(devices: int, microbatches: int, stages_per_device: int) -> Iterator[Order]:
    """All microbatches go forward, then all go backward; stages keep all activations in between.

    Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism"
    (2019), figure 2c. Microbatches run backward in the same order as forward, as in Narayanan et
    al. (2021). So all schedules add gradients in the same order.
    """
    for device in range(devices):
        yield [(op, device, m) for op in (FORWARD, BACKWARD) for m in range(microbatches)]


@_schedule_maker("1f1b", several_stages=False)
def one_forward_one_backward(devices: int, microbatches: int, stages_per_device: int) -> Iterator[Order]:
    """After a few forwards, forwards and backwards alternate: as fast as GPipe, with less memory.

    Stage s of p stages keeps at most p - s microbatches. The schedule is PipeDream-flush: Narayanan
    et al., "Memory-efficient pipeline-parallel DNN training" (2021), section 3.2; "Efficient
    large-scale language model training on GPU clusters using Megatron-LM" (2021), figure 4, top.
    """
    for device in range(devices):
        forwards = [(FORWARD, device, m) for m in range(microbatches)]
        backwards = [(BACKWARD, device, m) for m in range(microbatches)]
        yield _alternate(forwards, backwards, warmup=devices - device - 1)


@_schedule_maker("interleaved", several_stages=True)
def interleaved(devices: int, microbatches: int, stages_per_device: int) -> Iterator[Order]:
    """1F1B with v stages on each device, so that the bubble is v times shorter.

    A group has as many microbatches as there are devices. Each device runs a group through its
    first stage, then the same group through its second stage, and so on. Narayanan et al.,
    "Efficient large-scale language model training on GPU clusters using Megatron-LM" (2021),
    section 2.2.2 and figure 4, bottom. The paper requires whole groups. In gluonlab, the last group
    may be incomplete: its missing microbatches are omitted from the schedule. With v = 1 the
    schedule is 1f1b.
    """
    for device in range(devices):
        stages = range(device, devices * stages_per_device, devices)
        forwards, backwards = (
            [
                (op, stage, microbatch)
                for group in range(0, microbatches, devices)
                for stage in stage_order
                for microbatch in range(group, group + devices)
            ]
            for op, stage_order in ((FORWARD, stages), (BACKWARD, stages[::-1]))
        )
        warmup = devices - device - 1
        if stages_per_device > 1:
            warmup = 2 * warmup + (stages_per_device - 1) * devices
        yield [step for step in _alternate(forwards, backwards, warmup) if step[2] < microbatches]


def _alternate(forwards: List[Tuple[str, int, int]], backwards: List[Tuple[str, int, int]], warmup: int) -> Order:
    """Return ``warmup`` forwards, then alternating forwards and backwards, then more backwards."""
    ahead = min(warmup, len(forwards))
    steady = zip(forwards[ahead:], backwards)
    done = len(forwards) - ahead
    return [*forwards[:ahead], *(step for pair in steady for step in pair), *backwards[done:]]


# The first line of each function's docstring is also printed as the schedule's description.
SCHEDULES: Dict[str, Maker] = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}


def make_pipeline(name: str, devices: int, microbatches: int, stages_per_device: int = 1) -> PipelineSchedule:
    """Create a pipeline schedule by name, for given numbers of devices and microbatches.

    Args:
        name: One of SCHEDULES.
        devices: Number of devices.
        microbatches: Number of microbatches in a batch.
        stages_per_device: Number of stages on each device.

    Raises:
        ScheduleError: The name is unknown, or the schedule is impossible for these numbers.
    """
    if name not in SCHEDULES:
        raise ScheduleError(unknown("pipeline schedule", name, SCHEDULES))
    return SCHEDULES[name](devices, microbatches, stages_per_device)
