"""`noisewise pretrain`, the recipe that uses it, and predictions from the run folder alone."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from noisewise.recipes import pretraining

TINY = ("--shape", "1x8x8", "--images", "60", "--steps", "2", "--batch", "8", "--width", "2", "--device", "cpu")


def test_from_made_up_images_to_predictions(noisewise, tmp_path):
    done = noisewise("pretrain", *TINY, "--out", "encoder.safetensors")
    assert done.code == 0
    assert "2 steps on 60 made-up images" in done.out
    assert "--recipe made-up-linear:weights=encoder.safetensors" in done.out
    recipe = "made-up-linear:weights=encoder.safetensors,grid=1"
    plan = ("--noise-multiplier", "3", "--steps", "4", "--no-twin", "--device", "cpu")
    assert noisewise("train", "--data", "digits", "--recipe", recipe, *plan, "--out", "run", "--quiet").code == 0
    (tmp_path / "encoder.safetensors").unlink()
    np.save(tmp_path / "new.npy", np.zeros((3, 1, 8, 8), np.float32))
    done = noisewise("predict", "run", "new.npy", "--out", "scores.csv", "--json")
    assert json.loads(done.out) == {"rows": 3, "out": "scores.csv"}
    assert len(list(csv.DictReader((tmp_path / "scores.csv").read_text().splitlines()))) == 3
    assert noisewise("verify", "run").code == 0
    assert "no columns" in noisewise("predict", "run", "new.npy", "--out", "more.csv", "--keep", "age").err


def test_every_option_reaches_the_library(noisewise, monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(pretraining, "pretrain", lambda how, **rest: asked.append((how, rest)) or (None, 7))
    monkeypatch.setattr(pretraining, "save_encoder", lambda encoder, how, *rest: asked.append(rest))
    line = (
        "--kind",
        "leaves",
        "--shape",
        "1x8x9",
        "--images",
        "50",
        "--steps",
        "9",
        "--seconds",
        "2.5",
        "--batch",
        "10",
    )
    more = (
        "--stages",
        "3",
        "--kept",
        "2",
        "--width",
        "3",
        "--seed",
        "4",
        "--device",
        "cpu",
        "--quiet",
        "--out",
        "a.safetensors",
    )
    assert noisewise("pretrain", *line, *more).code == 0
    how = pretraining.Pretraining(
        kind="leaves", shape=(1, 8, 9), images=50, steps=9, batch=10, width=3, seed=4, stages=3, kept=2
    )
    rest = {"device": torch.device("cpu"), "progress": False, "seconds": 2.5}
    assert asked == [(how, rest), (7, Path("a.safetensors"), 2.5)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--shape", "32", "--out", "a.safetensors"), "--shape 32"),
        (("--out", "a.bin"), "must end in .safetensors"),
        (("--seconds", "0", "--out", "a.safetensors"), "--seconds 0"),
        (("--device", "Über", "--out", "a.safetensors"), "device"),
        (("--kind", "cats", "--out", "a.safetensors"), "'cats'"),
    ],
)
def test_mistakes_are_named_before_anything_is_made(noisewise, given, words):
    done = noisewise("pretrain", *given)
    assert done.code == 2
    assert words in " ".join(done.err.split())


def test_nothing_is_overwritten(noisewise, tmp_path):
    (tmp_path / "a.safetensors").write_text("")
    assert "exists" in noisewise("pretrain", "--out", "a.safetensors").err


def test_recipes_are_listed(noisewise):
    done = noisewise("recipes", "--json")
    assert list(json.loads(done.out)) == ["scattering-linear", "scattering-cnn", "patches-linear", "made-up-linear"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--data", "digits", "--recipe", "scattering"), "Known recipes: scattering-linear"),
        (("--data", "digits", "--recipe", "scattering-linear", "--model", "cnn"), "a model of its own"),
        (("--data", "adult", "--recipe", "scattering-linear"), "recipes are for images"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(noisewise, given, words):
    done = noisewise("train", *given, "--epsilon", "1", "--out", "run")
    assert done.code == 2
    assert words in " ".join(done.err.split())
