"""The picture of steps against a plain one: bars begin at the plain step, those to the left of it are faster or smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

Ratios = Mapping[str, Mapping[str, float | None]]  # by workload and method; None where a method did not run
TICKS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def draw(path: Path, time: Ratios, memory: Ratios, methods: Sequence[str]) -> None:
    """Time and peak memory of all methods, side by side; each bar with its number."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    high = 0.85 / len(methods)
    figure, axes = plt.subplots(1, 2, figsize=(12, 0.3 + 0.8 * len(time)), sharey=True)
    for axis, ratios, title in ((axes[0], time, "time"), (axes[1], memory, "peak memory")):
        for number, method in enumerate(methods):
            for place, of in enumerate(ratios.values()):
                ratio, where = of.get(method), place + high * (number + 0.5) - 0.425
                label = {"label": method} if place == 0 else {}
                axis.barh(where, (ratio or 1) - 1, 0.9 * high, left=1, color=f"C{number}", **label)
                slower = ratio is None or ratio >= 1
                axis.annotate(
                    _words(ratio), (ratio or 1, where), (3 if slower else -3, 0),
                    textcoords="offset points", fontsize=6.5, va="center", ha="left" if slower else "right",
                )  # fmt: skip
        found = [ratio for of in ratios.values() for ratio in of.values() if ratio]
        axis.set_xscale("log")
        axis.set_xlim(min(0.8, 0.75 * min(found)), 1.5 * max(found))
        low, top = axis.get_xlim()
        ticks = [tick for tick in TICKS if low <= tick <= top]
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.axvline(1, color="black", linewidth=0.8)
        axis.spines[["top", "right", "left"]].set_visible(False)
        axis.tick_params(axis="y", length=0)
        axis.set_xlabel(f"{title}, ratio to a plain PyTorch step (log)")
    axes[0].set_yticks(range(len(time)), list(time))
    axes[0].invert_yaxis()
    axes[1].legend(fontsize=8, loc="upper right", frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)


def _words(ratio: float | None) -> str:
    """Three digits where they tell something."""
    if ratio is None:
        return "did not run"
    return f"{ratio:.2f}" if ratio < 3 else f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"
