"""Fit of the model's constants to some published figures, by least squares.

The fit uses the damped Gauss-Newton method (Levenberg-Marquardt) on logarithms, because the ratio
of prediction and figure matters. A constant that differs from the expected one by a factor of e
counts as much as a prediction that is wrong by a factor of e to the power of PRIOR_WEIGHT. The
result does not depend on chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Sequence

import click
import numpy as np

from gluonlab.cli.command import command
from gluonlab.performance_model.gradient_sum_time import HostRates
from gluonlab.performance_model.roofline import ModelConstants
from prediction.figures import FIGURES, Figure
from prediction.validate import FittedModel, predict_speed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# The constants expected before the fit. They keep constants plausible on which the figures hardly
# depend.
EXPECTED_CONSTANTS = ModelConstants(0.75, 0.8, 2.0, 3.0, 0.4, 15e-6, 8e-6, 60.0, 0.6, 0.8, 36e-6)
EXPECTED_HOST_RATES = HostRates(3e9, 5e9)
PRIOR_WEIGHT = 0.3
# LOG_DIFFERENCE: of logarithms, for numerical slopes; MAX_LOG_STEP: of logarithms, in one step
MAX_STEPS, LOG_DIFFERENCE, MAX_LOG_STEP = 60, 1e-4, 0.3

Residuals = Callable[["Array"], "Array"]


def fit() -> FittedModel:
    """Return the constants of the kernels, and those of `local` of 2015, which depend on them."""
    kernels = _fit_values(
        [figure for figure in FIGURES if figure.is_fitted and not figure.is_summed_on_host],
        EXPECTED_CONSTANTS,
        lambda values: FittedModel(ModelConstants(*values), EXPECTED_HOST_RATES),
    )
    constants = ModelConstants(*kernels)
    return FittedModel(constants, fit_host_rates(constants))


def fit_host_rates(constants: ModelConstants) -> HostRates:
    """Return the constants of `local` of 2015, given those of the kernels."""
    rates = _fit_values(
        [figure for figure in FIGURES if figure.is_fitted and figure.is_summed_on_host],
        EXPECTED_HOST_RATES,
        lambda values: FittedModel(constants, HostRates(*values)),
    )
    return HostRates(*rates)


def _fit_values(
    figures: Sequence[Figure], expected: Sequence[float], make_model: Callable[[List[float]], FittedModel]
) -> List[float]:
    expected_logs = np.log(np.asarray(expected))
    values = np.asarray([figure.value for figure in figures])

    def residuals(logs: Array) -> Array:
        model = make_model([float(value) for value in np.exp(logs)])
        log_errors = np.log([predict_speed(figure, model) for figure in figures]) - np.log(values)
        return np.concatenate([log_errors, PRIOR_WEIGHT * (logs - expected_logs)])

    return [float(value) for value in np.exp(_least_squares(residuals, expected_logs))]


def _least_squares(residuals: Residuals, start: Array) -> Array:
    """Minimize the sum of squares by the method of Levenberg and Marquardt.

    A step is accepted if it reduces the sum of squares.
    """
    values, damping, errors = start, 1e-2, residuals(start)
    for _ in range(MAX_STEPS):
        differences = np.eye(len(values)) * LOG_DIFFERENCE
        slopes = np.stack(
            [(residuals(values + difference) - errors) / LOG_DIFFERENCE for difference in differences], axis=1
        )
        normal = slopes.T @ slopes + damping * np.eye(len(values))
        step = np.clip(np.linalg.solve(normal, -slopes.T @ errors), -MAX_LOG_STEP, MAX_LOG_STEP)
        new_errors = residuals(values + step)
        if new_errors @ new_errors < errors @ errors:
            values, errors, damping = values + step, new_errors, max(damping / 2, 1e-5)
        else:
            damping *= 4
    return values


@command("python tools/prediction fit")
def main() -> None:
    """Fit the constants of predictions to published speeds again.

    It prints FITTED_CONSTANTS of gluonlab/performance_model/roofline.py and OLD_HOST_RATES of
    tools/prediction/validate.py.
    """
    model = fit()
    for name, fitted in (("FITTED_CONSTANTS", model.constants), ("OLD_HOST_RATES", model.old_host_rates)):
        values = ", ".join(f"{field}={value:.4g}" for field, value in fitted._asdict().items())
        click.echo(f"{name} = {type(fitted).__name__}({values})")
