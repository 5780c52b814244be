"""The pictures of the README: the report in a browser, light and dark, wide and on a phone, and the terminal.

python benchmarks/pictures.py [--run DIR] [--out docs/pictures]

Trains on Adult (a public table) with its groups and a twin, audits, asks for suggestions, reports, and draws what a user sees:
the page in headless Chromium (`apt-get install chromium`), the terminal as SVG by rich, from what the commands really print.
About four minutes.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from helpers.browser import Browser  # noqa: E402

WIDTH = 92  # letters of the terminal
TRAIN = ("train", "--data", "adult", "--epsilon", "3", "--out", "runs/adult")
AUDIT = ("audit", "runs/adult", "--only", "disparity")
SUGGEST = ("suggest", "runs/adult")
OTHERS = ("calibration", "robustness", "engine-epsilon")
LIMIT = 300_000  # bytes of all pictures together
VIEWS = {  # name: width, height, dark
    "report": (1180, 940, False),
    "report-phone-dark": (390, 844, True),
}


def command(words: tuple[str, ...], place: Path) -> str:
    """What a command prints on a terminal, colours included; progress bars are left out as they are on no terminal."""
    environment = os.environ | {"COLUMNS": str(WIDTH), "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(
        [sys.executable, "-m", "noisewise", *words],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"noisewise {' '.join(words)}: {done.stderr}")
    return done.stdout


def terminal(words: tuple[str, ...], printed: str, skip_to: str = "") -> str:
    """An SVG of a command and of what it printed, from the line with `skip_to` on; it loads no font."""
    from rich.console import Console
    from rich.terminal_theme import MONOKAI
    from rich.text import Text

    lines = printed.strip("\n").splitlines()
    first = next((place for place, line in enumerate(lines) if skip_to in line), 0)
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text(f"$ noisewise {' '.join(words)}", "bold"))
    if first:
        console.print(Text("...", "dim"))
    for line in lines[first:]:
        console.print(Text.from_ansi(line.rstrip()))
    svg = console.export_svg(title="noisewise", theme=MONOKAI, unique_id="terminal")
    return re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S)


def save(png: bytes, path: Path) -> None:
    """With few colours: a page has few."""
    from PIL import Image

    Image.open(io.BytesIO(png)).convert("RGB").quantize(128).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    parser.add_argument("--run", type=Path, help="folder in which runs/adult is, or is made; default: a temporary one")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        place = options.run or Path(temporary)
        if not (place / "runs/adult/run.json").exists():
            print("training")
            (options.out / "train.svg").write_text(terminal(TRAIN, command(TRAIN, place)))
        print("auditing")
        (options.out / "audit.svg").write_text(terminal(AUDIT, command(AUDIT, place), skip_to="The private model"))
        for name in OTHERS:
            command((*AUDIT[:3], name), place)
        print("asking what to do next")
        (options.out / "suggest.svg").write_text(terminal(SUGGEST, command(SUGGEST, place)))
        page = place / "page.html"
        command(("report", "runs/adult", "--out", str(page)), place)
        with Browser() as browser:
            for name, (width, height, dark) in VIEWS.items():
                browser.open(page, width, height, dark=dark)
                save(browser.picture(), options.out / f"{name}.png")
    sizes = {path.name: path.stat().st_size for path in sorted(options.out.iterdir())}
    print(sizes)
    if sum(sizes.values()) > LIMIT:
        raise SystemExit(f"{sum(sizes.values()):,} bytes: more than {LIMIT:,}.")


if __name__ == "__main__":
    main()
