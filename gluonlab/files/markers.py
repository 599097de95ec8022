"""Files that SageMaker puts beside those that it copies to S3, to say how far it has come."""

from __future__ import annotations

# FILE.sagemaker-uploading, then FILE.sagemaker-uploaded; they come back with the files
MARKERS = (".sagemaker-uploading", ".sagemaker-uploaded")


def is_marker(name: str) -> bool:
    """Whether a file of this name is such a one, which nobody else writes."""
    return name.endswith(MARKERS)
