"""Making a notebook: its source in S3 if need be, its role, its lifecycle configuration, itself.

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
    tags,
)
from gluonlab_sagemaker.errors import AWSError, RefusedError
from gluonlab_sagemaker.notebook import Notebook
from gluonlab_sagemaker.role import ensure_role, given_role
from gluonlab_sagemaker.source import archive, upload
from gluonlab_sagemaker.startup import ensure_config, scripts


@dataclass(frozen=True)
class Wishes:
    """The options of a new notebook; None stands for the value in the instance's own request."""

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
    environment: Tuple[str, ...] = ()  # NAME=VALUE each

    def check(self) -> None:
        """Raise RefusedError for what is known to be impossible."""
        check_network(self.subnet, self.security_groups)
        check_owner(self.owner)
        if self.repository is None and self.bucket is None:
            raise RefusedError(
                "the notebook needs gluonlab from somewhere: "
                "give --repository https://... or --bucket NAME (S3)"
            )
        if self.repository is not None:
            check_repository(self.repository)
        if self.bucket is not None:
            check_bucket(self.bucket)
        check_environment(self.environment)

    @property
    def settings(self) -> Dict[str, str]:
        """What the start scripts are told."""
        given = {
            "GLUONLAB_REPOSITORY": self.repository,
            "GLUONLAB_BUCKET": self.bucket,
            "GLUONLAB_ENVIRONMENT": " ".join(self.environment),
        }
        return {
            **{name: value for name, value in given.items() if value},
            "GLUONLAB_IDLE_MINUTES": str(self.idle_minutes),
        }

    def request(self, name: str, role: str, tagged: List[Dict[str, str]]) -> Dict[str, Any]:
        """The parameters of CreateNotebookInstance."""
        request = instances.request(self.instance)
        request.update(
            NotebookInstanceName=name, LifecycleConfigName=name, RoleArn=role, Tags=tagged
        )
        given = {
            "PlatformIdentifier": self.platform,
            "VolumeSizeInGB": self.volume_gb,
            "KmsKeyId": self.kms_key,
        }
        request.update({key: value for key, value in given.items() if value is not None})
        if self.subnet is not None:  # the network's own way out, or none
            request.update(
                SubnetId=self.subnet,
                SecurityGroupIds=list(self.security_groups),
                DirectInternetAccess="Disabled",
            )
        return request


def create(
    caller: Caller,
    notebook: Notebook,
    wishes: Wishes,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Make the notebook ``wishes`` describes, and return as soon as AWS has accepted it.

    An attempt that was interrupted or refused is taken up where it ended. What precedes the
    notebook costs nothing.
    """
    wishes.check()
    scripts(wishes.settings)  # refused now rather than half-way
    notebook.refuse_existing()
    tagged, asked = tags(wishes.owner), False
    try:
        if wishes.repository is None and wishes.bucket is not None:
            say(f"uploaded {upload(caller, wishes.bucket, archive(say=say))}")
        if wishes.role is None:
            role = ensure_role(
                caller, notebook.name, wishes.bucket, wishes.subnet is not None, tagged
            )
        else:
            role = given_role(caller, wishes.role)
        ensure_config(caller, notebook.name, wishes.settings, tagged)
        asked = True
        notebook.make(wishes.request(notebook.name, role, tagged), sleep)
    except AWSError as error:
        if asked and (
            error.unanswered or error.taken
        ):  # botocore asks again by itself: the name may have been taken by this create
            rest = (
                "the notebook may exist all the same, and cost money: "
                f"{notebook.command('status')} shows it"
            )
        else:
            rest = (
                "no notebook was made; what was made for it costs nothing: "
                f"{notebook.command('delete')} removes it"
            )
        raise AWSError(f"{error}; {rest}", error.code) from error
    say(f"{notebook.name} is being made on {wishes.instance}")
