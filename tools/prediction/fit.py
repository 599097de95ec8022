"""The constants fitted to the published figures that are marked for it, by least squares.

Gauss and Newton's method, damped, on logarithms: what counts is by which factor a prediction is
off. A constant that is a factor of e from what was expected counts as much as a prediction that is
off by e to the power of PULL. NumPy is all that is needed, and the result does not depend on
chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Sequence

import click
import numpy as np

from gluonlab.cli.command import command
from gluonlab.performance_model.allreduce_time import HostRates
from gluonlab.performance_model.roofline import ModelConstants
from prediction.figures import FIGURES, Figure
from prediction.validate import Models, predicted

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# What was expected before anything was fitted. The fit is drawn to it: a constant that the figures
# say little about stays plausible.
EXPECTED = ModelConstants(0.75, 0.8, 2.0, 3.0, 0.4, 15e-6, 8e-6, 60.0, 0.6, 0.8, 36e-6)
EXPECTED_THEN = HostRates(3e9, 5e9)
PULL = 0.3
STEPS, DIFFERENCE, FARTHEST = 60, 1e-4, 0.3  # steps; of logarithms, for slopes, and in one step

Residuals = Callable[["Array"], "Array"]


def fit() -> Models:
    """The constants of the kernels, then those of `local` of 2015, which need the former."""
    kernels = _fitted(
        [figure for figure in FIGURES if figure.fitted and not figure.on_host],
        EXPECTED,
        lambda values: Models(ModelConstants(*values), EXPECTED_THEN),
    )
    constants = ModelConstants(*kernels)
    return Models(constants, fit_host(constants))


def fit_host(constants: ModelConstants) -> HostRates:
    """The constants of `local` of 2015, where those of the kernels are these."""
    found = _fitted(
        [figure for figure in FIGURES if figure.fitted and figure.on_host],
        EXPECTED_THEN,
        lambda values: Models(constants, HostRates(*values)),
    )
    return HostRates(*found)


def _fitted(
    figures: Sequence[Figure], expected: Sequence[float], models: Callable[[List[float]], Models]
) -> List[float]:
    start = np.log(np.asarray(expected))
    values = np.asarray([figure.value for figure in figures])

    def residuals(logs: Array) -> Array:
        own = models([float(value) for value in np.exp(logs)])
        off = np.log([predicted(figure, own) for figure in figures]) - np.log(values)
        return np.concatenate([off, PULL * (logs - start)])

    return [float(value) for value in np.exp(_least_squares(residuals, start))]


def _least_squares(residuals: Residuals, start: Array) -> Array:
    """Levenberg and Marquardt's method: a step is taken if it makes the sum of squares smaller."""
    found, damping, off = start, 1e-2, residuals(start)
    for _ in range(STEPS):
        each = np.eye(len(found)) * DIFFERENCE
        slopes = np.stack([(residuals(found + one) - off) / DIFFERENCE for one in each], axis=1)
        normal = slopes.T @ slopes + damping * np.eye(len(found))
        step = np.clip(np.linalg.solve(normal, -slopes.T @ off), -FARTHEST, FARTHEST)
        new = residuals(found + step)
        if new @ new < off @ off:
            found, off, damping = found + step, new, max(damping / 2, 1e-5)
        else:
            damping *= 4
    return found


@command("python tools/prediction fit")
def main() -> None:
    """Fit the constants of predictions to published speeds again.

    It prints FITTED of gluonlab/performance_model/roofline.py and FITTED_THEN of validate.py.
    """
    models = fit()
    for name, fitted in (("FITTED", models.constants), ("FITTED_THEN", models.then)):
        values = ", ".join(f"{field}={value:.4g}" for field, value in fitted._asdict().items())
        click.echo(f"{name} = {type(fitted).__name__}({values})")
