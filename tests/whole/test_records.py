"""Records: what the search trains side by side is what the library trains; the page says what the files say."""

import dataclasses
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import noisewise as nw
from helpers.command_line import command_line
from noisewise.clipping import Flat
from noisewise.losses import cross_entropy, views_cross_entropy
from noisewise.models import build
from noisewise.persample import clipped_sum
from noisewise.recipes.pretraining import read_encoder
from noisewise.testing import reveal

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


sys.path.insert(0, str(BENCHMARKS))  # scripts find each other
linear, search, choose, final, page, power, repaired, seconds = (
    importlib.import_module(f"records_{name}")
    for name in ("linear", "search", "choose", "final", "page", "power", "repaired", "seconds")
)
records = importlib.import_module("records")
sys.path.remove(str(BENCHMARKS))


def made(units, views, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(units, views, 7, generator=generator)
    return x, torch.randint(3, (units,), generator=generator)


@pytest.mark.parametrize("views", [1, 3])
def test_clipped_sums_side_by_side_are_those_of_the_library(views):
    x, y = made(20, views)
    candidates = [linear.Candidate(rate=1.0, bound=bound) for bound in (0.3, 2.0, 100.0)]
    heads = linear.Heads(candidates, 7, 3, 1, "cpu")
    heads.weights = torch.randn(8, 3, 3, generator=torch.Generator().manual_seed(1))
    sums = heads.sums(x, y, linear.products(x))
    for place, candidate in enumerate(candidates):
        model = build("linear-head", (7,) if views == 1 else (views, 7), 3, 0, views=views)
        layer = next(part for part in model.modules() if isinstance(part, torch.nn.Linear))
        with torch.no_grad():
            layer.weight.copy_(heads.weights[:-1, place].T)
            layer.bias.copy_(heads.weights[-1, place])
        batch = (x[:, 0] if views == 1 else x, y)
        loss = cross_entropy if views == 1 else views_cross_entropy
        theirs = reveal(clipped_sum(model, loss, batch, Flat(candidate.bound)).grads)
        weight, bias = (
            next(value for name, value in theirs.items() if name.endswith(end)) for end in ("weight", "bias")
        )
        torch.testing.assert_close(sums[:-1, place].T, weight.float(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sums[-1, place], bias.float(), rtol=1e-4, atol=1e-5)


def test_a_run_without_noise_is_that_of_the_library():
    x, y = made(30, 1)
    candidate = linear.Candidate(rate=0.2, bound=0.5, momentum=0.9, schedule="linear", averaged=0.3)
    steps = 12
    heads = linear.train_side_by_side(
        x, y, linear.products(x), [dataclasses.replace(candidate, rate=3.0), candidate], classes=3, batch=30, steps=steps,
        noise=0.0, seed=0,
    )  # fmt: skip
    model = build("linear-head", (7,), 3, 0)
    plan = nw.Mechanism(sampler=nw.FullBatch(30), clip=Flat(0.5), steps=steps, noise_multiplier=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=candidate.rate / candidate.bound, momentum=0.9)
    scheduler = nw.LearningRate("linear").on(optimizer, steps)
    trained = nw.train(
        model, (x[:, 0], y), cross_entropy, plan, optimizer, scheduler=scheduler, ema=candidate.decay(steps), delta=1e-3,
        insecure_seed=0, progress=False,
    )  # fmt: skip
    weight = next(value for name, value in trained.averaged.items() if name.endswith("weight"))
    torch.testing.assert_close(heads.weights[:-1, 1].T, weight, rtol=1e-4, atol=1e-5)
    right = F.linear(x[:, 0], weight, trained.averaged["1.bias"]).argmax(1) == y
    assert linear.scores(heads, x, y)[1]["accuracy"] == pytest.approx(float(right.double().mean()))


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The whole path on embedded digits: search, choose, final, page."""
    folder = tmp_path_factory.mktemp("records")
    chosen = tmp_path_factory.mktemp("recipes") / "chosen.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SHARES", (0.5,))
        patch.setattr(search, "EPOCHS", (20,))
        patch.setattr(search, "drawn_features", lambda *given: search.Scattering(scales=(1,), angles=2))
        patch.setattr(
            search,
            "drawn_candidates",
            lambda rng, best, count: [linear.Candidate(0.25, 1.0), linear.Candidate(1e38, 1.0)],
        )
        effort = search.Effort(seconds=600, plans=1)
        for _ in range(2):
            search.search("digits", [3.0], effort, out=folder / "digits.jsonl", device="cpu", seed=0, most=1)
        choose.choose(
            "digits", 3.0, [folder / "digits.jsonl"], device="cpu", folder=folder, chosen=chosen, sets=1, seeds=(9,)
        )
        final.final(
            "digits", 3.0, recipe="scattering-linear:scales=1,angles=2", seeds=(0, 1), device="cpu", folder=folder
        )
    (folder / "digits.jsonl").rename(folder / "digits.lines")
    return folder, chosen


def test_a_search_goes_on_where_its_file_ends_and_reads_no_test_image(results):
    lines = search.lines_of(results[0] / "digits.lines")
    assert len(lines) == 4
    assert {line["n"] + line["held_out"] for line in lines} == {1438}  # the 359 of the test part are not among them
    assert [line["accuracy"] is None for line in lines] == [False, True, False, True]  # one of each two diverged


def test_the_winner_is_trained_again_and_goes_into_the_recipes_file(results):
    folder, chosen = results
    record = json.loads((folder / "digits.scattering-linear.3.search.json").read_text())
    assert (record["trials"], record["diverged"]) == (4 + 1, 2)
    assert record["winner"]["accuracies"] != [record["winner"]["searched"]]
    (entry,) = json.loads(chosen.read_text())["scattering-linear"]
    assert (entry["data"], entry["epsilon"], entry["rate"], entry["share"]) == ("digits", 3.0, 0.25, 0.5004)
    assert record["paid_epsilon"] > 3.0 * 2  # four models at 3 each, composed


def test_a_search_begins_with_the_features_that_are_named(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(search, "_looked_at", lambda whole, parts, features, *rest: seen.append(features) or ())
    effort, where = search.Effort(seconds=600), {"out": tmp_path / "lines.jsonl", "device": "cpu", "seed": 0}
    search.search("digits", [3.0], effort, **where, most=3, first=["scales=1,angles=12", "power=0.5"])
    assert (seen[0].scales, seen[0].angles) == ((1,), 12)
    assert seen[1] == dataclasses.replace(seen[2], power=0.5)  # the third is the usual one, since nothing is known yet
    with pytest.raises(SystemExit, match=r"shape is not searched; what is: .*angles"):
        search.search("digits", [3.0], effort, **where, most=1, first=["shape=1/8/8"])


def test_the_command_of_an_encoder_is_one_that_can_be_run(monkeypatch, capsys, tmp_path):
    """What the page says of an encoder makes an encoder of the same settings."""
    noisewise = command_line(monkeypatch, capsys, tmp_path, columns=120)
    about = {"kind": "leaves", "shape": [1, 8, 8], "images": 4, "steps": 1, "batch": 2, "width": 2, "seed": 3}
    assert page.encoder_in_words(None) == []
    assert page.batches_in_words(60, 60) == "everybody in every batch"
    assert page.batches_in_words(59, 6000) == "Poisson batches of 59"
    (line,) = page.encoder_in_words({**about, "made_steps": 1, "seconds": 60.0})
    command = re.search(r"`noisewise (.*)`, 1 steps", line)[1].split()
    assert noisewise(*command, "--device", "cpu", "--quiet").code == 0
    made = read_encoder(tmp_path / "encoder.safetensors")[1]
    assert {name: made[name] for name in (*about, "seconds")} == {**about, "seconds": 60.0}


def test_what_no_setting_says_is_counted_and_not_chosen(results):
    lines = [line for line in search.lines_of(results[0] / "digits.lines") if line["accuracy"] is not None]
    by_hand = {**lines[0], "accuracy": 1.0, "rate": 0.5, "other": "places pulled apart"}
    assert choose.finalists([*lines, by_hand], 5, 5) == choose.finalists(lines, 5, 5)
    assert choose.price([*lines, by_hand]) > choose.price(lines)


def test_settings_tried_on_several_cuts_are_judged_by_their_mean(results):
    """A lucky score on one cut is worth less than a good mean of three."""
    line = next(line for line in search.lines_of(results[0] / "digits.lines") if line["accuracy"] is not None)
    lucky = {**line, "rate": 0.5, "accuracy": 0.95}
    several = [{**line, "rate": 0.25, "accuracy": value} for value in (0.93, 0.95, 0.97)]
    assert [one["rate"] for one in choose.finalists([lucky, *several], 2, 1)] == [0.25, 0.5]
    assert choose.finalists(several, 1, 1)[0]["searched"] == pytest.approx(0.95)
    p, count = 0.95, 3 * line["held_out"]
    assert choose.judged(several) == pytest.approx(p - (p * (1 - p) / count) ** 0.5)


def test_searches_after_one_another_add_up(results, tmp_path):
    first = {"data": "digits", "epsilon": 3.0, "trials": 10, "paid_epsilon": 5.0}
    second = {**first, "trials": 4, "paid_epsilon": 2.0, "after": {"trials": 1, "paid_epsilon": 0.5, "searches": 1}}
    for before, expected in ((first, (10, 5.0, 1)), (second, (5, 2.5, 2))):
        (path := tmp_path / "earlier.json").write_text(json.dumps(before))
        assert tuple(choose._earlier(path, "digits", 3.0).values()) == expected
    with pytest.raises(SystemExit, match="not on mnist"):
        choose._earlier(path, "mnist", 3.0)
    assert page._paid({**first, "after": choose._earlier(path, "digits", 3.0)}) == "8 (15 trials, 3 searches)"
    assert page._paid(first) == "5 (10 trials)"


def test_runs_of_other_settings_are_not_mixed(results, tmp_path):
    shutil.copytree(results[0], folder := tmp_path / "results")
    with pytest.raises(SystemExit, match="has runs of scattering-linear"):
        final.final("digits", 3.0, recipe="scattering-linear:waves=64", seeds=(0, 1), device="cpu", folder=folder)
    record = json.loads((folder / "digits.scattering-linear.3.cpu.json").read_text())
    older = {**record, "recipe": record["recipe"].replace(",waves=0,pitch=1", "")}  # a file from before waves
    assert older["recipe"] != record["recipe"]
    assert final.same_settings(older, record)
    for changed in (
        {"settings": record["settings"] | {"lr": 1.0}},
        {"recipe": record["recipe"].replace("angles=2", "angles=4")},
        {"n": record["n"] - 1},
    ):
        assert not final.same_settings({**record, **changed}, record)


def test_older_lines_have_the_usual_values_of_later_settings():
    raw = {"count": 64, "side": 4, "kind": "leaves", "views": ["same"]}
    rng = search.random.Random(0)
    space = search.space_of("digits", 1, 8, "patches-linear")
    drawn = {search.drawn_features(rng, space, raw, {}).whiten for _ in range(40)}
    assert 0.0 in drawn
    assert drawn <= set(space["whiten"])


def test_a_final_run_spends_what_it_says_and_repeats(results):
    folder = results[0]
    path = folder / "digits.scattering-linear.3.cpu.json"
    record = json.loads(path.read_text())
    assert [run["seed"] for run in record["runs"]] == [0, 1]
    assert all(2.9 < run["epsilon"] <= 3.0 and run["test_rows"] == 359 for run in record["runs"])
    assert record["worst_class"][1] <= record["accuracy"]
    before = path.stat().st_mtime_ns
    assert final.final("digits", 3.0, seeds=(0, 1), device="cpu", folder=folder) == record  # nothing is run twice
    assert path.stat().st_mtime_ns == before


def test_every_number_of_the_page_follows_from_a_file(results, tmp_path):
    """A changed result changes the page; the committed page is what the committed files give."""
    folder = results[0]
    page.write(folder, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    path = folder / "digits.scattering-linear.3.cpu.json"
    record = json.loads(path.read_text())
    assert f"| digits | scattering-linear | 3 | {100 * record['accuracy']:.2f} ± " in text
    path.write_text(json.dumps({**record, "accuracy": 0.1239}))
    try:
        assert "| digits | scattering-linear | 3 | 12.39 ± " in page.page(folder)
    finally:
        path.write_text(json.dumps(record))
    assert page.PAGE.read_text() == page.page(), "python benchmarks/records.py page writes it"


def test_masks_on_top_are_paired_and_cost_no_epsilon(tmp_path, monkeypatch):
    """Training itself is left out: what matters is what would be trained, from which seed, at which epsilon."""
    asked = []

    def fitted(made, **given):
        asked.append(
            (
                given["seed"],
                given["insecure_seed"],
                getattr(made.mechanism.support, "final", None),
                round(made.epsilon(1e-5), 9),
            )
        )
        generator = torch.Generator().manual_seed(len(asked))
        with torch.no_grad():
            for parameter in made.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        return SimpleNamespace(model=made.model, averaged=None)

    monkeypatch.setattr(repaired, "fit", fitted)
    given = {"recipe": "scattering-linear:scales=1,angles=2", "folder": tmp_path}
    first = repaired.measure("digits", 3.0, seeds=(200,), **given)
    record = repaired.measure("digits", 3.0, seeds=(200, 201), **given)
    modes = ["none", "random sparsification, 0.5", "random sparsification, 0.9"]
    assert list(record["runs"]) == modes
    assert all(record["runs"][mode][:1] == first["runs"][mode] for mode in modes)
    assert [one[:3] for one in asked] == [(seed, seed, final) for seed in (200, 201) for final in (None, 0.5, 0.9)]
    assert len({one[3] for one in asked}) == 1
    (row,) = [line for line in page.on_top(tmp_path) if "0.9" in line]
    a, b = record["runs"][modes[2]], record["runs"][modes[0]]
    assert f"| {50 * (a[0] + a[1] - b[0] - b[1]):+.2f} (" in row
    assert page.records(tmp_path) == []


def test_the_command_knows_what_the_page_tells_to_run():
    for line in page.page().splitlines():
        if match := re.fullmatch(r"- `python benchmarks/records.py (.*)`", line):
            records.parser().parse_args(match[1].split())
    assert records.parser().parse_args(["frontier", "adult"]).seeds == 5


@pytest.fixture
def two_devices(tmp_path):
    """A record of a CPU, which has a history, and the same settings on a GPU later."""
    path = final.path_of("cifar10", "made-up-linear", 1.0, "cpu")
    record = json.loads(path.read_text())
    assert record["earlier"]
    shutil.copy(path, tmp_path)
    later = {key: value for key, value in record.items() if key not in ("earlier", "note")}
    gpu = final.path_of("cifar10", "made-up-linear", 1.0, "cuda", tmp_path)
    gpu.write_text(json.dumps({**later, "accuracy": 0.5, "device": "a GPU", "joules": 7.0}))
    return tmp_path, record


def test_what_a_record_was_before_is_told_wherever_it_is_run_again(two_devices):
    folder, record = two_devices
    lines = page.recipes_in_lines(folder)
    assert sum("was run first and read on the test part too" in line for line in lines) == len(record["earlier"])
    assert any(
        f"elsewhere, which draws other noise: {100 * record['accuracy']:.2f} (5 seeds, x86_64" in line for line in lines
    )
    assert lines[-2].endswith("a GPU.")


@pytest.mark.parametrize("other", [{}, {"settings": {"lr": 9.0}}, {"recipe": "made-up-linear:count=512"}], ids=str)
def test_seconds_on_a_quiet_machine_stand_for_those_of_a_run_with_its_settings(two_devices, other):
    folder, record = two_devices
    timed = {"seconds": 12.3, "feature_seconds": 4.5, "joules": None, "device": "a quiet CPU", "others": 0.01}
    alone = {**record, **timed, **other, "settings": {**record["settings"], **other.get("settings", {})}}
    (folder / "cifar10.made-up-linear.1.seconds.json").write_text(json.dumps(alone))
    (row,) = [
        line for line in page.cheapest(folder) if "made-up-linear" in line
    ]  # half right on the GPU is below the best
    assert ("| 12.3 + 4.5 for features | not measured | a quiet CPU, nothing else running |" in row) == (not other)
    assert (seconds.seconds(record) in row) == bool(other)
    assert len(page.records(folder)) == 2


def test_the_cheapest_run_has_the_least_seconds_with_its_features(tmp_path):
    record = json.loads(final.path_of("cifar10", "patches-linear", 1.0, "cuda").read_text())
    for lane, seconds_of, features in (("patches-linear", 2.0, 9.0), ("scattering-linear", 5.0, 1.0)):
        changed = {**record, "seconds": seconds_of, "feature_seconds": features}
        final.path_of("cifar10", lane, 1.0, "cuda", tmp_path).write_text(json.dumps(changed))
    assert any("| scattering-linear |" in line and "5.0 + 1.0" in line for line in page.cheapest(tmp_path))
    assert not any("| patches-linear |" in line for line in page.cheapest(tmp_path))


def test_earlier_readings_are_told_at_every_epsilon():
    told, text = 0, page.page()
    for record in page.records():
        for one in record.get("earlier", ()):
            assert f"read on the test part too: {page.percent(one['accuracy'])} (`{one['recipe']}`)" in text
            told += 1
    assert told >= 8


def test_seconds_are_those_of_a_quiet_machine_and_need_no_test_part(tmp_path, monkeypatch):
    given = {"recipe": "scattering-linear:scales=1,angles=2", "folder": tmp_path}
    looked_at, others = [], [0.5, 0.02, 0.03]
    monkeypatch.setattr(seconds.Spent, "others", lambda self: others.pop(0))
    monkeypatch.setattr(final, "featured", lambda data, *rest, **how: looked_at.append(len(data)) or data)
    monkeypatch.setattr(final, "outputs", None)  # nothing is scored
    monkeypatch.setattr(final, "fit", lambda recipe, **how: looked_at.append(len(recipe.data.train)))
    with pytest.raises(SystemExit, match="other work ran beside it"):
        seconds.measure("digits", 3.0, **given)
    assert not list(tmp_path.iterdir())
    record = seconds.measure("digits", 3.0, **given)
    assert looked_at == [1438] * 3  # features once; the 359 of the test part are not among them
    assert (record["others"], record["data"], record["seconds"] >= 0) == (0.02, "digits", True)
    final._features.cache_clear()
    assert seconds.measure("digits", 3.0, **given) == record
    with pytest.raises(SystemExit, match="seconds of tables"):
        seconds.measure("adult", 1.0, recipe="defaults", folder=tmp_path)
    arguments = record["command"].removeprefix("python benchmarks/records.py ").split()
    assert records.parser().parse_args(arguments).epsilon == [3.0]


def test_what_other_processes_take_is_seen():
    before = seconds.Spent.now()
    command = [sys.executable, "-c", "import time; end = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass"]
    subprocess.run(command, check=True)
    assert before.others() > 0.5 / os.cpu_count()
    before, start = seconds.Spent.now(), time.process_time()
    while time.process_time() - start < 0.3:  # its own work, however long it waits for a core
        pass
    assert seconds.Spent.now().own - before.own > 0.25


def test_published_values_above_ours_are_named(tmp_path):
    assert any(
        "81.4 is published (WRN-40-4, De et al. 2022), above all of ours" in line for line in page.better_elsewhere()
    )
    record = json.loads(final.path_of("cifar10", "made-up-linear", 8.0, "cuda").read_text())
    final.path_of("cifar10", "made-up-linear", 8.0, "cuda", tmp_path).write_text(
        json.dumps({**record, "accuracy": 0.9})
    )
    assert page.better_elsewhere(tmp_path) == []


def test_the_history_of_other_settings_at_the_same_place_is_told_too(two_devices):
    folder, record = two_devices
    path = final.path_of("cifar10", "made-up-linear", 1.0, "cuda", folder)
    gpu = json.loads(path.read_text())
    path.write_text(json.dumps({**gpu, "settings": {**gpu["settings"], "lr": 9.0}}))
    lines = page.recipes_in_lines(folder)
    assert sum("was run first and read on the test part too" in line for line in lines) == len(record["earlier"])
    assert not any("The same settings elsewhere" in line for line in lines)


def test_energy_is_measured_or_said_not_to_be(monkeypatch, tmp_path):
    monkeypatch.setattr(power, "COUNTER", tmp_path / "counter")
    with power.metered("cpu") as meter:
        pass
    assert (meter.joules, meter.how) == (None, "not measured")
    (tmp_path / "counter").write_text("1000000")
    with power.metered("cpu") as meter:
        (tmp_path / "counter").write_text("3500000")
    assert meter.joules == 2.5
    assert meter.seconds > 0
