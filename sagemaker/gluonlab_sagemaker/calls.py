"""Calls to AWS by name, and a dry run that records calls instead.

The other modules call AWS through a `Caller`. With --dry-run they get a `DryRunCaller`.
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

from gluonlab_sagemaker.checks import PROJECT_TAG, check_region
from gluonlab_sagemaker.errors import AWSError, raise_explained

Response = Dict[str, Any]
PARTITIONS = ("aws", "aws-cn", "aws-us-gov")


def service_region(service: str, region: Optional[str]) -> Optional[str]:
    """Return the region whose endpoint answers about ``region``."""
    # The price list has an endpoint in few regions.
    if service != "pricing":
        return region
    return "cn-northwest-1" if (region or "").startswith("cn-") else "us-east-1"


class Caller:
    """AWS as a function: ``caller("sagemaker", "StopNotebookInstance", ...)``.

    boto3 finds the credentials. Errors are raised as AWSError, in one line.
    """

    is_dry_run = False

    def __init__(self, profile: Optional[str], region: Optional[str]) -> None:
        try:
            self._session = boto3.Session(profile_name=profile, region_name=region)
            self.region = self._session.region_name
        except BotoCoreError as error:
            raise_explained(error, "", {})
        if self.region is not None:
            available_regions = [
                name for partition in PARTITIONS for name in self._session.get_available_regions("sagemaker", partition)
            ]
            check_region(self.region, available_regions)
        self._clients: Dict[str, Any] = {}

    def __call__(self, service: str, operation: str, **parameters: Any) -> Response:
        """Call ``operation`` of ``service``, with the names of AWS's API reference."""
        try:
            response: Response = getattr(self.service_client(service), xform_name(operation))(**parameters)
        except (BotoCoreError, ClientError) as error:
            raise_explained(error, operation, parameters)
        return response

    def list_all(self, service: str, operation: str, key: str, **parameters: Any) -> List[Any]:
        """Return the items under ``key`` on all pages of a response."""
        items: List[Any] = []
        token: Dict[str, str] = {}
        while True:
            response = self(service, operation, **parameters, **token)
            items += response.get(key) or []
            if not response.get("NextToken"):
                return items
            token = {"NextToken": response["NextToken"]}

    def service_client(self, service: str) -> Any:
        """Return the boto3 client of a service, created on first use."""
        if service not in self._clients:
            retries = Config(retries={"max_attempts": 5, "mode": "standard"}, connect_timeout=10)
            self._clients[service] = self._session.client(
                service, region_name=service_region(service, self.region), config=retries
            )
        return self._clients[service]


class RecordedCall(NamedTuple):
    """A call that a dry run recorded."""

    service: str
    operation: str
    parameters: Dict[str, Any]


class DryRunCaller(Caller):
    """A caller that records calls in ``recorded_calls``, without network and credentials.

    It checks parameters against botocore's description of the API. Responses assume a notebook or a
    job in ``status``, together with its role and scripts, or no resource at all (None). Every call
    succeeds at once. Values that only AWS knows appear in angle brackets.
    """

    is_dry_run = True

    def __init__(self, profile: Optional[str], region: Optional[str], status: Optional[str]) -> None:
        super().__init__(profile, region)
        self.region = self.region or "<region>"
        self.recorded_calls: List[RecordedCall] = []
        self._status, self._exists = status, status is not None
        self._models: Dict[str, Any] = {}
        self._loader = botocore.session.get_session()

    def __call__(self, service: str, operation: str, **parameters: Any) -> Response:
        """Record the call, and return a made-up response."""
        self._check_parameters(service, operation, parameters)
        self.recorded_calls.append(RecordedCall(service, operation, parameters))
        respond = getattr(self, f"_{xform_name(operation)}", None)
        return respond(parameters) if respond else {}

    def _check_parameters(self, service: str, operation: str, parameters: Dict[str, Any]) -> None:
        if service not in self._models:
            self._models[service] = self._loader.get_service_model(service)
        shape = self._models[service].operation_model(operation).input_shape
        report = ParamValidator().validate(parameters, shape)
        if report.has_errors():
            raise AWSError(f"AWS would refuse {operation}: {' '.join(report.generate_report().split())}")

    def _not_found_error(self) -> AWSError:
        return AWSError("not there", "ResourceNotFound")

    def _get_caller_identity(self, parameters: Dict[str, Any]) -> Response:
        return {"Account": "<account>", "Arn": "arn:aws:iam::<account>:user/<you>"}

    def _describe_notebook_instance(self, parameters: Dict[str, Any]) -> Response:
        if self._status is None:
            raise self._not_found_error()
        name = parameters["NotebookInstanceName"]
        arn_prefix = f"arn:aws:sagemaker:{self.region}:<account>"
        return {
            "NotebookInstanceName": name,
            "NotebookInstanceArn": f"{arn_prefix}:notebook-instance/{name}",
            "NotebookInstanceStatus": self._status,
            "RoleArn": f"arn:aws:iam::<account>:role/{name}",
        }

    def _create_notebook_instance(self, parameters: Dict[str, Any]) -> Response:
        self._status = "InService"
        return {}

    _start_notebook_instance = _create_notebook_instance

    def _stop_notebook_instance(self, parameters: Dict[str, Any]) -> Response:
        self._status = "Stopped"
        return {}

    def _delete_notebook_instance(self, parameters: Dict[str, Any]) -> Response:
        self._status = None
        return {}

    def _describe_notebook_instance_lifecycle_config(self, parameters: Dict[str, Any]) -> Response:
        if not self._exists:
            raise self._not_found_error()
        return {"OnStart": [{"Content": base64.b64encode(b"GLUONLAB_").decode("ascii")}]}

    def _get_role(self, parameters: Dict[str, Any]) -> Response:
        if not self._exists:
            raise self._not_found_error()
        return self._create_role(parameters)

    def _create_role(self, parameters: Dict[str, Any]) -> Response:
        return {"Role": {"Arn": f"arn:aws:iam::<account>:role/{parameters['RoleName']}", "Tags": [PROJECT_TAG]}}

    def _list_tags(self, parameters: Dict[str, Any]) -> Response:
        return {"Tags": [PROJECT_TAG]}

    def _describe_training_job(self, parameters: Dict[str, Any]) -> Response:
        return {"TrainingJobStatus": self._status}

    def _describe_log_streams(self, parameters: Dict[str, Any]) -> Response:
        return {"logStreams": [{"logStreamName": f"{parameters['logStreamNamePrefix']}<stream>"}]}

    def _get_log_events(self, parameters: Dict[str, Any]) -> Response:
        return {"events": [], "nextForwardToken": parameters.get("nextToken", "<token>")}

    def _create_training_job(self, parameters: Dict[str, Any]) -> Response:
        self._status = "Completed"
        return {}
