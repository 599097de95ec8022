"""Fused operators run where the driver knows the CUDA of the compiler, and MXNet fuses nowhere
else.
"""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.engine import mxnet_setup
from gluonlab.engine.mxnet_installation import CudaVersions, format_cuda_version
from gluonlab.errors import GluonlabWarning

CUDA = st.builds(lambda major, minor: major * 1000 + minor * 10, st.integers(10, 13), st.integers(0, 9))


@given(CUDA, CUDA)
def test_a_driver_runs_what_a_compiler_of_its_own_cuda_or_an_older_one_made(driver, compiler):
    assert CudaVersions(driver, compiler).are_compatible == (driver >= compiler)
    assert f"{format_cuda_version(driver)} {'and runs' if driver >= compiler else 'and does not run'}" in str(
        CudaVersions(driver, compiler)
    )


@given(CUDA)
def test_what_does_not_tell_its_version_is_trusted(version):
    assert (
        CudaVersions(None, version).are_compatible
        and CudaVersions(version, None).are_compatible
        and CudaVersions(None, None).are_compatible
    )


def settled(monkeypatch, asked, driver=11040, compiler=11080):
    """MXNET_USE_FUSION afterwards, and what is said of it."""
    monkeypatch.setattr(mxnet_setup, "cuda_versions", lambda: CudaVersions(driver, compiler))
    monkeypatch.setattr(mxnet_setup, "_fusion_is_off", False)
    monkeypatch.delenv(mxnet_setup.FUSION_VARIABLE, raising=False)
    if asked is not None:
        monkeypatch.setenv(mxnet_setup.FUSION_VARIABLE, asked)
    mxnet_setup._disable_unsupported_fusion()
    return os.environ.get(mxnet_setup.FUSION_VARIABLE), mxnet_setup.fusion_state()


def test_fusion_is_off_where_the_driver_is_older_than_the_compiler(monkeypatch):
    value, told = settled(monkeypatch, None)
    assert value == "0" and not told.is_on and not told.driver_supports
    assert told.reason == "the driver knows CUDA 11.4 and does not run what NVRTC 11.8 compiles"


@pytest.mark.parametrize("driver", [11080, 12020, None])
def test_fusion_is_mxnets_own_elsewhere(monkeypatch, driver):
    value, told = settled(monkeypatch, None, driver)
    assert value is None and told.is_on and told.driver_supports


@pytest.mark.parametrize("asked", ["0", "false"])
def test_the_user_may_turn_it_off_anywhere(monkeypatch, asked):
    for driver in (11040, 12020):
        value, told = settled(monkeypatch, asked, driver)
        assert value == asked and not told.is_on and told.reason == f"MXNET_USE_FUSION={asked} is set"


@pytest.mark.parametrize("asked", ["1", "true"])
def test_the_user_who_wants_it_where_it_fails_is_obeyed_and_warned(monkeypatch, asked):
    with pytest.warns(
        GluonlabWarning, match=f"MXNET_USE_FUSION={asked} is obeyed, but the driver knows CUDA 11.4 .* unset"
    ):
        value, told = settled(monkeypatch, asked)
    assert value == asked and told.is_on and not told.driver_supports
