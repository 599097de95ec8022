"""The words that build.py writes itself."""

from __future__ import annotations

WORDS = {
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
        "made": "run on the machine that made this page; yours will print other times",
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
        "made": "このページを作ったマシンで実行した結果です。時間は環境によって変わります",
    },
}
OTHER = {"en": "ja", "ja": "en"}
