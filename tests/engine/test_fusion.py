"""MXNet fuses operators only if the driver supports the CUDA version of the compiler."""

import os
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gluonlab.engine import mxnet_setup
from gluonlab.engine.mxnet_installation import CudaVersions, format_cuda_version
from gluonlab.errors import GluonlabWarning

CUDA = st.builds(lambda major, minor: major * 1000 + minor * 10, st.integers(10, 13), st.integers(0, 9))


@given(CUDA, CUDA)
def test_a_driver_runs_code_of_its_own_or_an_older_cuda_compiler(driver, compiler):
    versions, words = CudaVersions(driver, compiler), "and runs" if driver >= compiler else "and does not run"
    assert versions.are_compatible == (driver >= compiler)
    assert f"{format_cuda_version(driver)} {words}" in str(versions)
    assert CudaVersions(None, compiler).are_compatible and CudaVersions(driver, None).are_compatible


OLD = "the driver knows CUDA 11.4 and does not run what NVRTC 11.8 compiles"


@pytest.mark.parametrize(
    ("exported", "driver", "is_on", "reason"),
    [
        (None, 11040, False, OLD),
        *((None, driver, True, None) for driver in (11080, 12020, None)),
        *(
            (value, driver, False, f"MXNET_USE_FUSION={value} is set")
            for value in ("0", "false")
            for driver in (11040, 12020)
        ),
        *((value, 11040, True, None) for value in ("1", "true")),
    ],
)
def test_fusion_is_on_if_the_driver_supports_it_or_the_user_asks_for_it(monkeypatch, exported, driver, is_on, reason):
    monkeypatch.setattr(mxnet_setup, "cuda_versions", lambda: CudaVersions(driver, 11080))
    monkeypatch.setattr(mxnet_setup, "_fusion_is_off", False)
    monkeypatch.delenv(mxnet_setup.FUSION_VARIABLE, raising=False)
    if exported is not None:
        monkeypatch.setenv(mxnet_setup.FUSION_VARIABLE, exported)
    message = f"MXNET_USE_FUSION={exported} is obeyed, but the driver knows CUDA 11.4 .* unset"
    with pytest.warns(GluonlabWarning, match=message) if exported in ("1", "true") else nullcontext():
        mxnet_setup._disable_unsupported_fusion()
    state = mxnet_setup.fusion_state()
    assert (state.is_on, state.driver_supports) == (is_on, driver != 11040)
    assert reason is None or state.reason == reason
    assert os.environ.get(mxnet_setup.FUSION_VARIABLE) == ("0" if reason == OLD else exported)
