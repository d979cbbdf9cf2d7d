"""Charts that a user asks for by file name."""

from pathlib import Path

from matplotlib.figure import Figure

from perfdag.charts.files import to_bytes


def write_chart(path: Path, figure: Figure) -> None:
    """Write a figure as PNG if the file name ends so, else as SVG. Raises OSError."""
    svg, png = to_bytes(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png if path.suffix == ".png" else svg)
