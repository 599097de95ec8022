"""Detects stale gradients, which the backward pass has not written since they were last used.

autograd keeps a flag for every parameter on every device, and the backward pass sets the flag. If
no flag is set on a device, the device had no shard of this batch. On other devices, a parameter
without the flag was not used by the network.
"""

from __future__ import annotations

import ctypes
from typing import Any, List, NamedTuple, Sequence, Set

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.gluon import Parameter

from gluonlab.errors import RunError

MAX_NAMES = 3  # in a message


class StaleGradients(NamedTuple):
    """Parameters with stale gradients.

    Attributes:
        on_device: For each device, the parameters whose gradient is stale on this device.
        on_all_devices: Parameters whose gradient is stale on every device.
        idle: Positions of the devices on which every gradient is stale.
    """

    on_device: List[Set[Parameter]]
    on_all_devices: Set[Parameter]
    idle: Set[int]


NO_STALE_GRADIENTS = StaleGradients([], set(), set())


class StaleGradientTracker:
    """Reads the flags of ``params`` on ``ctxs``. The parameters must keep their arrays."""

    def __init__(self, params: Sequence[Parameter], ctxs: Sequence[mx.Context]) -> None:
        self._params, self._ctxs = list(params), list(ctxs)
        self._arrays = [param.list_data() for param in params]  # keeps the handles alive
        self._handles = [[array.handle for array in arrays] for arrays in self._arrays]
        self._all = [handle for handles in self._handles for handle in handles]

    def find_stale(self) -> StaleGradients:
        """Return the parameters whose gradients backward has not written since their last use."""
        if _all_fresh(self._all):
            return NO_STALE_GRADIENTS
        on_device = [
            {param for param, handle in zip(self._params, handles) if not _all_fresh([handle])}
            for handles in zip(*self._handles)
        ]
        idle = {device for device, stale in enumerate(on_device) if len(stale) == len(self._params)}
        return StaleGradients(on_device, set.intersection(*on_device), idle)

    def stale_to_ignore_in_group(self, stale: StaleGradients, kvstore: str) -> StaleGradients:
        """Return the stale gradients that this process may ignore as a member of a group.

        If this process has no shard, it must not skip any parameter, because the other processes
        have gradients for all parameters. Raises RunError for a parameter that is stale in this
        process, because it may be fresh in another process.
        """
        if len(stale.idle) == len(self._ctxs):
            return stale._replace(on_all_devices=set())
        if stale.on_all_devices:
            raise RunError(
                f"ignore_stale_grad=True cannot skip a parameter with kvstore {kvstore!r}, because another "
                "process may have a fresh gradient for it: use every parameter in each step"
            )
        return stale

    def check_fresh(self, stale: StaleGradients) -> None:
        """Raise UserWarning, as gluon.Trainer does, for a parameter that a device has not used."""
        if stale is NO_STALE_GRADIENTS:
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
                f"these parameters have received no gradient since the last step: {_shorten_list(missing)}: "
                "if the model does not use all of its parameters in each step, call "
                "step(..., ignore_stale_grad=True) to skip the unused parameters"
            )

    def mark_used(self) -> None:
        """Mark all gradients as stale until backward writes them again."""
        set_state = _LIB.MXNDArraySetGradState
        for handle in self._all:
            if set_state(handle, 0):
                check_call(-1)


def _shorten_list(names: List[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _all_fresh(handles: Sequence[Any]) -> bool:
    """Return whether backward has written all these gradients since the last update."""
    # Each step calls this for every parameter on every device, so it calls MXNet directly.
    flag = ctypes.c_int()
    get_flag, flag_address = _LIB.MXNDArrayGetGradState, ctypes.byref(flag)
    for handle in handles:
        if get_flag(handle, flag_address):
            check_call(-1)
        if not flag.value:
            return False
    return True
