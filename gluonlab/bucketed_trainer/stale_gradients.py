"""Which gradients are fresh: written by backward since they were last used.

autograd keeps a flag for every parameter on every device (as gluon.Trainer reads it). A device on
which no flag is set had no shard of this batch. Elsewhere a flag that is not set tells of a
parameter that the network did not use."""

from __future__ import annotations

import ctypes
from typing import Any, List, NamedTuple, Sequence, Set

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.gluon import Parameter

from gluonlab.errors import RunError

NAMED = 3  # parameters in a message, at most


class Stale(NamedTuple):
    """Parameters without a fresh gradient: on each device, and on all of them.

    ``idle``: the positions of devices on which nothing is fresh.
    """

    on_device: List[Set[Parameter]]
    parameters: Set[Parameter]
    idle: Set[int]


NOTHING = Stale([], set(), set())


class Freshness:
    """The flags of ``params`` on ``ctxs``, as long as they keep their arrays."""

    def __init__(self, params: Sequence[Parameter], ctxs: Sequence[mx.Context]) -> None:
        self._params, self._ctxs = list(params), list(ctxs)
        self._arrays = [param.list_data() for param in params]  # keeps the handles alive
        self._handles = [[array.handle for array in arrays] for arrays in self._arrays]
        self._all = [handle for handles in self._handles for handle in handles]

    def look(self) -> Stale:
        """What has no fresh gradient."""
        if _all_set(self._all):
            return NOTHING
        on_device = [
            {param for param, handle in zip(self._params, handles) if not _all_set([handle])}
            for handles in zip(*self._handles)
        ]
        idle = {device for device, stale in enumerate(on_device) if len(stale) == len(self._params)}
        return Stale(on_device, set.intersection(*on_device), idle)

    def of_a_process(self, stale: Stale, kvstore: str) -> Stale:
        """The same in one of several processes: without a shard here, others have gradients.

        Raises RunError for a parameter that is stale here, and may be fresh there.
        """
        if len(stale.idle) == len(self._ctxs):
            return stale._replace(parameters=set())
        if stale.parameters:
            raise RunError(
                "ignore_stale_grad=True: other processes may have gradients for parameters that "
                f"are not fresh here: use every parameter in each step under kvstore {kvstore!r}"
            )
        return stale

    def require(self, stale: Stale) -> None:
        """Raise UserWarning, as gluon.Trainer does, for a parameter that a device has not used."""
        if stale is NOTHING:
            return
        several = len(self._ctxs) > 1
        if len(stale.idle) == len(self._ctxs):
            missing = [param.name + " on any device" * several for param in self._params]
        else:
            missing = [
                param.name + f" on {ctx}" * several
                for device, ctx in enumerate(self._ctxs)
                for param in self._params
                if device not in stale.idle and param in stale.on_device[device]
            ]
        if missing:
            raise UserWarning(
                f"no fresh gradient since the last step: {_in_words(missing)}. "
                "If the network is meant to use some of its parameters only, call step(..., "
                "ignore_stale_grad=True): the others stay as they are"
            )

    def reset(self) -> None:
        """The gradients are used: until backward writes them again, they are not fresh."""
        set_state = _LIB.MXNDArraySetGradState
        for handle in self._all:
            if set_state(handle, 0):
                check_call(-1)


def _in_words(names: List[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _all_set(handles: Sequence[Any]) -> bool:
    """Whether all of these arrays have their flag.

    Each step asks it of every parameter on every device, so it is made short.
    """
    state = ctypes.c_int()
    get_state, place = _LIB.MXNDArrayGetGradState, ctypes.byref(state)
    for handle in handles:
        if get_state(handle, place):
            check_call(-1)
        if not state.value:
            return False
    return True
