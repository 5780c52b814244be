"""Files that somebody names are replaced only where noisewise wrote them before."""

from __future__ import annotations

import pytest

from noisewise.errors import ConfigError, RunError
from noisewise.runs.replaced import INTERNAL, LOOKED_AT, PICTURES, SHAREABLE, check_page, check_picture, save_picture


def figure():
    from matplotlib.figure import Figure

    drawn = Figure()
    drawn.subplots().plot([1, 2])
    return drawn


def page(made_by):
    return f'<!doctype html><head><meta name="generator" content="{made_by}"></head>'


@pytest.mark.parametrize("end", PICTURES)
def test_a_picture_may_be_drawn_again_and_nobody_elses_is_replaced(end, tmp_path):
    path = tmp_path / f"plot{end}"
    check_picture(path)
    for _ in range(2):
        save_picture(figure(), path)
        check_picture(path)
    other = tmp_path / f"other{end}"
    figure().savefig(other)  # drawn with matplotlib, by somebody else
    before = other.read_bytes()
    with pytest.raises(ConfigError, match=rf"{other}: exists and is no picture .* another --plot"):
        check_picture(other)
    assert other.read_bytes() == before


def test_a_folder_is_no_picture(tmp_path):
    (tmp_path / "plot.png").mkdir()
    with pytest.raises(ConfigError, match="is no picture"):
        check_picture(tmp_path / "plot.png")


@pytest.mark.parametrize("path", ["plot.gif", "nowhere/plot.png"])
def test_what_cannot_be_drawn_is_refused(path, tmp_path):
    with pytest.raises(ConfigError, match=r"must end in \.png, \.svg, \.pdf and lie in a folder that exists"):
        check_picture(tmp_path / path)


def test_a_page_replaces_a_page_of_its_kind_only(tmp_path):
    path = tmp_path / "page.html"
    check_page(path)
    path.write_text(page(INTERNAL) + "x" * 3 * LOOKED_AT)
    check_page(path)
    with pytest.raises(ConfigError, match=r"page.html exists and is no shareable report of noisewise.*another --out"):
        check_page(path, SHAREABLE)
    for content in ("", "age,income\n3,4\n", "<!doctype html><title>mine · noisewise</title>", page(SHAREABLE)):
        path.write_text(content)
        with pytest.raises(
            ConfigError, match=r"page.html exists and is no internal report of noisewise.*another --out"
        ):
            check_page(path)
    with pytest.raises(RunError, match="is a folder"):
        check_page(tmp_path)
