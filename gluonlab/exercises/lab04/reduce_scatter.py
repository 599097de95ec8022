"""04-1: the steps of a reduce-scatter."""

from __future__ import annotations

from typing import Callable, Sequence

from gluonlab.collectives.schedule import REDUCE_SCATTER, Schedule, Transfer
from gluonlab.exercises.cases import more
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import Case
from gluonlab.exercises.shared.schedule_faults import as_steps, check_proof, check_rules

MODULO = (": is a `% world_size` missing?", "。`% world_size` を忘れていませんか")


@exercise("04-1")
def reduce_scatter(answer: Callable[[int], Sequence[Sequence[Transfer]]]) -> None:
    """The steps of a reduce-scatter after which rank r has the sum of chunk r."""
    others = more(3, lambda random: int(random.randint(6, 13)))
    for world_size in [2, 3, 4, 5, 8, 1, *others]:
        call = f"reduce_scatter({world_size})"
        steps = as_steps(answer(world_size), call)
        check_rules(call, world_size, world_size, steps, MODULO)
        owner = tuple(range(world_size))
        check_proof(call, Schedule("yours", REDUCE_SCATTER, world_size, world_size, owner, steps))
        count, enough = sum(map(len, steps)), world_size * (world_size - 1)
        if count > enough:
            raise Case(call, call).wrong(
                f"right, but {count} transfers, where {enough} are enough: "
                f"each chunk needs {world_size - 1} additions",
                f"結果は正しいですが、転送が {count} 回あります。"
                f"チャンクごとに加算は {world_size - 1} 回なので {enough} 回で済みます",
            )
