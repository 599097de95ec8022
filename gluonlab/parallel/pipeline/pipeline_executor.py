"""Executor of pipeline schedules: turns each instruction into calls that MXNet's engine queues.

One host thread queues an entire step without waiting. Each instruction is queued after its
prerequisites. The engine runs operations as soon as they are ready, so their order may differ from
the schedule. So each forward or backward pass on a device is held back until the device's previous
pass is done. A slot is memory for the activations of one microbatch. Each stage has as many slots
as `gluonlab.parallel.pipeline.verify_pipeline_schedule.peaks` computes for the schedule.
"""

from __future__ import annotations

from functools import partial
from itertools import zip_longest
from typing import Any, Callable, Dict, List, Sequence, Tuple

import mxnet as mx
from mxnet import nd

from gluonlab.data.loading.split_batch import Microbatch
from gluonlab.engine.fast_invoke import Fence
from gluonlab.parallel.compiled_graph import BoundGraph, CompiledGraph, HeadGradients, array_bytes
from gluonlab.parallel.data.replica import IMAGES, LABELS, LossAccumulator
from gluonlab.parallel.pipeline.network_stages import ACTIVATION, PipelineStage
from gluonlab.parallel.pipeline.pipeline_schedule import SEND_FORWARD, Instruction, PipelineSchedule
from gluonlab.parallel.pipeline.verify_pipeline_schedule import execution_order, peaks

Call = Callable[[], object]
MakeSchedule = Callable[[int], PipelineSchedule]  # for a number of microbatches


class Pipeline:
    """A replica of a network, with stage i on ``ctxs[i % len(ctxs)]``."""

    def __init__(
        self, stages: Sequence[PipelineStage], ctxs: Sequence[mx.Context], make_schedule: MakeSchedule
    ) -> None:
        self.stages, self.ctxs, self._make_schedule = stages, list(ctxs), make_schedule
        self.compiled_stages = [
            CompiledGraph(
                stage.graph, stage.all_parameters, ctxs[number % len(ctxs)], [0] * stage.is_last,
                [ACTIVATION] * stage.needs_input_gradient,
            )
            for number, stage in enumerate(stages)
        ]  # fmt: skip
        self.sums = LossAccumulator([self.compiled_stages[-1].ctx])
        self._programs: Dict[Any, StepProgram] = {}
        self._bound: Dict[Any, BoundGraph] = {}

    def get_program(self, shard: Microbatch, parts: Sequence[Microbatch]) -> "StepProgram":
        """Return the program that trains on ``parts``, the microbatches of ``shard``.

        Shards of the same shape share a program.
        """
        key = _shapes_and_types(shard)
        if key not in self._programs:
            self._programs[key] = StepProgram(self, self._make_schedule(len(parts)), parts)
        program = self._programs[key]
        program.microbatches = parts
        return program

    def score(self, part: Microbatch) -> Tuple[nd.NDArray, nd.NDArray]:
        """Queue a microbatch's evaluation. Return the sum of losses (1,) and scores (n, classes).

        The losses are unsmoothed. The next call overwrites both arrays.
        """
        outputs: List[nd.NDArray] = []
        for number, compiled in enumerate(self.compiled_stages):
            bound = self.get_bound_graph(number, part, outputs)
            for name, array in self._stage_inputs(number, part, outputs).items():
                bound.inputs[name].copy(array)
            compiled.forward(bound, train=False)
            outputs = bound.outputs
        loss, scores, *others = outputs
        return others[0] if others else loss, scores

    def _stage_inputs(
        self, number: int, part: Microbatch, previous_outputs: Sequence[nd.NDArray]
    ) -> Dict[str, nd.NDArray]:
        """Return the arrays that a stage reads: images, labels, or the previous stage's output."""
        arrays = {IMAGES: part.images, LABELS: part.labels}
        arrays.update(zip([ACTIVATION], previous_outputs))
        return {name: arrays[name] for name in self.stages[number].inputs}

    def get_bound_graph(
        self,
        number: int,
        part: Microbatch,
        previous_outputs: Sequence[nd.NDArray],
        accumulate: bool = False,
        slot: int = 0,
    ) -> BoundGraph:
        """Return the graph of stage ``number``, bound for microbatches with the shape of ``part``.

        ``slot``: number of the memory area for activations. Microbatches whose activations are kept
        at the same time need different slots.
        """
        key = number, _shapes_and_types(part), accumulate, slot
        if key not in self._bound:
            stage = self.stages[number]
            unmixed = LABELS in stage.inputs and len(part.labels.shape) == 1
            self._bound[key] = self.compiled_stages[number].bind(
                self._stage_inputs(number, part, previous_outputs),
                accumulate,
                slot,
                stage.scoring if unmixed else stage.graph,
            )
        return self._bound[key]


def _shapes_and_types(part: Microbatch) -> Any:
    return part.images.shape, part.images.dtype, part.labels.shape, part.labels.dtype


class StepProgram:
    """The calls of one step of a `Pipeline`.

    For each op there is a method with the same name, which adds the op's calls. ``microbatches``:
    the microbatches of the next step, whose shapes must not change.
    """

    def __init__(self, pipeline: Pipeline, schedule: PipelineSchedule, microbatches: Sequence[Microbatch]) -> None:
        self._pipeline, self.schedule = pipeline, schedule
        self.microbatches = microbatches
        self.calls: List[Call] = []
        self.heads: List[HeadGradients] = []
        self._slots = peaks(schedule)
        self._stashed = [0] * schedule.stages
        self._last_writes: Dict[int, Sequence[nd.NDArray]] = {}
        self._bound = [self._bind(number) for number in range(len(microbatches))]
        self.loss = self._bound[0][-1].outputs[0]
        for device, (op, stage, microbatch) in execution_order(schedule):
            getattr(self, op)(device, stage, microbatch)

    def set_loss_scale(self, scale: float) -> None:
        """Set the head gradients of the losses to ``scale``."""
        for heads in self.heads:
            heads.set_loss_scale(scale)

    def passes(self, stage: int, backward: bool = True) -> List[Call]:
        """Return the forward and backward passes of all microbatches through one stage.

        The passes do not wait for other stages, and use the current contents of the arrays. So a
        stage can be timed alone. If ``backward`` is False, only the forward passes are returned.
        """
        compiled = self._pipeline.compiled_stages[stage]
        calls: List[Call] = []
        for microbatch, bounds in enumerate(self._bound):
            slot = microbatch % self._slots[stage]
            calls.append(partial(compiled.forward, bounds[stage], True, slot))
            if backward and compiled.needs_backward:
                calls.append(partial(compiled.backward, bounds[stage]))
        return calls

    def message_bytes(self, send: Instruction) -> int:
        """Return how many bytes the instruction ``send`` sends: an activation or its gradient."""
        bound = self._bound[send.microbatch][send.stage]
        arrays = bound.outputs if send.op == SEND_FORWARD else bound.gradients.values()
        return sum(array_bytes((array.shape, array.dtype)) for array in arrays)

    def _bind(self, microbatch: int) -> List[BoundGraph]:
        """Return the bound graphs of all stages for a microbatch."""
        bounds: List[BoundGraph] = []
        for stage, slots in enumerate(self._slots):
            previous_outputs = bounds[-1].outputs if bounds else []
            part, slot = self.microbatches[microbatch], microbatch % slots
            bounds.append(self._pipeline.get_bound_graph(stage, part, previous_outputs, microbatch > 0, slot))
        return bounds

    def forward(self, device: int, stage: int, microbatch: int) -> None:
        """Add the calls for the forward pass of a microbatch through a stage."""
        bound, compiled = self._bound[microbatch][stage], self._pipeline.compiled_stages[stage]
        if stage == 0:
            self._count_stashed(stage)
            self.calls.append(partial(self._copy_images, bound, microbatch))
        elif not self.schedule.crosses_devices(stage - 1):
            self.recv_forward(device, stage, microbatch)
        if self._pipeline.stages[stage].is_last:
            self.calls.append(partial(self._copy_labels, bound, microbatch))
        self._hold_back(device, list(bound.arrays.values()), bound.outputs[:1])
        self.calls.append(partial(compiled.forward, bound, True, microbatch % self._slots[stage]))
        if self._pipeline.stages[stage].is_last:
            self.heads.append(bound.heads)
            self._add_loss(bound.outputs[0], microbatch)

    def send_forward(self, device: int, stage: int, microbatch: int) -> None:
        """Add no call: `recv_forward` copies the activation."""

    def recv_forward(self, device: int, stage: int, microbatch: int) -> None:
        """Add a copy of the previous stage's output into the input of this stage."""
        self._count_stashed(stage)
        previous, bound = self._bound[microbatch][stage - 1 : stage + 1]
        self.calls.append(partial(bound.inputs[ACTIVATION].copy, previous.outputs[0]))

    def backward(self, device: int, stage: int, microbatch: int) -> None:
        """Add the calls for the backward pass of a microbatch through a stage."""
        bound, compiled = self._bound[microbatch][stage], self._pipeline.compiled_stages[stage]
        self._stashed[stage] -= 1
        if stage + 1 < self.schedule.stages and not self.schedule.crosses_devices(stage):
            self.send_backward(device, stage + 1, microbatch)
        if compiled.needs_backward:
            written = list(bound.gradients.values()) or list(compiled.grads.values())
            self._hold_back(device, bound.heads.arrays[:1], written)
            self.calls.append(partial(compiled.backward, bound))

    def send_backward(self, device: int, stage: int, microbatch: int) -> None:
        """Append a copy of the activation's gradient into the previous stage's head gradient."""
        previous, bound = self._bound[microbatch][stage - 1 : stage + 1]
        if self._pipeline.stages[stage].needs_input_gradient:
            copy = previous.heads.copies[0].copy
            self.calls.append(partial(copy, bound.gradients[ACTIVATION]))

    def recv_backward(self, device: int, stage: int, microbatch: int) -> None:
        """Add no call: the engine makes backward wait for `send_backward`."""

    def update(self, device: int, stage: int, microbatch: int) -> None:
        """Add no call: the strategy sums gradients and updates parameters after all stages."""

    def _count_stashed(self, stage: int) -> None:
        """Count one more microbatch whose activations the stage keeps until its backward pass."""
        self._stashed[stage] += 1
        assert self._stashed[stage] <= self._slots[stage], "there are more activations than slots"

    def _hold_back(self, device: int, first_read: Sequence[nd.NDArray], written: Sequence[nd.NDArray]) -> None:
        """Add a fence that holds a pass back until the device's previous pass is done.

        ``first_read``: arrays that the pass reads first. ``written``: arrays that the pass writes
        last.
        """
        previous_written = self._last_writes.get(device)
        if previous_written is not None:
            ctx = self._pipeline.ctxs[device]
            self.calls.append(Fence(ctx, previous_written, first_read))
        self._last_writes[device] = written

    def _copy_images(self, bound: BoundGraph, microbatch: int) -> None:
        bound.inputs[IMAGES].copy(self.microbatches[microbatch].images)

    def _copy_labels(self, bound: BoundGraph, microbatch: int) -> None:
        bound.inputs[LABELS].copy(self.microbatches[microbatch].labels)

    def _add_loss(self, loss: nd.NDArray, microbatch: int) -> None:
        """Add the call that adds ``loss`` to the sum, if there are several microbatches."""
        if len(self.microbatches) > 1:
            sums = self._pipeline.sums
            self.loss = sums.totals[0]
            self.calls.append(partial(sums.add, 0, loss, microbatch == 0))


def queue_programs(programs: Sequence[StepProgram]) -> None:
    """Queue the steps of several pipelines, interleaved so that all pipelines start at once."""
    for calls in zip_longest(*(program.calls for program in programs)):
        for call in calls:
            if call is not None:
                call()
