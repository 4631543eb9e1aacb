"""MkDocs hooks: formulas become MathML, which browsers draw without a script or a font, and flags stay on one line.

Pages write formulas for GitHub: LaTeX in a block that is fenced as `math`, or between $` and `$ in a line.
"""

import html
import re
from typing import Any

from latex2mathml.converter import convert

BLOCK = re.compile(r'<pre><code class="language-math">(.*?)</code></pre>', re.DOTALL)
INLINE = re.compile(r"\$<code>(.*?)</code>\$")
CODE = re.compile(r"(?<!<pre>)<code>([^<]*)</code>")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def on_page_content(text: str, **_: Any) -> str:
    """Return the HTML of a page with MathML and unbroken flags. Raise what the converter raises for broken LaTeX."""
    text = BLOCK.sub(lambda found: f'<div class="formula">{_mathml(found[1], "block")}</div>', text)
    text = INLINE.sub(lambda found: _mathml(found[1], "inline"), text)
    return CODE.sub(lambda found: f"<code>{FLAG.sub(_whole, found[1])}</code>", text)


def _mathml(latex: str, display: str) -> str:
    return convert(html.unescape(latex).strip(), display=display)


def _whole(flag: re.Match[str]) -> str:
    """Return a flag in an element without line breaks: browsers break lines after hyphens."""
    return f'<span class="flag">{flag[0]}</span>'
