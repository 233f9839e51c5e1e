"""Formulas as MathML, which browsers draw themselves. No script is loaded, so the pages work without a network."""

import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx

# Commands that the converter of docutils does not know. MathML stretches brackets without \big.
REPLACEMENTS = ((r"\\[bB]ig(?![a-zA-Z])", ""), (r"\\dots(?![a-zA-Z])", r"\\ldots"), ("°", r"^{\\circ}"))


def convert(latex: str, is_block: bool) -> str:
    """Return the MathML of a formula."""
    for pattern, replacement in REPLACEMENTS:
        latex = re.sub(pattern, replacement, latex)
    written: str = tex2mathml(" ".join(latex.split()), is_block)
    return re.sub(r"<mo[^>]*>‖</mo>", '<mo stretchy="false">‖</mo>', written)  # both bars of a norm have one length


def visit_inline(self: Any, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    self.body.append(convert(node.astext(), False))
    raise nodes.SkipNode


def visit_block(self: Any, node: nodes.math_block) -> None:
    """Write a formula in a block of its own."""
    self.body.append(f'<div class="math">{convert(node.astext(), True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
