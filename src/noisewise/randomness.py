"""Where secret randomness comes from: every draw is a function of one secret root and the step.

Nothing has a state that advances, so a resumed run redraws exactly what an uninterrupted run would have drawn,
and a batch or a noise vector can be made on any thread in any order.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field, replace

import numpy as np

from noisewise.errors import ConfigError, PrivacyError

STREAMS = {"sampling": 0, "noise": 1, "forward": 2, "public": 3}


@dataclass(frozen=True)
class Entropy:
    """A secret root of 256 bits and the independent streams derived from it.

    `draw = SFC64(SeedSequence(root, spawn_key=(stream, *position)))`

    Guarantee: streams with different positions are statistically independent. The root is as secret as the records:
    whoever knows it can subtract the noise. SFC64 is not cryptographic; with `secure`, all bits that batches and noise are
    made of are `SHAKE-128(root, stream, position)` instead, which nobody is known to predict without the root.
    """

    root: int
    reproducible: bool = False
    secure: bool = False
    _answered: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def fresh(cls, *, secure: bool = False) -> Entropy:
        """Root from the operating system."""
        return cls(secrets.randbits(256), secure=secure)

    @classmethod
    def insecure(cls, seed: int, phase: int = 0, *, secure: bool = False) -> Entropy:
        """Root that anyone can guess: for tests and reproductions, stamped on the run; another one for each phase."""
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise ConfigError(f"insecure_seed={seed!r}: must be a whole number >= 0, e.g. insecure_seed=0.")
        return cls(seed + (phase << 128), reproducible=True, secure=secure)

    def __repr__(self) -> str:
        """Never shows the root."""
        return f"Entropy({'reproducible' if self.reproducible else 'secret'})"

    def key(self, *parts: bytes) -> bytes:
        """32 secret bytes for a purpose: BLAKE2b of the root and the parts. The root does not follow from them."""
        digest = hashlib.blake2b(str(self.root).encode(), digest_size=32)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.digest()

    def bound(self, *parts: bytes) -> Entropy:
        """The entropy of a course of training that these parts describe: other parts, other draws.

        Guarantee: what is drawn for one data set, start or course says nothing about what is drawn for another, although
        the root is the same. A reproducible root is not bound: the same seed draws the same for any data, as comparisons
        need it, and is never private.
        """
        return self if self.reproducible else replace(self, root=int.from_bytes(self.key(*parts), "little"))

    def renewed(self) -> Entropy:
        """For a copy of whatever draws from this: a secret root of its own; a reproducible one stays."""
        return self if self.reproducible else Entropy.fresh(secure=self.secure)

    def answer_once(self, step: int) -> None:
        """Noise of a step is given out once: on two sums it would show their difference. Reproducible noise is free."""
        if self.reproducible:
            return
        if step in self._answered:
            raise PrivacyError(
                f"a second release of step {step} with the same entropy: both would have the same noise, and their difference "
                "none. Count steps up, step + 1 for each release, or begin another course with Entropy.fresh()."
            )
        self._answered.add(step)

    def sequence(self, stream: str, *position: int) -> np.random.SeedSequence:
        """The seed sequence of one position of a stream."""
        return np.random.SeedSequence(self.root, spawn_key=(STREAMS[stream], *position))

    def generator(self, stream: str, *position: int) -> np.random.Generator:
        """A NumPy generator for one position of a stream."""
        return np.random.Generator(np.random.SFC64(self.sequence(stream, *position)))

    def words(self, count: int, stream: str, *position: int) -> np.ndarray:
        """Cryptographic 64-bit words of one position of a stream."""
        key = b"".join(number.to_bytes(32, "little") for number in (self.root, STREAMS[stream], *position))
        return np.frombuffer(hashlib.shake_128(key).digest(8 * count), np.uint64)

    def uniforms(self, count: int, stream: str, *position: int) -> np.ndarray:
        """Numbers in [0, 1) of one position of a stream."""
        if self.secure:
            return (self.words(count, stream, *position) >> np.uint64(11)) * 2.0**-53
        return self.generator(stream, *position).random(count)

    def wide(self, stream: str, *position: int) -> tuple[int, int]:
        """Seed (64 bits) and offset (a multiple of 4 below 2^62) of a Philox generator, as torch has on GPUs.

        Together 124 bits of `key`, which is all that such a generator takes: its streams with other seeds or offsets are
        apart.
        """
        bits = self.key(b"wide", *(number.to_bytes(8, "little") for number in (STREAMS[stream], *position)))
        seed, offset = (int.from_bytes(bits[first : first + 8], "little") for first in (0, 8))
        return seed, offset >> 4 << 2

    def integer(self, stream: str, *position: int) -> int:
        """A 63-bit integer, to seed a generator of another library."""
        return int(self.sequence(stream, *position).generate_state(1, np.uint64)[0] >> 1)
