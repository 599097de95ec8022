"""Addresses of AWS's image with MXNet 1.9.0, Python 3.8, Horovod and Open MPI, by region.

The accounts are from the SageMaker Python SDK of 2026-08-21, which lists accounts for training with
MXNet 1.9.0 (image_uri_config/mxnet.json). AWS's secret regions are left out.
"""

from __future__ import annotations

from typing import Optional

from gluonlab_sagemaker.cost import UNKNOWN_REGIONS
from gluonlab_sagemaker.errors import RefusedError

IMAGE_TAG = "mxnet-training:1.9.0-gpu-py38-cu112-ubuntu20.04-sagemaker"
_MAIN_REGIONS = """
ap-northeast-1 ap-northeast-2 ap-south-1 ap-southeast-1 ap-southeast-2 ca-central-1 eu-central-1
eu-north-1 eu-west-1 eu-west-2 eu-west-3 sa-east-1 us-east-1 us-east-2 us-west-1 us-west-2"""
ACCOUNTS = {
    **dict.fromkeys(_MAIN_REGIONS.split(), "763104351884"), "af-south-1": "626614931356",
    "ap-east-1": "871362719292", "ap-northeast-3": "364406365360", "ap-south-2": "772153158452",
    "ap-southeast-3": "907027046896", "ap-southeast-4": "457447274322", "ca-west-1": "204538143572",
    "cn-north-1": "727897471807", "cn-northwest-1": "727897471807", "eu-central-2": "380420809688",
    "eu-south-1": "692866216735", "eu-south-2": "503227376785", "il-central-1": "780543022126",
    "me-central-1": "914824155844", "me-south-1": "217643126080", "us-gov-east-1": "446045086412",
    "us-gov-west-1": "442386744353",
}  # fmt: skip


def image_uri(region: Optional[str]) -> str:
    """Return the image's address in a region; raise RefusedError for a region without it."""
    if region in UNKNOWN_REGIONS:
        raise RefusedError("a job needs a region: add --region REGION, such as us-east-1")
    if region not in ACCOUNTS:
        raise RefusedError(
            f"no MXNet image of AWS is known in {region}: choose {', '.join(ACCOUNTS)}, or pass another image with "
            "--image"
        )
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"{ACCOUNTS[region]}.dkr.ecr.{region}.{domain}/{IMAGE_TAG}"
