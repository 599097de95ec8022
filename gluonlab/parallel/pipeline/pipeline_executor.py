"""Carries out pipeline schedules: each instruction becomes the calls that MXNet's engine queues.

One thread of the host queues a whole step, in an order in which everything comes after what it
needs, and waits for nothing. The engine would run whatever is ready first, which need not be what
the schedule says: so the forward and backward passes of a device take turns, each held back until
the one before it in the device's program is done. A stage has as many slots for activations as the
schedule keeps microbatches there, which `gluonlab.parallel.pipeline.verify_pipeline.peaks` proves
to be enough.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.engine.fast_invoke import Fence
from gluonlab.parallel.compiled_graph import BoundGraph, CompiledGraph, Heads, bytes_of
from gluonlab.parallel.data.microbatches import LossSums, Microbatch
from gluonlab.parallel.data.replica import IMAGES, LABELS
from gluonlab.parallel.pipeline.network_stages import ACTIVATION, PipelineStage
from gluonlab.parallel.pipeline.pipeline_schedule import SEND_FORWARD, Instruction, PipelineSchedule
from gluonlab.parallel.pipeline.verify_pipeline import in_order, peaks

Call = Callable[[], object]
MakeSchedule = Callable[[int], PipelineSchedule]  # for a number of microbatches


class Pipeline:
    """One copy of a network, stage i on ``ctxs[i % len(ctxs)]``: trains on microbatches, scores."""

    def __init__(
        self,
        stages: Sequence[PipelineStage],
        ctxs: Sequence[mx.Context],
        make_schedule: MakeSchedule,
    ) -> None:
        self.stages, self.ctxs, self._make_schedule = stages, list(ctxs), make_schedule
        self.parts = [
            CompiledGraph(
                stage.graph, stage.kept, ctxs[number % len(ctxs)], [0] * stage.is_last,
                [ACTIVATION] * stage.wants,
            )
            for number, stage in enumerate(stages)
        ]  # fmt: skip
        self.sums = LossSums([self.parts[-1].ctx])
        self._programs: Dict[Any, Program] = {}
        self._bound: Dict[Any, BoundGraph] = {}

    def program(self, shard: Microbatch, parts: Sequence[Microbatch]) -> "Program":
        """What is to be queued to train on ``parts``, which shards of a kind are cut into alike."""
        key = _kind(shard)
        if key not in self._programs:
            self._programs[key] = Program(self, self._make_schedule(len(parts)), parts)
        program = self._programs[key]
        program.microbatches = parts
        return program

    def score(self, part: Microbatch) -> Tuple[nd.NDArray, nd.NDArray]:
        """The sum of losses (1,), without smoothing, and the scores (n, classes) of some images.

        The next call overwrites them.
        """
        outputs: List[nd.NDArray] = []
        for number, own in enumerate(self.parts):
            bound = self.bound(number, part, outputs)
            for name, given in self.given(number, part, outputs).items():
                bound.inputs[name].copy(given)
            own.forward(bound, train=False)
            outputs = bound.outputs
        loss, scores, *others = outputs
        return others[0] if others else loss, scores

    def given(
        self, number: int, part: Microbatch, before: Sequence[nd.NDArray]
    ) -> Dict[str, nd.NDArray]:
        """What a stage takes of a microbatch, and of the outputs of the stage ``before`` it."""
        arrays = {IMAGES: part.images, LABELS: part.labels}
        arrays.update(zip([ACTIVATION], before))
        return {name: arrays[name] for name in self.stages[number].inputs}

    def bound(
        self,
        number: int,
        part: Microbatch,
        before: Sequence[nd.NDArray],
        add: bool = False,
        slot: int = 0,
    ) -> BoundGraph:
        """The graph of a stage for such a microbatch, in one of the stage's slots."""
        key = number, _kind(part), add, slot
        if key not in self._bound:
            stage = self.stages[number]
            plain = LABELS in stage.inputs and len(part.labels.shape) == 1
            self._bound[key] = self.parts[number].bind(
                self.given(number, part, before), add, slot, stage.scoring if plain else stage.graph
            )
        return self._bound[key]


def _kind(part: Microbatch) -> Any:
    return part.images.shape, part.images.dtype, part.labels.shape, part.labels.dtype


class _Turn(NamedTuple):
    """A pass that a device has queued: what shows that it is done."""

    done: Sequence[nd.NDArray]


class Program:
    """The calls of one step of a `Pipeline`: a method for each instruction adds its own.

    ``microbatches``: those of this step; the next one has others of the same shapes.
    """

    def __init__(
        self, pipeline: Pipeline, schedule: PipelineSchedule, microbatches: Sequence[Microbatch]
    ) -> None:
        self._pipeline, self.schedule = pipeline, schedule
        self.microbatches = microbatches
        self.calls: List[Call] = []
        self.heads: List[Heads] = []
        self._slots = peaks(schedule)
        self._kept = [0] * schedule.stages
        self._turns: Dict[int, _Turn] = {}
        self._bound = [self._bind(number) for number in range(len(microbatches))]
        self.loss = self._bound[0][-1].outputs[0]
        for device, (op, stage, microbatch) in in_order(schedule):
            getattr(self, op)(device, stage, microbatch)

    def begin_with(self, scale: float) -> None:
        """Let the backward of the losses begin with this number."""
        for heads in self.heads:
            heads.fill(scale)

    def passes(self, stage: int, backward: bool = True) -> List[Call]:
        """Forward and backward of all microbatches through one stage, which waits for no other.

        It computes with what lies there, so that its time by itself can be measured. Without
        ``backward``: forward alone.
        """
        part = self._pipeline.parts[stage]
        calls: List[Call] = []
        for microbatch, bounds in enumerate(self._bound):
            slot = microbatch % self._slots[stage]
            calls.append(partial(part.forward, bounds[stage], True, slot))
            if backward and part.learns:
                calls.append(partial(part.backward, bounds[stage]))
        return calls

    def message_bytes(self, send: Instruction) -> int:
        """The size of what ``send_forward`` or ``send_backward`` hands over."""
        own = self._bound[send.microbatch][send.stage]
        arrays = own.outputs if send.op == SEND_FORWARD else own.gradients.values()
        return sum(bytes_of((array.shape, array.dtype)) for array in arrays)

    def _bind(self, microbatch: int) -> List[BoundGraph]:
        """The graphs of all stages for a microbatch."""
        bounds: List[BoundGraph] = []
        for stage, slots in enumerate(self._slots):
            before = bounds[-1].outputs if bounds else []
            part, slot = self.microbatches[microbatch], microbatch % slots
            bounds.append(self._pipeline.bound(stage, part, before, microbatch > 0, slot))
        return bounds

    def forward(self, device: int, stage: int, microbatch: int) -> None:
        """Forward of a stage, on what it was given."""
        own, part = self._bound[microbatch][stage], self._pipeline.parts[stage]
        if stage == 0:
            self._keep(stage)
            self.calls.append(partial(self._copy_images, own, microbatch))
        elif not self.schedule.joined(stage - 1):
            self.recv_forward(device, stage, microbatch)
        if self._pipeline.stages[stage].is_last:
            self.calls.append(partial(self._copy_labels, own, microbatch))
        self._take_turn(device, list(own.arrays.values()), own.outputs[:1])
        self.calls.append(partial(part.forward, own, True, microbatch % self._slots[stage]))
        if self._pipeline.stages[stage].is_last:
            self.heads.append(own.heads)
            self._add_loss(own.outputs[0], microbatch)

    def send_forward(self, device: int, stage: int, microbatch: int) -> None:
        """The activation stays where it was made, until `recv_forward` takes it."""

    def recv_forward(self, device: int, stage: int, microbatch: int) -> None:
        """Copy the activation of the stage before to a slot of this one."""
        self._keep(stage)
        before, own = self._bound[microbatch][stage - 1 : stage + 1]
        self.calls.append(partial(own.inputs[ACTIVATION].copy, before.outputs[0]))

    def backward(self, device: int, stage: int, microbatch: int) -> None:
        """Backward of a stage, from the loss or what it was given."""
        own, part = self._bound[microbatch][stage], self._pipeline.parts[stage]
        self._kept[stage] -= 1
        if stage + 1 < self.schedule.stages and not self.schedule.joined(stage):
            self.send_backward(device, stage + 1, microbatch)
        if part.learns:
            done = list(own.gradients.values()) or list(part.grads.values())
            self._take_turn(device, own.heads.arrays[:1], done)
            self.calls.append(partial(part.backward, own))

    def send_backward(self, device: int, stage: int, microbatch: int) -> None:
        """Copy the gradient of the activation to where the stage before begins with it.

        That is free: it belongs to this microbatch until it has gone backward there.
        """
        before, own = self._bound[microbatch][stage - 1 : stage + 1]
        if self._pipeline.stages[stage].wants:
            copy = before.heads.copies[0].copy
            self.calls.append(partial(copy, own.gradients[ACTIVATION]))

    def recv_backward(self, device: int, stage: int, microbatch: int) -> None:
        """The engine has backward wait for what was sent."""

    def update(self, device: int, stage: int, microbatch: int) -> None:
        """All gradients of the stage are queued: `PipelineStep` sums and updates."""

    def _keep(self, stage: int) -> None:
        """One more microbatch has activations there, until it has gone backward."""
        self._kept[stage] += 1
        assert self._kept[stage] <= self._slots[stage], "more activations than was proved"

    def _take_turn(
        self, device: int, begins: Sequence[nd.NDArray], done: Sequence[nd.NDArray]
    ) -> None:
        """Hold a pass back until the one before it on its device is done.

        ``begins``: arrays that it reads first. ``done``: arrays that it writes last.
        """
        before = self._turns.get(device)
        if before is not None:
            ctx = self._pipeline.ctxs[device]
            self.calls.append(Fence(ctx, before.done, begins))
        self._turns[device] = _Turn(done)

    def _copy_images(self, bound: BoundGraph, microbatch: int) -> None:
        bound.inputs[IMAGES].copy(self.microbatches[microbatch].images)

    def _copy_labels(self, bound: BoundGraph, microbatch: int) -> None:
        bound.inputs[LABELS].copy(self.microbatches[microbatch].labels)

    def _add_loss(self, loss: nd.NDArray, microbatch: int) -> None:
        if len(self.microbatches) > 1:
            sums = self._pipeline.sums
            self.loss = sums.totals[0]
            self.calls.append(partial(sums.add, 0, loss, microbatch == 0))


def queue(programs: Sequence[Program]) -> None:
    """Queue the steps of several pipelines, call by call, so that all begin at once."""
    for calls in zip_longest(*(program.calls for program in programs)):
        for call in calls:
            if call is not None:
                call()
