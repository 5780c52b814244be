"""From settings to a run: `Config` (what config.toml holds), the recipe it stands for, and carrying it out.

`configure` fills in defaults, `prepare` builds the recipe, `execute` trains the private model and its twin into a run
folder, `open_run` rebuilds them later, `audit` asks what privacy cost.
"""

from __future__ import annotations

import copy
import os
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import torch
from torch import nn

from noisewise import adaptive, clipping
from noisewise.accounting.accountants import check_delta
from noisewise.accounting.defaults import default_adjacency, default_delta
from noisewise.audits import AUDITS, Result
from noisewise.clipping import Clip
from noisewise.data import Data, Splits, load
from noisewise.errors import ConfigError, PrivacyError, RunError
from noisewise.losses import loss_for, outputs_for
from noisewise.mechanism import Mechanism
from noisewise.models import MODELS, build
from noisewise.randomness import Entropy
from noisewise.recipe import Recipe, load_weights
from noisewise.runs.files import write_atomically, write_json
from noisewise.runs.folder import RunFolder, Status
from noisewise.runs.summary import read_status
from noisewise.runtime import Engine, Runtime
from noisewise.sampling import SAMPLERS, FullBatch, steps_for
from noisewise.training.loop import train
from noisewise.wording import number

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
}
CLIPS = ("flat", "global", "automatic", "normalized", "per-sample", "per-layer", "quantile", "global-adapt")

DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"model": "cnn", "valid": 180, "batch_size": 512, "epochs": 40, "bound": 0.5, "lr": 0.5, "twin_lr": 0.3},
    "mnist": {
        "model": "lenet",
        "valid": 5000,
        "batch_size": 2048,
        "epochs": 40,
        "bound": 0.1,
        "lr": 4.0,
        "ema": 0.99,
        "twin_lr": 0.1,
    },
}
"""Settings by data set, for SGD with momentum 0.9 and flat clipping.

digits: chosen for the cnn at epsilon 3 by mean accuracy on the valid part over four seeds, among batch sizes 256, 512
and 1024, 60 to 250 steps, bounds 0.1, 0.5 and 1, four learning rates with and without momentum, and a moving average of
the weights; the test part was not looked at. The twin's learning rate likewise among 0.03 to 1.

mnist: chosen for the lenet at epsilon 3, delta 1e-5 by accuracy on the valid part, one seed each, among 44 settings: batch
sizes 512 to 2048, 20 to 40 epochs, bounds 0.1 with momentum 0.9 and 1 without, three learning rates each, tanh and ReLU,
average and maximum pooling, linear decay, a moving average; the test part was not looked at.
"""
ADAPTIVE_LR = 0.01  # Adam and the like, where no learning rate is given


@dataclass(frozen=True, kw_only=True)
class Config:
    """Every setting of a run, defaults filled in; config.toml holds exactly these.

    Guarantee: equal configs are equal plans. With `epsilon`, the noise multiplier was calibrated to it, and a config
    whose noise multiplier costs more than its epsilon is refused. Only `insecure_seed` makes the noise repeat.
    """

    data: str
    valid: int
    model: str
    seed: int
    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float
    adjacency: str
    sampler: str
    batch_size: int
    steps: int
    clip: str
    bound: float
    screen: float | None = None
    optimizer: str
    lr: float
    momentum: float
    ema: float | None = None
    twin: bool
    twin_lr: float
    engine: str
    microbatch: int | None = None
    insecure_seed: int | None = None

    def __post_init__(self) -> None:
        """Right types, known names, numbers in range; what is in the mechanism is checked there."""
        hints = get_type_hints(type(self))
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), hints[field.name])
        if self.model not in MODELS:
            raise ConfigError(f"model {self.model!r}: unknown. Known models: {', '.join(MODELS)}.")
        if self.clip not in CLIPS:
            raise ConfigError(f"clip={self.clip!r}: must be one of {', '.join(CLIPS)}.")
        if self.screen is not None and not self.clip.startswith("global"):
            raise ConfigError(f"screen={self.screen} with clip={self.clip!r}: only global clipping screens.")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer={self.optimizer!r}: must be one of {', '.join(OPTIMIZERS)}.")
        if self.sampler not in SAMPLERS:
            raise ConfigError(f"sampler={self.sampler!r}: must be one of {', '.join(SAMPLERS)}.")
        for name in ("lr", "twin_lr"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"{name}={getattr(self, name)}: must be a number above 0, e.g. 0.1.")
        if not 0 <= self.momentum < 1:
            raise ConfigError(f"momentum={self.momentum}: must be in [0, 1), e.g. 0.9, or 0 for none.")
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: must be a whole number >= 0.")
        if self.ema is not None and not 0 < self.ema < 1:
            raise ConfigError(f"ema={self.ema}: a decay in (0, 1), e.g. 0.9999, or none.")
        if self.insecure_seed is not None:
            Entropy.insecure(self.insecure_seed)
        check_delta(self.delta)
        self.runtime()

    def runtime(self) -> Runtime:
        """How steps are computed."""
        return Runtime(engine=cast(Engine, self.engine), microbatch=self.microbatch)

    def to_toml(self) -> str:
        """Text of config.toml; settings that are off are left out."""
        import tomli_w

        return tomli_w.dumps({"format": 1, **{k: v for k, v in asdict(self).items() if v is not None}})

    @classmethod
    def from_toml(cls, text: str, name: str = "config.toml") -> Config:
        """Inverse of `to_toml`; unknown and missing entries stop, with their names."""
        try:
            raw = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{name} is not valid TOML: {error}.") from None
        if raw.pop("format", None) != 1:
            raise ConfigError(f"{name}: this version reads `format = 1`.")
        unknown = set(raw) - {field.name for field in fields(cls)}
        if unknown:
            known = ", ".join(field.name for field in fields(cls))
            raise ConfigError(f"{name}: unknown entries {', '.join(sorted(unknown))}. Known are {known}.")
        needed = {field for field, hint in get_type_hints(cls).items() if type(None) not in get_args(hint)}
        missing = needed - set(raw)
        if missing:
            raise ConfigError(
                f"{name}: {', '.join(sorted(missing))} missing; a config is complete. Start from a run's."
            )
        return cls(**raw)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Config:
        """A config file."""
        path = Path(path)
        try:
            return cls.from_toml(path.read_text(), path.name)
        except FileNotFoundError:
            raise ConfigError(f"{path} does not exist: `noisewise train` writes one into every run folder.") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from None


def _check_type(name: str, value: Any, hint: Any) -> None:
    kinds = get_args(hint) or (hint,)
    whole_as_float = float in kinds and type(value) is int
    if type(value) not in kinds and not whole_as_float:
        wanted = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
        raise ConfigError(f"{name}={value!r}: must be of type {wanted}.")


PLAN = ("data", "valid", "epsilon", "delta", "adjacency", "sampler", "batch_size", "steps", "clip")


def configure(base: Config | None = None, *, epochs: float | None = None, **given: Any) -> Config:
    """A complete config from what the user gave: over `base`, else over the defaults of the data set.

    Gives a noise multiplier to a config that has only an epsilon (a few seconds); keeps it where the plan is unchanged.
    """
    given = {name: value for name, value in given.items() if value is not None}
    unknown = set(given) - {field.name for field in fields(Config)}
    if unknown:
        raise ConfigError(f"unknown settings {', '.join(sorted(unknown))}.")
    if "steps" in given and epochs is not None:
        raise ConfigError(f"epochs={epochs} and steps={given['steps']}: give one of them.")
    if "epsilon" in given and "noise_multiplier" in given:
        raise ConfigError(
            f"epsilon={given['epsilon']} and noise_multiplier={given['noise_multiplier']}: one follows from the other; "
            "give one of them."
        )
    if base is None:
        settings = _from_defaults(given, epochs)
    else:
        settings = asdict(base) | given
        if not settings["clip"].startswith("global") and "screen" not in given:
            settings["screen"] = None
        if epochs is not None:
            n = len(load(settings["data"], settings["seed"], settings["valid"]).train)
            settings["steps"] = steps_for(epochs, n, settings["batch_size"])
        if "noise_multiplier" in given:
            settings["epsilon"] = None
        elif settings["epsilon"] is not None and any(settings[name] != getattr(base, name) for name in PLAN):
            settings["noise_multiplier"] = None
    config = Config(**settings)
    plan = _plan(config, len(load(config.data, config.seed, config.valid).train))
    if config.noise_multiplier is None and config.epsilon is not None:
        config = replace(config, noise_multiplier=plan.calibrated(config.epsilon, config.delta).noise_at(0))
    return config


def _from_defaults(given: Mapping[str, Any], epochs: float | None) -> dict[str, Any]:
    if "epsilon" not in given and "noise_multiplier" not in given:
        raise ConfigError("how private? Give epsilon (e.g. 3; smaller is more private) or noise_multiplier.")
    data, seed = given.get("data", "digits"), given.get("seed", 0)
    known = dict(DEFAULTS.get(data, {}))
    splits = load(data, seed, given.get("valid", known.get("valid")))
    n = len(splits.train)
    sampler = given.get("sampler", "poisson")
    batch_size = given.get("batch_size", n if sampler == FullBatch.kind else known.get("batch_size", 256))
    if sampler == FullBatch.kind and batch_size != n:
        raise ConfigError(
            f"batch_size={batch_size} with the full-batch sampler: leave it out, every step sees all {n}."
        )
    epochs = known.pop("epochs", 30) if epochs is None else epochs
    steps = given["steps"] if "steps" in given else steps_for(epochs, n, batch_size)
    adaptive = given.get("optimizer", "sgd") != "sgd"
    lr = given.get("lr", ADAPTIVE_LR if adaptive else known.get("lr", 0.5))
    settings = {
        "data": data,
        "valid": len(splits.valid),
        "model": known.get("model", _model_for(splits.train)),
        "seed": seed,
        "delta": default_delta(n),
        "adjacency": default_adjacency(sampler),
        "sampler": sampler,
        "batch_size": batch_size,
        "steps": steps,
        "clip": "flat",
        "bound": known.get("bound", 1.0),
        "optimizer": "sgd",
        "lr": lr,
        "momentum": 0.9,
        "ema": known.get("ema"),
        "twin": True,
        "twin_lr": lr if adaptive else known.get("twin_lr", 0.1),
        "engine": "auto",
    }
    return settings | dict(given)


def prepare(config: Config) -> Recipe:
    """The recipe of a config: data, an initialised model, mechanism, optimizer."""
    data = load(config.data, config.seed, config.valid)
    model = _built(config, data)
    plan = _plan(config, len(data.train))
    if config.epsilon is not None:
        spent = plan.epsilon(config.delta)
        if spent is None or spent > config.epsilon:
            raise PrivacyError(
                f"noise_multiplier={config.noise_multiplier} costs epsilon {number(spent)}, more than the epsilon="
                f"{config.epsilon:g} the config states. Take noise_multiplier out to have it calibrated."
            )
    mechanism = replace(plan, clip=_rule(config, [name for name, _ in model.named_parameters()]))
    return Recipe(
        model=model,
        data=data,
        loss_fn=loss_for(data.train),
        mechanism=mechanism,
        optimizer=_optimizer(config, config.lr),
        ema=config.ema,
        ledger=None if data.train.schema is None else data.train.schema.ledger,
    )


def _built(config: Config, data: Splits) -> nn.Module:
    """The model before training."""
    return build(config.model, tuple(data.train.x.shape[1:]), outputs_for(data.train), config.seed)


def _plan(config: Config, n: int) -> Mechanism:
    """The mechanism, as far as it is known before the model."""
    if config.sampler == FullBatch.kind and config.batch_size != n:
        raise ConfigError(f"batch_size={config.batch_size} with the full-batch sampler: must be all {n} rows.")
    sampler = FullBatch(n) if config.sampler == FullBatch.kind else SAMPLERS[config.sampler](n, config.batch_size)
    return Mechanism(
        sampler=sampler,
        clip=_rule(config),
        steps=config.steps,
        noise_multiplier=config.noise_multiplier,
        adjacency=config.adjacency,
    )


def _rule(config: Config, names: list[str] | None = None) -> Clip:
    """The clipping rule; per layer once the parameters' `names` are known, flat before (no epsilon depends on that)."""
    match config.clip:
        case "global":
            return clipping.Global(config.bound, config.screen)
        case "automatic":
            return clipping.Automatic(config.bound)
        case "normalized":
            return clipping.Normalized(config.bound)
        case "per-sample":
            return clipping.PerSampleAdaptive(config.bound)
        case "quantile":
            return adaptive.Quantile(config.bound)
        case "global-adapt":
            return adaptive.GlobalAdapt(config.bound, *([] if config.screen is None else [config.screen]))
        case "per-layer" if names:  # equal shares of the bound, so that the total sensitivity is the bound
            return clipping.per_layer(names, clipping.Flat(config.bound / len(names) ** 0.5))
    return clipping.Flat(config.bound)


def _optimizer(config: Config, lr: float) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    kind = OPTIMIZERS[config.optimizer]
    extra = {"momentum": config.momentum} if config.optimizer in ("sgd", "rmsprop") else {}
    return lambda parameters: kind(parameters, lr=lr, **extra)


def execute(config: Config, out: str | os.PathLike[str], *, resume: bool = False, progress: bool = True) -> RunFolder:
    """Train the private model, then its twin from the same start, into the run folder `out`.

    Killed at any moment, a second call with `resume` does what is missing and gives the run that was planned.
    """
    folder = RunFolder(out)
    if not resume and (folder.run.exists() or folder.checkpoint.exists()):
        if finished(config, out):
            raise RunError(f"{folder.path} holds a finished run: choose another --out, so that nothing is overwritten.")
        raise RunError(f"{folder.path} holds an unfinished run: go on with --resume, or choose another --out.")
    if resume and not (folder.config.exists() or folder.run.exists() or folder.checkpoint.exists()):
        raise RunError(f"{folder.path} holds no run to go on with: check --out, or begin one without --resume.")
    if resume and folder.config.exists():
        _check_same(Config.read(folder.config), config, folder)
    recipe = prepare(config)
    folder.create()
    write_atomically(folder.config, config.to_toml().encode())
    if recipe.data.train.schema is not None:
        write_json(folder.schema, recipe.data.train.schema.to_dict())
    start = copy.deepcopy(recipe.model)
    if folder.complete:
        folder.forget_checkpoint()  # killed between its last two acts
    else:
        _train(config, recipe, recipe.model, folder, resume, progress)
    if config.twin and not twin_weights(folder).exists():
        plain = replace(recipe, optimizer=_optimizer(config, config.twin_lr))
        work = RunFolder(folder.sensitive / "twin")
        if not work.complete:
            _train(config, plain, start, work, resume, progress, ablation="plain")
        write_atomically(twin_weights(folder), work.model.read_bytes())
    shutil.rmtree(folder.sensitive / "twin", ignore_errors=True)
    return folder


def _check_same(stored: Config, config: Config, folder: RunFolder) -> None:
    before, now = vars(stored), vars(config)
    changes = ", ".join(f"{name} was {before[name]}, now {now[name]}" for name in now if before[name] != now[name])
    if changes:
        raise ConfigError(
            f"{folder.path} was started with other settings: {changes}. Leave them out to go on, or choose another --out."
        )


def finished(config: Config, out: str | os.PathLike[str]) -> bool:
    """Is everything the config asks for in the run folder?"""
    folder = RunFolder(out)
    return folder.complete and (twin_weights(folder).exists() or not config.twin)


def _train(
    config: Config, recipe: Recipe, model: nn.Module, folder: RunFolder, resume: bool, progress: bool, **ablation: Any
) -> None:
    train(
        model,
        recipe.data.train,
        recipe.loss_fn,
        recipe.mechanism,
        recipe.optimizer(model.parameters()),
        runtime=config.runtime(),
        valid=recipe.data.valid if len(recipe.data.valid) else None,
        delta=config.delta,
        seed=config.seed,
        insecure_seed=config.insecure_seed,
        out=folder.path,
        resume=resume and folder.begun,
        ema=config.ema,
        ledger=copy.deepcopy(recipe.ledger),
        about={
            "task": recipe.data.train.task,
            "data": {
                "name": config.data,
                "public": recipe.data.train.public,
                "classes": len(recipe.data.train.classes),
            },
            "model": config.model,
        },
        progress=progress,
        **ablation,
    )


def twin_weights(folder: RunFolder) -> Path:
    """Where the twin's weights are: among the secrets, since no ledger covers them."""
    return folder.sensitive / "twin.safetensors"


def _model_for(data: Data) -> str:
    """A model that fits the inputs: convolutions for images, layers for columns."""
    return {4: "cnn", 3: "two-layer-cnn"}.get(data.x.dim(), "mlp")


@dataclass(frozen=True)
class Run:
    """A finished run, rebuilt: models in evaluation mode; `twin` is None where none was trained."""

    folder: RunFolder
    config: Config
    status: Status
    data: Splits
    model: nn.Module
    twin: nn.Module | None


def open_run(path: str | os.PathLike[str]) -> Run:
    """The model, its twin and the data splits of a finished run folder."""
    folder = RunFolder(path)
    if not folder.complete:
        begun = folder.run.exists() or folder.checkpoint.exists()
        state = "holds an unfinished run" if begun else "is no run folder"
        remedy = f"Finish it with `noisewise train --resume --out {folder.path}`." if begun else "Check the name."
        raise RunError(f"{folder.path} {state}. {remedy}")
    config, status = Config.read(folder.config), read_status(folder)
    data = load(config.data, config.seed, config.valid)

    def rebuilt(weights: Path) -> nn.Module:
        return load_weights(_built(config, data), weights).eval()

    twin = rebuilt(twin_weights(folder)) if twin_weights(folder).exists() else None
    return Run(folder, config, status, data, rebuilt(folder.model), twin)


def audit(run: Run, name: str, *, progress: bool = False) -> Result:
    """Audit a run on its test part by name; the result is saved among the run's secrets."""
    if name not in AUDITS:
        raise ConfigError(f"audit {name!r}: unknown. Known audits: {', '.join(AUDITS)}.")
    wanted, task = AUDITS[name], run.data.test.task
    if wanted.classes and task != "classification":
        raise ConfigError(f"audit {name!r}: needs classes, this run is a {task}.")
    settings = {need: _needed(run, need) for need in wanted.needs}
    generator = np.random.default_rng(run.config.seed)
    twin = run.twin if wanted.twin else None
    subject = (run.model, run.data.test) if wanted.model else (None, None)
    result = wanted.run(*subject, twin=twin, generator=generator, progress=progress, **settings)
    if result.status.status == "private":
        result = replace(result, status=run.status)  # no more private than the model it speaks of
    folder = run.folder.sensitive / "audits"
    folder.mkdir(exist_ok=True)
    write_json(folder / f"{name}.json", result.to_dict())
    return result


def _needed(run: Run, what: str) -> Any:
    """What an audit needs beside model, data and twin."""
    match what:
        case "members":
            return run.data.train
        case "mechanism":
            return prepare(run.config).mechanism
        case "loss_fn":
            return loss_for(run.data.train)
        case "lr":
            if run.config.optimizer != "sgd":
                raise ConfigError(
                    f"optimizer={run.config.optimizer!r}: this audit is about the learning rate of plain gradient steps. Train "
                    "with --optimizer sgd to ask it."
                )
            return run.config.lr
        case "momentum":
            return run.config.momentum
        case "start":
            return _built(run.config, run.data).eval()
        case "path":
            return (_built(run.config, run.data).eval(),)
    raise ConfigError(f"an audit needs {what!r}, which a run does not have.")


def accuracy(model: nn.Module, data: Data) -> float:
    """Share of rows a classifier gets right, in evaluation mode."""
    with torch.no_grad():
        return float((model(data.x).argmax(1) == data.y).float().mean())
