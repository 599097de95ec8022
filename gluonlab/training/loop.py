"""train(TrainConfig(...)): a whole run, from the plan to the folder with its results."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any, Optional, Sequence

from mxnet import gluon

from gluonlab.config import TrainConfig
from gluonlab.data.sets.gluon_data import warn_of_loaders
from gluonlab.engine.semantics import give_back, nd_semantics
from gluonlab.host.signals import EndRequest
from gluonlab.kvstores.groups import ALONE, Group
from gluonlab.parallel.strategy import MakeStrategy
from gluonlab.runs import schema
from gluonlab.runs.result import Result
from gluonlab.training.autoresume import Begun, anew, as_begun, begun, result_of, with_checkpoints
from gluonlab.training.callbacks import made
from gluonlab.training.ending import (
    limits_explained,
    recorded,
    what_is_left,
    write_end,
    write_extras,
)
from gluonlab.training.epochs import make_epochs
from gluonlab.training.own import answers_others, check_kind, check_same_own, make_own
from gluonlab.training.plan import Plan
from gluonlab.training.prepare import measured_memory, plan_together, prepare, read_together
from gluonlab.training.reporter import ConsoleReporter, Reporter
from gluonlab.training.resume import Interrupted, asked, going_on, interrupted, run_directory


@answers_others
def train(
    config: "TrainConfig | None" = None,
    strategy: Optional[MakeStrategy] = None,
    reporter: Optional[Reporter] = None,
    dataset: Any = None,
    group: Group = ALONE,
    resume: "str | Path | Interrupted | None" = None,
    autoresume: bool = False,
    callbacks: Sequence[Any] = (),
    net: Any = None,
    loss: Optional[gluon.HybridBlock] = None,
    metrics: Any = None,
) -> Result:
    """Train as ``config`` says, on the devices it names, and write the run's folder.

    ``strategy``: how network and batches lie on the devices, in place of what ``split`` says.
    ``dataset``: the one that the config names, where it has been read already, or one of the user's
    own, as `gluonlab.data.from_arrays` makes it; or two of Gluon, (train, test), as for
    `gluonlab.data.from_datasets`. ``group``: the processes that train together, each of which calls
    this. ``resume``: the folder, which rank 0 reads, of a run that goes on from its last
    checkpoint, or what `gluonlab.training.resume.interrupted` found there; as it was asked for,
    without a ``config``, or as one made by `gluonlab.training.resume.asked`. ``autoresume``: begin
    a run in the folder ``config.out``, or go on with the one there; of a run that has ended the
    result is given again. ``callbacks``: see `gluonlab.training.callbacks.Callback`; those of
    rank 0 are told. ``net``,
    ``loss``: the user's own, in place of the config's, see `gluonlab.training.own.Own`.
    ``metrics``: more numbers of the test images, see `gluonlab.training.metrics`.

    Raises a UsageError before anything is written when the config cannot be carried out,
    NoMemoryError when memory, descriptors or threads are used up, and DivergedError when the loss
    is no longer a number, or beyond recovery, or the parameters are not finite after an epoch;
    DriftError, where ``check_replicas`` finds that replicas differ; CallbackError where a callback
    fails. The run computes with mx.nd;
    its network is of the user's kind, mx.np after ``npx.set_np()``. After an error or Ctrl-C the
    folder holds everything up to the last whole epoch; a UsageError before that one, such as for an
    image that cannot be decoded, takes it away again. Ctrl-C, SIGTERM and SIGHUP let the step or
    the batch of an evaluation end that is under way, if this is the main thread; a second Ctrl-C
    does not, and where MXNet never comes back, it ends the process. What comes to one process of a
    group ends all of them after the same step, within eight.
    """
    config = None if config is None else TrainConfig.required("train", config)
    check_kind("strategy", strategy, callable(strategy), "TrainConfig(split=...) names one")
    check_kind("reporter", reporter, isinstance(reporter, Reporter), "give a Reporter")
    check_kind("group", group, hasattr(group, "rank"), "gluonlab launch makes one")
    known = isinstance(resume, (str, Path, Interrupted))
    check_kind("resume", resume, known, "give a run's folder")
    before = resume
    if isinstance(before, (str, Path)):
        before = interrupted(before, group)
    if before is not None:
        config = asked(before, group) if config is None else going_on(config, before)
    config = config or TrainConfig()
    earlier = None
    if autoresume:
        config = with_checkpoints(config, before, group)
        earlier = begun(config, group)
        config = config if earlier is None else as_begun(config, earlier, group)
    listeners, own = made(callbacks), make_own(net, loss, metrics)
    with limits_explained():  # not yet under mx.nd's semantics: data sets give the user's arrays
        data = read_together(dataset, config, own, group)
    with nd_semantics(), limits_explained():
        plan = plan_together(config, data, group, earlier is not None, own)
        begun_before = [earlier.ended, earlier.run and earlier.run.found] if earlier else []
        for found in [before and before.found, *begun_before]:
            if found is not None:  # else it would be another network that does not fit
                check_same_own(str(found.folder), "to train", found.used, plan.own_settings)
        warn_of_loaders(dataset, plan.dataset, plan.global_batch_size, plan.drop_last)
        taken = measured_memory(plan, strategy)
        result = train_plan(
            plan, strategy, reporter or ConsoleReporter(), taken, before, earlier, listeners
        )
    for each in filter(None, (result.net, own.loss)):
        give_back(each)
    return result


def train_plan(
    plan: Plan,
    make_strategy: Optional[MakeStrategy],
    reporter: Reporter,
    taken: Optional[str] = None,
    before: Optional[Interrupted] = None,
    earlier: Optional[Begun] = None,
    callbacks: Sequence[Any] = (),
) -> Result:
    """`train` for a plan.

    ``taken``: a line about the memory that such a run takes. ``before``: the run that goes on.
    ``earlier``: the one in the plan's folder, where it decides how this one begins. ``callbacks``:
    those of the user's own, `gluonlab.training.callbacks.made`.
    """
    began = time.perf_counter()
    plan, strategy, introduction = prepare(plan, make_strategy)
    if earlier is not None:
        ended, before = result_of(earlier, plan, strategy), earlier.run
        if ended is not None:
            how = "was stopped" if ended.stopped else f"has finished its {plan.epochs} epochs"
            reporter.say(f"{'ended':<11}{earlier.folder} {how}")
            return ended
        if before is None:
            introduction.append(f"{'begins':<11}{anew(earlier, plan.group)}")
    run = run_directory(plan, strategy, before)
    result = Result(plan, strategy.net, run.path)
    request = EndRequest(partial(what_is_left, result))
    with request, recorded(run, result, request), plan.pieces():
        run.describe(**plan.description(strategy.settings()))
        for line in filter(None, [*introduction, taken]):
            reporter.say(line)
        epochs = make_epochs(plan, strategy, run, began, reporter, result, request, callbacks)
        with epochs.callbacks.told_of_failures():
            plan.group.begin_together()
            if before is not None:
                epochs.go_on(before)
            epochs.all_epochs()
            plan.group.end_together()  # what is left is rank 0's alone
            if result.confusion is not None:
                run.write(schema.ConfusionEvent(result.confusion.tolist()))
            if run.path is not None:
                result.onnx = write_extras(run.path, plan, strategy.net, result.confusion)
                if result.onnx is not None:
                    reporter.say(f"{'export':<11}{result.onnx.in_words()}")
            epochs.callbacks.run_ends(result.stopped)
            write_end(run, epochs.log.step, time.perf_counter() - epochs.standing.began)
    result.seconds = time.perf_counter() - began
    return result
