"""Runs on texts: what is trained, from where each ending goes on, and SNLI on a file of its publisher's form."""

import hashlib
import io
import json
import zipfile
from dataclasses import replace

import pytest
import torch

from noisewise.clipping import Flat, Global
from noisewise.data.files import FILES
from noisewise.mechanism import Mechanism
from noisewise.reproduce import texts
from noisewise.reproduce.texts import MADE_UP, train_text
from noisewise.sampling import Poisson

QUICK = {
    "seed": 0,
    "device": "cpu",
    "data": MADE_UP,
    "encoder": MADE_UP,
    "batch": 16,
    "epochs": 1,
    "lr": 5e-3,
    "length": 16,
}
ENDINGS = {"global": 1000.0, "local": None}


@pytest.fixture
def calls(monkeypatch):
    """Every part of training, and what it began with."""
    seen, real = [], texts._trained

    def noted(model, data, rule, sigma, batch, steps, lr, seed, ablation="private", *, state=None, ledger=None):
        weights = torch.cat([p.detach().flatten() for p in model.parameters()])
        releases = 0 if ledger is None else ledger.releases
        moments = None if state is None else state["state"][0]["exp_avg"].clone()
        seen.append((rule, sigma, steps, ablation, weights, releases, moments))
        return real(model, data, rule, sigma, batch, steps, lr, seed, ablation, state=state, ledger=ledger)

    monkeypatch.setattr(texts, "_trained", noted)
    return seen


def test_all_endings_go_on_from_one_state_with_its_ledger(calls):
    result = train_text(**QUICK, sigma=0.5, share=0.75, endings=ENDINGS)
    steps = result["steps"]
    assert [call[2] for call in calls] == [round(0.75 * steps), *[steps - round(0.75 * steps)] * 2]
    assert [call[0] for call in calls] == [Flat(0.1), Global(0.1, 1000.0), Flat(0.1)]
    assert [call[5] for call in calls] == [0, *[round(0.75 * steps)] * 2]
    first, one, other = calls
    assert not torch.equal(first[4], one[4])
    assert torch.equal(one[4], other[4])
    assert torch.equal(one[6], other[6])
    assert one[6].any()
    assert result["global"] != result["local"] != result["before"]
    assert set(result["before"]) >= {"loss", "accuracy", "train_loss", "ece", "mce"}


def test_the_optimizer_goes_on():
    train, _ = texts._vectors(MADE_UP, 16, MADE_UP, 50, 20, 1, False, "cpu")
    first = texts._encoder(MADE_UP, 2, 0)[1]
    optimizer, ledger = texts._trained(first, train, Flat(0.1), 0.5, 16, 3, 1e-3, 0)
    again, _ = texts._trained(first, train, Flat(0.1), 0.5, 16, 2, 1e-3, 0, state=optimizer.state_dict(), ledger=ledger)
    assert all(int(of["step"]) == 5 for of in again.state.values())


def test_the_test_part_is_not_read_while_tuning():
    parts = texts._tokens(MADE_UP, 16, MADE_UP)
    stem = texts._encoder(MADE_UP, 2, 0)[0]
    for tuning, part in ((True, parts.valid), (False, parts.test)):
        _, look = texts._vectors(MADE_UP, 16, MADE_UP, 50, None, 1, tuning, "cpu")
        assert torch.equal(look.y, part.y)
        torch.testing.assert_close(look.x, stem(part.x).detach())
    assert train_text(**QUICK, tuning=True)["end"] != train_text(**QUICK)["end"]


def test_without_privacy_there_is_one_part_and_no_noise(calls):
    result = train_text(**QUICK)
    assert [(call[1], call[3], call[2]) for call in calls] == [(0.0, "plain", result["steps"])]
    assert set(result["end"]) >= {"loss", "ece"}


def test_epsilon_is_that_of_all_steps():
    result = train_text(**QUICK, sigma=2.0, share=0.5)
    whole = Mechanism(sampler=Poisson(result["n"], 16), steps=result["steps"], noise_multiplier=2.0)
    assert result["epsilon"] == whole.epsilon(1e-5)


def test_only_the_end_of_the_encoder_learns_and_rows_are_drawn_by_seed():
    texts._vectors.cache_clear()
    one, again, other = (texts._vectors(MADE_UP, 16, MADE_UP, 50, 20, seed, False, "cpu") for seed in (1, 1, 2))
    assert tuple(map(len, one)) == (50, 20)
    assert torch.equal(one[0].x, again[0].x)
    assert not torch.equal(one[0].x, other[0].x)
    assert torch.equal(one[1].x, other[1].x)
    assert not one[0].x.requires_grad


def test_a_copy_in_half_precision_gives_the_same_encoder(tmp_path):
    from safetensors.torch import load_file, save_file

    from noisewise.models import encoder

    layout = {"vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
              "max_position_embeddings": 16, "type_vocab_size": 2, "layer_norm_eps": 1e-12, "model_type": "bert",
              "hidden_act": "gelu"}  # fmt: skip
    model = encoder.untrained(encoder.Layout(32, 8, 2, 2, 16, 16), 2, 0, learning=1, separator=31)
    weights = {encoder._published(name, 1): value for name, value in model.state_dict().items() if ".head." not in name}
    for folder, values in (("whole", weights), ("half", {name: value.half() for name, value in weights.items()})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "config.json").write_text(json.dumps(layout))
        save_file({name: value.contiguous() for name, value in values.items()}, tmp_path / folder / "model.safetensors")
    whole, half = (texts._encoder(str(tmp_path / folder), 3, 0).state_dict() for folder in ("whole", "half"))
    assert all(torch.equal(whole[name], half[name]) for name in whole)
    assert load_file(tmp_path / "half" / "model.safetensors")["pooler.dense.weight"].dtype == torch.float16


def test_snli_runs_on_a_file_of_its_form(tmp_path, monkeypatch):
    lines = [
        {"gold_label": label, "sentence1": f"A man {k} runs.", "sentence2": f"Somebody {word} moves."}
        for k in range(12)
        for label, word in (("entailment", "surely"), ("neutral", "maybe"), ("contradiction", "never"), ("-", "who"))
    ]
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for part in ("train", "dev", "test"):
            archive.writestr(f"snli_1.0/snli_1.0_{part}.jsonl", "\n".join(map(json.dumps, lines)))
    (tmp_path / "snli").mkdir()
    (tmp_path / "snli" / "snli_1.0.zip").write_bytes(raw.getvalue())
    name = "snli/snli_1.0.zip"
    monkeypatch.setenv("NOISEWISE_DATA", str(tmp_path))
    monkeypatch.setitem(FILES, name, replace(FILES[name], sha256=hashlib.sha256(raw.getvalue()).hexdigest()))
    texts._tokens.cache_clear()
    try:
        result = train_text(**{**QUICK, "data": "snli"}, sigma=0.5, share=0.5, endings=ENDINGS)
    finally:
        texts._tokens.cache_clear()
        texts._vectors.cache_clear()
    assert result["n"] == 36
    assert 0 <= result["global"]["accuracy"] <= 1
