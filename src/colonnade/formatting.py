"""Numbers, sizes and times as people read them, wherever a result is shown."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable


def number(value: float) -> str:
    """A count with thousands apart; a noisy one may be below zero."""
    return f"{value:,.0f}" if round(value) else "0"


def rough(value: float) -> str:
    """Two digits, and no power of ten: 0.037, 3.7, 220."""
    return f"{value:.2g}" if abs(value) < 99.5 else f"{float(f'{value:.2g}'):,.0f}"


def digits(value: float, count: int = 4) -> str:
    """So many digits, whole thousands in full instead of a power of ten: 26.63, 4,241, 27,330; 2.1e-06 stays."""
    if not 1000 <= abs(value) < 1e15:
        return f"{value:.{count}g}"
    return f"{float(f'{value:.{count}g}'):,.{max(count - 1 - math.floor(math.log10(abs(value))), 0)}f}"


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def with_unit(name: str, unit: str | None) -> str:
    """A column as an axis shows it: income (USD)."""
    return f"{name} ({unit})" if unit else name


def noise_width(sd: float) -> str:
    """Two standard deviations of the noise, rounded up."""
    return f"± {math.ceil(2 * sd):,}"


def with_noise(value: float, sd: float) -> str:
    return f"{number(value)} {noise_width(sd)}" if sd else number(value)


def share(part: float, whole: float) -> str:
    """A share in percent; noise may carry it outside 0 to 100, which says nothing, so it is cut."""
    return f"{min(max(100 * part / whole, 0.0), 100.0):.1f} %" if whole > 0 else "-"


def size(count: int) -> str:
    """Bytes."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def duration(seconds: float) -> str:
    """As precise as a forecast is."""
    if seconds < 90:
        return f"{max(seconds, 1.0) if seconds else 0:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def of_exactly(parties: Iterable[str]) -> str:
    """The records of one pattern of presence."""
    return f"records of exactly {' + '.join(parties) or 'no party'}"
