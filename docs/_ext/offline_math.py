"""Formulas as MathML, which browsers show by themselves.

MathJax would be fetched over the network by every reader; without one, a page shows raw TeX.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext(), display="inline"))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer; ``html_math_renderer`` chooses it."""
    app.add_html_math_renderer("offline", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
