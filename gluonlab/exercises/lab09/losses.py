"""The losses that a program returns, which a cure must not lose."""

from __future__ import annotations

from typing import Any, List, Optional, Sequence

import numpy as np
from mxnet import nd

from gluonlab.exercises.shared.counterexamples import NUMBERS, returned, wrong


def check_losses(given: Any, want: Sequence[float], name: str, en: str, ja: str) -> None:
    """Raise Wrong unless ``given`` holds these numbers; ``en``, ``ja``: what they are."""
    got = _flat(given)
    if got is None:
        raise returned(given, f"`{name}`", f"{en}, as before", f"元のプログラムと同じく{ja}")
    if len(got) != len(want) or not np.allclose(got, want, rtol=1e-3, atol=1e-4):
        shown, expected = (", ".join(f"{one:.4g}" for one in values[:8]) for values in (got, want))
        raise wrong(
            f"the parameters are right, but `{name}` returned [{shown}], expected [{expected}]: "
            f"return {en}, as before",
            f"パラメータは正しいのですが、`{name}` の戻り値が [{shown}] です。"
            f"[{expected}] のはずです。元のプログラムと同じく{ja}を返してください",
        )


def _flat(given: Any) -> Optional[List[float]]:
    """All numbers in arrays, lists and numbers; None where there is something else."""
    if isinstance(given, (list, tuple)):
        parts = [_flat(each) for each in given]
        return None if None in parts else [one for part in parts for one in part or ()]
    if isinstance(given, nd.NDArray):
        given = given.asnumpy()
    if isinstance(given, (*NUMBERS, np.ndarray)):
        return [float(one) for one in np.ravel(given)]
    return None
