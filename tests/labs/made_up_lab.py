"""A folder of sources with one small lab, or with one that a test has spoiled."""

SOURCE = '''---
title: {en: "Adding", ja: "足し算"}
minutes: 5
needs: []
---
:::{en}
## Goals {#goals}
- One `name`, $x^2$, and [a reference](https://example.org).
- See {sec:work}, {ex:01-1}, {fig:dot} and {lab:02}; `{sec:raw}` is code.
:::
:::{ja}
## ねらい {#goals}
- `name` が 1 つ、$x^2$、[文献](https://example.org)。
- {sec:work}、{ex:01-1}、{fig:dot}、{lab:02} を参照。`{sec:raw}` はコード。
:::

```{code-cell} ipython3
import gluonlab
from gluonlab.exercises import check, setup
```

:::{en}
![A dot](figures/dot.svg "The `dot`")
:::
:::{ja}
![点](figures/dot.svg "`dot` です")
:::

:::{en}
## Work {#work}
```sh
python -m gluonlab.exercises list
```
### Exercise 01-1: Add
:::
:::{ja}
## 作業 {#work}
```sh
python -m gluonlab.exercises list
```
### 演習 01-1: 足す
:::

```{code-cell} ipython3
:tags: [exercise-01-1]
def add(a, b):
    """The sum."""
    raise NotImplementedError
```

```{code-cell} ipython3
check("01-1", add)
```
'''
SECOND = """---
title: {en: "More", ja: "続き"}
minutes: 5
needs: ["01"]
---
:::{en}
## Goals
As {ex:01-1}.
:::
:::{ja}
## ねらい
{ex:01-1} と同じです。
:::
"""
FIGURE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 40" role="img">
  <defs><marker id="head" viewBox="0 0 8 8"><path d="M0 0 8 4z"/></marker></defs>
  <text x="1" y="20" lang="en">dot</text>
  <text x="1" y="20" lang="ja">点</text>
  <path d="M0 0H9" marker-end="url(#head)"/>
</svg>
"""
SOLUTION = "def add(a, b):\n    return a + b\n"
CHECKERS = {"01-1"}


def write(root, source=SOURCE, second=SECOND, figure=FIGURE, solution=SOLUTION):
    """The folder ``root`` with these files; None leaves one out."""
    contents = {
        "source/01-add.md": source,
        "source/02-more.md": second,
        "source/figures/dot.svg": figure,
        "solutions/01-1.py": solution,
    }
    for name, text in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is not None:
            path.write_text(text, encoding="utf-8")
    return root
