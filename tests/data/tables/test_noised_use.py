"""Ranges chosen with noise: held by what was released, refused by public numbers, useful on real tables."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_breast_cancer, load_diabetes

from noisewise.data.tables import noised
from noisewise.data.tables.kinds import WIDE, Classes, Number, Target
from noisewise.data.tables.noised import ALLOWED, CELLS, COVERED, FALSE_END, ROWS_PER_NOISE, _cells, _holding
from noisewise.data.tables.propose import propose
from noisewise.errors import ConfigError
from noisewise.randomness import Entropy


def test_a_range_is_used_only_if_it_surely_holds_nearly_everything() -> None:
    """One cell stands out, and holds a third: the answer of old was that cell."""
    counts = np.full(64, 12.0)
    counts[30] = 400
    assert _holding(counts, counts.sum(), 28.0, FALSE_END) is None
    assert _holding(counts, counts.sum(), 1.0, FALSE_END) == (0, 63)
    assert _holding(np.zeros(64), 100.0, 1.0, FALSE_END) is None
    few = np.zeros(64)
    few[[20, 21, 22, 25]] = 500
    assert _holding(few, 2000.0, 5.0, FALSE_END) == (20, 25)


@pytest.mark.parametrize("ratio", [64, 100, 200, 400, 1000])
def test_what_a_range_is_said_to_hold_it_holds(ratio) -> None:
    """False alarms: a range that holds less than 90 % passes in at most 2.5 % of the draws, by the normal distribution."""
    generator, n = np.random.default_rng(ratio), 6400.0
    std = n / ratio
    cells = _cells(int(n), std)
    counts = np.zeros(cells)
    inner = max(1, cells // 2)
    counts[:inner] = 0.85 * n / inner  # 15 % are spread over the other cells
    counts[inner:] = 0.15 * n / max(1, cells - inner)
    wrong = 0
    for _ in range(400):
        held = _holding(counts + generator.normal(0, std, cells), n, std, FALSE_END)
        wrong += held is not None and counts[held[0] : held[1] + 1].sum() < COVERED * n * (1 - 1e-9)
    assert stats.binomtest(wrong, 400, 2 * stats.norm.sf(ALLOWED), alternative="greater").pvalue > 1e-6


def test_cells_are_as_many_as_the_noise_allows() -> None:
    assert [_cells(n, 10.0) for n in (640, 1000, 2000, 4000, 10**6)] == [4, 8, 16, 32, 64]
    assert CELLS == 64


def counted(monkeypatch) -> list[int]:
    releases: list[int] = []
    real = noised.release

    def release(parts, **more):
        releases.append(len(parts))
        return real(parts, **more)

    monkeypatch.setattr(noised, "release", release)
    return releases


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0])
def test_too_few_rows_are_refused_before_anything_is_released(tmp_path, monkeypatch, epsilon) -> None:
    frame = load_diabetes(as_frame=True, scaled=False).frame
    frame.to_csv(tmp_path / "t.csv", index=False)
    releases = counted(monkeypatch)
    with pytest.raises(
        ConfigError, match=r"10 columns from 442 rows.*Nothing was released.*or epsilon=2\.3.*header_only=True"
    ) as caught:
        propose(tmp_path / "t.csv", label="target", columns={"target": Target(0, 400)}, epsilon=epsilon)
    assert releases == []
    # By n, columns and epsilon alone: rows of another kind, as many, are refused in the same words.
    (tmp_path / "t.csv").write_text(",".join(frame) + "\n" + (",".join(["x"] * 10) + ",1\n") * 442)
    with pytest.raises(ConfigError) as again:
        propose(tmp_path / "t.csv", label="target", columns={"target": Target(0, 400)}, epsilon=epsilon)
    assert str(again.value) == str(caught.value)


def test_what_the_refusal_asks_for_is_enough(tmp_path, monkeypatch) -> None:
    frame = load_diabetes(as_frame=True, scaled=False).frame
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = propose(tmp_path / "t.csv", label="target", columns={"target": Target(0, 400)}, epsilon=2.4)
    sigma = found.schema.ledger.lines[0].event.noise_multiplier
    assert ROWS_PER_NOISE * sigma * math.sqrt(10) <= 442
    with pytest.raises(ConfigError, match="442 rows"):
        propose(tmp_path / "t.csv", label="target", columns={"target": Target(0, 400)}, epsilon=2.2)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("name", "epsilon"), [("diabetes", 3.0), ("cancer", 4.0), ("many diabetes", 0.5), ("many diabetes", 2.0)]
)
def test_noised_ranges_are_useful_on_real_tables(tmp_path, name, epsilon, seed) -> None:
    """s6 of the diabetes set in [91, 94] is not."""
    frame = (
        load_breast_cancer(as_frame=True) if name == "cancer" else load_diabetes(as_frame=True, scaled=False)
    ).frame
    times = 10 if name.startswith("many") else 1
    path = tmp_path / "t.csv"
    path.write_text(
        ",".join(frame.columns)
        + "\n"
        + times * "".join(",".join(map(str, row)) + "\n" for row in frame.to_numpy().tolist())
    )
    label = Classes(("0", "1")) if name == "cancer" else Target(0, 400)
    columns = {"target": label}
    if name == "cancer":
        path.write_text(path.read_text().replace(",0.0\n", ",0\n").replace(",1.0\n", ",1\n"))
    schema = propose(path, label="target", columns=columns, epsilon=epsilon, entropy=Entropy.insecure(seed)).schema
    for column, kind in schema.columns.items():
        assert isinstance(kind, Number)
        if (kind.low, kind.high, kind.log) != (WIDE.low, WIDE.high, True):
            values = frame[column]
            assert values.between(kind.low, kind.high).mean() > 0.85
            assert kind.high - kind.low < 8 * (values.max() - values.min())
    assert len(schema.encode(path)) == times * len(frame)
