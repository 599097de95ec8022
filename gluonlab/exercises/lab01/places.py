"""01-1: on which device each array lies."""

from __future__ import annotations

from typing import Any, Dict

from mxnet import nd

from gluonlab.exercises.exercise import Wrong, exercise
from gluonlab.exercises.shared.arrays import cpus

REASONS = {
    "a": ("it was made with `ctx=first`", "`ctx=first` を指定して作られています"),
    "b": ("`as_in_context` returns a copy on the device that it is given",
          "`as_in_context` は指定したデバイス上のコピーを返します"),
    "c": ("an operation runs where its input lies, and a is on `first`",
          "演算は入力のあるデバイスで実行され、a は `first` にあります"),
    "d": ("both inputs are on `second`, and so is the product",
          "入力は 2 つとも `second` にあり、積もそこで作られます"),
    "e": ("`zeros_like` makes an array on the device of the one it is given",
          "`zeros_like` は渡された配列と同じデバイスに作ります"),
    "f": ("d was copied to `first` before the sum", "足す前に d が `first` にコピーされています"),
    "g": ("inside `with second:` an array without `ctx=` is made on `second`",
          "`with second:` の中では、指定のない配列は `second` に作られます"),
    "h": ("`copyto(a)` writes into a and returns it", "`copyto(a)` は a に書き込み、a を返します"),
}  # fmt: skip


def _places() -> Dict[str, int]:
    """The number of each array's device, by MXNet itself running the lines of the exercise."""
    first, second = cpus(2)
    a = nd.ones((2, 2), ctx=first)
    b = a.as_in_context(second)
    c = a + 1
    d = b * b
    e = nd.zeros_like(d)
    f = d.as_in_context(first) + a
    with second:
        g = nd.ones((2, 2))
    h = g.copyto(a)
    return {name: array.context.device_id for name, array in zip(REASONS, (a, b, c, d, e, f, g, h))}


@exercise("01-1")
def where_each_array_is(answer: Any) -> None:
    """On which device each of eight arrays lies, without running the lines."""
    if not isinstance(answer, dict):
        raise Wrong(
            en=f"{answer!r} is not a dictionary: write one such as {{'a': 0, 'b': 1, ...}} with a "
            "number for each array",
            ja=f"{answer!r} は辞書ではありません。{{'a': 0, 'b': 1, ...}} のように、"
            "配列ごとに番号を書いてください",
        )
    for name, place in _places().items():
        if name not in answer:
            raise Wrong(en=f"there is no number for `{name}`", ja=f"`{name}` の番号がありません")
        said = answer[name]
        if isinstance(said, bool) or said not in (0, 1):
            raise Wrong(
                en=f"`{name}` is said to be on {said!r}: give 0 for `first`, 1 for `second`",
                ja=f"`{name}` に {said!r} と書かれています。"
                "`first` なら 0、`second` なら 1 としてください",
            )
        if said != place:
            en, ja = REASONS[name]
            raise Wrong(
                en=f"`{name}` is not on device {said}: {en}",
                ja=f"`{name}` があるのはデバイス {said} ではありません。{ja}",
            )
