"""TrainerGroup: several BucketedTrainers that together update the parts of one network.

All parameters of a `BucketedTrainer` are on all its devices. If parts of a network are on different
devices, each part needs its own trainer. The group computes the global norm and checks for
overflows over the gradients of all trainers.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any, Callable, List, Sequence, Tuple

from mxnet import nd

from gluonlab.bucketed_trainer.buckets import BucketPadding
from gluonlab.bucketed_trainer.gradient_postprocessing import GradientPostprocessor
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import collect_states, set_states
from gluonlab.errors import KVStoreError
from gluonlab.optimizers.optimizer_states import States, fit_states, state_targets


class TrainerGroup:
    """Trainers for the parts of one network, with a common gradient norm and loss scale.

    Args:
        trainers: A trainer for each part. Each trainer has one device for each replica of the
            network, and device i belongs to replica i. The trainers do not postprocess gradients.
        postprocessor: Clips and unscales the gradient of the whole network.
        replicated: A trainer for each device of a replica, for parameters that every device of the
            replica holds. The gradients of these parameters are equal on all devices.
    """

    def __init__(
        self,
        trainers: Sequence[BucketedTrainer],
        postprocessor: GradientPostprocessor,
        replicated: Sequence[BucketedTrainer] = (),
    ) -> None:
        self._split, self._replicated = list(trainers), list(replicated)
        self.trainers = [*trainers, *replicated]
        params = [param for trainer in trainers for param in trainer._params]
        self._params = sorted(params, key=attrgetter("name"))  # the order of a single trainer
        self.loss_scale = postprocessor.loss_scale
        self._postprocessor = postprocessor
        for trainer in self.trainers:
            trainer.prepare()
            if trainer._update_on_kvstore and self._postprocessor.is_needed:
                raise KVStoreError(
                    f"--kvstore {trainer._kvstore.type} updates each part of the model separately, but "
                    f"{postprocessor.setting} needs the whole gradient: use --kvstore sharded, which only sums "
                    "gradients"
                )
        buckets = [bucket for trainer in self.trainers for bucket in trainer.buckets]
        self._padding = BucketPadding(buckets if self._postprocessor.is_needed else ())
        # Each copy of the network computes its own norm, from one number per device.
        for copy in range(len(self.trainers[0]._contexts)):
            ctxs = [trainer._contexts[copy] for trainer in self._split]
            self._postprocessor.add_gradients(
                self._gradients_by_device(copy), ctxs, sharded=True, duplicates=self._duplicate_gradients(copy)
            )

    def _gradients_by_device(self, copy: int) -> List[List[nd.NDArray]]:
        """Return the gradients of replica number ``copy`` of the network, by device.

        The first device's list also contains the replicated gradients.
        """
        grads = [_copy_gradients(trainer, copy) for trainer in self._split]
        replicated = [grad for t in self._replicated[:1] for grad in _copy_gradients(t, copy)]
        return [[*grads[0], *replicated], *grads[1:]]

    def _duplicate_gradients(self, copy: int) -> List[List[nd.NDArray]]:
        """Return, for each device, the gradients that the first device also holds."""
        return [[], *(_copy_gradients(trainer, copy) for trainer in self._replicated[1:])]

    def zero_grad(self, copies: Sequence[int]) -> None:
        """Set the gradients of these replicas of the network to zero."""
        for trainer in self.trainers:
            trainer.zero_grad(copies)

    def start_step(self, batch_size: float) -> "Tuple[Tuple[str, Callable[[], None]], ...]":
        """Set the batch size of all trainers, and return the functions that run a step.

        The result has the same form as that of `BucketedTrainer.start_step`.
        """
        halves = [trainer.start_step(batch_size) for trainer in self.trainers]
        sums = [allreduce for (_, allreduce), _ in halves]
        return (
            ("allreduce", partial(_call_all, [self._padding.clear_before_sum, *sums])),
            ("update", partial(self._update, [update for _, (_, update) in halves])),
        )

    def _update(self, updates: "Sequence[Callable[[], None]]") -> None:
        """Unscale and clip the gradients, then run ``updates``, unless a gradient is not finite."""
        optimizers = [trainer._optimizer for trainer in self.trainers]
        finite = self._postprocessor.unscale_and_clip(optimizers, self._padding)
        if finite:
            _call_all(updates)

    def collect_states(self) -> States:
        """Return the optimizer states of all parameters, as if they belonged to one trainer."""
        parts = [collect_states(trainer) for trainer in self.trainers]
        by_name = {state.name: state for part in parts for state in part.parameters}
        return parts[0]._replace(parameters=tuple(by_name[param.name] for param in self._params))

    def set_states(self, states: States, source: str) -> None:
        """Set the states of all parameters. Error messages start with ``source``.

        Raises KVStoreError for states of another network.
        """
        fit = fit_states(self.trainers[0]._optimizer, states, state_targets(self._params), source)
        by_param = dict(zip(self._params, fit.parameters))
        for trainer in self.trainers:
            parameters = tuple(by_param[param] for param in trainer._params)
            set_states(trainer, fit._replace(parameters=parameters), source)


def _copy_gradients(trainer: BucketedTrainer, copy: int) -> List[nd.NDArray]:
    return [bucket.grads[copy] for bucket in trainer.buckets]


def _call_all(calls: "Sequence[Callable[[], Any]]") -> None:
    for call in calls:
        call()
