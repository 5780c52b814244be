"""What the experiments of Xu, Chen 2026 on images share: settings, learning rates chosen on held-out images, sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from noisewise.reproduce.experiment import TUNING_SEED, Cell, Config, grid
from noisewise.reproduce.measured import Measured

RUN = "images:train_images"
PRIVATE, TWIN = "private", "not private"
POINT = 0.01
MISSING = "epsilon, epochs, attack and radius of the paper are not known to us"


@dataclass(frozen=True, kw_only=True)
class Images(Config):
    """What all runs on images share; learning rates of private runs and twins are chosen apart, on held-out images."""

    data: str = "mnist"
    model: str = "lenet"
    batch: int = 256
    epochs: float = 15
    epsilon: float = 3.0
    sigma: float | None = None  # in place of epsilon
    bound: float = 0.1
    momentum: float = 0.9
    rows: int | None = None
    valid: int = 5000
    rates: tuple[float, ...] = (0.5, 1.0, 2.0)
    open_rates: tuple[float, ...] = (0.01, 0.03, 0.1)
    attacked: int = 2000

    def settings(self, kind: str, lr: float, **more: Any) -> dict[str, Any]:
        """Of one run."""
        shared = {
            "data": self.data,
            "model": self.model,
            "batch": self.batch,
            "epochs": self.epochs,
            "lr": lr,
            "momentum": self.momentum,
            "rows": self.rows,
            "valid": self.valid,
        }
        if kind == TWIN:
            return {**shared, "ablation": "plain", **more}
        noise = {"epsilon": self.epsilon} if self.sigma is None else {"sigma": self.sigma}
        return {**shared, **noise, "rule": {"kind": "local", "bound": self.bound}, **more}

    def choices(self, kind: str) -> tuple[float, ...]:
        """Learning rates to choose from."""
        return self.open_rates if kind == TWIN else self.rates


def tried(kind: str, lr: float, case: str = "") -> str:
    """The arm that tries a learning rate."""
    return f"{kind}{case}, lr {lr:g}"


def choices(config: Images, measured: Measured, kind: str, case: str = "", score: str = "accuracy") -> dict[float, str]:
    """Learning rates that are tried, with their arms; wider than the settings say where the best lies at an end."""
    return measured.tried(config.choices(kind), lambda lr: tried(kind, lr, case), score)


def tuning(config: Images, measured: Measured, kinds: Sequence[str] = (PRIVATE, TWIN)) -> list[Cell]:
    """Every learning rate once, on held-out images."""
    arms = {
        arm: {**config.settings(kind, lr), "tuning": True}
        for kind in kinds
        for lr, arm in choices(config, measured, kind).items()
    }
    return grid(config, RUN, arms, seeds=[TUNING_SEED], tuning=True)


def best(config: Images, measured: Measured, kind: str, case: str = "", score: str = "accuracy") -> float:
    """The learning rate that was best on held-out images."""
    return measured.best(choices(config, measured, kind, case, score), score)


CHOSEN = (
    " Learning rates were chosen on 5,000 held-out training images (one run each), for private runs and twins "
    "apart, beyond the grid where its end was best; the final runs train on all training images and read the test "
    "images once. Clip bound 0.1 with momentum 0.9 (as Tramer, Boneh), batch 256 as published; epsilon 3 at delta "
    "1e-5 (PLD) and the epochs are ours."
)

QUICK: dict[str, Any] = {
    "seeds": 1,
    "data": "digits",
    "model": "cnn",
    "batch": 64,
    "epochs": 0.5,
    "rows": 200,
    "valid": 60,
    "rates": (0.5,),
    "open_rates": (0.03,),
    "attacked": 20,
    "sigma": 1.0,
}
SMALL: dict[str, Any] = {"rows": 10_000, "epochs": 8, "rates": (0.5, 1.0), "open_rates": (0.03, 0.1), "attacked": 500}
