"""Where data sets lie, which are there, and whether their servers can be reached."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import List, Mapping, NamedTuple, Tuple

from gluonlab.doctor.findings import Finding, fault, ok, one_line, plural, warning
from gluonlab.doctor.host import place
from gluonlab.errors import GluonlabError

TIMEOUT_S = 8.0
OWN_FOLDER = "name another folder: export GLUONLAB_DATA=DIR, or --data-dir DIR"
REASONS = (
    "Name or service not known",
    "Temporary failure in name resolution",
    "Connection refused",
    "unreachable",
)


def folder() -> List[Finding]:
    """The folder of all data sets, and those that are complete in it."""
    from gluonlab.data.fetching.location import data_root, folder_of
    from gluonlab.data.fetching.sources import SOURCES

    try:
        root = data_root()
    except GluonlabError as error:
        return [warning("data", "there is no folder for data sets", str(error), OWN_FOLDER)]
    here = [name for name, source in SOURCES.items() if folder_of(source, root) is not None]
    held = "only digits, which is built in, is here"
    held = f"here are {', '.join(here)}, and digits" if here else held
    return [place("data", f"data sets ({held})", root, OWN_FOLDER)]


class Reply(NamedTuple):
    """A server's reply to a HEAD request: ``problem`` is empty when the file is there."""

    url: str
    problem: str


def mirrors(sources: Mapping[str, Tuple[str, ...]], timeout_s: float = TIMEOUT_S) -> List[Finding]:
    """``sources``: data set -> the addresses of its first file. All are tried at the same time."""
    urls = [url for urls in sources.values() for url in urls]
    with ThreadPoolExecutor(max_workers=max(1, len(urls))) as pool:
        replies = dict(zip(urls, pool.map(lambda url: head(url, timeout_s), urls)))
    return [_reached(name, [replies[url] for url in urls]) for name, urls in sources.items()]


def addresses() -> Mapping[str, Tuple[str, ...]]:
    """Data set -> where its first file may be fetched."""
    from gluonlab.data.fetching.sources import SOURCES

    return {
        name: tuple(mirror + source.files[0].name for mirror in source.mirrors)
        for name, source in SOURCES.items()
    }


def head(url: str, timeout_s: float = TIMEOUT_S) -> Reply:
    """Request a file's headers alone; proxies are those of the environment."""
    import requests

    try:
        answer = requests.head(url, timeout=timeout_s, allow_redirects=True)
        # a server that knows no HEAD: the beginning of the file will do
        if answer.status_code in (405, 501):
            answer = requests.get(url, timeout=timeout_s, stream=True)
            answer.close()
    except requests.Timeout:
        return Reply(url, f"no answer within {timeout_s:g} s")
    except requests.RequestException as error:
        return Reply(url, _reason(error))
    return Reply(url, "" if answer.ok else f"status {answer.status_code}")


def _reason(error: Exception) -> str:
    """The innermost words of an exception of requests, which wraps three others."""
    text = one_line(str(error))
    proxy = "the proxy: " if "to proxy" in text or type(error).__name__ == "InvalidProxyURL" else ""
    other = f"{type(error).__name__}: {text[:120]}"
    return proxy + next((reason for reason in REASONS if reason in text), other)


def _reached(name: str, replies: List[Reply]) -> Finding:
    bad, count = [reply for reply in replies if reply.problem], plural(len(replies), "mirror")
    problems = "; ".join(f"{reply.url}: {reply.problem}" for reply in bad)
    if not bad:
        return ok("network", f"{name}: {count} reached")
    if len(bad) < len(replies):
        cure = "nothing to do: the others are tried in turn"
        return warning("network", f"{name}: {len(bad)} of {count} fail", problems, cure)
    cure = "check the network and HTTPS_PROXY, or give a mirror of your own: "
    cure += f"gluonlab.data download {name} --mirror URL"
    return fault("network", f"{name} cannot be downloaded", problems, cure)
