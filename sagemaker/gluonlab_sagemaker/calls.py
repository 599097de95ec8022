"""One call to AWS by name, or its rehearsal, which only notes what would be called.

What runs a notebook is written once, as calls of a `Caller`; --dry-run gives it another one.
"""

from __future__ import annotations

import base64
from typing import Any, Dict, List, NamedTuple, Optional

import boto3
import botocore.session
from botocore import xform_name
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.validate import ParamValidator

from gluonlab_sagemaker.checks import MINE, check_region
from gluonlab_sagemaker.errors import AWSError, raise_explained

Answer = Dict[str, Any]
PARTITIONS = ("aws", "aws-cn", "aws-us-gov")


def home(service: str, region: Optional[str]) -> Optional[str]:
    """The region in which a service answers about ``region``: the price list has few."""
    if service != "pricing":
        return region
    return "cn-northwest-1" if (region or "").startswith("cn-") else "us-east-1"


class Caller:
    """``caller("sagemaker", "StopNotebookInstance", ...)`` calls AWS and returns its answer.

    Credentials are boto3's business alone. Errors are AWSError, in one line.
    """

    rehearses = False

    def __init__(self, profile: Optional[str], region: Optional[str]) -> None:
        try:
            self._session = boto3.Session(profile_name=profile, region_name=region)
            self.region = self._session.region_name
        except BotoCoreError as error:
            raise_explained(error, "", {})
        if self.region is not None:
            known = [
                name
                for part in PARTITIONS
                for name in self._session.get_available_regions("sagemaker", part)
            ]
            check_region(self.region, known)
        self._clients: Dict[str, Any] = {}

    def __call__(self, service: str, operation: str, **parameters: Any) -> Answer:
        """Call ``operation`` of ``service``, named as in AWS's reference of the API."""
        try:
            answer: Answer = getattr(self.client(service), xform_name(operation))(**parameters)
        except (BotoCoreError, ClientError) as error:
            raise_explained(error, operation, parameters)
        return answer

    def all(self, service: str, operation: str, key: str, **parameters: Any) -> List[Any]:
        """What stands under ``key`` on all pages of an answer."""
        found: List[Any] = []
        token: Dict[str, str] = {}
        while True:
            answer = self(service, operation, **parameters, **token)
            found += answer.get(key) or []
            if not answer.get("NextToken"):
                return found
            token = {"NextToken": answer["NextToken"]}

    def client(self, service: str) -> Any:
        """The boto3 client, made when it is first needed."""
        if service not in self._clients:
            retries = Config(retries={"max_attempts": 5, "mode": "standard"}, connect_timeout=10)
            self._clients[service] = self._session.client(
                service, region_name=home(service, self.region), config=retries
            )
        return self._clients[service]


class Noted(NamedTuple):
    """A call that a rehearsal noted."""

    service: str
    operation: str
    parameters: Dict[str, Any]


class Rehearsal(Caller):
    """Notes each call in ``noted`` and makes none: it needs neither a network nor credentials.

    Parameters are checked against botocore's description of the API. Answers are what AWS would say
    if there is a notebook or a job in ``status``, with all that was made for it, or nothing (None),
    and everything succeeds at once. What only AWS knows stands in angle brackets.
    """

    rehearses = True

    def __init__(
        self, profile: Optional[str], region: Optional[str], status: Optional[str]
    ) -> None:
        super().__init__(profile, region)
        self.region = self.region or "<region>"
        self.noted: List[Noted] = []
        self._status, self._there = status, status is not None
        self._models: Dict[str, Any] = {}
        self._loader = botocore.session.get_session()

    def __call__(self, service: str, operation: str, **parameters: Any) -> Answer:
        """Note the call, and answer it."""
        self._check(service, operation, parameters)
        self.noted.append(Noted(service, operation, parameters))
        answer = getattr(self, f"_{xform_name(operation)}", None)
        return answer(parameters) if answer else {}

    def _check(self, service: str, operation: str, parameters: Dict[str, Any]) -> None:
        if service not in self._models:
            self._models[service] = self._loader.get_service_model(service)
        shape = self._models[service].operation_model(operation).input_shape
        report = ParamValidator().validate(parameters, shape)
        if report.has_errors():
            raise AWSError(
                f"AWS would refuse {operation}: {' '.join(report.generate_report().split())}"
            )

    def _missing(self) -> AWSError:
        return AWSError("not there", "ResourceNotFound")

    def _get_caller_identity(self, parameters: Answer) -> Answer:
        return {"Account": "<account>", "Arn": "arn:aws:iam::<account>:user/<you>"}

    def _describe_notebook_instance(self, parameters: Answer) -> Answer:
        if self._status is None:
            raise self._missing()
        name = parameters["NotebookInstanceName"]
        place = f"arn:aws:sagemaker:{self.region}:<account>"
        return {
            "NotebookInstanceName": name,
            "NotebookInstanceArn": f"{place}:notebook-instance/{name}",
            "NotebookInstanceStatus": self._status,
            "RoleArn": f"arn:aws:iam::<account>:role/{name}",
        }

    def _create_notebook_instance(self, parameters: Answer) -> Answer:
        self._status = "InService"
        return {}

    _start_notebook_instance = _create_notebook_instance

    def _stop_notebook_instance(self, parameters: Answer) -> Answer:
        self._status = "Stopped"
        return {}

    def _delete_notebook_instance(self, parameters: Answer) -> Answer:
        self._status = None
        return {}

    def _describe_notebook_instance_lifecycle_config(self, parameters: Answer) -> Answer:
        if not self._there:
            raise self._missing()
        return {"OnStart": [{"Content": base64.b64encode(b"GLUONLAB_").decode("ascii")}]}

    def _get_role(self, parameters: Answer) -> Answer:
        if not self._there:
            raise self._missing()
        return self._create_role(parameters)

    def _create_role(self, parameters: Answer) -> Answer:
        return {
            "Role": {"Arn": f"arn:aws:iam::<account>:role/{parameters['RoleName']}", "Tags": [MINE]}
        }

    def _list_tags(self, parameters: Answer) -> Answer:
        return {"Tags": [MINE]}

    def _describe_training_job(self, parameters: Answer) -> Answer:
        return {"TrainingJobStatus": self._status}

    def _describe_log_streams(self, parameters: Answer) -> Answer:
        return {"logStreams": [{"logStreamName": f"{parameters['logStreamNamePrefix']}<stream>"}]}

    def _get_log_events(self, parameters: Answer) -> Answer:
        return {"events": [], "nextForwardToken": parameters.get("nextToken", "<token>")}

    def _create_training_job(self, parameters: Answer) -> Answer:
        self._status = "Completed"
        return {}
