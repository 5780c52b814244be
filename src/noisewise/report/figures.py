"""Figures of results as inline SVG that follows the page's colours, light or dark."""

from __future__ import annotations

import io
import re
from typing import Any

from noisewise.audits.result import FAINT, INK, PRIVATE, TWIN, Figure
from noisewise.audits.show import TOLD

SHEET = "#fefefd"  # what hollow marks are filled with; no other ink has this colour
VARIABLES = {PRIVATE: "--private", TWIN: "--twin", INK: "--ink", FAINT: "--faint", SHEET: "--sheet"}


def inline_svg(figure: Figure) -> str:
    """The drawing as an <svg> element: text stays text, colours are the page's variables, nothing is loaded."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": figure.words, "font.size": 12, "axes.facecolor": SHEET}
    with matplotlib.rc_context(settings):
        canvas = Canvas(figsize=(5.4, 0.8 + 0.36 * figure.rows), layout="constrained", facecolor="none")
        FigureCanvasSVG(canvas)
        axes = canvas.add_subplot()
        figure.draw(axes)
        axes.patch.set_visible(False)
        text = io.StringIO()
        canvas.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]  # without the XML prologue and its DTD
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)  # HTML knows these
    svg = re.sub(rf'<g id="{TOLD}([^"]*)">', r"<g><title>\1</title>", svg)  # what a mark says when it is pointed at
    svg = re.sub(r' id="[\w.]+_\d+"', "", svg)  # names of groups: not referred to, not unique on the page
    svg = svg.replace("xlink:href", "href").replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg
