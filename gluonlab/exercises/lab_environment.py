"""Choose a lab's devices and data set, based on the GPUs and data sets on this machine."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple

from gluonlab.data.fetching.data_folders import data_root, download_command, find_dataset_folder
from gluonlab.data.fetching.download_sources import SOURCES
from gluonlab.data.sets.dataset_registry import check_dataset
from gluonlab.devices import describe, gpu_count, gpus
from gluonlab.errors import GluonlabWarning
from gluonlab.exercises.languages import choose_text, language
from gluonlab.gpu.cuda import describe_unsupported, enable_peer_access

if TYPE_CHECKING:
    import mxnet as mx

# Labs on GPUs use the first of these data sets that is downloaded. GPUs are fast enough for 70,000
# images.
GPU_DATASETS = ("mnist", "fashion-mnist")


class LabEnvironment(NamedTuple):
    """The devices and the data set of a lab.

    ``on_gpus``: whether the devices are GPUs. ``data``: the name of the data set.
    """

    devices: "List[mx.Context]"
    on_gpus: bool
    data: str

    @property
    def language(self) -> str:
        """The language of the lab, ``en`` or ``ja``."""
        return language()

    def __repr__(self) -> str:
        return (
            f"LabEnvironment(devices=[{', '.join(map(str, self.devices))}], on_gpus={self.on_gpus}, data={self.data!r})"
        )


def setup(n: int, dataset: Optional[str] = None) -> LabEnvironment:
    """Choose ``n`` devices and a data set, and print both with the reasons for the choice.

    The devices are GPUs if this machine has ``n`` working GPUs. Otherwise, they are CPU devices.

    Args:
        n: the number of devices.
        dataset: the data set for GPUs, by default ``mnist`` or ``fashion-mnist``. The built-in
            digits are used on CPU devices, and on GPUs if the data set is not downloaded.

    Returns:
        The devices and the data set.

    Raises:
        DeviceError: ``n`` is not a valid number of devices.
        DataError: the data set is unknown.
    """
    if dataset is not None:
        check_dataset(dataset)
    ctxs, on_gpus, device_reason = _choose_devices(n)
    data, data_reason = _choose_dataset(on_gpus, dataset)
    for text, reason in (
        (choose_text(en="devices: ", ja="デバイス: ") + describe(ctxs), device_reason),
        (choose_text(en="data: ", ja="データ: ") + data, data_reason),
    ):
        print(text, *(["  " + reason] if reason else []), sep="\n", flush=True)
    return LabEnvironment(ctxs, on_gpus, data)


def _choose_devices(n: int) -> "Tuple[List[mx.Context], bool, str]":
    """Return the devices, whether they are GPUs, and the reason if they are not."""
    from gluonlab.devices import devices

    count = gpu_count()
    if count >= n > 0:
        fault = _find_gpu_fault(n)
        if not fault:
            ctxs = gpus(n)
            enable_peer_access(ctxs)  # the lab copies arrays by hand
            return ctxs, True, ""
        reason = choose_text(en=f"the GPUs cannot be used: {fault}", ja=f"GPU は使えません: {fault}")
    elif count:
        shortage = choose_text(en=f"{count} GPU" + "s" * (count > 1) + " here", ja=f"GPU は {count} 個だけ")
        reason = choose_text(en=f"{shortage}, but the lab needs {n}", ja=f"{shortage}で、ラボには {n} 個必要")
    else:
        reason = choose_text(en="no GPU here", ja="GPU なし")
    with warnings.catch_warnings():
        # The reason that this function returns replaces the warning, in the notebook's language.
        warnings.simplefilter("ignore", GluonlabWarning)
        ctxs = devices(f"cpu*{n}") if n > 0 else gpus(n)  # gpus(n) raises an error for n < 1
    substitute = choose_text(
        en="the lab uses CPU devices, which compute in parallel like GPUs",
        ja="CPU デバイスで代用します。GPU と同じく並列に計算します",
    )
    return ctxs, False, f"{reason}: {substitute}"


def _find_gpu_fault(n: int) -> str:
    """Return why the first ``n`` GPUs cannot be used, or an empty string if they can be used."""
    import mxnet as mx

    remedy = "python -m gluonlab.doctor"
    if describe_unsupported(range(n), n):
        return choose_text(
            en=f"MXNet 1.9.1 does not support them; see {remedy}",
            ja=f"MXNet 1.9.1 はこの GPU に対応していません。{remedy} を参照",
        )
    try:
        for index in range(n):
            mx.nd.ones((2, 2), ctx=mx.gpu(index)).asnumpy()
    except mx.base.MXNetError:
        return choose_text(en=f"they fail; see {remedy}", ja=f"エラーになりました。{remedy} を参照")
    return ""


def _choose_dataset(on_gpus: bool, requested: Optional[str]) -> Tuple[str, str]:
    """Return the data set's name, and the reason if no larger data set was chosen."""
    if not on_gpus:
        return "digits", choose_text(
            en="1,797 images, built in: small enough for CPU devices",
            ja="組み込みの 1,797 枚。CPU でも短時間で済みます",
        )
    choices = (requested,) if requested else GPU_DATASETS
    for name in choices:
        if name not in SOURCES or find_dataset_folder(SOURCES[name], data_root()):
            return name, ""
    missing, command = choose_text(en=" or ", ja=" と ").join(choices), download_command(choices[0])
    return "digits", choose_text(
        en=f"{missing} is not downloaded; to train on it, run {command}",
        ja=f"{missing} がまだダウンロードされていません。使うときのコマンド: {command}",
    )
