#!/usr/bin/env python3
"""Draws the plots of docs/performance.md from measurements. Python's standard library is all it takes.

  tests/bench/plots.py tests/bench/measured docs/performance

The first folder has *.jsonl as `faststream-bench --json` printed them, and peers.json: what other
programs reach on the same work, with where the number is from. Of several measurements of the same
thing the last one counts.
"""
import json
import math
import pathlib
import sys

WIDTH, HEIGHT = 860, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 150, 56, 46
INK, FAINT, GRID = "#1f2328", "#656d76", "#d8dee4"
COLORS = {"int8": "#0969da", "bf16": "#bf3989"}
PEER = "#9a6700"


def measured_and_peers(folder):
    measured = []
    for path in sorted(folder.glob("*.jsonl")):
        measured += [json.loads(line) for line in path.read_text().splitlines()]
    return measured, json.loads((folder / "peers.json").read_text())


def pick(measured, **wanted):
    """Measurements with these members."""
    return [m for m in measured if all(m.get(k) == v for k, v in wanted.items())]


class Plot:
    """An SVG in the making."""

    def __init__(self, title, subtitle):
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="6" fill="#ffffff"/>',
            f'<text x="16" y="24" font-size="15" font-weight="600">{title}</text>',
            f'<text x="16" y="42" fill="{FAINT}">{subtitle}</text>']

    def text(self, x, y, text, anchor="start", color=INK, weight=400, size=12):
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" '
                          f'font-weight="{weight}" font-size="{size}" stroke="#ffffff" '
                          f'stroke-width="3" paint-order="stroke">{text}</text>')

    def line(self, points, color, dash="", width=2):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" '
                          f'stroke-width="{width}" stroke-linejoin="round"{dashes}/>')

    def dot(self, x, y, color, filled=True):
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" stroke="{color}" '
                          f'stroke-width="2" fill="{color if filled else "#ffffff"}"/>')

    def bar(self, x, y, width, height, color, opacity=1.0):
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
                          f'height="{height:.1f}" fill="{color}" fill-opacity="{opacity}"/>')

    def save(self, path):
        path.write_text("\n".join(self.parts + ["</svg>"]) + "\n")


def short(value):
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def log_scale(least, most, first, last):
    span = math.log(most / least)
    return lambda value: first + (last - first) * math.log(value / least) / span


def spread(labels, gap=15):
    """Labels (y, ...) moved apart so that none covers another."""
    placed = []
    for label in sorted(labels):
        y = max(label[0], placed[-1][0] + gap) if placed else label[0]
        placed.append((y,) + label[1:])
    return placed


def draw_lines(path, title, subtitle, x_label, series, ceilings, peers, x_ticks, y_ticks):
    """series, ceilings: {weights: [(x, y)]}; peers: [(x, y, label)]. Both axes are logarithmic."""
    plot = Plot(title, subtitle)
    x = log_scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    y = log_scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    for tick in y_ticks:
        plot.line([(LEFT, y(tick)), (WIDTH - RIGHT, y(tick))], GRID, width=1)
        plot.text(LEFT - 8, y(tick) + 4, short(tick), "end", FAINT)
    for tick in x_ticks:
        plot.text(x(tick), HEIGHT - BOTTOM + 18, f"{tick:,}", "middle", FAINT)
    plot.text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle", FAINT)
    labels = []
    for weights, points in ceilings.items():
        plot.line([(x(a), y(b)) for a, b in points], COLORS[weights], "5 4", 1.5)
        labels.append((y(points[-1][1]), f"ceiling, {weights}", COLORS[weights], 400))
    for weights, points in series.items():
        plot.line([(x(a), y(b)) for a, b in points], COLORS[weights])
        for a, b in points:
            plot.dot(x(a), y(b), COLORS[weights])
        labels.append((y(points[-1][1]), f"FastStream, {weights}", COLORS[weights], 600))
    for at, text, color, weight in spread(labels):
        plot.text(WIDTH - RIGHT + 8, at + 4, text, color=color, weight=weight)
    by_program = {}
    for peer in peers:
        point = (x(peer["at"]), y(peer["tokens_per_second"]))
        by_program.setdefault(peer["program"], []).append(point)
    for program, points in by_program.items():
        plot.line(points, PEER, "1 3", 1.5)
        for point in points:
            plot.dot(*point, PEER, filled=False)
        side = -1 if points[-1][0] > WIDTH - RIGHT - 100 else 1
        plot.text(points[-1][0] + 8 * side, points[-1][1] + 4, program,
                  "end" if side < 0 else "start", PEER, size=11)
    plot.save(path)


def draw_shares(path, title, subtitle, groups):
    """groups: [(model, weights, tokens/s, ceiling, [(peer, tokens/s)])], as shares of the ceiling."""
    plot = Plot(title, subtitle)
    y = lambda share: HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share
    for percent in range(0, 101, 20):
        plot.line([(LEFT, y(percent / 100)), (WIDTH - 20, y(percent / 100))], GRID, width=1)
        plot.text(LEFT - 8, y(percent / 100) + 4, f"{percent}%", "end", FAINT)
    pitch = (WIDTH - 20 - LEFT) / len(groups)
    width = pitch * 0.22
    for n, (model, weights, rate, ceiling, peers) in enumerate(groups):
        left = LEFT + pitch * n + 8  # the rest is for the peers' labels
        plot.bar(left, y(rate / ceiling), width, y(0) - y(rate / ceiling), COLORS[weights])
        plot.text(left + width / 2, y(rate / ceiling) - 6, f"{rate:,.0f}", "middle", weight=600)
        for at, peer in spread([(y(value / ceiling), peer) for peer, value in peers], 12):
            plot.text(left + width + 5, at + 4, peer, color=PEER, size=10)
        for _, value in peers:
            plot.line([(left - 3, y(value / ceiling)), (left + width + 3, y(value / ceiling))], PEER)
        plot.text(left + width / 2, HEIGHT - BOTTOM + 16, model, "middle", FAINT, size=11)
        plot.text(left + width / 2, HEIGHT - BOTTOM + 30, weights, "middle", FAINT, size=11)
    plot.save(path)


def curve(measured, at, **wanted):
    """{weights: [(x, tokens/s)]} and the same of the ceiling."""
    series, ceilings = {}, {}
    for weights in COLORS:
        points = {m[at]: m for m in pick(measured, weights=weights, **wanted)}
        if not points:
            continue
        rates = [(x, points[x]["tokens_per_second"], points[x]["share"]) for x in sorted(points)]
        series[weights] = [(x, rate) for x, rate, _ in rates]
        ceilings[weights] = [(x, rate / share) for x, rate, share in rates]
    return series, ceilings


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(pathlib.Path, sys.argv[1:])
    measured, peers = measured_and_peers(source)
    measured = [m for m in measured if "CUDA" in m["device"]]
    where = measured[0]["device"].split("(")[-1].rstrip(")")

    groups = []
    for model in ("llama-2-7b", "llama-3-8b", "llama-3.2-1b"):
        for weights in COLORS:
            found = pick(measured, measurement="decode", model=model, weights=weights, sequences=1,
                         depth=16)
            if not found:
                continue
            beside = [(f"{p['program']} {p['tokens_per_second']:,}", p["tokens_per_second"])
                      for p in peers["decode"] if p["model"] == model and p["weights"] == weights]
            rate, share = found[-1]["tokens_per_second"], found[-1]["share"]
            groups.append((model, weights, rate, rate / share, beside))
    draw_shares(target / "decode.svg", "One sequence: tokens a second, and their share of the ceiling",
                f"{where}; 100%: all weights and keys are read once at the speed of memory", groups)

    series, ceilings = curve(measured, "tokens", measurement="prefill", model="llama-3-8b")
    draw_lines(target / "prefill.svg", "One prompt: tokens processed a second, Llama 3 8B",
               f"{where}; dashed: the ceiling of large products; circles: peers",
               "tokens of the prompt", series, ceilings, peers["prefill"],
               [128, 256, 512, 1024, 2048, 4096, 8192], [5000, 10000, 20000, 50000, 100000, 200000])

    series, ceilings = curve(measured, "sequences", measurement="decode", model="llama-3-8b",
                             depth=16)
    draw_lines(target / "batch.svg", "Many sequences: tokens generated a second, Llama 3 8B",
               f"{where}; dashed: the ceiling; circles: peers (128 tokens in, 128 out)",
               "sequences that generate together", series, ceilings, peers["batch"],
               [1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
               [100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000])


if __name__ == "__main__":
    main()
