"""What tests read from the figures of a chart."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from perfdag.charts.pictures import charts
from perfdag.charts.view import figures
from perfdag.results.summary import points_of


def drawn(benchmark: str, rows: pa.Table) -> dict[str, Figure]:
    """The figures of a benchmark by their slugs."""
    return dict(figures(points_of(rows), rows, charts(benchmark)))


def artists(ax: Axes, gid: str) -> list[Any]:
    """The artists whose id begins so."""
    return [item for item in ax.get_children() if (item.get_gid() or "").startswith(gid)]


def artist(ax: Axes, gid: str) -> Any:
    """The only artist with this id."""
    [item] = [each for each in artists(ax, gid) if each.get_gid() == gid]
    return item


def names(texts: Iterable[Text]) -> list[str]:
    return [text.get_text() for text in texts]


def words(figure: Figure) -> str:
    """All text of a figure on one line."""
    return " ".join(" ".join(names(figure.findobj(Text))).split())


def title(figure: Figure) -> str:
    [text] = [text.get_text() for text in figure.texts if text.get_gid() == "title"]
    return " ".join(text.split())
