"""The committed constants are those that fitting gives."""

import math

import pytest

from gluonlab.performance_model.roofline import FITTED_CONSTANTS
from prediction.figures import FIGURES
from prediction.fit import EXPECTED_CONSTANTS, EXPECTED_HOST_RATES, PRIOR_WEIGHT, fit, fit_host_rates
from prediction.validate import OLD_HOST_RATES, FittedModel, predict_speed


@pytest.mark.long
def test_fitting_again_gives_the_committed_constants():
    models = fit()
    assert tuple(models.constants) == pytest.approx(tuple(FITTED_CONSTANTS), rel=1e-3)
    assert tuple(models.old_host_rates) == pytest.approx(tuple(OLD_HOST_RATES), rel=1e-3)


def test_fitting_the_hosts_of_2015_again_gives_their_committed_constants():
    assert tuple(fit_host_rates(FITTED_CONSTANTS)) == pytest.approx(tuple(OLD_HOST_RATES), rel=1e-3)


def squared_error(models, on_host):
    """The sum of squares that the fit minimizes."""
    figures = [figure for figure in FIGURES if figure.is_fitted and figure.is_summed_on_host == on_host]
    result = models.old_host_rates if on_host else models.constants
    expected = EXPECTED_HOST_RATES if on_host else EXPECTED_CONSTANTS
    return sum(math.log(predict_speed(figure, models) / figure.value) ** 2 for figure in figures) + sum(
        (PRIOR_WEIGHT * math.log(one / other)) ** 2 for one, other in zip(result, expected)
    )


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_no_constant_a_little_larger_or_smaller_fits_better(factor):
    for fields, on_host in (("constants", False), ("old_host_rates", True)):
        best, committed = squared_error(FittedModel(), on_host), getattr(FittedModel(), fields)
        for name, value in committed._asdict().items():
            other = FittedModel()._replace(**{fields: committed._replace(**{name: factor * value})})
            assert squared_error(other, on_host) > best, name


def test_there_are_fewer_constants_than_figures_that_they_are_fitted_to():
    assert len(FITTED_CONSTANTS) + len(OLD_HOST_RATES) < sum(figure.is_fitted for figure in FIGURES)


def test_every_constant_is_what_its_meaning_allows():
    for share in ("convolution", "memory", "tensor", "kepler", "kepler_memory"):
        assert 0 < getattr(FITTED_CONSTANTS, share) <= 1
    assert 1 <= FITTED_CONSTANTS.winograd <= 9 / 4 < FITTED_CONSTANTS.winograd_5 <= 100 / 16  # what the ways allow
    assert all(0.5 < fitted / expected < 2 for fitted, expected in zip(FITTED_CONSTANTS, EXPECTED_CONSTANTS))
