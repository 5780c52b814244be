"""Predictions for new images, from the folder of a run with a recipe alone: no training data, no twin."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from noisewise.data import disk
from noisewise.data.base import Splits
from noisewise.data.catalog import CATALOG
from noisewise.data.loading import load
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.recipes import Features, features_of
from noisewise.runs.files import read_json
from noisewise.runs.folder import RunFolder
from noisewise.workflow.prediction import released_model
from noisewise.workflow.recipe_specs import complete
from noisewise.workflow.settings import Config
from noisewise.workflow.taken import check_finished

AT_ONCE = 1000  # images


@dataclass(frozen=True)
class ImagePredictor:
    """The model of a run on images, how images become its inputs, its classes, and what its outputs are divided by."""

    model: nn.Module
    features: Features
    flat: bool
    classes: tuple[str, ...]
    temperature: float = 1.0

    def chances(self, images: Tensor) -> Tensor:
        """Probability of each class `[n, classes]`."""
        parts = []
        for part in images.split(AT_ONCE):
            with torch.no_grad():
                outputs = self.model(features_of(part, self.features, flat=self.flat)).double()
            parts.append((outputs / self.temperature).softmax(1))
        return torch.cat(parts) if parts else torch.zeros(0, len(self.classes), dtype=torch.float64)


def open_image_predictor(path: str | os.PathLike[str], temperature: float = 1.0) -> ImagePredictor:
    """Model, features and names of classes of a finished run, from its folder alone."""
    folder = RunFolder(path)
    check_finished(folder)
    config = Config.read(folder.config)
    if config.recipe is None:
        raise RunError(f"{folder.path} is not a run with a recipe: its README.md says how to use the model in PyTorch.")
    kind, features = complete(config.recipe, folder.features)
    about = read_json(folder.summary)["data"]
    classes = tuple(about["class_names"])
    model = released_model(folder, config, tuple(about["shape"]), len(classes))
    return ImagePredictor(model, features, kind.flat, classes, temperature)


def images_of(source: str | os.PathLike[str], seed: int = 0) -> Tensor:
    """Images `[n, channels, height, width]` of a NumPy file, of a folder that `disk.save` wrote, or a named set's test part.

    They must be scaled as those that were trained on. A NumPy file holds one array of real numbers. seed: by which a named
    set is cut into parts, where its publisher did not.
    """
    path = Path(source)
    if str(source) in CATALOG:
        return load(str(source), seed).test.x
    if path.is_dir():
        saved = disk.open(path)
        return saved.test.x if isinstance(saved, Splits) else saved.x
    if path.suffix != ".npy" or not path.is_file():
        raise DataError(
            f"{path}: must be a NumPy file of images (FILE.npy), a folder of noisewise.data.disk.save, or a set's name."
        )
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path} cannot be read ({error}). Write it with numpy.save.") from None
    if array.ndim != 4 or array.dtype.kind != "f":
        raise DataError(
            f"{path} holds {array.dtype} of shape {list(array.shape)}: must be real numbers [n, channels, height, width], "
            "scaled as the images that were trained on."
        )
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def predict_images(
    run: str | os.PathLike[str], source: str | os.PathLike[str], out: Path, *, temperature: float = 1.0
) -> int:
    """Write class and probabilities of every image into the CSV file `out`; gives how many there are."""
    predictor, images = (
        open_image_predictor(run, temperature),
        images_of(source, Config.read(RunFolder(run).config).seed),
    )
    predictor.features.check(tuple(images.shape[1:]))
    with out.open("x", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["row", "prediction", *(f"probability of {name}" for name in predictor.classes)])
        writer.writerows(_rows(predictor, images))
    return len(images)


def _rows(predictor: ImagePredictor, images: Tensor) -> Iterator[list[str]]:
    for first in range(0, len(images), AT_ONCE):
        chances = predictor.chances(images[first : first + AT_ONCE])
        if not bool(chances.isfinite().all()):
            raise ConfigError("an image has values that are not finite: no class can be told.")
        for place, (best, row) in enumerate(zip(chances.argmax(1).tolist(), chances.tolist(), strict=True)):
            yield [str(first + place + 1), predictor.classes[best], *(f"{chance:.6f}" for chance in row)]
