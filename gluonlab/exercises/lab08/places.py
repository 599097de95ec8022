"""08-6: which host and which place there each rank of an LSF job has."""

from __future__ import annotations

from typing import Any, Callable, Iterable, List, Tuple

import numpy as np

from gluonlab.exercises.cases import draws
from gluonlab.exercises.exercise import exercise
from gluonlab.exercises.shared.counterexamples import is_not, returned
from gluonlab.exercises.shared.diagnosis import Mistake, explains, results
from gluonlab.host.launchers import lsf_hosts, lsf_place

Place = Tuple[str, int]
Hosts = List[Tuple[str, int]]


@exercise("08-6")
def places(answer: Callable[[str], List[Place]]) -> None:
    """The host of each rank of an LSF job, and its number there."""
    cases = ["gpu07 2", "gpu07 2 gpu03 2", "a 1 b 3 c 2", "a 2 b 1 a 2", "n12 4 n3 1 n12 1 n3 2"]
    cases += ["n1 10", "n2 3 n1 12"]
    random = draws(86)
    for _ in range(6):
        names = [f"gpu{number:02}" for number in random.permutation(20)[: random.randint(1, 5)]]
        again = [names[random.randint(len(names))] for _ in range(random.randint(0, 3))]
        cases.append(" ".join(f"{name} {random.randint(1, 5)}" for name in [*names, *again]))
    found = results(lambda text: _as_places(answer(text)), [(text,) for text in cases], _right)
    mistaken = found.wrong(_alike)
    if not mistaken:
        return
    (text,), got, want = mistaken[0]
    call = f"places({text!r})"
    if not isinstance(got, list) or not all(isinstance(one, tuple) for one in got):
        en = "a list with (host, local rank) of each rank"
        raise returned(got, call, en, "ランクごとの (ホスト, ローカルランク) のリスト")
    raise is_not(call, got, want, explains(found, _alike, *MISTAKES))


def _right(text: str) -> List[Place]:
    """As gluonlab itself finds them."""
    _, hosts = lsf_hosts({"LSB_MCPU_HOSTS": text})
    flat = [host.host for host in hosts for _ in range(host.slots)]
    return [(host, lsf_place(rank, hosts)[0]) for rank, host in enumerate(flat)]


def _as_places(given: Any) -> Any:
    """Pairs as tuples; numbers of numpy as Python's."""
    if not isinstance(given, Iterable) or isinstance(given, (str, dict)):
        return given
    pairs = list(given)
    if not all(isinstance(pair, (tuple, list)) for pair in pairs):
        return given
    return [
        tuple(one.item() if isinstance(one, np.generic) else one for one in pair) for pair in pairs
    ]


def _alike(got: Any, want: List[Place]) -> bool:
    return isinstance(got, list) and got == want


def _pairs(text: str) -> Hosts:
    words = text.split()
    return [(host, int(count)) for host, count in zip(words[::2], words[1::2])]


def _flat(text: str) -> List[str]:
    return [host for host, count in _pairs(text) for _ in range(count)]


def _numbered(hosts: Iterable[str]) -> List[Place]:
    """Each with its number among its like."""
    before: List[str] = []
    found = []
    for host in hosts:
        found.append((host, before.count(host)))
        before.append(host)
    return found


def _again_from_0(text: str) -> List[Place]:
    """Each entry of the list numbered by itself."""
    return [(host, n) for host, count in _pairs(text) for n in range(count)]


def _in_turns(text: str) -> List[Place]:
    """The first slot of each host, then the second of each, and so on."""
    numbered = _numbered(_flat(text))
    order = list(dict.fromkeys(_flat(text)))
    return sorted(numbered, key=lambda place: (place[1], order.index(place[0])))


def _merged(text: str) -> List[Place]:
    """All slots of a host, one after the other, where it comes first."""
    flat = _flat(text)
    return _numbered(host for name in dict.fromkeys(flat) for host in flat if host == name)


def _by(formula: Callable[[str], List[Any]]) -> Callable[..., bool]:
    return lambda text, got: _alike(got, formula(text))


MISTAKES: List[Mistake] = [
    (_by(lambda text: _again_from_0(text)),
     "a host that comes again goes on counting: two ranks would have the same place, and GPU",
     "もう一度出てきたホストでは番号が続きます。"
     "そうしないと 2 つのランクが同じ番号、つまり同じ GPU になります"),
    (_by(lambda text: [(host, rank) for rank, host in enumerate(_flat(text))]),
     "that is the rank in the job: the local rank begins at 0 on each host",
     "それはジョブ全体でのランクです。ローカルランクはホストごとに 0 から始まります"),
    (_by(_in_turns),
     "slots are filled host by host, not in turns",
     "スロットはホストごとに埋まります。順番に 1 つずつではありません"),
    (_by(_merged),
     "ranks go through the list as it stands: a host that comes again has later ranks",
     "ランクは並んでいる順に付きます。もう一度出てきたホストには後のランクが付きます"),
    (_by(lambda text: _numbered(sorted(_flat(text)))),
     "the hosts are in the order of the list, not of their names",
     "ホストの順序は名前の順ではなく、並んでいる順です"),
    (_by(lambda text: [(host, n + 1) for host, n in _numbered(_flat(text))]),
     "local ranks are counted from 0", "ローカルランクは 0 から数えます"),
    (_by(lambda text: _again_from_0(" ".join(f"{h} {n}" for h, n in dict(_pairs(text)).items()))),
     "a host that comes again has more slots; they do not replace the first ones",
     "もう一度出てきたホストではスロットが増えます。前の分と置き換わるのではありません"),
    (_by(lambda text: _numbered(h for h, count in _pairs(text) for _ in range(int(str(count)[0])))),
     "a number of slots may have two digits", "スロット数は 2 桁のこともあります"),
    (_by(lambda text: [(host, count) for host, count in _pairs(text)]),
     "there is one place for each slot, not one for each host",
     "ホストごとではなく、スロットごとに 1 つ要ります"),
]  # fmt: skip
