"""Draws a report of benchmarks/collectives.py: time of a call by size, a panel for each operation, type and world.

    python benchmarks/collectives_plot.py REPORT.json FILE.svg

SVG is written here, by hand; PNG by matplotlib, where that is installed.
"""

import json
import math
import sys
from html import escape

COLOURS = {
    "dldist": "#c1272d",
    "dldist-arena": "#f28e2b",
    "gloo": "#7f7f7f",
    "openmpi": "#1f77b4",
    "openmpi-best": "#17375e",
    "mpich": "#2ca02c",
    "mpich-best": "#145214",
    "mpi4py": "#9467bd",
    "mpi4py-best": "#4b2a70",
    "rawtcp": "#000000",
    "dldist-plan": "#e377c2",
    "openmpi5": "#4e9fd1",
    "mpich5": "#66c266",
    "impi": "#8c564b",
}
WIDTH, HEIGHT = 420, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 30, 44
COLUMNS = 2
LEGEND = 26


def panels(report):
    """{title: {peer: [(bytes, microseconds)]}}; operations without a size are in no panel."""
    found = {}
    for result in report["results"]:
        if result["nbytes"] == 0:
            continue
        hosts = f", {result['hosts']} hosts" if result["hosts"] > 1 else ""
        every = f", every {result['every_ns'] / 1e6:g} ms" if result.get("every_ns") else ""
        noise = f", {result['noise']}" if result.get("noise", "none") != "none" else ""
        title = f"{result['op']}, {result['dtype']}, {result['ranks']} ranks{hosts}{every}{noise}"
        for peer, row in result["peers"].items():
            found.setdefault(title, {}).setdefault(peer, []).append((result["nbytes"], row["time_us"]))
    return {title: {peer: sorted(line) for peer, line in lines.items()} for title, lines in found.items()}


def size_text(exponent):
    for power, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if exponent >= power:
            return f"{1 << (exponent - power)}{unit}"
    return str(1 << exponent)


def time_text(exponent):
    """A power of ten in microseconds, with its unit."""
    if exponent >= 6:
        return f"{10 ** (exponent - 6)} s"
    if exponent >= 3:
        return f"{10 ** (exponent - 3)} ms"
    return f"{10 ** exponent} us" if exponent >= 0 else f"{10 ** (exponent + 3)} ns"


class Scale:
    """A logarithmic axis from the outermost whole powers of a base to a range of pixels."""

    def __init__(self, values, base, begin, end):
        self.base, self.begin, self.end = base, begin, end
        self.low = math.floor(math.log(min(values), base) + 1e-9)
        self.high = max(self.low + 1, math.ceil(math.log(max(values), base) - 1e-9))

    def __call__(self, value):
        share = (math.log(value, self.base) - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def exponents(self, most):
        step = -(-(self.high - self.low + 1) // most)
        return range(self.low, self.high + 1, step)


def text(x, y, words, anchor="middle", size=11, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"{more}>{escape(words)}</text>'


def line(x1, y1, x2, y2, colour):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def draw_axes(across, up):
    parts = []
    for exponent in across.exponents(8):
        x = across(2.0**exponent)
        parts += [line(x, up.begin, x, up.end, "#e5e5e5"), text(x, up.begin + 15, size_text(exponent))]
    for exponent in up.exponents(9):
        y = up(10.0**exponent)
        parts += [line(across.begin, y, across.end, y, "#e5e5e5")]
        parts += [text(across.begin - 5, y + 4, time_text(exponent), "end")]
    parts += [line(across.begin, up.begin, across.end, up.begin, "#444")]
    parts += [line(across.begin, up.begin, across.begin, up.end, "#444")]
    return parts


def draw_panel(title, lines):
    points = [point for one in lines.values() for point in one]
    across = Scale([nbytes for nbytes, _ in points], 2, LEFT, WIDTH - RIGHT)
    up = Scale([time_us for _, time_us in points], 10, HEIGHT - BOTTOM, TOP)
    parts = [text(WIDTH / 2, 18, title, size=13), *draw_axes(across, up), text(WIDTH / 2, HEIGHT - 10, "bytes")]
    for peer, one in lines.items():
        colour = COLOURS.get(peer, "#888")
        places = " ".join(f"{across(nbytes):.1f},{up(time_us):.1f}" for nbytes, time_us in one)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        for nbytes, time_us in one:
            tip = f"<title>{escape(peer)}: {nbytes} B, {time_us:.3f} us</title>"
            place = f'cx="{across(nbytes):.1f}" cy="{up(time_us):.1f}"'
            parts.append(f'<circle {place} r="2.4" fill="{colour}">{tip}</circle>')
    return parts


def draw_legend(peers):
    parts, x = [], LEFT
    for peer in peers:
        colour = COLOURS.get(peer, "#888")
        parts.append(f'<rect x="{x}" y="8" width="14" height="10" fill="{colour}"/>')
        parts.append(text(x + 19, 17, peer, "start"))
        x += 32 + 7 * len(peer)
    return parts


def svg(report):
    found = panels(report)
    peers = dict.fromkeys(peer for lines in found.values() for peer in lines)
    columns = min(COLUMNS, max(1, len(found)))
    width = max(columns * WIDTH, LEFT + sum(32 + 7 * len(peer) for peer in peers))
    height = LEGEND + HEIGHT * -(-len(found) // columns)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        *draw_legend(peers),
    ]
    for number, (title, lines) in enumerate(found.items()):
        x, y = number % columns * WIDTH, LEGEND + number // columns * HEIGHT
        parts += [f'<g transform="translate({x},{y})">', *draw_panel(title, lines), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def draw_png(report, path, pyplot):
    found = panels(report)
    columns = min(COLUMNS, max(1, len(found)))
    nrows = max(1, -(-len(found) // columns))
    figure, axes = pyplot.subplots(nrows, columns, squeeze=False, figsize=(6 * columns, 4.2 * nrows))
    for axis, (title, lines) in zip(axes.flat, found.items()):
        for peer, one in lines.items():
            axis.loglog(*zip(*one), marker="o", markersize=3, label=peer, color=COLOURS.get(peer))
        axis.set(title=title, xlabel="bytes", ylabel="us")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def plot(report, path):
    """Writes the drawing; without matplotlib, SVG instead of PNG, with a word about it."""
    if path.endswith(".png"):
        try:
            import matplotlib

            matplotlib.use("Agg")
            from matplotlib import pyplot
        except ImportError:
            path = path.removesuffix(".png") + ".svg"
            print(f"matplotlib is not installed: the plot is in {path}")
        else:
            draw_png(report, path, pyplot)
            return
    with open(path, "w", encoding="utf-8") as file:
        file.write(svg(report))


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as report_file:
        plot(json.load(report_file), sys.argv[2])
