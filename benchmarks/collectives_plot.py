"""Plot a report of benchmarks/collectives.py: time per call by size. Needs matplotlib.

    python benchmarks/collectives_plot.py REPORT.json FILE.svg          # or .png, .pdf
    python benchmarks/collectives_plot.py REPORT.json FILE.svg --ops all_reduce \\
        --peers dldist,gloo,openmpi5
"""

import argparse
import json

COLOURS = {
    "dldist": "#c1272d",
    "dldist-plan": "#e377c2",
    "dldist-arena": "#f28e2b",
    "gloo": "#7f7f7f",
    "openmpi": "#1f77b4",
    "openmpi5": "#4e9fd1",
    "mpich": "#2ca02c",
    "mpich5": "#66c266",
    "impi": "#8c564b",
    "mpi4py": "#9467bd",
    "mpi4py-impi": "#4b2a70",
    "rawtcp": "#000000",
}
COLUMNS = 2
PANEL_INCHES = (6.0, 4.0)


def panels(report, ops=None, peers=None):
    """Return {title: {peer: [(bytes, microseconds)]}}, filtered. Cases without a size are
    skipped."""
    found = {}
    for result in report["results"]:
        if result["nbytes"] == 0 or (ops and result["op"] not in ops):
            continue
        hosts = f", {result['hosts']} hosts" if result["hosts"] > 1 else ""
        every = f", every {result['every_ns'] / 1e6:g} ms" if result.get("every_ns") else ""
        noise = f", {result['noise']}" if result.get("noise", "none") != "none" else ""
        title = f"{result['op']}, {result['dtype']}, {result['ranks']} ranks{hosts}{every}{noise}"
        for peer, row in result["peers"].items():
            if not peers or peer in peers:
                found.setdefault(title, {}).setdefault(peer, []).append((result["nbytes"], row["time_us"]))
    return {title: {peer: sorted(line) for peer, line in lines.items()} for title, lines in found.items()}


def size_text(nbytes, _=None):
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB"), (0, "B")):
        if nbytes >= 1 << power:
            return f"{nbytes / (1 << power):g} {unit}"
    return ""


def time_text(time_us, _=None):
    for factor, unit in ((1e6, "s"), (1e3, "ms"), (1, "us")):
        if time_us >= factor:
            return f"{time_us / factor:g} {unit}"
    return f"{time_us * 1e3:g} ns"


def draw(axis, title, lines):
    for peer, line in lines.items():
        colour = COLOURS.get(peer.removesuffix("-best"))
        axis.plot(*zip(*line), marker="o", markersize=4, label=peer, color=colour, linewidth=2.4 if peer == "dldist" else 1.5)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.minorticks_off()
    axis.xaxis.set_major_formatter(size_text)
    axis.yaxis.set_major_formatter(time_text)
    axis.set_title(title, fontsize=11)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=9, loc="lower right")  # times grow with sizes, so this corner is empty


def plot(report, path, ops=None, peers=None):
    """Write the plot in the format of the path's extension."""
    import matplotlib

    matplotlib.use("Agg")
    # Deterministic output, with text as text.
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "dldist", "font.family": "sans-serif"})
    from matplotlib import pyplot

    found = panels(report, ops, peers)
    ncolumns = min(COLUMNS, len(found))
    nrows = -(-len(found) // ncolumns)
    size = (PANEL_INCHES[0] * ncolumns, PANEL_INCHES[1] * nrows)
    figure, axes = pyplot.subplots(nrows, ncolumns, squeeze=False, figsize=size, layout="constrained")
    for axis, (title, lines) in zip(axes.flat, found.items()):
        draw(axis, title, lines)
    for axis in axes.flat[len(found) :]:
        axis.set_axis_off()
    figure.savefig(path, dpi=110, metadata={"Date": None} if path.endswith(".svg") else None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("report", metavar="REPORT.json")
    parser.add_argument("path", metavar="FILE", help="the drawing: .svg, .png, .pdf")
    parser.add_argument("--ops", type=lambda text: text.split(","), help="only these operations")
    parser.add_argument("--peers", type=lambda text: text.split(","), help="only these peers")
    args = parser.parse_args()
    with open(args.report, encoding="utf-8") as file:
        plot(json.load(file), args.path, args.ops, args.peers)


if __name__ == "__main__":
    main()
