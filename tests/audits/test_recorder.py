from __future__ import annotations

import json
import stat

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from helpers import tiny
from noisewise.adaptive import Quantile
from noisewise.audits.recorder import QUANTILES, ClipRecorder, Recording, read
from noisewise.clipping import Flat, Global, per_layer
from noisewise.data import Data
from noisewise.errors import ConfigError, DataError, RunError
from noisewise.mechanism import Mechanism
from noisewise.runtime import Runtime
from noisewise.sampling import Poisson
from noisewise.schedule import Schedule
from noisewise.training.step import Observation

SEED = 7


def people(**extra) -> Data:
    """The tiny problem with named classes of unequal size and a group column, small class and all."""
    x, _ = tiny.data()
    y = (torch.arange(40) >= 22).long() + (torch.arange(40) >= 38).long()
    return Data(x, y, groups={"side": (torch.arange(40) % 2)}, group_names={"side": ("left", "right")}, **extra)


def recorder(folder, data=None, clip=None, **settings) -> ClipRecorder:
    return ClipRecorder(folder, people() if data is None else data, Flat(1.0) if clip is None else clip, **settings)


def run(folder, recorders, **settings):
    network = settings.pop("network", None) or tiny.model()
    return tiny.run(network, units=people(), out=folder, recorders=recorders, insecure_seed=SEED, **settings)


def test_lines_are_those_of_the_norms(tmp_path) -> None:
    seen: list[Observation] = []
    run(tmp_path, [seen.append, recorder(tmp_path)])
    lines = read(tmp_path).lines
    assert [line["step"] for line in lines] == list(range(tiny.STEPS))
    labels = people().y.numpy()
    shares = []
    for line, observation in zip(lines, seen, strict=True):
        norms, units = observation.norms[0].double().numpy(), observation.units.numpy()
        assert line["units"] == len(units)
        assert line["bound"] == 1.0
        assert line["clipped"] == pytest.approx(np.mean(norms > 1))
        assert line["factor"] == pytest.approx(np.minimum(1, 1 / norms).mean())
        assert line["norms"] == pytest.approx(np.quantile(norms, QUANTILES))
        for part in line["parts"]:
            mine = (
                labels[units] == int(part["name"]) if part["by"] == "class" else units % 2 == (part["name"] == "right")
            )
            assert part["n"] == mine.sum() > 0
            assert part["clipped"] == pytest.approx(np.mean(norms[mine] > 1))
            assert part["factor"] == pytest.approx(np.minimum(1, 1 / norms[mine]).mean())
            assert part["norm"] == pytest.approx(np.median(norms[mine]))
        shares.append(line["clipped"])
    assert 0 < np.mean(shares) < 1  # the check of shares could have failed


def test_classes_of_few_people_are_not_recorded(tmp_path) -> None:
    run(tmp_path, [recorder(tmp_path)])
    found = read(tmp_path)
    assert found.partitions == ["class", "side"]
    assert found.names("class") == ["0"]  # 22 people; 16 and 2 are too few
    assert found.names("side") == ["left", "right"]


def test_the_run_is_the_one_without_a_recorder(tmp_path) -> None:
    network = tiny.model(dropout=0.3)
    watched = recorder(tmp_path / "a", model=network, loss_fn=tiny.loss_fn, cosine_every=2)
    first = run(tmp_path / "a", [watched], network=network)
    second = run(tmp_path / "b", [], network=tiny.model(dropout=0.3))
    assert tiny.same(first.model, second.model)
    assert first.model.training
    assert first.ledger.lines == second.ledger.lines


def test_nothing_leaves_the_sensitive_folder(tmp_path) -> None:
    run(tmp_path, [recorder(tmp_path)])
    folder = tmp_path / "sensitive" / "recorders"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "sensitive").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "clipping.jsonl").stat().st_mode) == 0o600
    assert [path.name for path in folder.iterdir()] == ["clipping.jsonl"]
    for path in tmp_path.iterdir():
        assert path.name == "sensitive" or "clipped" not in path.read_text(errors="ignore")


class Crash(Exception):
    pass


def crash_at(step: int):
    def stop(observation: Observation) -> None:
        if observation.step == step:
            raise Crash

    return stop


@pytest.mark.parametrize("order", [1, -1])
def test_a_resumed_run_writes_every_step_once(tmp_path, order: int) -> None:
    """The crash comes after or before the line of step 7 was written; the checkpoint is some steps older."""
    run(tmp_path / "whole", [recorder(tmp_path / "whole")])
    with pytest.raises(Crash):
        run(tmp_path / "part", [recorder(tmp_path / "part"), crash_at(7)][::order], checkpoint_seconds=0)
    cut = read(tmp_path / "part").lines
    assert [line["step"] for line in cut] == list(range(8 if order == 1 else 7))
    run(tmp_path / "part", [recorder(tmp_path / "part")], resume=True)
    assert read(tmp_path / "part").lines == read(tmp_path / "whole").lines
    assert stat.S_IMODE((tmp_path / "part/sensitive/recorders/clipping.jsonl").stat().st_mode) == 0o600


def test_a_run_that_begins_again_forgets_the_first(tmp_path) -> None:
    watched = recorder(tmp_path)
    watched(Observation(0, torch.arange(3), torch.ones(1, 3)))
    watched(Observation(1, torch.arange(3), torch.ones(1, 3)))
    watched(Observation(0, torch.arange(4), torch.ones(1, 4)))
    assert [(line["step"], line["units"]) for line in read(tmp_path).lines] == [(0, 4)]
    later = recorder(tmp_path, every=2)
    later(Observation(0, torch.arange(4), torch.ones(1, 4)))
    later(Observation(1, torch.arange(4), torch.ones(1, 4)))
    later(Observation(2, torch.arange(4), torch.ones(1, 4)))
    fresh = recorder(tmp_path, every=2)
    fresh(Observation(1, torch.arange(4), torch.ones(1, 4)))  # not recorded, but step 2 will come again
    assert [line["step"] for line in read(tmp_path).lines] == [0]


def test_cosines_are_those_of_the_gradients(tmp_path) -> None:
    network, data = tiny.model(), people()
    units = torch.tensor([3, 8, 21, 30, 39])
    rows = []
    for x, y in zip(data.x[units], data.y[units], strict=True):
        loss = nn.functional.cross_entropy(network(x[None]), y[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))]))
    rows = torch.stack(rows).double().numpy()
    norms = np.linalg.norm(rows, axis=1)
    bound = float(np.median(norms))
    mean, clipped = rows.mean(0), (np.minimum(1, bound / norms)[:, None] * rows).mean(0)
    watched = recorder(tmp_path, clip=Flat(bound), model=network, loss_fn=tiny.loss_fn, cosine_every=2)
    for step in range(3):
        watched(Observation(step, units, torch.from_numpy(norms)[None]))
    found = read(tmp_path)
    steps, cosines = found.series("cosine")
    assert steps == [0, 2]
    assert cosines[0] == pytest.approx(mean @ clipped / np.linalg.norm(mean) / np.linalg.norm(clipped), rel=1e-6)
    assert cosines[0] < 1 - 1e-6
    ratio = ((rows - mean) ** 2).sum(1).mean() / (mean @ mean)
    assert found.lines[0]["ratio"] == pytest.approx(ratio, rel=1e-5)


def test_rules_per_layer_schedules_and_screens(tmp_path) -> None:
    norms = torch.tensor([[0.5, 3.0, 0.5], [0.5, 0.5, 4.0]])
    layers = per_layer(["a", "b"], Flat(1.0))
    recorder(tmp_path, clip=layers, name="layers")(Observation(0, torch.arange(3), norms))
    line = read(tmp_path, "layers").lines[0]
    assert line["clipped"] == pytest.approx(2 / 3)
    assert len(line["blocks"]) == 2
    assert line["blocks"][1][2] == 0.5
    assert line["bound"] == pytest.approx(2**0.5)

    switched = recorder(tmp_path, clip=Schedule(((0, Flat(1.0)), (5, Flat(9.0)))), name="schedule")
    for step in (4, 5):
        switched(Observation(step, torch.arange(3), norms[:1]))
    assert read(tmp_path, "schedule").series("bound") == ([4, 5], [1.0, 9.0])
    assert read(tmp_path, "schedule").series("clipped")[1] == [pytest.approx(1 / 3), 0.0]

    recorder(tmp_path, clip=Global(1.0, 2.0), name="screen")(Observation(0, torch.arange(3), norms[:1]))
    line = read(tmp_path, "screen").lines[0]
    assert (line["clipped"], line["factor"]) == (pytest.approx(1 / 3), pytest.approx(1 / 3))  # 1/2, 0, 1/2


def test_padding_empty_batches_and_wild_norms(tmp_path) -> None:
    watched = recorder(tmp_path)
    watched(Observation(0, torch.arange(2), torch.tensor([[0.5, 2.0, 0.0, 0.0]])))
    watched(Observation(1, torch.arange(0), torch.zeros(1, 0)))
    watched(Observation(2, torch.arange(3), torch.tensor([[0.5, float("inf"), float("nan")]])))
    watched(Observation(3, torch.arange(1), torch.tensor([[0.5]])))
    first, empty, wild, tame = read(tmp_path).lines
    assert (first["units"], first["clipped"]) == (2, 0.5)
    assert empty == {"step": 1, "units": 0, "bound": 1.0}
    assert (wild["units"], wild["not_finite"], wild["clipped"]) == (3, 2, 0.0)
    assert {**tame, "step": 2, "units": 3, "not_finite": 2} == wild  # the others, as if they were alone


def test_padded_runs_say_the_same(tmp_path) -> None:
    plan = tiny.mechanism(sampler=Poisson(tiny.N, tiny.BATCH, max_batch=20))
    run(tmp_path / "a", [recorder(tmp_path / "a")], plan=plan)
    run(tmp_path / "b", [recorder(tmp_path / "b")], plan=plan, runtime=Runtime(padded=True))
    for plain, padded in zip(read(tmp_path / "a").lines, read(tmp_path / "b").lines, strict=True):
        assert plain["units"] == padded["units"]
        assert plain["clipped"] == padded["clipped"]
        assert plain["norms"] == pytest.approx(padded["norms"], rel=1e-4)


def test_people_with_several_rows(tmp_path) -> None:
    owner = torch.arange(40) // 2
    data = people(unit=owner)
    watched = recorder(tmp_path, data)
    watched(Observation(0, torch.tensor([0, 19]), torch.tensor([[0.5, 2.0]])))
    parts = {part["by"]: part for part in read(tmp_path).lines[0]["parts"]}
    assert parts["side"]["name"] == "left"  # every person's first row
    assert parts["side"]["n"] == 2


def test_rules_that_move_are_refused_or_followed(tmp_path) -> None:
    plan = Mechanism(sampler=Poisson(40, 8), clip=Quantile(), noise_multiplier=2.0, steps=3)
    watched = recorder(tmp_path, clip=plan)
    run(tmp_path, [watched], plan=plan)
    assert len(set(read(tmp_path).series("bound")[1])) == 3
    with pytest.raises(ConfigError, match="does not say where it stands"):
        watched(Observation(0, torch.arange(3), torch.ones(1, 3)))


def test_settings_that_do_not_fit(tmp_path) -> None:
    for settings, said in (
        ({"every": 0}, "every=0"),
        ({"cosine_every": 5}, "needs model="),
        ({"name": "../x"}, "file name"),
        ({"every": 2, "cosine_every": 3, "model": tiny.model(), "loss_fn": tiny.loss_fn}, "multiple of every=2"),
    ):
        with pytest.raises(ConfigError, match=said):
            recorder(tmp_path, **settings)


def test_a_damaged_recording_is_an_error_and_a_cut_line_is_not(tmp_path) -> None:
    with pytest.raises(RunError, match="recorder of this name"):
        read(tmp_path)
    watched = recorder(tmp_path)
    for step in range(3):
        watched(Observation(step, torch.arange(2), torch.ones(1, 2)))
    whole = watched.path.read_text()
    watched.path.write_text(whole[:-20])
    assert [line["step"] for line in read(tmp_path).lines] == [0, 1]
    recorder(tmp_path)(Observation(2, torch.arange(2), torch.ones(1, 2)))
    assert watched.path.read_text() == whole
    watched.path.write_text("{" + whole)
    with pytest.raises(RunError, match="line 1, is damaged"):
        read(tmp_path)


def test_drawings(tmp_path) -> None:
    network = tiny.model()
    run(tmp_path, [recorder(tmp_path, model=network, loss_fn=tiny.loss_fn, cosine_every=3)], network=network)
    found = read(tmp_path)
    figures = found.figures()
    assert len(figures) == 4
    for figure in figures:
        axes = figure.draw(Figure().add_subplot())
        assert axes.lines
        assert axes.get_xlabel() == "step"
        assert figure.words
    overall = found.overall("side", "left")
    sides = [p for line in found.lines for p in line["parts"] if p["name"] == "left"]
    assert overall == pytest.approx(sum(p["n"] * p["clipped"] for p in sides) / sum(p["n"] for p in sides))
    with pytest.raises(DataError, match="by 'age'"):
        found.plot_parts(Figure().add_subplot(), by="age")
    assert json.loads(json.dumps(found.lines)) == found.lines


def test_blocks_have_quantiles_of_their_own(tmp_path) -> None:
    seen: list[Observation] = []
    names = [name for name, _ in tiny.model().named_parameters()]
    rule = per_layer(names, Flat(0.5))
    run(tmp_path, [seen.append, recorder(tmp_path, clip=rule)], plan=tiny.mechanism(clip=rule))
    for line, observation in zip(read(tmp_path).lines, seen, strict=True):
        expected = np.quantile(observation.norms.double().numpy(), QUANTILES, axis=1).T
        assert np.array(line["blocks"]) == pytest.approx(expected)
        assert len({round(block[2], 6) for block in line["blocks"]}) == len(names)


def test_smoothed_lines_are_means_over_units(tmp_path) -> None:
    """Two recorded steps of 1 and 3 units are four units, not two steps."""
    lines = [
        {"step": step, "parts": [{"by": "class", "name": "0", "n": n, "clipped": share, "factor": 0.5, "norm": 1.0}]}
        for step, n, share in ((0, 1, 1.0), (1, 3, 0.0), (2, 2, 0.5))
    ]
    recording = Recording("clipping", lines)
    (line,) = recording.plot_parts(Figure().subplots(), window=2).get_lines()
    assert line.get_xdata().tolist() == [1, 2]
    assert line.get_ydata().tolist() == [25.0, 50.0]
    assert recording.overall("class", "0") == pytest.approx(2 / 6)
