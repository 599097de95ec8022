"""Creation of a notebook, with its archive in S3, its role and its lifecycle configuration.

Only the notebook costs money.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple

from gluonlab_sagemaker import instances
from gluonlab_sagemaker.calls import Caller
from gluonlab_sagemaker.checks import (
    check_bucket,
    check_environment,
    check_network,
    check_owner,
    check_repository,
    resource_tags,
)
from gluonlab_sagemaker.errors import AWSError, RefusedError
from gluonlab_sagemaker.notebook import Notebook
from gluonlab_sagemaker.role import ensure_notebook_role, resolve_role
from gluonlab_sagemaker.source import create_archive, upload_archive
from gluonlab_sagemaker.startup import encode_scripts, ensure_lifecycle_config


@dataclass(frozen=True)
class NotebookOptions:
    """Options of a new notebook; None stands for the value in the instance type's request."""

    instance: str
    owner: str
    platform: Optional[str] = None
    volume_gb: Optional[int] = None
    idle_minutes: int = 60  # 0: never stopped
    repository: Optional[str] = None
    bucket: Optional[str] = None
    role: Optional[str] = None
    subnet: Optional[str] = None
    security_groups: Tuple[str, ...] = ()
    kms_key: Optional[str] = None
    environment: Tuple[str, ...] = ()  # NAME=VALUE

    def check(self) -> None:
        """Raise RefusedError for options that AWS or the start scripts would refuse."""
        check_network(self.subnet, self.security_groups)
        check_owner(self.owner)
        if self.repository is None and self.bucket is None:
            raise RefusedError(
                "the notebook needs a source for gluonlab: add --repository https://... or --bucket NAME (S3)"
            )
        if self.repository is not None:
            check_repository(self.repository)
        if self.bucket is not None:
            check_bucket(self.bucket)
        check_environment(self.environment)

    @property
    def script_settings(self) -> Dict[str, str]:
        """Return the environment variables of the start scripts."""
        settings = {
            "GLUONLAB_REPOSITORY": self.repository,
            "GLUONLAB_BUCKET": self.bucket,
            "GLUONLAB_ENVIRONMENT": " ".join(self.environment),
        }
        return {
            **{name: value for name, value in settings.items() if value},
            "GLUONLAB_IDLE_MINUTES": str(self.idle_minutes),
        }

    def build_request(self, name: str, role: str, tags: List[Dict[str, str]]) -> Dict[str, Any]:
        """Return the parameters of CreateNotebookInstance."""
        request = instances.notebook_request(self.instance)
        request.update(NotebookInstanceName=name, LifecycleConfigName=name, RoleArn=role, Tags=tags)
        optional = {"PlatformIdentifier": self.platform, "VolumeSizeInGB": self.volume_gb, "KmsKeyId": self.kms_key}
        request.update({key: value for key, value in optional.items() if value is not None})
        if self.subnet is not None:  # traffic leaves through this network, or not at all
            request.update(
                SubnetId=self.subnet, SecurityGroupIds=list(self.security_groups), DirectInternetAccess="Disabled"
            )
        return request


def request_notebook(
    caller: Caller,
    notebook: Notebook,
    options: NotebookOptions,
    report: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Create the notebook that ``options`` describes, without waiting until it is in service.

    A second attempt completes one that was interrupted or refused. The calls before
    CreateNotebookInstance cost nothing.
    """
    options.check()
    encode_scripts(options.script_settings)  # raises before anything is created
    notebook.refuse_existing()
    tags, is_requested = resource_tags(options.owner), False
    try:
        if options.repository is None and options.bucket is not None:
            address = upload_archive(caller, options.bucket, create_archive(report=report))
            report(f"uploaded {address}")
        if options.role is None:
            role = ensure_notebook_role(caller, notebook.name, options.bucket, options.subnet is not None, tags)
        else:
            role = resolve_role(caller, options.role)
        ensure_lifecycle_config(caller, notebook.name, options.script_settings, tags)
        is_requested = True
        notebook.create(options.build_request(notebook.name, role, tags), sleep)
    except AWSError as error:
        # botocore retries by itself, so an earlier try of this call may have taken the name.
        if is_requested and (error.is_unanswered or error.is_name_in_use):
            consequence = f"the notebook may exist anyway and cost money: check with {notebook.command_line('status')}"
        else:
            consequence = (
                "no notebook was created; its role and settings, which cost nothing, may exist: remove them with "
                f"{notebook.command_line('delete')}"
            )
        raise AWSError(f"{error}; {consequence}", error.code) from error
    report(f"creating {notebook.name} on {options.instance}")
