"""06-4: which GPUs of the machine a process means by gpu:0, gpu:0,2 and gpu:*."""

from __future__ import annotations

from typing import Callable, Iterable, List

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import is_not, looks_like, returned


@exercise("06-4")
def machine_numbers(answer: Callable[[str, "str | None", int], List[int]]) -> None:
    """Which GPUs of the machine a process means by gpu:0, gpu:0,2 and gpu:*."""
    cases = [("gpu:1", None, 4), ("gpu:0,2", None, 4), ("gpu:*", None, 4), ("gpu:*", "2,3", 4)]
    cases += [(spec, "3,4,5,6,7", 8) for spec in ("gpu:0", "gpu:1,2", "gpu:*")]
    cases += [("gpu:*", "7,5", 8), ("gpu:1,0", "6,2,4", 8)]
    random = draws(4)
    for _ in range(8):
        shown = random.permutation(8)[: random.randint(2, 8)].tolist()
        asked = random.permutation(len(shown))[: random.randint(1, len(shown) + 1)].tolist()
        cases.append(("gpu:" + ",".join(map(str, asked)), ",".join(map(str, shown)), 8))
    for spec, visible, count in cases:
        got, call = answer(spec, visible, count), f"machine_numbers({spec!r}, {visible!r}, {count})"
        if not isinstance(got, Iterable) or isinstance(got, str):
            raise returned(got, call, "a list of numbers", "番号のリスト")
        shown, names = list(range(count)), spec.split(":")[1]
        if visible is not None:
            shown = [int(number) for number in visible.split(",")]
        asked = list(range(len(shown))) if names == "*" else [int(n) for n in names.split(",")]
        got, want = list(got), [shown[name] for name in asked]
        if got == want:
            continue
        why = looks_like(
            (list(map(str, got)) == list(map(str, want)),
             "numbers are wanted, not texts", "文字列ではなく数値が必要です"),
            (got == asked,
             "those are the names inside the process; "
             "CUDA_VISIBLE_DEVICES gives them to other GPUs",
             "それはプロセスの中での番号です。"
             "CUDA_VISIBLE_DEVICES によって別の GPU に割り当てられます"),
            (got == list(range(count)),
             "the process sees only those that CUDA_VISIBLE_DEVICES names",
             "CUDA_VISIBLE_DEVICES にあるものしか見えません"),
            (sorted(map(str, got)) == sorted(map(str, want)), "in another order", "順番が違います"),
        )  # fmt: skip
        raise is_not(call, repr(got), want, why)
