"""The parameters of one network under several trainers, one for those on the same devices.

A `BucketedTrainer` has all its parameters on all its devices. Where a network's parts lie on
different devices, each part has a trainer, and what looks at the whole gradient, its norm and
whether it is finite, looks at all of them."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import Any, Callable, List, Sequence, Tuple

from mxnet import nd

from gluonlab.bucketed_trainer.buckets import Gaps
from gluonlab.bucketed_trainer.gradient_postprocessing import Postprocess, SummedGradients
from gluonlab.bucketed_trainer.trainer import BucketedTrainer
from gluonlab.bucketed_trainer.trainer_states import restore, states_of
from gluonlab.errors import KVStoreError
from gluonlab.optimizers.optimizer_states import States, fitted, own_of


class TrainerGroup:
    """Updates a network whose parameters are ``trainers``', by the global norm and loss scale.

    The trainers have as many devices each, those of copy i of the network at place i, and neither
    norm nor scale of their own. ``beside[i]``: another one for device i of each copy, of parameters
    that all devices of a copy have, with the same gradients.
    """

    def __init__(
        self,
        trainers: Sequence[BucketedTrainer],
        postprocess: Postprocess,
        beside: Sequence[BucketedTrainer] = (),
    ) -> None:
        self._apart, self._beside = list(trainers), list(beside)
        self.trainers = [*trainers, *beside]
        params = [param for trainer in trainers for param in trainer._params]
        self._params = sorted(params, key=attrgetter("name"))  # as one trainer has them
        self.loss_scale = postprocess.loss_scale
        for trainer in self.trainers:
            trainer.prepare()
            if trainer._update_on_kvstore and postprocess.is_needed:
                raise KVStoreError(
                    f"--kvstore {trainer._kvstore.type} updates part by part, and "
                    f"{postprocess.reason} looks at the whole gradient first: "
                    "choose sharded, which sums"
                )
        buckets = [bucket for trainer in self.trainers for bucket in trainer.buckets]
        self._gaps = Gaps(buckets if postprocess.is_needed else ())
        self._summed = SummedGradients(postprocess, self._gaps)
        # each copy of the network finds the norm for itself, from one number of each of its devices
        for copy in range(len(self.trainers[0]._contexts)):
            ctxs = [trainer._contexts[copy] for trainer in self._apart]
            self._summed.add(self._grads(copy), ctxs, parts=True, again=self._again(copy))

    def _grads(self, copy: int) -> List[List[nd.NDArray]]:
        """Each device's gradients, those that all have counted as the first one's."""
        first = [bucket.grads[copy] for each in self._beside[:1] for bucket in each.buckets]
        grads = [[bucket.grads[copy] for bucket in each.buckets] for each in self._apart]
        return [[*grads[0], *first], *grads[1:]]

    def _again(self, copy: int) -> List[List[nd.NDArray]]:
        """The gradients that another device has, too."""
        return [[], *([b.grads[copy] for b in each.buckets] for each in self._beside[1:])]

    def zero_grad(self, copies: Sequence[int]) -> None:
        """Set the gradients of these copies of the network to zero."""
        for trainer in self.trainers:
            trainer.zero_grad(copies)

    def phases(self, batch_size: float) -> "Tuple[Tuple[str, Callable[[], None]], ...]":
        """``allreduce`` and ``update``, as `BucketedTrainer.phases`."""
        halves = [trainer.phases(batch_size) for trainer in self.trainers]
        sums = [allreduce for (_, allreduce), _ in halves]
        return (
            ("allreduce", partial(_all, [self._gaps.before_sum, *sums])),
            ("update", partial(self._update, [update for _, (_, update) in halves])),
        )

    def _update(self, updates: "Sequence[Callable[[], None]]") -> None:
        if self._summed.prepare(*[trainer._optimizer for trainer in self.trainers]):
            _all(updates)

    def states(self) -> States:
        """The optimizer states of all parameters, as of one trainer that has them all."""
        parts = [states_of(trainer) for trainer in self.trainers]
        of_names = {state.name: state for part in parts for state in part.parameters}
        return parts[0]._replace(parameters=tuple(of_names[own.name] for own in self._params))

    def restore(self, states: States, what: str) -> None:
        """Go on from such states. Raises KVStoreError for those of another network."""
        fit = fitted(self.trainers[0]._optimizer, states, own_of(self._params), what)
        of_params = dict(zip(self._params, fit.parameters))
        for trainer in self.trainers:
            own = tuple(of_params[param] for param in trainer._params)
            restore(trainer, fit._replace(parameters=own), what)


def _all(calls: "Sequence[Callable[[], Any]]") -> None:
    for call in calls:
        call()
