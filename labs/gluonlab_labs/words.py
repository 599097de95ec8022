"""The translated words that the build itself writes."""

from __future__ import annotations

from typing import Any, Dict

WORDS: Dict[str, Any] = {
    "en": {
        "lab": "Lab {}",
        "section": "Section {}",
        "figure": "Figure {}",
        "exercise": "Exercise {}",
        "time": "Time",
        "minutes": "about {} minutes",
        "needs": "Before it",
        "nothing": "nothing but Python",
        "comma": ", ",
        "language": "English",
        "labs": "All labs",
        "contents": "Contents",
        "turn": "Labs before and after",
        "theme": "Light / dark",
        "previous": "Previous",
        "next": "Next",
        "fullscreen": "Full screen",
        "notes": "Notes",
        "presenter": "Presenter",
        "slide": "slide",
        "slides": "{} slides",
        "place": "{} / {}",
        "player": "A page that animates the schedule {}",
        "ask": "Your guess",
        "elapsed": "since the start",
        "keys": "← → or space: slides · Home, End · f: full screen · n: notes · p: presenter",
        "made": "run on the machine that built this page; your machine will print other times",
        "guess": "Your guess first: {}",
        "column": "Lab",
        "short": "{} min",
        "hours": "{} labs, about {} hours in all.",
        "introduction": (
            "Two devices, one model: learn what the devices have to exchange, why they are rarely twice as fast, "
            "and how to check that they compute the right thing. Each lab asks you to guess before it measures.",
            "Take the labs in this order, or follow the last column: a lab needs only the labs in its last column. "
            "The times include all exercises.",
            "These pages show the notebooks as they ran on one machine. You can read, project or print them. The "
            "results are folded under a question: answer it, then open the result. To measure on your own devices "
            "and to check your exercises, work in the notebooks: <code>make jupyter</code>.",
        ),
    },
    "ja": {
        "lab": "ラボ {}",
        "section": "{} 節",
        "figure": "図 {}",
        "exercise": "演習 {}",
        "time": "所要時間",
        "minutes": "約 {} 分",
        "needs": "前提",
        "nothing": "Python の基礎だけ",
        "comma": "、",
        "language": "日本語",
        "labs": "ラボ一覧",
        "contents": "目次",
        "turn": "前後のラボ",
        "theme": "ライト / ダーク",
        "previous": "前へ",
        "next": "次へ",
        "fullscreen": "全画面",
        "notes": "ノート",
        "presenter": "発表者",
        "slide": "スライド",
        "slides": "スライド {} 枚",
        "place": "{} / {}",
        "player": "スケジュール {} を再生するページ",
        "ask": "予想してみましょう",
        "elapsed": "開始からの時間",
        "keys": "← → またはスペース: 移動 · Home、End · f: 全画面 · n: ノート · p: 発表者用の画面",
        "made": "このページを作ったマシンで実行した結果です。時間は環境によって変わります",
        "guess": "先に予想を: {}",
        "column": "ラボ",
        "short": "{} 分",
        "hours": "ラボは {} つ、全部で約 {} 時間です。",
        "introduction": (
            "2 台のデバイスで 1 つのネットワークを学習するとき、何を転送しなければならないのか。なぜめったに 2 "
            "倍速くならないのか。計算が正しいことを、どう確かめるのか。どのラボでも、測る前にまず予想します。",
            "上から順に進めるか、右端の列に従ってください。そこに挙げたラボのほかに前提はありません。"
            "時間は、演習をすべて解く場合のものです。",
            "これらのページは、あるマシンでノートブックを実行したもので、読む、投影する、印刷するためにあります。"
            "結果は問いの下に折りたたんであります。答えてから開いてください。自分のデバイスで測り、"
            "演習の採点を受けるには、ノートブックで作業します: <code>make jupyter</code>",
        ),
    },
}
OTHER = {"en": "ja", "ja": "en"}
