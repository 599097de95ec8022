"""Profiles some steps of a run (--profile): writes a trace, a timeline picture and statistics."""

from __future__ import annotations

from typing import Callable, List, Optional

import mxnet as mx
from mxnet import nd

from gluonlab.data.loading.split_batch import Batch
from gluonlab.files.atomic_files import write_text
from gluonlab.parallel.strategy import Strategy
from gluonlab.runs.run_schema import TIMELINE, TRACE, ProfileEvent
from gluonlab.runs.run_writer import NoRunDirectory, RunDirectory
from gluonlab.timeline import mxnet_profiler
from gluonlab.timeline.recorder import Recorder
from gluonlab.timeline.timeline import write_trace
from gluonlab.timeline.timeline_svg import as_svg, describe_timeline

WARM_UP = 10  # steps before recording, if an epoch has enough steps


class StepProfiler:
    """A wrapper around `Strategy.step` that records ``steps`` steps within one epoch.

    Nothing is recorded if ``run`` has no folder. Call `close` at the end of the run.

    Args:
        strategy: The strategy whose steps are recorded.
        steps: Number of steps to record.
        steps_per_epoch: Number of steps in an epoch.
        ctxs: The devices to record.
        run: The run's folder.
        say: A function that is called with each line of text about the profile.
    """

    def __init__(
        self,
        strategy: Strategy,
        steps: int,
        steps_per_epoch: int,
        ctxs: List[mx.Context],
        run: "RunDirectory | NoRunDirectory",
        say: Callable[[str], None],
    ) -> None:
        self._strategy, self._run, self._say = strategy, run, say
        self._steps_per_epoch, self._ctxs = steps_per_epoch, ctxs
        self._steps_to_record = 0 if run.path is None else steps
        self._steps_done = 0
        self._recorder: Optional[Recorder] = None

    def step(self, batch: Batch, number: int) -> List[nd.NDArray]:
        """Train on a batch, record it if requested, and return each shard's sum of losses (1,).

        ``number``: number of the step in the run, counted from 1.
        """
        if not self._steps_to_record:
            return self._strategy.step(batch)
        self._steps_done += 1
        if self._recorder is not None:
            return self._record_step(batch, self._recorder)
        # The recorder needs one more step before, to learn each operator's phase.
        steps_left_in_epoch = self._steps_per_epoch - (number - 1) % self._steps_per_epoch
        if steps_left_in_epoch <= self._steps_to_record or (
            self._steps_done < WARM_UP and steps_left_in_epoch > self._steps_to_record + 1
        ):
            return self._strategy.step(batch)
        self._recorder = Recorder(self._ctxs, number + 1)
        losses: List[nd.NDArray] = self._recorder.learn(lambda around: self._strategy.step(batch, around))
        return losses

    def _record_step(self, batch: Batch, recorder: Recorder) -> List[nd.NDArray]:
        """Train on a batch and record it. After the last step to record, write the profile."""
        losses: List[nd.NDArray] = recorder.record(lambda around: self._strategy.step(batch, around))
        self._steps_to_record -= 1
        if not self._steps_to_record:
            self._write_profile(recorder)
        return losses

    def _write_profile(self, recorder: Recorder) -> None:
        """Write the trace, the picture, and a line of metrics.jsonl; print a summary."""
        folder = self._run.path
        assert folder is not None
        timeline = recorder.end()
        steps = len(timeline.starts)
        write_trace(timeline, folder / TRACE)
        write_text(folder / TIMELINE, as_svg(timeline, f"Where the time went: {folder.name}"))
        self._run.write(
            ProfileEvent(
                step=timeline.first_step,
                steps=steps,
                step_seconds=timeline.step_s,
                shares={row: timeline.phase_shares(row) for row in timeline.rows},
                overlap=timeline.overlap(),
            )
        )
        last = timeline.first_step + steps - 1
        self._say(
            f"{'profile':<11}steps {timeline.first_step} to {last}, {timeline.step_s * 1e3:.2f} ms "
            f"each: see {folder / TIMELINE}, or open {TRACE} in ui.perfetto.dev"
        )
        for line in describe_timeline(timeline):
            self._say(f"{'':<11}{line}")
        self.close()

    def close(self) -> None:
        """Stop recording, even if not all steps have been recorded."""
        if self._recorder is not None:
            mxnet_profiler.stop_recording()
