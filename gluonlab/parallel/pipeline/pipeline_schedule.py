"""Which device does what with which microbatch, in which order: a pipeline schedule.

A network is cut into stages, a batch into microbatches. Every microbatch goes forward through all
stages, and then backward through them. Each device has a program, the list of what it does; what
the schedule costs and how much memory it takes follows from the programs.

SCHEDULES is the one list that commands, tests and pages read. Each is ``f(devices, microbatches,
stages_per_device=1) -> PipelineSchedule``, and raises ScheduleError for what is impossible. A
definition gives the order of forwards and backwards alone; the messages between them follow:
received just before they are needed, sent as soon as they are made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from typing import Callable, Dict, Iterable, Iterator, List, NamedTuple, Sequence, Tuple

from gluonlab.config.option_types import is_positive_integer
from gluonlab.errors import ScheduleError, unknown

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
SEND_FORWARD, RECV_FORWARD = "send_forward", "recv_forward"
SEND_BACKWARD, RECV_BACKWARD = "send_backward", "recv_backward"
OPS = (FORWARD, BACKWARD, SEND_FORWARD, RECV_FORWARD, SEND_BACKWARD, RECV_BACKWARD, UPDATE)
NO_MICROBATCH = -1  # of an update, which is one for all


class Instruction(NamedTuple):
    """One thing that a device does: ``op``, for a stage and one microbatch.

    ``send_forward`` of stage s hands the activation to stage s+1, which does ``recv_forward``;
    ``send_backward`` hands the activation's gradient to s-1. ``update``: -1 as the microbatch.
    """

    op: str
    stage: int
    microbatch: int

    def __str__(self) -> str:
        of = "" if self.op == UPDATE else f" of microbatch {self.microbatch}"
        return f"{self.op}{of}, stage {self.stage}"


Program = Tuple[Instruction, ...]
Order = Iterable[Tuple[str, int, int]]  # (FORWARD or BACKWARD, stage, microbatch), of one device


@dataclass(frozen=True)
class PipelineSchedule:
    """A pipeline's step on one batch, as data.

    Stage s, a part of the network, lies on device ``s % devices``. Where neighbouring stages lie on
    one device, nothing is sent between them. ``programs``: what each device does, in its order.
    What a schedule promises is in `gluonlab.parallel.pipeline.verify_pipeline.check`.
    """

    name: str
    devices: int
    stages: int
    microbatches: int
    programs: Tuple[Program, ...]

    def device(self, stage: int) -> int:
        """The device on which the stage lies."""
        return stage % self.devices

    def stages_of(self, device: int) -> range:
        """The stages that lie on the device."""
        return range(device, self.stages, self.devices)

    def joined(self, boundary: int) -> bool:
        """Whether messages cross the boundary between the stages ``boundary`` and the next."""
        return 0 <= boundary < self.stages - 1 and self.devices > 1


Definition = Callable[[int, int, int], Iterator[Order]]
Maker = Callable[..., PipelineSchedule]


def _defines(name: str, several_stages: bool) -> Callable[[Definition], Maker]:
    """A decorator: a function of SCHEDULES from a definition, which yields each device's order.

    ``several_stages``: whether the definition knows what to do with several on a device.
    """

    def decorate(definition: Definition) -> Maker:
        @wraps(definition)
        def make(devices: int, microbatches: int, stages_per_device: int = 1) -> PipelineSchedule:
            asked = {"device": devices, "microbatch": microbatches, "stage": stages_per_device}
            for noun, count in asked.items():
                if not is_positive_integer(count):
                    where = " on each device" * (noun == "stage")
                    raise ScheduleError(
                        f"{name} with {count!r} {noun}{'es' if noun == 'microbatch' else 's'}"
                        f"{where}: a whole number from 1 up is possible"
                    )
            if stages_per_device > 1 and not several_stages:
                raise ScheduleError(
                    f"{name} with {stages_per_device} stages on each device: it is for one; "
                    "choose interleaved or sequential for several"
                )
            orders = definition(devices, microbatches, stages_per_device)
            return from_orders(name, list(orders), microbatches, stages_per_device)

        del make.__wrapped__  # type: ignore[attr-defined]  # its signature is that of all
        return make

    return decorate


def from_orders(
    name: str, orders: Sequence[Order], microbatches: int, stages_per_device: int = 1
) -> PipelineSchedule:
    """The schedule of devices that go forward and backward in these orders, ``orders[d]`` device d.

    Messages and updates are added. What an order lacks,
    `gluonlab.parallel.pipeline.verify_pipeline` tells.
    """
    devices = len(orders)
    empty = PipelineSchedule(name, devices, devices * stages_per_device, microbatches, ())
    programs = tuple(tuple(_program(empty, device, order)) for device, order in enumerate(orders))
    return replace(empty, programs=programs)


def _program(schedule: PipelineSchedule, device: int, order: Order) -> Iterator[Instruction]:
    """The order with its messages, and the updates at the end."""
    for op, stage, microbatch in order:
        before, after = schedule.joined(stage - 1), schedule.joined(stage)
        if op == FORWARD and before:
            yield Instruction(RECV_FORWARD, stage, microbatch)
        if op == BACKWARD and after:
            yield Instruction(RECV_BACKWARD, stage, microbatch)
        yield Instruction(op, stage, microbatch)
        if op == FORWARD and after:
            yield Instruction(SEND_FORWARD, stage, microbatch)
        if op == BACKWARD and before:
            yield Instruction(SEND_BACKWARD, stage, microbatch)
    for stage in schedule.stages_of(device):
        yield Instruction(UPDATE, stage, NO_MICROBATCH)


@_defines("sequential", several_stages=True)
def sequential(devices: int, microbatches: int, stages_per_device: int) -> Iterator[Order]:
    """One microbatch at a time goes forward and backward: one device works, and the others wait.

    What cutting a network between its layers gives without a pipeline; the naive model parallelism
    of Huang et al., "GPipe" (2019), figure 2b.
    """
    for device in range(devices):
        stages = range(device, devices * stages_per_device, devices)
        yield [
            (op, stage, microbatch)
            for microbatch in range(microbatches)
            for op, way in ((FORWARD, stages), (BACKWARD, stages[::-1]))
            for stage in way
        ]


@_defines("gpipe", several_stages=False)
def gpipe(devices: int, microbatches: int, stages_per_device: int) -> Iterator[Order]:
    """All microbatches go forward, then all go backward; every stage keeps all of them in between.

    Huang et al., "GPipe: efficient training of giant neural networks using pipeline parallelism"
    (2019), figure 2c; backward in the order of forward, as Narayanan et al. (2021) draw it, not in
    its reverse, so that gradients are added in the same order under every schedule.
    """
    for device in range(devices):
        yield [(op, device, m) for op in (FORWARD, BACKWARD) for m in range(microbatches)]


@_defines("1f1b", several_stages=False)
def one_forward_one_backward(
    devices: int, microbatches: int, stages_per_device: int
) -> Iterator[Order]:
    """After a few forwards, one forward and one backward in turns: GPipe's time in less memory.

    A stage keeps as many microbatches as there are stages from it to the last, however many go
    through. PipeDream-flush: Narayanan et al., "Memory-efficient pipeline-parallel DNN training"
    (2021), section 3.2; "Efficient large-scale language model training on GPU clusters using
    Megatron-LM" (2021), figure 4, top.
    """
    for device in range(devices):
        forwards = [(FORWARD, device, m) for m in range(microbatches)]
        backwards = [(BACKWARD, device, m) for m in range(microbatches)]
        yield _in_turns(forwards, backwards, warmup=devices - device - 1)


@_defines("interleaved", several_stages=True)
def interleaved(devices: int, microbatches: int, stages_per_device: int) -> Iterator[Order]:
    """1F1B with several stages on each device, v of them, so that the bubble is v times shorter.

    Microbatches go through a device's first stage in groups of as many as there are devices, then
    the same group through its second, and so on. Narayanan et al., "Efficient large-scale language
    model training on GPU clusters using Megatron-LM" (2021), section 2.2.2 and figure 4, bottom.
    That asks for microbatches in whole groups; any other number is the schedule of the next
    multiple without the microbatches that do not exist. One stage on each device makes it 1f1b.
    """
    for device in range(devices):
        stages = range(device, devices * stages_per_device, devices)
        forwards, backwards = (
            [
                (op, stage, microbatch)
                for group in range(0, microbatches, devices)
                for stage in way
                for microbatch in range(group, group + devices)
            ]
            for op, way in ((FORWARD, stages), (BACKWARD, stages[::-1]))
        )
        warmup = devices - device - 1
        if stages_per_device > 1:
            warmup = 2 * warmup + (stages_per_device - 1) * devices
        yield [step for step in _in_turns(forwards, backwards, warmup) if step[2] < microbatches]


def _in_turns(
    forwards: List[Tuple[str, int, int]], backwards: List[Tuple[str, int, int]], warmup: int
) -> Order:
    """``warmup`` forwards, then one forward and one backward in turns, then what remains."""
    ahead = min(warmup, len(forwards))
    steady = zip(forwards[ahead:], backwards)
    done = len(forwards) - ahead
    return [*forwards[:ahead], *(step for pair in steady for step in pair), *backwards[done:]]


SCHEDULES: Dict[str, Maker] = {
    "sequential": sequential,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved": interleaved,
}


def make_pipeline(
    name: str, devices: int, microbatches: int, stages_per_device: int = 1
) -> PipelineSchedule:
    """The schedule of this name. Raises ScheduleError, with the choices, for an unknown one."""
    if name not in SCHEDULES:
        raise ScheduleError(unknown("pipeline schedule", name, SCHEDULES))
    return SCHEDULES[name](devices, microbatches, stages_per_device)
