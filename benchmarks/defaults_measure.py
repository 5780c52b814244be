"""What the defaults reach on tables that took no part in the search, beside other software: one line per finished run."""

from __future__ import annotations

import json
import subprocess
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from noisewise import data as sets
from noisewise.accounting.defaults import default_delta
from noisewise.adaptive import rule_for
from noisewise.data import Data, Splits, split
from noisewise.losses import loss_for, outputs_for
from noisewise.mechanism import Mechanism
from noisewise.models import build
from noisewise.sampling import Poisson
from noisewise.training.loop import train
from noisewise.workflow.recommended import recommended

EPSILONS = (1.0, 3.0)
SEEDS = (0, 1, 2, 3, 4)
TABLES = (
    "adult", "german_credit", "compas", "digits", "breast_cancer", "wine_quality", "california_housing", "diabetes",
)  # fmt: skip
WITH_PRIVACY = ("noisewise", "twin", "opacus mlp", "opacus linear", "diffprivlib")
WITHOUT = ("linear", "boosting")


def bundled(name: str, seed: int) -> Splits:
    """Two tables of scikit-learn, scaled by their published ranges; a fifth is the test part."""
    from sklearn import datasets

    raw = getattr(datasets, f"load_{name}")(**({"scaled": False} if name == "diabetes" else {}))
    low, high = raw.data.min(0), raw.data.max(0)
    x = torch.from_numpy((2 * (raw.data - low) / (high - low) - 1).astype(np.float32))
    if name == "diabetes":
        data = Data(x, scaled(torch.from_numpy(raw.target).float(), 25, 346), public=True)
    else:
        data = Data(x, torch.from_numpy(raw.target).long(), classes=("malignant", "benign"), public=True)
    test, held, known = split(data, seed, len(data) // 5, 1)
    return Splits(known, held, test)


def scaled(y: Tensor, low: float, high: float) -> Tensor:
    """Targets in [-1, 1]."""
    return 2 * (y - low) / (high - low) - 1


@cache
def loaded(name: str, seed: int) -> Splits:
    """A measured table, cut by the seed; all but one of the rows outside of the test part are trained on."""
    if name in ("breast_cancer", "diabetes"):
        return bundled(name, seed)
    parts = []
    for part in sets.load(name, seed, 1):
        y = part.y
        if part.task == "regression":
            target = part.schema.target
            y = scaled(y * target.scale, target.low, target.high)
        parts.append(Data(part.x.flatten(1), y, classes=part.classes, public=True))
    return Splits(*parts)


def score(outputs: Tensor, data: Data) -> float:
    """Accuracy, or the share of the variance that is explained."""
    if data.task == "classification":
        return float((outputs.argmax(1) == data.y).double().mean())
    error = (outputs.flatten() - data.y).double().square().mean()
    return float(1 - error / data.y.double().var(unbiased=False))


def noisewise_and_twin(name: str, epsilon: float, seed: int, *, twin: bool) -> dict:
    """The library, by its defaults: Poisson batches and noise from the operating system, the test part read once."""
    data = loaded(name, seed)
    n, task = len(data.train), data.train.task
    settings = recommended(n, data.train.x.shape[1], epsilon, task, outputs_for(data.train))
    delta = default_delta(n)
    mechanism = Mechanism(
        sampler=Poisson(n, settings.batch_size),
        clip=rule_for(settings.clip, settings.bound, None),
        steps=settings.steps,
    ).calibrated(epsilon, delta)
    model = build(settings.model, tuple(data.train.x.shape[1:]), outputs_for(data.train), seed, **settings.options)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=settings.twin_lr if twin else settings.lr, momentum=settings.momentum
    )
    trained = train(
        model, data.train, loss_for(data.train), mechanism, optimizer, delta=delta, seed=seed, ema=settings.ema,
        ablation="plain" if twin else "private", progress=False,
    )  # fmt: skip
    if trained.averaged is not None:
        model.load_state_dict(model.state_dict() | trained.averaged)
    with torch.no_grad():
        reached = score(model(data.test.x), data.test)
    return {
        "score": reached, "n": n, "delta": delta, "sigma": mechanism.noise_at(0),
        "spent": None if twin else trained.ledger.epsilon(delta), "settings": settings.config() | {"options": settings.options},
    }  # fmt: skip


def opacus(name: str, epsilon: float, seed: int, *, hidden: int) -> dict:
    """Opacus as its guide has it: `make_private_with_epsilon`, its own accountant, bound 1, Poisson batches, 20 epochs."""
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    data = loaded(name, seed)
    n, width, outputs = len(data.train), data.train.x.shape[1], outputs_for(data.train)
    torch.manual_seed(seed)
    model = (
        nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, outputs))
        if hidden
        else nn.Linear(width, outputs)
    )
    regression = data.train.task == "regression"
    optimizer = torch.optim.SGD(model.parameters(), lr=OPACUS["lr_regression" if regression else "lr"], momentum=0.9)
    batch = max(16, min(OPACUS["batch"], n // 16))
    loader = DataLoader(TensorDataset(data.train.x, data.train.y), batch_size=batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine()
        model, optimizer, loader = engine.make_private_with_epsilon(
            module=model, optimizer=optimizer, data_loader=loader, target_epsilon=epsilon, target_delta=default_delta(n),
            epochs=OPACUS["epochs"], max_grad_norm=1.0,
        )  # fmt: skip
        for _ in range(OPACUS["epochs"]):
            for x, y in loader:
                if not len(x):
                    continue
                optimizer.zero_grad()
                out = model(x)
                loss = (out.flatten() - y).square().mean() if regression else nn.functional.cross_entropy(out, y)
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        return {
            "score": score(model(data.test.x), data.test),
            "n": n,
            "spent": float(engine.get_epsilon(default_delta(n))),
        }


OPACUS = {"epochs": 20, "batch": 512, "lr": 0.1, "lr_regression": 0.02}


def plain(name: str, seed: int, *, boosting: bool) -> dict:
    """scikit-learn without privacy, with its own defaults."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression, LogisticRegression

    data = loaded(name, seed)
    if data.train.task == "regression":
        model = HistGradientBoostingRegressor(random_state=seed) if boosting else LinearRegression()
    else:
        model = HistGradientBoostingClassifier(random_state=seed) if boosting else LogisticRegression(max_iter=1000)
    model.fit(data.train.x.numpy(), data.train.y.numpy())
    return {"score": float(model.score(data.test.x.numpy(), data.test.y.numpy())), "n": len(data.train)}


OTHER_PYTHON = Path(__file__).parent.parent / ".data" / "dplvenv" / "bin" / "python"
OTHER_SCRIPT = """
import sys, warnings, numpy as np
warnings.simplefilter("ignore")
from diffprivlib.models import LinearRegression, LogisticRegression
stored, epsilon = np.load(sys.argv[1]), float(sys.argv[2])
if stored["y"].dtype.kind == "f":
    width = stored["x"].shape[1]
    model = LinearRegression(epsilon=epsilon, bounds_X=(-np.ones(width), np.ones(width)), bounds_y=(-1, 1))
else:
    model = LogisticRegression(epsilon=epsilon, data_norm=4.0, max_iter=1000)
print(model.fit(stored["x"].astype(float), stored["y"]).score(stored["x_test"].astype(float), stored["y_test"]))
"""


def diffprivlib(name: str, epsilon: float, seed: int) -> dict:
    """diffprivlib's linear models (pure epsilon) with public bounds, in an environment of its own: scikit-learn 1.5."""
    import tempfile

    data = loaded(name, seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        np.savez(path, x=data.train.x, y=data.train.y, x_test=data.test.x, y_test=data.test.y)
        answer = subprocess.run(
            [OTHER_PYTHON, "-c", OTHER_SCRIPT, path, str(epsilon)], check=True, capture_output=True, text=True
        )
    return {"score": float(answer.stdout.split()[-1]), "n": len(data.train)}


def one(method: str, name: str, epsilon: float | None, seed: int) -> dict:
    """One run, on one core."""
    torch.set_num_threads(1)
    began = time.monotonic()
    match method:
        case "noisewise" | "twin":
            result = noisewise_and_twin(name, epsilon, seed, twin=method == "twin")
        case "opacus mlp" | "opacus linear":
            result = opacus(name, epsilon, seed, hidden=64 if method == "opacus mlp" else 0)
        case "diffprivlib":
            result = diffprivlib(name, epsilon, seed)
        case _:
            result = plain(name, seed, boosting=method == "boosting")
    place = {"method": method, "table": name, "epsilon": epsilon, "seed": seed}
    return place | result | {"seconds": round(time.monotonic() - began, 2)}


def measure(workers: int, out: Path, methods: list[str], tables: list[str], seeds: list[int], minutes: float) -> None:
    """All runs that `out` does not hold yet, as far as the time allows."""
    end = time.monotonic() + 60 * minutes
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(line["method"], line["table"], line["epsilon"], line["seed"]) for line in lines}
    jobs = [
        (method, name, epsilon, seed)
        for seed in seeds
        for name in tables
        for method in methods
        for epsilon in ((None,) if method in WITHOUT else EPSILONS)
        if (method, name, epsilon, seed) not in done
    ]
    with ProcessPoolExecutor(workers) as pool, out.open("a") as file:
        running = {pool.submit(one, *job): job for job in jobs}
        for finished in as_completed(running):
            if time.monotonic() > end:
                pool.shutdown(wait=False, cancel_futures=True)
                break
            try:
                line = finished.result()
            except Exception as error:  # one failing run must not end the others
                print(running[finished], repr(error)[:300], flush=True)
                continue
            file.write(json.dumps(line) + "\n")
            file.flush()
