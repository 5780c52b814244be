"""Scattering features: kymatio's numbers, what follows from the definition, and the cache."""

import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import noisewise.data.scatter
from noisewise.data import Data
from noisewise.data.scatter import channels, features, scatter
from noisewise.errors import ConfigError, DataError, NoisewiseWarning, PrivacyError

REFERENCE = np.load(Path(__file__).parents[1] / "helpers" / "reference" / "scattering.npz")
SETTINGS = {"grey": (2, 8), "colour": (2, 8), "odd": (2, 8), "coarse": (3, 4), "fine": (1, 5)}


def images(n=3, colours=1, height=12, width=9, dtype=torch.float64):
    return torch.rand(n, colours, height, width, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SETTINGS)
def test_features_are_kymatios(name, dtype):
    scales, angles = SETTINGS[name]
    x, expected = (torch.from_numpy(REFERENCE[f"{name}.{part}"]) for part in ("x", "features"))
    got = scatter(x.to(dtype), scales=scales, angles=angles)
    assert got.dtype == dtype
    assert got.shape == expected.shape == (len(x), x.shape[1] * channels(scales, angles), *expected.shape[2:])
    assert float(((got - expected) / expected).abs().max()) < 3e-5


def test_shapes_of_the_papers_models():
    assert scatter(images(2, 1, 28, 28)).shape == (2, 81, 7, 7)
    assert scatter(images(2, 3, 32, 32)).shape == (2, 243, 8, 8)
    assert scatter(images(0, 3, 32, 32)).shape == (0, 243, 8, 8)


def test_order_zero_is_a_gaussian_blur_away_from_the_border():
    from scipy.ndimage import gaussian_filter

    x = images(1, 1, 48, 40)
    blurred = gaussian_filter(x[0, 0].numpy(), 1.6, mode="mirror", truncate=8)[::4, ::4]
    inside = (slice(2, -2), slice(2, -2))
    np.testing.assert_allclose(scatter(x)[0, 0].numpy()[inside], blurred[inside], rtol=1e-4)
    wrong = gaussian_filter(x[0, 0].numpy(), 1.5, mode="mirror", truncate=8)[::4, ::4]
    assert np.abs(scatter(x)[0, 0].numpy() / wrong - 1)[inside].max() > 1e-3


def test_wavelets_ignore_constants_and_have_no_mean():
    flat = scatter(torch.full((1, 1, 20, 20), 3.0, dtype=torch.float64))[0]
    assert float((flat[0] / 3 - 1).abs().max()) < 1e-4
    assert float(flat[1:].abs().max()) < 1e-9


def test_nothing_gives_nothing_and_amplitudes_scale():
    x = images()
    found = scatter(x)
    assert not scatter(torch.zeros_like(x)).any()
    torch.testing.assert_close(scatter(2.5 * x), 2.5 * found)
    signs = torch.ones(81, 1, 1, dtype=x.dtype)
    signs[0] = -1
    torch.testing.assert_close(scatter(-x), found * signs)  # moduli do not see the sign


def test_a_transposed_image_has_transposed_features_with_angles_reordered():
    x = images(1, 1, 16, 16)
    there, back = scatter(x)[0, 1:9], scatter(x.transpose(2, 3))[0, 1:9].transpose(1, 2)
    # angle k stands for (3 - k) pi / 8, its mirror image for pi / 2 - (3 - k) pi / 8; pi apart is the same modulus
    order = [(2 - k) % 8 for k in range(8)]
    torch.testing.assert_close(there, back[order])


def test_a_row_depends_on_its_image_alone_and_chunks_change_nothing(monkeypatch):
    x = images(5, 2)
    whole = scatter(x)
    other = x.clone()
    other[3] += 1
    changed = (scatter(other) != whole).flatten(1).any(1)
    assert changed.tolist() == [False, False, False, True, False]
    monkeypatch.setattr(noisewise.data.scatter, "WORK_BYTES", {"cpu": 1})
    torch.testing.assert_close(scatter(x), whole, rtol=1e-12, atol=1e-12)


def test_the_work_in_progress_is_bounded():
    bank = noisewise.data.scatter._bank(28, 28, 2, 8)
    assert (
        noisewise.data.scatter._chunk(bank.to("cpu", torch.float64))
        == noisewise.data.scatter._chunk(bank.to("cpu", torch.float32)) // 2
        > 1
    )
    assert noisewise.data.scatter._chunk(noisewise.data.scatter._bank(100, 100, 2, 8).to("cpu", torch.float64)) == 1


def test_progress_is_shown_only_when_asked(capfd):
    scatter(images())
    assert capfd.readouterr() == ("", "")
    scatter(images(), progress=True)
    assert "scattering" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("x", "settings", "error", "message"),
    [
        (torch.zeros(2, 8, 8), {}, DataError, r"needs images \[n, channels, height, width\]"),
        (torch.zeros(2, 1, 8, 4), {}, DataError, "at least 5x5 pixels for 2 scales"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), {}, DataError, r"scattering of torch.uint8: .*x.float\(\) / 255"),
        (torch.zeros(2, 1, 8, 8), {"scales": 0}, ConfigError, "scales=0 must be a whole number"),
        (torch.zeros(2, 1, 8, 8), {"angles": 2.0}, ConfigError, "angles=2.0 must be a whole number"),
    ],
)
def test_other_inputs_are_refused(x, settings, error, message):
    with pytest.raises(error, match=message):
        scatter(x, **settings)


def test_the_smallest_image_works():
    assert scatter(torch.ones(1, 1, 5, 5)).shape == (1, 81, 1, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["images", "device"])
def test_the_same_features_on_a_gpu(where):
    x, expected = (torch.from_numpy(REFERENCE[f"grey.{part}"]) for part in ("x", "features"))
    got = scatter(x.cuda()) if where == "images" else scatter(x, device="cuda")
    assert got.device.type == ("cuda" if where == "images" else "cpu")
    assert float(((got.cpu() - expected) / expected).abs().max()) < 1e-4


# --------------------------------------------------------------------------------------------------------- the cache


@pytest.fixture
def data():
    return Data(images(), torch.arange(3), {"sex": torch.tensor([0, 1, 0])}, classes=("a", "b", "c"), public=True)


@pytest.fixture
def forbidden(monkeypatch):
    """From here on, nothing may be computed."""

    def fail(*args, **kwargs):
        raise AssertionError("computed again")

    return lambda: monkeypatch.setattr(noisewise.data.scatter, "scatter", fail)


def files(folder):
    return sorted(Path(folder).iterdir())


def test_features_are_computed_once(data, tmp_path, forbidden):
    first = features(data, tmp_path)
    assert torch.equal(first.x, scatter(data.x))
    assert torch.equal(first.y, data.y)
    assert (first.groups, first.classes, first.public) == (data.groups, data.classes, True)
    forbidden()
    assert torch.equal(features(data, tmp_path).x, first.x)
    assert len(files(tmp_path)) == 1


def test_other_images_settings_types_and_versions_are_other_files(data, tmp_path, monkeypatch):
    x = data.x.clone()
    x[0, 0, 0, 0] += 1e-9
    others = [Data(x, data.y), Data(data.x.float(), data.y), Data(data.x.transpose(2, 3), data.y)]
    for other in [data, *others]:
        assert torch.equal(features(other, tmp_path).x, scatter(other.x))
    assert features(data, tmp_path, angles=4).x.shape[1] == channels(2, 4)
    assert len(files(tmp_path)) == 5
    monkeypatch.setattr(noisewise.data.scatter, "VERSION", "next")
    features(data, tmp_path)
    assert len(files(tmp_path)) == 6


def truncated(content):
    return content[: len(content) // 2]


def one_bit(content):
    return content[:-5] + bytes([content[-5] ^ 1]) + content[-4:]


def emptied(content):
    return b""


def other_promise(content):
    place = content.index(b'"sha256":"') + 10
    return content[:place] + (b"0" if content[place : place + 1] != b"0" else b"1") + content[place + 1 :]


@pytest.mark.parametrize("damage", [truncated, one_bit, emptied, other_promise])
def test_damaged_files_are_noticed_and_replaced(data, tmp_path, damage, forbidden):
    expected = features(data, tmp_path).x
    (path,) = files(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(NoisewiseWarning, match="are damaged .* computed again"):
        assert torch.equal(features(data, tmp_path).x, expected)
    forbidden()
    assert torch.equal(features(data, tmp_path).x, expected)


def test_a_file_under_another_name_is_not_believed(data, tmp_path):
    features(data, tmp_path)
    (path,) = files(tmp_path)
    other = Data(data.x + 1, data.y)
    expected = features(other, tmp_path).x
    (second,) = set(files(tmp_path)) - {path}
    second.write_bytes(path.read_bytes())
    with pytest.warns(NoisewiseWarning, match="damaged"):
        assert torch.equal(features(other, tmp_path).x, expected)


def test_the_cache_is_for_its_owners_eyes_and_where_the_user_says(data, tmp_path, monkeypatch):
    monkeypatch.setenv("NOISEWISE_CACHE", str(tmp_path / "cache"))
    features(data)
    folder = tmp_path / "cache" / "scattering"
    (path,) = files(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_nobody_else_sees_the_digest_of_private_images(data, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    private = replace(data, public=False)
    with pytest.raises(PrivacyError, match=r"open to other users.*chmod 700"):
        features(private, tmp_path / "open")
    assert files(tmp_path / "open") == []
    features(data, tmp_path / "open")  # public
    features(private, tmp_path / "new")
    (tmp_path / "open").chmod(0o700)
    assert torch.equal(features(private, tmp_path / "open").x, features(private, tmp_path / "new").x)


def test_folders_that_cannot_be_used_are_named_with_the_remedy(data, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file: .*Set NOISEWISE_CACHE"):
        features(data, tmp_path / "file")
