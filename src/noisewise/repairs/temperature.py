"""Temperature scaling: another confidence for the same decisions, after training, with what it costs in privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, nn

from noisewise.errors import ConfigError, DataError, PrivacyError
from noisewise.evaluation import logits
from noisewise.repairs.base import Cost
from noisewise.runs.folder import Status
from noisewise.wording import number

if TYPE_CHECKING:
    from noisewise.data import Data

_COLDEST, _HOTTEST = 1e-3, 1e3


@dataclass(frozen=True)
class Temperature:
    """A number to divide outputs by, and whether it may be used with the model: that depends on the data it is from."""

    value: float
    status: Status
    n: int

    @property
    def cost(self) -> Cost:
        """`free` from public data, else `not-private`: the words of other repairs."""
        return "free" if self.status.status == "private" else "not-private"

    def __post_init__(self) -> None:
        """A temperature above 0."""
        if not 0 < self.value < math.inf:
            raise ConfigError(
                f"temperature {self.value!r}: must be above 0; 1 changes nothing, above 1 lowers confidence."
            )


def temperature(model: nn.Module, data: Data) -> Temperature:
    """Temperature T with the least mean cross-entropy of `softmax(outputs / T)` on `data`.

    In `1/T` the cross-entropy is convex, so the root of its derivative, `E_p[z] - z_y` averaged, is the one minimum.
    Guarantee: T changes no decision. On public data it is post-processing and free; on any other data it is a number
    computed from people without noise, so its status is `not-private` and `Scaled` refuses it unless told to take it.
    Reference: Guo et al. 2017, arXiv:1706.04599, sec. 4.2. Deviation: root finding instead of L-BFGS, the same minimum.
    """
    from scipy.optimize import brentq

    outputs = logits(model, data)
    z = (outputs - outputs.max(1, keepdim=True).values).numpy()
    of_label = z[np.arange(len(z)), data.y.numpy()]

    def slope(log_inverse: float) -> float:
        p = np.exp(math.exp(log_inverse) * z)
        return float((((p * z).sum(1) / p.sum(1)) - of_label).mean())

    low, high = -math.log(_HOTTEST), -math.log(_COLDEST)
    if not np.isfinite(z).all() or slope(low) >= 0 or slope(high) <= 0:
        raise DataError(
            f"no temperature between {_COLDEST:g} and {_HOTTEST:g} is best on these {len(data)} rows: the model gets all "
            "of them right, is no better than chance, or gives outputs that are not finite. Use more rows, which it was "
            "not trained on."
        )
    value = math.exp(-float(brentq(slope, low, high, xtol=1e-12)))
    if data.public:
        status = Status("private", "temperature from public data: post-processing, free")
    else:
        status = Status(
            "not-private", "temperature fitted without noise to people who are not public: no ledger covers it"
        )
    return Temperature(value, status, len(data))


class Scaled(nn.Module):
    """A model whose outputs are divided by a temperature; it decides as before, with other confidence.

    Guarantee: a temperature that is not private does not come in unnoticed: it needs `allow_not_private=True`, and
    `status` carries it on.
    """

    def __init__(self, model: nn.Module, temperature: Temperature, *, allow_not_private: bool = False):
        super().__init__()
        if not isinstance(temperature, Temperature):
            raise ConfigError(
                f"temperature {temperature!r}: needs what temperature(model, data) gives, so that it is known whether "
                "it comes from public data; or Temperature(value, status, n) if you know it."
            )
        if temperature.status.status != "private" and not allow_not_private:
            raise PrivacyError(
                f"temperature {number(temperature.value)} is {temperature.status.status} ({temperature.status.reason}): "
                "the model's guarantee would not hold for what it says then. Fit it on public data (public=True), or "
                "pass allow_not_private=True and do not publish the result."
            )
        self.model = model
        self.temperature = temperature

    @property
    def status(self) -> Status:
        """Of the temperature; the model has its own."""
        return self.temperature.status

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Outputs over temperature."""
        return self.model(*args, **kwargs) / self.temperature.value
