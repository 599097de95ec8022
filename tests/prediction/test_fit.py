"""The committed constants are those that fitting gives."""

import pytest

from gluonlab.prediction.constants import EXPECTED, FITTED, FITTED_THEN
from gluonlab.prediction.fit import fit
from gluonlab.prediction.published import FIGURES


@pytest.mark.long
def test_fitting_again_gives_the_committed_constants():
    models = fit()
    assert tuple(models.constants) == pytest.approx(tuple(FITTED), rel=1e-3)
    assert tuple(models.then) == pytest.approx(tuple(FITTED_THEN), rel=1e-3)


def test_there_are_fewer_constants_than_figures_that_they_are_fitted_to():
    assert len(FITTED) + len(FITTED_THEN) < sum(figure.fitted for figure in FIGURES)


def test_every_constant_is_what_its_meaning_allows():
    for share in ("convolution", "memory", "tensor", "kepler", "kepler_memory"):
        assert 0 < getattr(FITTED, share) <= 1
    assert 1 <= FITTED.winograd <= 9 / 4 < FITTED.winograd_5 <= 100 / 16  # what the ways allow
    assert all(0.5 < fitted / expected < 2 for fitted, expected in zip(FITTED, EXPECTED))
