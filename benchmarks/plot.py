"""Curves as an SVG file, drawn by hand so that nothing has to be installed for it."""

from __future__ import annotations

import math

_WIDTH, _HEIGHT, _LEFT, _TOP = 250, 170, 62, 36
_COLOURS = {"put": "#c2410c", "get": "#1d4ed8"}


def svg(curves: dict[str, dict[str, list[float]]], title: str) -> str:
    """One panel a curve, logarithmic both ways; *curves* as :func:`benchmarks.throughput.curves` gives them."""
    panels = [_panel(name, data, at * (_WIDTH + _LEFT + 20)) for at, (name, data) in enumerate(curves.items())]
    width, height = len(curves) * (_WIDTH + _LEFT + 20), _HEIGHT + _TOP + 50
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    back = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, back, f'<text x="8" y="16" font-size="13">{title}</text>', *panels, "</svg>\n"])


def _panel(name: str, data: dict[str, list[float]], left: float) -> str:
    xs = data["x"]
    ys = [value for key, values in data.items() if key != "x" for value in values]
    low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    x0, y0 = left + _LEFT, _TOP + _HEIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / xs[0]) / math.log(xs[-1] / xs[0])
        return x0 + across * _WIDTH, y0 - (math.log10(y) - low) / max(1, high - low) * _HEIGHT

    lines = [f'<path d="M{x0} {_TOP} V{y0} H{x0 + _WIDTH}" fill="none" stroke="#666"/>']
    lines += [_text(place(x, 10**low)[0], y0 + 14, f"{x:g}", "middle") for x in xs]
    lines += [_text(x0 - 6, place(xs[0], 10**power)[1] + 4, _size(power), "end") for power in range(low, high + 1)]
    lines.append(_text(x0 + _WIDTH / 2, y0 + 32, name, "middle"))
    for at, (key, values) in enumerate((k, v) for k, v in data.items() if k != "x"):
        points = [place(x, y) for x, y in zip(xs, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{_COLOURS[key]}" stroke-width="2"/>')
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{_COLOURS[key]}"/>' for x, y in points]
        lines.append(_text(x0 + 12, _TOP + 12 + 14 * at, key, "start", _COLOURS[key]))
    return "\n".join(lines)


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="10" text-anchor="{anchor}" fill="{colour}">{text}</text>'


def _size(power: int) -> str:
    return f"{10 ** (power % 3)}{('', 'k', 'M', 'G', 'T')[power // 3]}/s"
