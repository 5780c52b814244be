"""Features learned on made-up images and one linear layer."""

from __future__ import annotations

from typing import ClassVar

from noisewise.recipes.base import NamedRecipe
from noisewise.recipes.learned import Learned


class MadeUpLinear(NamedRecipe):
    """One linear layer from zero on features that an encoder learned on made-up images (`noisewise pretrain`).

    An encoder of colour images is included; `made-up-linear:weights=FILE` takes another one. It is frozen: nothing of it is
    learned from records, so it costs no privacy. Views, length and learning as in `scattering-linear`.

    Reference: Tang et al. 2023, arXiv:2306.06076. Deviation: the encoder stays as it is; they go on training it privately.
    """

    name: ClassVar[str] = "made-up-linear"
    features: ClassVar[type[Learned]] = Learned
    head: ClassVar[str] = "linear-head"
    reference: ClassVar[str] = "Tang et al. 2023, arXiv:2306.06076"
