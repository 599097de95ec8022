"""Logs of a training job in CloudWatch, which has a stream for each host and each start."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple

from gluonlab_sagemaker.calls import Caller, Response
from gluonlab_sagemaker.errors import AWSError

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
MAX_SHOWN_LINES = 30  # of the log of a job that failed


class LogLine(NamedTuple):
    """A line of a host's log."""

    timestamp_ms: int
    host: str
    text: str


class JobLog:
    """The log of the job ``name``; each `read_new` returns the lines since the last call."""

    def __init__(self, caller: Caller, name: str) -> None:
        self._caller, self._name = caller, name
        self._tokens: Dict[str, str] = {}  # of each stream, the position of the next line

    def read_new(self) -> List[LogLine]:
        """Return the lines of all hosts since the last call, in the order of their times."""
        return sorted(
            (line for stream in self._stream_names() for line in self._read_stream(stream)),
            key=lambda line: line.timestamp_ms,
        )

    def read_last(self, count: int = MAX_SHOWN_LINES) -> List[LogLine]:
        """Return the last ``count`` lines of all hosts together."""
        lines: List[LogLine] = []
        for stream in self._stream_names():
            lines += _parse_lines(stream, self._get_events(stream, limit=count, startFromHead=False))
        return sorted(lines, key=lambda line: line.timestamp_ms)[-count:]

    def _stream_names(self) -> List[str]:
        """Return names like NAME/algo-1-1700000000; none before the job prints its first line."""
        names: List[str] = []
        token: Dict[str, str] = {}
        while True:
            try:
                response = self._caller(
                    "logs", "DescribeLogStreams", logGroupName=LOG_GROUP, logStreamNamePrefix=f"{self._name}/", **token
                )
            except AWSError as error:
                if error.is_not_found:
                    return []
                raise
            names += [stream["logStreamName"] for stream in response.get("logStreams", [])]
            if not response.get("nextToken"):
                return names
            token = {"nextToken": response["nextToken"]}

    def _read_stream(self, stream: str) -> Iterator[LogLine]:
        while True:
            token = self._tokens.get(stream)
            response = self._get_events(stream, startFromHead=True, **({} if token is None else {"nextToken": token}))
            yield from _parse_lines(stream, response)
            self._tokens[stream] = response["nextForwardToken"]
            if self._tokens[stream] == token:  # CloudWatch's sign of the end of a stream
                return

    def _get_events(self, stream: str, **parameters: Any) -> Response:
        return self._caller("logs", "GetLogEvents", logGroupName=LOG_GROUP, logStreamName=stream, **parameters)


def format_lines(lines: List[LogLine], show_hosts: bool) -> List[str]:
    """Format lines, with the names of their hosts if ``show_hosts`` is true."""
    return [f"{line.host}: {line.text}" if show_hosts else line.text for line in lines]


def _parse_lines(stream: str, response: Response) -> Iterator[LogLine]:
    host = stream.rpartition("/")[2].rpartition("-")[0]
    for event in response.get("events", []):
        yield LogLine(event["timestamp"], host, event["message"].rstrip())
