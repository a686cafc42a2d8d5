"""Bar charts as SVG: one horizontal bar per figure, with a thin line from the lowest to the highest run."""
from html import escape

COLOURS = {"floor": "#8a8f98", "blkin": "#2563eb", "peer": "#d97706"}
LEGEND = (("floor", "floor"), ("blkin", "BlkKin"), ("peer", "peers"))
WIDTH, LABEL, RIGHT, ROW, TOP = 880, 350, 70, 24, 74


def nice_step(highest):
    """A round distance between grid lines, so that about six of them fit."""
    step = 10.0 ** -3
    while True:
        for factor in (1, 2, 5):
            if highest / (step * factor) <= 7:
                return step * factor
        step *= 10


def chart(title, unit, bars):
    """bars: (label, kind, median, lowest, highest), from top to bottom."""
    lowest = min(0.0, *(bar[3] for bar in bars))
    highest = max(bar[4] for bar in bars)
    step = nice_step(highest - lowest)
    first = int(lowest // step)
    scale = (WIDTH - LABEL - RIGHT) / (highest - first * step)
    height = TOP + ROW * len(bars) + 34

    def x(value):
        return LABEL + (value - first * step) * scale

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
             f'viewBox="0 0 {WIDTH} {height}" font-family="Helvetica, Arial, sans-serif" font-size="13">',
             f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
             f'<text x="16" y="28" font-size="17" font-weight="bold" fill="#1f2937">{escape(title)}</text>',
             *legend({bar[1] for bar in bars})]
    bottom = TOP + ROW * len(bars)
    at = first
    while at * step <= highest:
        value = at * step
        parts.append(f'<line x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle" fill="#6b7280">{value:g}</text>')
        at += 1
    parts.append(f'<text x="{WIDTH - 16}" y="{bottom + 18}" text-anchor="end" fill="#6b7280">{escape(unit)}</text>')
    for row, bar in enumerate(bars):
        parts.extend(bar_of(bar, TOP + ROW * row, x))
    return "\n".join([*parts, "</svg>"]) + "\n"


def legend(kinds):
    x = 16
    for kind, name in LEGEND:
        if kind not in kinds:
            continue
        yield f'<rect x="{x}" y="44" width="12" height="12" rx="2" fill="{COLOURS[kind]}"/>'
        yield f'<text x="{x + 18}" y="55" fill="#374151">{name}</text>'
        x += 34 + 8 * len(name)
    yield f'<line x1="{x}" x2="{x + 18}" y1="50" y2="50" stroke="#111827" stroke-width="1.2"/>'
    yield f'<text x="{x + 24}" y="55" fill="#374151">lowest to highest run</text>'


def bar_of(bar, top, x):
    label, kind, median, lowest, highest = bar
    start, end, middle = sorted((x(0), x(median))) + [top + 9]
    yield f'<text x="{LABEL - 10}" y="{middle + 5}" text-anchor="end" fill="#1f2937">{escape(label)}</text>'
    yield (f'<rect x="{start:.1f}" y="{top + 2}" width="{max(end - start, 1):.1f}" height="15" rx="2" '
           f'fill="{COLOURS[kind]}"/>')
    yield (f'<line x1="{x(lowest):.1f}" x2="{x(highest):.1f}" y1="{middle}" y2="{middle}" stroke="#111827" '
           f'stroke-width="1.2"/>')
    beside = max(end, x(highest)) + 6
    yield f'<text x="{beside:.1f}" y="{middle + 5}" fill="#1f2937">{median:.1f}</text>'
