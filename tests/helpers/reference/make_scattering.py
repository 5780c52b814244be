"""Makes scattering.npz with kymatio, in an environment of its own (see README.md): not needed to run the tests."""

from pathlib import Path

import numpy as np


def images(count, height, width, phase):
    """Waves, a ramp with jumps and a blob, from a formula."""
    k, i, j = np.meshgrid(np.arange(count), np.arange(height), np.arange(width), indexing="ij")
    waves = np.sin(0.37 * (k + 1) * i + phase) * np.cos(0.23 * j * (k + 2))
    blob = np.exp(-((i - height / 3) ** 2 + (j - width / 2) ** 2) / (8.0 + k))
    return (waves + ((i * 7 + j * 13 + k * 5) % 11) / 11 + blob).astype(np.float32)


CASES = {  # name: images [n, c, h, w], scales, angles
    "grey": (images(3, 28, 28, 0.1)[:, None], 2, 8),
    "colour": (images(3, 32, 32, 0.5)[None], 2, 8),
    "odd": (images(1, 18, 23, 0.9)[None], 2, 8),
    "coarse": (images(1, 24, 20, 1.3)[None], 3, 4),
    "fine": (images(1, 9, 12, 1.7)[None], 1, 5),
}


def main():
    """Compute in float64, store in float32."""
    from kymatio.numpy import Scattering2D

    stored = {}
    for name, (x, scales, angles) in CASES.items():
        found = Scattering2D(J=scales, shape=x.shape[-2:], L=angles)(x.astype(np.float64))
        stored[f"{name}.x"] = x
        stored[f"{name}.features"] = found.reshape(len(x), -1, *found.shape[-2:]).astype(np.float32)
    np.savez_compressed(Path(__file__).with_name("scattering.npz"), **stored)


if __name__ == "__main__":
    main()
