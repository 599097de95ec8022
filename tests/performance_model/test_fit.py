"""The committed constants are those that fitting gives."""

import math

import pytest

from gluonlab.performance_model.roofline import FITTED_CONSTANTS
from prediction.figures import FIGURES
from prediction.fit import EXPECTED, EXPECTED_THEN, PULL, fit, fit_host
from prediction.validate import FITTED_THEN, Models, predicted


@pytest.mark.long
def test_fitting_again_gives_the_committed_constants():
    models = fit()
    assert tuple(models.constants) == pytest.approx(tuple(FITTED_CONSTANTS), rel=1e-3)
    assert tuple(models.then) == pytest.approx(tuple(FITTED_THEN), rel=1e-3)


def test_fitting_the_hosts_of_2015_again_gives_their_committed_constants():
    assert tuple(fit_host(FITTED_CONSTANTS)) == pytest.approx(tuple(FITTED_THEN), rel=1e-3)


def off(models, on_host):
    """The sum of squares that the fit makes small, as `gluonlab.performance_model.fit` describes
    it.
    """
    figures = [each for each in FIGURES if each.fitted and each.on_host == on_host]
    found, expected = (models.then, EXPECTED_THEN) if on_host else (models.constants, EXPECTED)
    return sum(math.log(predicted(each, models) / each.value) ** 2 for each in figures) + sum(
        (PULL * math.log(one / other)) ** 2 for one, other in zip(found, expected)
    )


@pytest.mark.parametrize("factor", [0.97, 1.03])
def test_no_constant_a_little_larger_or_smaller_fits_better(factor):
    for fields, on_host in (("constants", False), ("then", True)):
        best, committed = off(Models(), on_host), getattr(Models(), fields)
        for name, value in committed._asdict().items():
            other = Models()._replace(**{fields: committed._replace(**{name: factor * value})})
            assert off(other, on_host) > best, name


def test_there_are_fewer_constants_than_figures_that_they_are_fitted_to():
    assert len(FITTED_CONSTANTS) + len(FITTED_THEN) < sum(figure.fitted for figure in FIGURES)


def test_every_constant_is_what_its_meaning_allows():
    for share in ("convolution", "memory", "tensor", "kepler", "kepler_memory"):
        assert 0 < getattr(FITTED_CONSTANTS, share) <= 1
    assert (
        1 <= FITTED_CONSTANTS.winograd <= 9 / 4 < FITTED_CONSTANTS.winograd_5 <= 100 / 16
    )  # what the ways allow
    assert all(0.5 < fitted / expected < 2 for fitted, expected in zip(FITTED_CONSTANTS, EXPECTED))
