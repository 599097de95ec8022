"""What a training job has printed: CloudWatch keeps a stream for each host and each start."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, NamedTuple

from gluonlab_sagemaker.calls import Answer, Caller
from gluonlab_sagemaker.errors import AWSError

GROUP = "/aws/sagemaker/TrainingJobs"
LAST = 30  # lines that are shown of a job that has failed


class Line(NamedTuple):
    """A line of a host, and when it came, in milliseconds."""

    at: int
    host: str
    text: str


class Log:
    """The log of the job ``name``, read onwards: each `new` returns what has come since."""

    def __init__(self, caller: Caller, name: str) -> None:
        self._caller, self._name = caller, name
        self._tokens: Dict[str, str] = {}  # of each stream, where reading goes on

    def new(self) -> List[Line]:
        """The lines since the last call, of all hosts, in the order of their times."""
        return sorted(
            (line for stream in self._streams() for line in self._onwards(stream)),
            key=lambda line: line.at,
        )

    def last(self, count: int = LAST) -> List[Line]:
        """The last lines of all hosts together."""
        found: List[Line] = []
        for stream in self._streams():
            found += _lines(stream, self._events(stream, limit=count, startFromHead=False))
        return sorted(found, key=lambda line: line.at)[-count:]

    def _streams(self) -> List[str]:
        """NAME/algo-1-1700000000; none before the job has printed anything."""
        found: List[str] = []
        token: Dict[str, str] = {}
        while True:
            try:
                answer = self._caller(
                    "logs",
                    "DescribeLogStreams",
                    logGroupName=GROUP,
                    logStreamNamePrefix=f"{self._name}/",
                    **token,
                )
            except AWSError as error:
                if error.missing:
                    return []
                raise
            found += [stream["logStreamName"] for stream in answer.get("logStreams", [])]
            if not answer.get("nextToken"):
                return found
            token = {"nextToken": answer["nextToken"]}

    def _onwards(self, stream: str) -> Iterator[Line]:
        """To the end, which is where CloudWatch gives the token back that it got."""
        while True:
            before = self._tokens.get(stream)
            answer = self._events(
                stream, startFromHead=True, **({} if before is None else {"nextToken": before})
            )
            yield from _lines(stream, answer)
            self._tokens[stream] = answer["nextForwardToken"]
            if self._tokens[stream] == before:
                return

    def _events(self, stream: str, **more: Any) -> Answer:
        return self._caller(
            "logs", "GetLogEvents", logGroupName=GROUP, logStreamName=stream, **more
        )


def written(lines: List[Line], several: bool) -> List[str]:
    """Lines as they are shown: with their hosts, if there are ``several``."""
    return [f"{line.host}: {line.text}" if several else line.text for line in lines]


def _lines(stream: str, answer: Answer) -> Iterator[Line]:
    host = stream.rpartition("/")[2].rpartition("-")[0]
    for event in answer.get("events", []):
        yield Line(event["timestamp"], host, event["message"].rstrip())
