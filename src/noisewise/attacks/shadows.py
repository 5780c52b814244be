"""Shadow models: the same training on random halves of the data, done once and kept; and scores made from them."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from noisewise import data as datasets
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.jobs import Job, Local, Where, carry_out
from noisewise.jobs.job import described, rebuilt
from noisewise.runs.files import hold, read_json, write_json
from noisewise.runs.tensors import load_tensors, save_tensors

if TYPE_CHECKING:
    from torch import nn

    from noisewise.data import Data

FORMAT = 1
ROWS = "rows"  # within the folder, while other processes read them
COUNT = 16
PER_ROW = 64  # shadows from which LiRA's variances are taken row by row
FLOOR = 1e-12  # of a variance: rows of which all shadows say the same
Fit = Callable[["Data", int], "nn.Module"]


@dataclass(frozen=True)
class Shadows:
    """Models in `folder`, and which rows each was trained on: `inside [count, rows]`; `data` is the digest of the rows.

    Guarantee: every row is in exactly half of them. They are not private, so the folder has mode 700.
    """

    folder: Path
    inside: np.ndarray
    data: str

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Shadows:
        """Shadows that `train_shadows` finished."""
        path = Path(folder)
        about = read_json(path / "shadows.json")
        try:
            shadows = cls(path, load_tensors(path / "inside.safetensors")["inside"].numpy(), str(about["data"]))
            shape = (about["count"], about["rows"])
            if about["format"] != FORMAT or shadows.inside.shape != shape or shadows.inside.dtype != np.bool_:
                raise ValueError(f"format {about['format']!r}, shape {shadows.inside.shape}")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(
                f"{path}: shadows.json or inside.safetensors is damaged ({error!r}). Delete the folder and train anew."
            ) from None
        missing = [number for number in range(len(shadows)) if not shadows.file(number).exists()]
        if missing:
            raise RunError(
                f"{path}: {len(missing)} of {len(shadows)} shadows are not trained yet. Call train_shadows with the same "
                "settings: it goes on at the next one."
            )
        return shadows

    def __len__(self) -> int:
        """How many."""
        return len(self.inside)

    def file(self, number: int) -> Path:
        """Where the weights of one are."""
        return self.folder / f"shadow-{number:04d}.safetensors"

    def models(self, like: nn.Module) -> Iterator[nn.Module]:
        """One after the other, in a copy of `like`, which must have their architecture; `like` stays as it is."""
        for number in range(len(self)):
            shadow = copy.deepcopy(like)
            try:
                shadow.load_state_dict(load_tensors(self.file(number)))
            except RuntimeError as error:
                raise RunError(
                    f"{self.file(number)} does not fit the model that is attacked ({error}): `fit` must return the same "
                    "architecture. Train shadows of the attacked model in another folder."
                ) from None
            yield shadow

    def check(self, data: Data) -> None:
        """Are these the rows that the shadows were trained on?"""
        if digest_of(data) != self.data:
            raise DataError(
                f"{len(data)} rows that are not the {self.inside.shape[1]} rows of the shadows in {self.folder}: pass the "
                "same data in the same order, or train shadows of these rows in another folder."
            )


def train_shadows(
    fit: Fit,
    data: Data,
    folder: str | os.PathLike[str],
    *,
    recipe: Mapping[str, Any],
    count: int = COUNT,
    seed: int = 0,
    where: Where | None = None,
    progress: bool = False,
) -> Shadows:
    """Train `count` models on random halves of `data`, or read those that are in `folder` already.

    Each row is in `count / 2` halves, drawn by `seed`. What was trained is kept: an interrupted call goes on at the next
    shadow, a finished one only reads. Another recipe, seed, count or other data in the same folder is refused.

    Args:
        fit: `(data, seed) -> model`, the training of the attacked model. Called with torch's global generator seeded and
            put back afterwards.
        data: rows that will be attacked, one per person.
        folder: for the models; made with mode 700.
        recipe: says what `fit` does, e.g. {"model": "lenet", "epochs": 5}: a function cannot be compared, this can.
        count: even, at least 4.
        seed: of the halves and of each `fit`.
        where: several at a time, `Local(4)` or `Ray("auto")`; `fit` is then a function of a module. Workers read the rows from
            `folder`, which is on a file system that all of them see; they are deleted from there when it ends.
        progress: show a bar, and how long it will take as soon as the first is trained.

    Guarantee: none, the models are not private.
    Reference: Carlini et al. 2022, arXiv:2112.03570, Section V and Algorithm 1.
    Takes `count` trainings on half of the data, once.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 4 or count % 2:
        raise ConfigError(
            f"count={count!r} shadows: an even number of at least 4, so that each row is in half of them."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigError(f"seed={seed!r}: a whole number >= 0.")
    if data.unit is not None and data.units < len(data):
        raise DataError(
            f"{len(data)} rows of {data.units} people: halves of rows would have people on both sides. Pass one row per "
            "person, e.g. data.take(first_rows)."
        )
    path = Path(folder)
    with _locked(path):
        inside = _open(path, data, recipe, count, seed)
        shadows = Shadows(path, inside, digest_of(data))
        _train(fit, data, shadows, seed, where or Local(), progress)
    return Shadows.read(path)


def halves(rows: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """Which rows each of `count` shadows is trained on `[count, rows]`: each row in exactly half of them, at random."""
    return generator.random((count, rows)).argsort(0) < count // 2


def lira_online(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """Log-likelihood ratio of phi `[rows]`, given the shadows' phi and who was inside, both `[shadows, rows]`."""
    with_it, without = (_gaussians(shadows, mask) for mask in (inside, ~inside))
    return _log_density(target, *with_it) - _log_density(target, *without)


def lira_offline(target: np.ndarray, shadows: np.ndarray, inside: np.ndarray) -> np.ndarray:
    """How far phi is above what shadows without the row say, in standard deviations."""
    centre, spread = _gaussians(shadows, ~inside)
    return (target - centre) / spread


def rmia_scores(
    target: np.ndarray,
    shadows: np.ndarray,
    inside: np.ndarray,
    target_z: np.ndarray,
    shadows_z: np.ndarray,
    a: float = 0.3,
    gamma: float = 2.0,
) -> np.ndarray:
    """Share of the population that each row beats, from probabilities of the label; `_z` are the population's."""
    without = ~inside
    _refuse_empty(without)
    out = (shadows * without).sum(0) / without.sum(0)
    ratio = target / (((1 + a) * out + 1 - a) / 2)
    ratio_z = target_z / (((1 + a) * shadows_z.mean(0) + 1 - a) / 2)
    return np.searchsorted(np.sort(gamma * ratio_z), ratio, side="right") / len(ratio_z)


def _gaussians(values: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each row's values in `mask`; the latter pooled over rows if there are few."""
    _refuse_empty(mask)
    count = mask.sum(0)
    centre = (values * mask).sum(0) / count
    squares = ((values - centre) ** 2 * mask).sum(0)
    if len(values) >= PER_ROW:
        variance = squares / np.maximum(count - 1, 1)
    else:
        variance = np.full(len(centre), squares.sum() / max(int((count - 1).sum()), 1))
    return centre, np.sqrt(np.maximum(variance, FLOOR))


def _refuse_empty(mask: np.ndarray) -> None:
    if not mask.any(0).all():
        raise DataError(
            f"{int((~mask.any(0)).sum())} rows are in all shadows or in none: each must be in about half of them."
        )


def _log_density(x: np.ndarray, centre: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return -((((x - centre) / spread) ** 2) / 2) - np.log(spread)  # the constant cancels in a ratio


def digest_of(data: Data) -> str:
    """Fingerprint of inputs and labels, in order."""
    import torch

    digest = hashlib.sha256()
    for tensor in (data.x, data.y):
        digest.update(f"{tensor.dtype} {list(tensor.shape)} ".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _open(path: Path, data: Data, recipe: Mapping[str, Any], count: int, seed: int) -> np.ndarray:
    """The halves: drawn for a new folder, read from one that was made for the same plan."""
    import torch

    wanted = {
        "format": FORMAT,
        "status": "not-private",
        "reason": "trained without a ledger on halves of the training records",
        "count": count,
        "seed": seed,
        "rows": len(data),
        "data": digest_of(data),
        "recipe": _plain(recipe),
    }
    about, mask = path / "shadows.json", path / "inside.safetensors"
    if not about.exists():
        inside = halves(len(data), count, np.random.default_rng([seed, 0]))
        write_json(about, wanted)
        save_tensors(mask, {"inside": torch.from_numpy(inside)})
        return inside
    written = read_json(about)
    keys = wanted if isinstance(written, dict) else {}
    other = [key for key in keys if written.get(key) != wanted[key]]
    if other or not keys:
        raise RunError(
            f"{path} holds shadows of another plan (different: {', '.join(other) or 'everything'}). Choose another "
            "folder, or pass the settings that these were trained with."
        )
    if not mask.exists():  # stopped between the two files: nothing was trained yet
        save_tensors(mask, {"inside": torch.from_numpy(halves(len(data), count, np.random.default_rng([seed, 0])))})
    return load_tensors(mask)["inside"].numpy()


def _plain(recipe: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(dict(recipe), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"recipe={recipe!r}: a dict of text and numbers that says what `fit` does ({error})."
        ) from None


def _train(fit: Fit, data: Data, shadows: Shadows, seed: int, where: Where, progress: bool) -> None:
    """Train those that are missing, as jobs; each is on disk when it ends."""

    def here(number: int, seed: int) -> int:
        return _trained(fit, data, shadows, number, seed)

    kept, crossing = shadows.folder / "jobs", where != Local()
    function, more = (shadow, {"folder": str(shadows.folder), "fit": described(fit)}) if crossing else (here, {})
    jobs = []
    for number in range(len(shadows)):
        drawn = int(np.random.SeedSequence([seed, 1, number]).generate_state(1)[0])
        settings = {"number": number, "seed": drawn}
        jobs.append(Job(shadows.file(number).stem, function, {**settings, **more}, of=settings))
        if not shadows.file(number).exists():
            (kept / f"{jobs[-1].key}.json").unlink(missing_ok=True)
    try:
        if crossing:
            _forget_rows(shadows.folder)
            datasets.disk.save(data, shadows.folder / ROWS)
        carry_out(jobs, kept, where, go_on=False, progress=progress, label="shadow models")
    finally:
        _forget_rows(shadows.folder)


def shadow(folder: str, number: int, seed: int, fit: Mapping[str, Any]) -> int:
    """One shadow model, as a job for another process, which reads the rows from the folder."""
    path = Path(folder)
    inside = load_tensors(path / "inside.safetensors")["inside"].numpy()
    rows: Any = datasets.disk.open(path / ROWS)
    return _trained(rebuilt(fit), rows, Shadows(path, inside, ""), number, seed)


def _trained(fit: Fit, data: Data, shadows: Shadows, number: int, seed: int) -> int:
    """Train one, if it is not there yet; on how many rows."""
    import torch

    rows = torch.from_numpy(np.flatnonzero(shadows.inside[number]))
    if shadows.file(number).exists():
        return len(rows)
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(seed)
        model = fit(data.take(rows), seed)
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"`fit` returned a {type(model).__name__}: it must return the trained nn.Module.")
    save_tensors(shadows.file(number), dict(model.state_dict()))
    return len(rows)


def _forget_rows(folder: Path) -> None:
    shutil.rmtree(folder / ROWS, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The folder, for the owner only and for one process at a time."""
    try:
        if path.is_dir() and not (path / "shadows.json").exists() and {each.name for each in path.iterdir()} - {"lock"}:
            raise RunError(
                f"{path} holds other files but no shadows.json: choose an empty folder, it is closed to other users."
            )
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        held = hold(path / "lock")
    except TimeoutError:
        raise RunError(f"{path} is in use by another process: wait for it, or choose another folder.") from None
    except OSError as error:
        raise RunError(f"{path} cannot hold shadow models ({error.strerror}): choose another folder.") from None
    with held:
        yield
