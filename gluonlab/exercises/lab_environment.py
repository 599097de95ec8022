"""What a lab runs on: devices and a data set that this machine has, and the reasons."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Tuple

from gluonlab.data.fetching.data_folders import data_root, download_command, folder_of
from gluonlab.data.fetching.download_sources import SOURCES
from gluonlab.data.sets.dataset_registry import check_dataset
from gluonlab.devices import describe, gpu_count, gpus
from gluonlab.errors import GluonlabWarning
from gluonlab.exercises.languages import choose_text, language
from gluonlab.gpu.cuda import enable_peer_access, lacking

if TYPE_CHECKING:
    import mxnet as mx

# for GPUs, which have time for 70,000 images; the first that is there
GPU_DATASETS = ("mnist", "fashion-mnist")


class LabEnvironment(NamedTuple):
    """A lab's devices, whether they are GPUs, and the name of its data set for `load_dataset`."""

    devices: "List[mx.Context]"
    on_gpus: bool
    data: str

    @property
    def language(self) -> str:
        """That of the lab, ``en`` or ``ja``."""
        return language()

    def __repr__(self) -> str:
        return (
            f"Here(devices=[{', '.join(map(str, self.devices))}], on_gpus={self.on_gpus}, "
            f"data={self.data!r})"
        )


def setup(n: int, dataset: Optional[str] = None) -> LabEnvironment:
    """Choose ``n`` devices and a data set that this machine has, and print which and why.

    The devices are GPUs if there are ``n``, else CPU devices. ``dataset`` is the data set for GPUs,
    by default ``mnist`` or ``fashion-mnist``; CPU devices get the built-in digits.

    Raises DeviceError for an impossible ``n``, DataError for an unknown data set.
    """
    if dataset is not None:
        check_dataset(dataset)
    ctxs, on_gpus, why = _choose_devices(n)
    data, why_data = _choose_dataset(on_gpus, dataset)
    for text, reason in (
        (choose_text(en="devices: ", ja="デバイス: ") + describe(ctxs), why),
        (choose_text(en="data: ", ja="データ: ") + data, why_data),
    ):
        print(text, *(["  " + reason] if reason else []), sep="\n", flush=True)
    return LabEnvironment(ctxs, on_gpus, data)


def _choose_devices(n: int) -> "Tuple[List[mx.Context], bool, str]":
    """The devices, whether they are GPUs, and why not."""
    from gluonlab.devices import devices

    found = gpu_count()
    if found >= n > 0:
        fault = _find_gpu_fault(n)
        if not fault:
            ctxs = gpus(n)
            enable_peer_access(ctxs)  # for what the lab copies by hand
            return ctxs, True, ""
        why = choose_text(en=f"the GPUs cannot be used: {fault}", ja=f"GPU は使えません: {fault}")
    elif found:
        here = choose_text(
            en=f"{found} GPU" + "s" * (found > 1) + " here", ja=f"GPU は {found} 個だけ"
        )
        why = choose_text(en=f"{here}, the lab needs {n}", ja=f"{here}で、ラボには {n} 個必要")
    else:
        why = choose_text(en="no GPU here", ja="GPU なし")
    with warnings.catch_warnings():
        # it is said below, in the language of the notebook
        warnings.simplefilter("ignore", GluonlabWarning)
        ctxs = devices(f"cpu*{n}") if n > 0 else gpus(n)  # which says what n may be
    stand_in = choose_text(
        en="CPU devices stand in, and compute in parallel as GPUs do",
        ja="CPU デバイスで代用します。GPU と同じく並列に計算します",
    )
    return ctxs, False, f"{why}: {stand_in}"


def _find_gpu_fault(n: int) -> str:
    """Why these GPUs do not compute, for example too new for MXNet; empty if they do."""
    import mxnet as mx

    remedy = "python -m gluonlab.doctor"
    if lacking(range(n), n):
        return choose_text(
            en=f"MXNet 1.9.1 has no code for them; see {remedy}",
            ja=f"MXNet 1.9.1 はこの GPU に対応していません。{remedy} を参照",
        )
    try:
        for index in range(n):
            mx.nd.ones((2, 2), ctx=mx.gpu(index)).asnumpy()
    except mx.base.MXNetError:
        return choose_text(en=f"they fail; see {remedy}", ja=f"エラーになりました。{remedy} を参照")
    return ""


def _choose_dataset(on_gpus: bool, wanted: Optional[str]) -> Tuple[str, str]:
    """The data set, and why it is not a larger one."""
    if not on_gpus:
        return "digits", choose_text(
            en="1,797 images, built in: small enough for CPU devices",
            ja="組み込みの 1,797 枚。CPU でも短時間で済みます",
        )
    choices = (wanted,) if wanted else GPU_DATASETS
    for name in choices:
        if name not in SOURCES or folder_of(SOURCES[name], data_root()):
            return name, ""
    missing, command = choose_text(en=" or ", ja=" と ").join(choices), download_command(choices[0])
    return "digits", choose_text(
        en=f"{missing} is not downloaded; to train on it: {command}",
        ja=f"{missing} がまだダウンロードされていません。使うときのコマンド: {command}",
    )
