"""Nanoseconds per coordinate of Gaussian noise: torch.randn, noisewise in place as in training, and its secure mode; medians.

python benchmarks/noise.py
"""

from __future__ import annotations

import time

import torch

from noisewise import Ledger, Poisson, release
from noisewise.bounded import Bounded
from noisewise.randomness import Entropy

COUNT = 4_000_000


def median(function: object, repeats: int = 5) -> float:
    times = []
    for step in range(repeats):
        start = time.perf_counter()
        function(step)  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return sorted(times)[repeats // 2] / COUNT * 1e9


def main() -> None:
    parts = {"gradient": (Bounded({"w": torch.zeros(COUNT)}, 1.0), 1.0)}
    print(f"torch.randn       {median(lambda _: torch.randn(COUNT)):5.1f}")
    for name, secure in (("noisewise", False), ("noisewise, secure", True)):
        entropy, sampler, ledger = Entropy.fresh(secure=secure), Poisson(10, 5), Ledger()

        def added(step: int) -> None:
            release(parts, sampler=sampler, ledger=ledger, entropy=entropy, step=step, owned=True)  # noqa: B023

        cost = median(added)
        print(f"{name:17} {cost:5.1f}")


if __name__ == "__main__":
    main()
