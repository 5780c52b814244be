"""May a file that somebody names be replaced? Only one that noisewise wrote before: its files carry a mark that tells them.

No matplotlib and no torch here, so that it is said at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from noisewise.errors import ConfigError, RunError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTERNAL, SHAREABLE = "noisewise, internal report", "noisewise, shareable report"  # what made a page, in its head
PICTURES: dict[str, tuple[dict[str, str], bytes]] = {  # what a picture says of itself, and how that lies in its file
    ".png": ({"Software": "noisewise"}, b"tEXtSoftware\0noisewise"),
    ".svg": ({"Creator": "noisewise"}, b"<dc:title>noisewise</dc:title>"),
    ".pdf": ({"Creator": "noisewise"}, b"/Creator (noisewise)"),
}
LOOKED_AT = 1 << 16  # bytes at each end of a file that are searched for a mark


def check_page(path: Path, made_by: str = INTERNAL) -> None:
    """Refuse to write a page over a folder, or over a file that is no page of the same kind."""
    if path.is_dir():
        raise RunError(f"{path} is a folder: name a file, e.g. {path / 'report.html'}.")
    if path.exists() and not is_page(path, made_by):
        raise ConfigError(
            f"{path} exists and is no {made_by.removeprefix('noisewise, ')} of noisewise: choose another --out, so that "
            "nothing is overwritten."
        )


def is_page(path: Path, made_by: str = INTERNAL) -> bool:
    """Is this a page that noisewise wrote?"""
    return _holds(path, f'<meta name="generator" content="{made_by}">'.encode())


def check_picture(path: Path) -> None:
    """Refuse a picture of a kind that is not drawn, in no folder, or over a file that is no picture of noisewise."""
    if path.suffix not in PICTURES or not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: must end in {', '.join(PICTURES)} and lie in a folder that exists.")
    if path.exists() and not _holds(path, PICTURES[path.suffix][1]):
        raise ConfigError(
            f"--plot {path}: exists and is no picture that noisewise drew. Choose another --plot, so that nothing is "
            "overwritten."
        )


def save_picture(figure: Figure, path: Path, *, internal: bool = False) -> None:
    """Write a figure as the end of its name says, marked so that it may be drawn again; `internal`: for its owner alone."""
    if internal:
        path.touch(mode=0o600)
        path.chmod(0o600)
    figure.savefig(path, dpi=150, metadata=PICTURES[path.suffix][0])


def _holds(path: Path, mark: bytes) -> bool:
    """Does a file hold these bytes near its beginning or its end?"""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(LOOKED_AT)
            file.seek(max(path.stat().st_size - LOOKED_AT, 0))
            return mark in head or mark in file.read(LOOKED_AT)
    except OSError:
        return False  # what cannot be read is not known to be ours
