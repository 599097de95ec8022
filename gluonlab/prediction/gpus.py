"""GPUS: what NVIDIA's data sheets say of each GPU. Nothing here is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict

FLOAT32, TF32, FLOAT16 = "float32", "TF32", "float16"


@dataclass(frozen=True)
class Gpu:
    """One GPU: peak ``flops`` (FLOP/s by kind of arithmetic), memory's bytes/s, and its cores.

    ``capability``: (major, minor). ``sheet``: where the figures stand.
    """

    name: str
    generation: str
    capability: float
    flops: Dict[str, float]
    bytes_per_s: float
    memory_bytes: float
    cores: int
    sheet: str

    def arithmetic(self, dtype: str, tf32: bool = True) -> str:
        """What MXNet 1.9.1 cu112 computes matrix products of ``dtype`` with.

        From compute capability 8.0 on, cuDNN and cuBLAS of CUDA 11 take TF32 for float32, unless
        NVIDIA_TF32_OVERRIDE=0, which gluonlab sets without --tf32. float16 takes tensor cores from
        7.0 on.
        """
        return TF32 if tf32 and dtype == FLOAT32 and TF32 in self.flops else dtype


GPUS: Dict[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        Gpu(
            "K80", "Kepler", 3.7, {FLOAT32: 4.37e12, FLOAT16: 4.37e12}, 240e9, 12e9, 2496,
            "Tesla K80 data sheet: 8.74 TFLOP/s with boost, 480 GB/s, 4992 cores, 24 GB for its "
            "two GPUs; this is one of them",
        ),
        Gpu(
            "M60", "Maxwell", 5.2, {FLOAT32: 4.825e12, FLOAT16: 4.825e12}, 160e9, 8e9, 2048,
            "Tesla M60 data sheet: 9.65 TFLOP/s with boost, 320 GB/s, 4096 cores, 16 GB for its "
            "two GPUs; this is one of them",
        ),
        Gpu(
            "V100", "Volta", 7.0, {FLOAT32: 15.7e12, FLOAT16: 125e12}, 900e9, 16e9, 5120,
            "Tesla V100 data sheet, SXM2: 15.7 TFLOP/s, 125 with tensor cores, 900 GB/s, "
            "5120 cores",
        ),
        Gpu(
            "T4", "Turing", 7.5, {FLOAT32: 8.1e12, FLOAT16: 65e12}, 320e9, 16e9, 2560,
            "T4 data sheet: 8.1 TFLOP/s, 65 with tensor cores, 320 GB/s, 2560 cores",
        ),
        Gpu(
            "A10G", "Ampere", 8.6, {FLOAT32: 35e12, TF32: 35e12, FLOAT16: 70e12}, 600e9, 24e9,
            10240,
            "A10G data sheet: 35 TFLOP/s, 35 in TF32 and 70 in float16 with tensor cores, dense, "
            "600 GB/s; 80 multiprocessors of 128 cores: Amazon's page of G5",
        ),
        Gpu(
            "A100", "Ampere", 8.0, {FLOAT32: 19.5e12, TF32: 156e12, FLOAT16: 312e12}, 1555e9, 40e9,
            6912,
            "A100 data sheet, 40 GB SXM: 19.5 TFLOP/s, 156 in TF32 and 312 in float16 with tensor "
            "cores, dense, 1555 GB/s, 6912 cores",
        ),
        Gpu(
            "A100-80GB", "Ampere", 8.0, {FLOAT32: 19.5e12, TF32: 156e12, FLOAT16: 312e12}, 2039e9,
            80e9, 6912, "A100 data sheet, 80 GB SXM: as with 40 GB, but 2039 GB/s",
        ),
    )
}  # fmt: skip
