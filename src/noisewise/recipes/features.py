"""What a recipe makes of images: the settings that all kinds of features share, and what each kind has to answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from noisewise.recipes.views import SAME, check_centre, check_views
from noisewise.recipes.waves import check_waves


@dataclass(frozen=True, kw_only=True)
class Features(ABC):
    """Settings of features, and the features themselves; see `recipes.transform` for how they become rows.

    views: versions of each image. average: their features are averaged, else they stand side by side and their losses are
    averaged. shape: of an image, once it is known; others are then refused. centre: noise of a release of the features' mean,
    which the model subtracts, see `recipes.centre`; 0 for none. waves, pitch: so many random waves over each row in place of
    the features, see `recipes.waves`; 0 for none. version: of the numbers.

    unmarked: settings that do not show in a mark at these values, where the usual value has become another since: the same
    features of the same people must have the same mark in every version.

    Guarantee: row i of what comes of images is a function of public numbers and of image i.
    """

    views: tuple[str, ...] = (SAME,)
    average: bool = True
    shape: tuple[int, ...] = ()
    centre: float = 0.0
    waves: int = 0
    pitch: float = 1.0
    version: ClassVar[str]
    unmarked: ClassVar[Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        """Known names, numbers in range."""
        check_views(self.views)
        check_centre(self.centre)
        check_waves(self.waves, self.pitch)

    @abstractmethod
    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse inputs that are no images for it."""

    @abstractmethod
    def maps(self, images: Tensor) -> list[Tensor]:
        """Features `[n, channels, height, width]` of one version, one or several sets of them."""
