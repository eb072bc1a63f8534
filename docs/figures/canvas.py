"""A small SVG writer: boxes, arrows and text, in colours for light and dark pages.

Pictures are drawn for a width of 480 so that a phone shows their text at a readable size. The
writer uses no library and no clock, so the same drawing gives the same bytes everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

__all__ = ["WIDTH", "Picture", "Words"]

WIDTH = 480
Words = Callable[[str], str]
"""Returns the text to draw for an English one."""

# Class, then what it sets in light and in dark.
_COLOURS = {
    ".ink": ("fill: #1f2328", "fill: #e6edf3"),
    ".faint": ("fill: #57606a", "fill: #9da7b3"),
    ".line": ("stroke: #57606a", "stroke: #9da7b3"),
    ".grid": ("stroke: #d0d7de", "stroke: #3d444d"),
    ".tip": ("fill: #57606a", "fill: #9da7b3"),
    ".stop": ("stroke: #cf222e", "stroke: #ff7b72"),
    ".stop-ink": ("fill: #cf222e", "fill: #ff7b72"),
    ".plain": ("fill: #f6f8fa; stroke: #8c959f", "fill: #21262d; stroke: #6e7681"),
    ".server": ("fill: #dbeafe; stroke: #2563eb", "fill: #172f54; stroke: #60a5fa"),
    ".client": ("fill: #dcfce7; stroke: #16a34a", "fill: #123524; stroke: #4ade80"),
    ".memory": ("fill: #fef3c7; stroke: #b45309", "fill: #40310f; stroke: #fbbf24"),
    ".tone-0": ("fill: #6b7280", "fill: #9ca3af"),
    ".tone-1": ("fill: #d97706", "fill: #fbbf24"),
    ".tone-2": ("fill: #2563eb", "fill: #60a5fa"),
    ".tone-3": ("fill: #16a34a", "fill: #4ade80"),
    ".tone-4": ("fill: #9333ea", "fill: #c084fc"),
}


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


class Picture:
    """Collects shapes and returns them as the text of an SVG file.

    Parameters
    ----------
    height : float
        Height for a width of 480.
    title : str
        What the picture shows, for readers that do not see it.
    words : callable
        Translates every text that is drawn.
    """

    def __init__(self, height: float, title: str, words: Words) -> None:
        self._height = height
        self._words = words
        self._title = words(title)
        self._shapes: list[str] = []

    def rectangle(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        look: str = "plain",
        *,
        radius: float = 6,
        dashed: bool = False,
    ) -> None:
        """Add a rectangle with rounded corners."""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(
            f'<rect class="{look}" x="{_number(x)}" y="{_number(y)}" width="{_number(width)}" '
            f'height="{_number(height)}" rx="{_number(radius)}"{dashes}/>'
        )

    def text(
        self,
        x: float,
        y: float,
        text: str,
        look: str = "ink",
        *,
        size: int = 14,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Add one line of text; `y` is its baseline."""
        weight = ' font-weight="600"' if bold else ""
        self._shapes.append(
            f'<text class="{look}" x="{_number(x)}" y="{_number(y)}" font-size="{size}" '
            f'text-anchor="{anchor}"{weight}>{escape(self._words(text))}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        lines: Sequence[str],
        look: str = "plain",
        *,
        dashed: bool = False,
    ) -> float:
        """Add a box around centred lines, the first one bold; return the y of its lower edge."""
        height = 14 + 18 * len(lines)
        self.rectangle(x, y, width, height, look, dashed=dashed)
        for number, line in enumerate(lines):
            baseline = y + 21 + 18 * number
            size = 14 if number == 0 else 13
            self.text(x + width / 2, baseline, line, size=size, bold=number == 0)
        return y + height

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        look: str = "line",
        *,
        dashed: bool = False,
    ) -> None:
        """Add a straight line."""
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        self._shapes.append(
            f'<line class="{look}" x1="{_number(x1)}" y1="{_number(y1)}" x2="{_number(x2)}" '
            f'y2="{_number(y2)}"{dashes}/>'
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float, *, dashed: bool = False) -> None:
        """Add a straight arrow from the first point to the second."""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        back_x, back_y = x2 - 9 * dx, y2 - 9 * dy
        self.line(x1, y1, back_x, back_y, dashed=dashed)
        corners = [
            (x2, y2),
            (back_x - 4.5 * dy, back_y + 4.5 * dx),
            (back_x + 4.5 * dy, back_y - 4.5 * dx),
        ]
        points = " ".join(f"{_number(x)},{_number(y)}" for x, y in corners)
        self._shapes.append(f'<polygon class="tip" points="{points}"/>')

    def svg(self) -> str:
        """Return the content of the file."""
        light = "".join(f"{name} {{ {values[0]} }}\n" for name, values in _COLOURS.items())
        dark = "".join(f"{name} {{ {values[1]} }}\n" for name, values in _COLOURS.items())
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} '
            f'{_number(self._height)}" font-family="system-ui, sans-serif" role="img">\n'
            f"<title>{escape(self._title)}</title>\n"
            f"<style>\nrect, line {{ stroke-width: 1.5 }}\n{light}"
            f"@media (prefers-color-scheme: dark) {{\n{dark}}}\n</style>\n"
        )
        return head + "\n".join(self._shapes) + "\n</svg>\n"
