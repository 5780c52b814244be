"""What a config stands for: its data, loaded once, and its recipe, built once."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from noisewise.accounting import Ledger
from noisewise.adaptive import rule_for
from noisewise.data import Splits, load
from noisewise.data.catalog import CATALOG
from noisewise.data.table_parts import load_table
from noisewise.data.tables.schema import Schema, protected
from noisewise.errors import ConfigError, DataError, OddRows, PrivacyError
from noisewise.losses import LossFn, loss_for, outputs_for
from noisewise.mechanism import Mechanism
from noisewise.rates import LearningRate
from noisewise.recipe import MakeOptimizer, Recipe, at_epsilon, at_noise
from noisewise.recipes.centre import planned_ledger
from noisewise.recipes.own_images import loss_of
from noisewise.recipes.transform import featured_parts
from noisewise.repairs import repaired
from noisewise.runs.folder import Status
from noisewise.sampling import SAMPLERS, FullBatch
from noisewise.training.summary import REPRODUCIBLE
from noisewise.wording import at_most, several_units
from noisewise.workflow.choices import OPTIMIZERS, WITH_MOMENTUM
from noisewise.workflow.model_specs import build_model
from noisewise.workflow.recipe_specs import complete, parsed, sides_of
from noisewise.workflow.repair_specs import parse

if TYPE_CHECKING:
    from noisewise.workflow.settings import Config

TEST = 0.2  # share of a table that audits look at


@dataclass(frozen=True)
class Planned:
    """A config with its data and its recipe, so that one command loads and builds them once.

    `built`: the recipe, where it is there already.
    """

    config: Config
    data: Splits
    built: Recipe | None = None

    @classmethod
    def of(cls, config: Config, schema: Schema | None = None, encoder: Path | None = None) -> Planned:
        """Load the data of a config. `schema`: of a table. `encoder`: a run's copy of that of its recipe."""
        return cls(config, splits_of(vars(config), schema, encoder))

    @cached_property
    def recipe(self) -> Recipe:
        """Model, mechanism, optimizer, repairs; one that costs more than the config's epsilon is refused."""
        return recipe_of(self.config, self.data) if self.built is None else self.built

    @property
    def status(self) -> Status:
        """What the run will be, known before it begins."""
        if not self.recipe.private:
            return Status("not-private", "a part of it carries no noise")
        if self.config.insecure_seed is not None:
            return Status("not-private", REPRODUCIBLE)
        return Status("private", "every release is in the ledger")

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the recipe, of its last phase."""
        return self.recipe.mechanism


def splits_of(settings: Mapping[str, Any], schema: Schema | None = None, encoder: Path | None = None) -> Splits:
    """The data that a config's settings name, as features where a recipe says so. `schema`: of a table."""
    parts = raw_splits(settings, schema)
    return parts if settings.get("recipe") is None else with_features(parts, settings, encoder)


def with_features(parts: Splits, settings: Mapping[str, Any], encoder: Path | None = None) -> Splits:
    """Images as the features of a config's recipe, each by itself."""
    kind, features = complete(settings["recipe"], encoder)
    device = device_named(settings.get("device") or ("cuda" if torch.cuda.is_available() else "cpu"))
    return featured_parts(parts, features, flat=kind.flat, device=device, progress=settings.get("progress", False))


def raw_splits(settings: Mapping[str, Any], schema: Schema | None = None) -> Splits:
    """The data that a config's settings name, as they are. `schema`: of a table; what is odd in its rows is warned of."""
    if schema is None or settings["data"] in CATALOG or Path(settings["data"]).is_dir():
        return load(settings["data"], settings["seed"], settings["valid"])
    if not Path(settings["data"]).is_file():
        raise DataError(
            f"{settings['data']} does not exist here. Its path is that from the folder in which the run was started: go there."
        )
    test = settings.get("test")
    table = load_table(
        Path(settings["data"]),
        schema,
        seed=settings["seed"],
        test=TEST if test is None else Path(test) if isinstance(test, str) else test,
        valid=settings["valid"] or 0,
        drop_unlabelled=settings.get("drop_unlabelled", False),
        public=settings.get("public", False),
    )
    for sentence in table.sentences():
        warnings.warn(sentence, OddRows, stacklevel=2)
    return table.splits


def recipe_of(config: Config, data: Splits) -> Recipe:
    """The recipe of a config, with its repairs; calibrated where it has an epsilon and no noise multiplier yet.

    Guarantee: with an epsilon everything that the recipe releases, what choosing the schema has spent included, costs at
    most that.
    """
    base = _base(config, data)
    recipe = repaired(base, *(parse(text) for text in config.repairs))
    if config.epsilon is None:
        return recipe
    if config.noise_multiplier is None:
        return at_epsilon(recipe, config.epsilon, config.delta)
    recipe = at_noise(recipe, config.noise_multiplier)
    spent = recipe.epsilon(config.delta)
    if not spent <= config.epsilon:
        raise PrivacyError(
            f"noise_multiplier={config.noise_multiplier} costs epsilon {at_most(spent)}, more than the epsilon="
            f"{config.epsilon:g} the config states. Take noise_multiplier out to have it calibrated."
        )
    return recipe


def _base(config: Config, data: Splits) -> Recipe:
    """The recipe before repairs; where an epsilon decides, with noise 1, so that phases have proportions."""
    model = untrained(config, data)
    names = [name for name, _ in model.named_parameters()]
    noise = 1.0 if config.epsilon is not None else config.noise_multiplier
    plan = replace(plan_of(config, data), noise_multiplier=noise)
    return Recipe(
        model=model,
        data=data,
        loss_fn=loss_of_config(config, data),
        mechanism=replace(plan, clip=rule_for(config.clip, config.bound, config.screen, names)),
        optimizer=optimizer_of(config, config.lr),
        ema=config.ema,
        schedule=None if config.schedule is None else LearningRate.parse(config.schedule),
        ledger=ledger_before(config, data),
    )


def ledger_before(config: Config, data: Splits) -> Ledger | None:
    """What is released before training: a schema's choices, or the centre of a recipe's features (as planned)."""
    if config.recipe is None:
        return None if data.train.schema is None else data.train.schema.ledger
    noise = parsed(config.recipe)[1].get("centre", 0.0)  # all there is to know: the encoder may be elsewhere by now
    unit = protected(None if data.train.unit is None else "unit")
    return planned_ledger(data.train.units, noise, config.adjacency, unit) if noise else None


def loss_of_config(config: Config, data: Splits) -> LossFn:
    """What training makes small: the loss of the task; where a recipe's views stand side by side, its mean over them."""
    if config.recipe is None:
        return loss_for(data.train)
    return loss_of(sides_of(config.recipe))


def untrained(config: Config, data: Splits) -> nn.Module:
    """The model before training and repairs, on its device."""
    model = build_model(config.model, tuple(data.train.x.shape[1:]), outputs_for(data.train), config.seed)
    if ".py:" in config.model:
        _check_outputs(model, data, config.model)
    return model.to(device_of(config))


def _check_outputs(model: nn.Module, data: Splits, name: str) -> None:
    """One's own model has an output for each class: asked with blank rows, before anything is spent."""
    blank = torch.zeros_like(data.train.x[:2])
    try:
        with torch.no_grad(), torch.random.fork_rng([]):
            made = copy.deepcopy(model).cpu().eval()(blank)
    except Exception:
        return  # what blank rows do not suit is said when it is trained
    wanted = outputs_for(data.train)
    classes = data.train.task == "classification" and isinstance(made, torch.Tensor) and made.dim() == 2
    if classes and made.shape[1] != wanted:
        raise ConfigError(
            f"model {name} gives {made.shape[1]} outputs for a row, and the data has {wanted} classes "
            f"({', '.join(data.train.classes[:12])}): it needs one for each. The second argument of its function says how "
            "many."
        )


def device_of(config: Config) -> torch.device:
    """Where the model is trained: as the config says, else on a GPU where there is one."""
    return device_named(config.device or ("cuda" if torch.cuda.is_available() else "cpu"))


def device_named(wanted: str) -> torch.device:
    """A device that can be used here."""
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(f"device={wanted!r} cannot be used here: {reason}. Leave it out, or use cpu.") from None
    return device


def optimizer_of(config: Config, lr: float) -> MakeOptimizer:
    """Builds the config's optimizer on a model's parameters."""
    make = OPTIMIZERS[config.optimizer]
    extra = {"momentum": config.momentum} if config.optimizer in WITH_MOMENTUM else {}
    return lambda parameters: make(parameters, lr=lr, **extra)


def plan_of(config: Config, data: Splits) -> Mechanism:
    """The mechanism, as far as it is known before the model; it protects people where the data say whose rows they are."""
    n, unit = data.train.units, protected(None if data.train.unit is None else "unit")
    if config.sampler == FullBatch.kind and config.batch_size != n:
        raise ConfigError(
            f"batch_size={config.batch_size} with the full-batch sampler: must be all {n} {several_units(unit)}."
        )
    sampler = FullBatch(n) if config.sampler == FullBatch.kind else SAMPLERS[config.sampler](n, config.batch_size)
    return Mechanism(
        sampler=sampler,
        clip=rule_for(config.clip, config.bound, config.screen),
        steps=config.steps,
        noise_multiplier=config.noise_multiplier,
        adjacency=config.adjacency,
        unit=unit,
    )


def is_open(data: Splits) -> bool:
    """Were the rows that audits look at declared public, with all others?"""
    return data.train.public and data.test.public
