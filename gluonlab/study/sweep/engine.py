"""Points of a sweep, measured in turns: what slows the machine for a while slows all of them.

A point is the settings of a measurement, as plain values. Each round measures every point once, and
begins with another one; numbers of the same round belong together, as pairs.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from gluonlab.bench.harness.rounds import progress, rotated
from gluonlab.study.sweep.measurements import Store, Values

# settings, number of the round (from 0) -> what was measured
Measure = Callable[[Mapping[str, Any], int], Values]


class Sweep:
    """Measures points that have not been measured yet, and keeps each measurement at once.

    ``with Sweep(store, measure) as sweep``: a bar shows progress on a terminal. ``done`` and
    ``wanted`` count measurements, those of an earlier try included. ``shown``: whether there may be
    a bar; not where each measurement shows its own.
    """

    def __init__(self, store: Store, measure: Measure, shown: bool = True) -> None:
        self.store, self.measure = store, measure
        self.done = self.wanted = 0
        self._bar: Any = progress(0) if shown else None

    def __enter__(self) -> "Sweep":
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def run(
        self, points: Sequence[Values], rounds: Sequence[int], label: Optional[str] = None
    ) -> List[List[Dict[str, Any]]]:
        """Each point's measurements, by round. ``label``: what the bar says meanwhile."""
        self.wanted += len(points) * len(rounds)
        self._show(label)
        found: List[Dict[int, Dict[str, Any]]] = [{} for _ in points]
        for number in rounds:
            for place in rotated(range(len(points)), number):
                found[place][number] = self._measured(points[place], number)
        return [[of_point[number] for number in rounds] for of_point in found]

    def _measured(self, settings: Values, number: int) -> Dict[str, Any]:
        values = self.store.find(settings, number)
        if values is None:
            values = dict(self.measure(settings, number))
            self.store.add(settings, number, values)
        self.done += 1
        self._show()
        return values

    def _show(self, label: Optional[str] = None) -> None:
        if self._bar is None:
            return
        if label is not None:
            self._bar.set_description(label, refresh=False)
        self._bar.total, self._bar.n = self.wanted, self.done
        self._bar.refresh()
