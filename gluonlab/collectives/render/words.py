"""The words of the page in each language.

What is in {braces} is filled in by the script, by the template, or by `scene`.
"""

from __future__ import annotations

from typing import Dict, Mapping, NamedTuple, Tuple

from gluonlab.collectives.algorithms import ALGORITHMS
from gluonlab.errors import ConfigError, unknown

Forms = Tuple[str, str]  # for one thing, and for any other number of them


class Shown(NamedTuple):
    """What the script writes into the page, step by step."""

    title: str
    play: str
    pause: str
    counter: str
    cell: str  # and what it holds
    ranks: str  # beside the numbers of the columns
    rank: str
    chunk: str
    sent: str  # the title of what is sent in a step,
    start: str  # of what there is before the first,
    silent: str  # and of a schedule without any
    own: str


class Words(NamedTuple):
    """All words of one language."""

    shown: Shown
    # the controls
    algorithm: str
    ranks: str
    speed: str
    slow: str
    normal: str
    fast: str
    steps: str
    previous: str
    next: str
    step: str
    # the picture, and what stands below it
    stage: str
    held: str
    new: str
    whole: str
    added: str
    copied: str
    help: str
    table: str
    keys: str  # HTML
    no_script: str
    # what `scene` makes of a schedule
    comma: str
    sizes: Tuple[Forms, Forms, Forms, Forms]  # ranks, chunks, steps, transfers
    chunks: Forms  # in a message
    contributions: Forms
    last: str  # between the last two of several
    times: str  # a rank, and how often it is in the sum
    nothing: str
    descriptions: Mapping[str, str]  # of the algorithms


ENGLISH = Words(
    shown=Shown(
        title="{name}, step by step",
        play="Play",
        pause="Pause",
        counter="step {step} of {last}",
        cell="rank {rank}, chunk {chunk}: {held}",
        ranks="rank",
        rank="rank {rank}",
        chunk="chunk {chunk}",
        sent="Sent in step {step}, rank to rank",
        start="Start",
        silent="Nothing is sent",
        own="Every rank has its own contribution only.",
    ),
    algorithm="Algorithm",
    ranks="Ranks",
    speed="Speed",
    slow="slow",
    normal="normal",
    fast="fast",
    steps="Steps",
    previous="Previous step",
    next="Next step",
    step="Step",
    stage="What every rank holds: a row a chunk, a column a rank",
    held="held before",
    new="came with the step",
    whole="whole",
    added="added",
    copied="copied over",
    help="Each column is a rank, which is one device; each row is a chunk of its buffer. "
    "A chunk has a segment for every rank, filled when that rank's contribution is in it. "
    "Point at a chunk to read it.",
    table="What every rank holds, as a table",
    keys="Keys: <kbd>←</kbd> <kbd>→</kbd> step, <kbd>space</kbd> plays and pauses, "
    "<kbd>Home</kbd> and <kbd>End</kbd> jump.",
    no_script="The steps are drawn by JavaScript, which is switched off here. "
    "Nothing is loaded from anywhere.",
    comma=", ",
    sizes=(
        ("{} rank", "{} ranks"),
        ("{} chunk", "{} chunks"),
        ("{} step", "{} steps"),
        ("{} transfer", "{} transfers"),
    ),
    chunks=("chunk {}", "chunks {}"),
    contributions=("rank {}", "ranks {}"),
    last=" and ",
    times="{} ({} times)",
    nothing="nothing",
    descriptions={
        name: next(iter((made.__doc__ or "").strip().splitlines()), "")
        for name, made in ALGORITHMS.items()
    },
)

JAPANESE = Words(
    shown=Shown(
        title="{name} を 1 ステップずつ",
        play="再生",
        pause="一時停止",
        counter="ステップ {step} / {last}",
        cell="ランク {rank}、チャンク {chunk}: {held}",
        ranks="ランク",
        rank="ランク {rank}",
        chunk="チャンク {chunk}",
        sent="ステップ {step} の転送 (送信元 → 送信先)",
        start="最初の状態",
        silent="転送なし",
        own="どのランクも、自分の寄与だけを持っています。",
    ),
    algorithm="アルゴリズム",
    ranks="ランク数",
    speed="速さ",
    slow="遅い",
    normal="普通",
    fast="速い",
    steps="ステップの操作",
    previous="前のステップ",
    next="次のステップ",
    step="ステップ",
    stage="各ランクが持つもの: 行はチャンク、列はランク",
    held="前からある寄与",
    new="このステップで届いた寄与",
    whole="完成したチャンク",
    added="足す",
    copied="上書きする",
    help="列はランクで、1 台のデバイスにあたります。行は、その配列を切り分けたチャンクです。"
    "どのチャンクにもランクごとの区画があり、そのランクの寄与が入ると塗られます。"
    "チャンクを指すと中身が読めます。",
    table="各ランクが持つもの (表)",
    keys="キー操作: <kbd>←</kbd> <kbd>→</kbd> で 1 ステップ移動、"
    "<kbd>スペース</kbd>で再生と一時停止、<kbd>Home</kbd> と <kbd>End</kbd> で最初と最後へ",
    no_script="ステップの描画には JavaScript が必要ですが、無効になっています。"
    "このページは外部から何も読み込みません。",
    comma="、",
    sizes=(
        ("{} ランク", "{} ランク"),
        ("{} チャンク", "{} チャンク"),
        ("{} ステップ", "{} ステップ"),
        ("転送 {}\N{NO-BREAK SPACE}回", "転送 {}\N{NO-BREAK SPACE}回"),
    ),
    chunks=("チャンク {}", "チャンク {}"),
    contributions=("ランク {} の寄与", "ランク {} の寄与"),
    last=", ",
    times="{} ({} 回)",
    nothing="なし",
    descriptions={
        "star": "すべてをランク 0 に集めて、戻します。"
        'Dive into Deep Learning の節 "Training on Multiple GPUs" にある allreduce です。',
        "sharded": (
            "各ランクが、自分のチャンク (または自分のパラメータ) を合計します。"
            "同じ節 (star を参照) の演習 3 の答えです。"
        ),
        "tree": (
            "平衡二分木を上り、また下ります。チャンクが複数あればパイプラインになり、"
            "木の各段が別々のチャンクを扱います。"
        ),
        "double_tree": "2 つの木を同時に使い、チャンクの半分ずつを運びます。"
        "一方で中継するランクは他方では葉になるので、すべてのポートが使われます。",
        "ring": (
            "チャンクがリングを 1 周して合計され、もう 1 周して配られます。"
            "どのランクも、通信する相手は両隣だけです。"
        ),
        "bidirectional_ring": (
            "右回りと左回りの 2 つのリングが、チャンクを半分ずつ運びます。"
            "隣どうしのリンクが両方向に使われます。"
        ),
        "halving_doubling": (
            "ring と同じバイト数を、往路と復路のそれぞれで p-1 回ではなく log2(p) "
            "回のメッセージで送ります (p はランク数)。"
            "離れた相手とも通信するので、リング状ではないネットワークが必要です。"
        ),
        "hierarchical": (
            "グループの中で合計し、次にグループの間で合計し、最後にグループの中で配ります。"
            "どのチャンクも、遅いリンクを行きと帰りに 1 回ずつ通るだけです。"
        ),
    },
)

WORDS: Dict[str, Words] = {"en": ENGLISH, "ja": JAPANESE}


def words_of(language: str) -> Words:
    """Raises ConfigError, with the choices, for a language that the page does not speak."""
    if language not in WORDS:
        raise ConfigError(unknown("language", language, WORDS))
    return WORDS[language]
