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
    },
    "ja": {
        "lab": "ラボ {}",
        "section": "{} 節",
        "figure": "図 {}",
        "exercise": "演習 {}",
        "time": "所要時間",
        "minutes": "約 {} 分",
        "needs": "先に済ませるもの",
        "nothing": "Python の基礎だけ",
        "comma": "、",
        "language": "日本語",
    },
}
OTHER = {"en": "ja", "ja": "en"}
