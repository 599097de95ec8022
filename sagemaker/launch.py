#!/usr/bin/env python3
"""python sagemaker/launch.py COMMAND: SageMaker notebooks and training jobs with gluonlab.

It needs boto3 and click and nothing else: no MXNet, no GPU, no installed gluonlab.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# this checkout's launcher and gluonlab.cli.command, whatever else is installed
sys.path[:0] = [str(HERE), str(HERE.parent)]

try:
    import boto3  # noqa: F401
    import click  # noqa: F401
except ModuleNotFoundError as error:
    sys.exit(f"error: {error.name} is not installed: run {sys.executable} -m pip install boto3 click")

from gluonlab_sagemaker.commands import main  # noqa: E402

if __name__ == "__main__":
    main(sys.argv[1:])
