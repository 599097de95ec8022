"""What goes through a network that an answer is given: how much at a time, and what it keeps."""

from __future__ import annotations

from typing import Any, List

from mxnet import autograd, gluon, nd
from mxnet.base import MXNetError

KEPT_EN = (
    "the next microbatch goes forward before the backward of the last one, so the network keeps "
    "the activations of both, and no memory is saved"
)
KEPT_JA = (
    "前のマイクロバッチの逆伝播より先に次の順伝播をしています。"
    "両方の活性値が残るので、メモリは減りません"
)


class Calls:
    """Watches a network with grad_req "add" from now on.

    ``sizes``: of the first input of each call; ``kept_before_backward``: whether at some call the
    one before had still to go backward, and no gradient had come in between.
    """

    def __init__(self, net: gluon.Block) -> None:
        self._net = net
        self.forget()
        net.register_forward_pre_hook(self._begins)
        net.register_forward_hook(self._ends)

    def forget(self) -> None:
        """Begin anew, as for another batch."""
        self.sizes: List[int] = []
        self.kept_before_backward = False
        self._last: Any = None  # the output of the call before, and the gradients at that time

    def _begins(self, block: gluon.Block, inputs: Any) -> None:
        if self._last is not None:
            output, gradients = self._last
            self.kept_before_backward |= _kept(output) and gradients == self._gradients()
        self.sizes.append(len(inputs[0]))

    def _ends(self, block: gluon.Block, inputs: Any, output: Any) -> None:
        self._last = output, self._gradients()

    def _gradients(self) -> List[bytes]:
        return [param.grad().asnumpy().tobytes() for param in self._net.collect_params().values()]


def _kept(output: nd.NDArray) -> bool:
    """Whether autograd still has what led to this array."""
    try:
        autograd.get_symbol(output)
    except MXNetError:
        return False
    return True
