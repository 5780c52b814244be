"""Where secret randomness comes from: every draw is a function of one secret root and the step.

Nothing has a state that advances, so a resumed run redraws exactly what an uninterrupted run would have drawn,
and a batch or a noise vector can be made on any thread in any order.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from noisewise.errors import ConfigError

STREAMS = {"sampling": 0, "noise": 1, "forward": 2, "public": 3}


@dataclass(frozen=True)
class Entropy:
    """A secret root of 256 bits and the independent streams derived from it.

    `draw = SFC64(SeedSequence(root, spawn_key=(stream, *position)))`

    Guarantee: streams with different positions are statistically independent. The generators are not cryptographic.
    The root is as secret as the records: whoever knows it can subtract the noise.
    """

    root: int
    reproducible: bool = False

    @classmethod
    def fresh(cls) -> Entropy:
        """Root from the operating system."""
        return cls(secrets.randbits(256))

    @classmethod
    def insecure(cls, seed: int, phase: int = 0) -> Entropy:
        """Root that anyone can guess: for tests and reproductions, stamped on the run; another one for each phase."""
        if not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"insecure_seed={seed!r}: must be a whole number >= 0, e.g. insecure_seed=0.")
        return cls(seed + (phase << 128), reproducible=True)

    def __repr__(self) -> str:
        """Never shows the root."""
        return f"Entropy({'reproducible' if self.reproducible else 'secret'})"

    def sequence(self, stream: str, *position: int) -> np.random.SeedSequence:
        """The seed sequence of one position of a stream."""
        return np.random.SeedSequence(self.root, spawn_key=(STREAMS[stream], *position))

    def generator(self, stream: str, *position: int) -> np.random.Generator:
        """A NumPy generator for one position of a stream."""
        return np.random.Generator(np.random.SFC64(self.sequence(stream, *position)))

    def integer(self, stream: str, *position: int) -> int:
        """A 63-bit integer, to seed a generator of another library."""
        return int(self.sequence(stream, *position).generate_state(1, np.uint64)[0] >> 1)
