"""Runs on texts: the end of a pretrained encoder, fine-tuned by DP-AdamW; local clipping, then one of several endings."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import noisewise as nw
from noisewise.accounting import Ledger
from noisewise.clipping import Clip, Flat, Global
from noisewise.data import Data, Splits, texts
from noisewise.data.tokens import HashedWords, Tokens, WordPieces
from noisewise.evaluation import outputs
from noisewise.losses import cross_entropy
from noisewise.models.encoder import Layout, encoder_folder, pretrained, untrained
from noisewise.reproduce.images import BATCH, DELTA, SHOWN, calibration_errors

MADE_UP = "made up"
TINY = Layout(size=32, width=8, depth=2, heads=2, hidden=16, places=16)
HELD_OUT = 2000  # of SST-2's training texts; the other sets have a part for it
AT_ONCE = 256  # texts at a time through the frozen part


def train_text(
    *,
    seed: int,
    device: str,
    data: str,
    batch: int,
    epochs: float,
    lr: float,
    sigma: float | None = None,
    bound: float = 0.1,
    endings: dict[str, float | None] | None = None,
    share: float = 0.95,
    rows: int | None = None,
    looked: int | None = None,
    length: int = 48,
    encoder: str = "",
    tuning: bool = False,
) -> dict[str, Any]:
    """Fine-tune the last block and head of an encoder; look at test texts before and after the last steps.

    Args:
        seed: of the head, the rows, batches and noise; equal seeds are pairs.
        device: where.
        data: a set of texts by name.
        batch: expected size.
        epochs: passes over the training rows.
        lr: learning rate of AdamW.
        sigma: noise multiplier; None: without privacy.
        bound: R of local and global clipping.
        endings: name: Z of global clipping in the last steps, or None for local clipping to the end.
        share: of the steps before those.
        rows: that are trained on; all by default.
        looked: so many test texts; all by default.
        length: of a text, in tokens.
        encoder: a folder with an encoder; by default that of `encoder_folder`.
        tuning: look at held-out training texts instead; the test part is not read.
    """
    if device == "cpu":
        torch.set_num_threads(1)
    train, look = _vectors(data, length, encoder, rows, looked, seed if rows else 0, tuning, device)
    tail = _encoder(encoder, len(train.classes), seed)[1].to(device)
    n, size = len(train), min(batch, len(train))
    steps = nw.steps_for(epochs, n, size)
    if sigma is None:
        _trained(tail, train, Flat(bound), 0.0, size, steps, lr, seed, "plain")
        return {"end": _seen(tail, look, train), "steps": steps, "n": n}
    switch = round(share * steps)
    optimizer, ledger = _trained(tail, train, Flat(bound), sigma, size, switch, lr, seed)
    spent = nw.Mechanism(sampler=nw.Poisson(n, size), steps=steps, noise_multiplier=sigma).epsilon(DELTA)
    seen: dict[str, Any] = {"before": _seen(tail, look, train), "steps": steps, "n": n, "epsilon": spent}
    for name, screen in (endings or {}).items():
        rule = Flat(bound) if screen is None else Global(bound, screen)
        model, state = copy.deepcopy(tail), copy.deepcopy(optimizer.state_dict())
        _trained(model, train, rule, sigma, size, steps - switch, lr, seed, state=state, ledger=copy.deepcopy(ledger))
        seen[name] = _seen(model, look, train)
    return seen


def _trained(
    model: nn.Module, data: Data, rule: Clip, sigma: float, batch: int, steps: int, lr: float, seed: int,
    ablation: Any = "private", *, state: dict[str, Any] | None = None, ledger: Ledger | None = None,
) -> tuple[torch.optim.Optimizer, Ledger]:  # fmt: skip
    """Some steps of DP-AdamW, with the optimizer's state and the ledger of those before."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    if state is not None:
        optimizer.load_state_dict(state)
    plan = nw.Mechanism(sampler=nw.Poisson(len(data), batch), clip=rule, steps=steps, noise_multiplier=sigma)
    done = nw.train(
        model, data, cross_entropy, plan, optimizer, seed=seed, insecure_seed=seed, delta=DELTA, progress=False,
        ablation=ablation, ledger=ledger, runtime=nw.Runtime(capture=False if not data.x.is_cuda else None),
    )  # fmt: skip
    return optimizer, done.ledger


def _seen(model: nn.Module, look: Data, train: Data) -> dict[str, float]:
    """Loss, accuracy and calibration on texts that were not trained on, the commonest class's share, and the loss on some."""
    some = train.take(torch.arange(min(SHOWN, len(train)), device=train.y.device))
    (logits, y), fitted = ((outputs(model, part.x, BATCH), part.y.cpu()) for part in (look, some))
    return {
        "loss": float(nn.functional.cross_entropy(logits, y)),
        "accuracy": float((logits.argmax(1) == y).double().mean()),
        "train_loss": float(nn.functional.cross_entropy(*fitted)),
        "commonest": float(y.bincount().max() / len(y)),
        **calibration_errors(logits, y),
    }


def _encoder(encoder: str, classes: int, seed: int) -> nn.Sequential:
    """Weights rounded to half precision, so that a copy of half the size gives the same numbers."""
    if encoder == MADE_UP:
        return untrained(TINY, classes, seed, learning=1, mean=True, separator=TINY.size - 1)
    model = pretrained(classes, seed, Path(encoder) if encoder else None, learning=1, mean=True)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(weight.half())
    return model


@cache
def _tokens(data: str, length: int, encoder: str) -> Splits:
    tokens: Tokens
    if encoder == MADE_UP:
        tokens = HashedWords(TINY.size - 2)
    else:
        tokens = WordPieces.read((Path(encoder) if encoder else encoder_folder()) / "vocab.txt")
    if data != MADE_UP:
        loader = {"sick": texts.sick, "sst2": texts.sst2, "snli": texts.snli}[data]
        return loader(0, **({"valid": HELD_OUT} if data == "sst2" else {}), tokens=tokens, length=length)
    draw = np.random.default_rng(0)
    words = [" ".join(f"w{word}" for word in draw.integers(0, 20, 6)) for _ in range(240)]
    return nw.data.load_texts(
        {"first": words, "second": words[::-1], "label": ["yes" if "w3" in text else "no" for text in words]},
        text="first", second="second", label="label", classes=("no", "yes"), tokens=tokens, length=16, public=True,
    )  # fmt: skip


@cache
def _vectors(
    data: str, length: int, encoder: str, rows: int | None, looked: int | None, seed: int, tuning: bool, device: str
) -> tuple[Data, Data]:
    """Training texts and those to look at, as vectors of the frozen part, which are computed once."""
    parts = _tokens(data, length, encoder)
    stem = _encoder(encoder, len(parts.train.classes), 0)[0].to(device)
    chosen = ((parts.train, rows, seed), (parts.valid if tuning else parts.test, looked, 0))
    train, look = (_through(stem, _some(*each), device) for each in chosen)
    return train, look


def _some(data: Data, count: int | None, seed: int) -> Data:
    if count is None or count >= len(data):
        return data
    return data.take(torch.from_numpy(np.random.default_rng(seed).permutation(len(data))[:count]))


@torch.no_grad()
def _through(stem: nn.Module, data: Data, device: str) -> Data:
    vectors: list[Tensor] = [stem(part.to(device)) for part in data.x.split(AT_ONCE)]
    return Data(torch.cat(vectors), data.y.to(device), classes=data.classes, public=True)
