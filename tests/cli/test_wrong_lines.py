"""Sixty wrong command lines: each ends with a code, one readable paragraph and nothing left behind; none is silent."""

import subprocess
import sys

import pytest

CLINIC = "age,sex,outcome\n" + 5 * "30,F,ill\n40,M,well\n50,F,ill\n60,M,well\n"
FILES = {
    "clinic.csv": CLINIC,
    "empty.csv": "",
    "header.csv": "age,sex,outcome\n",
    "ragged.csv": "age,sex,outcome\n30,F\n",
    "quotes.csv": 'age,sex,outcome\n30,"F,ill\n',
    "one.csv": "age,sex,outcome\n30,F,ill\n40,M,ill\n",
    "binary.csv": "\x00\x01\x02",
    "bad.toml": "this is [not toml",
    "other.toml": 'format = 1\nlabel = "x"\n',
    "broken.py": "raise RuntimeError('no')\n",
    "mine.py": "number = 3\ndef three(a, b, c): return None\ndef nothing(): return None\n",
}
TRAIN = "train --data clinic.csv --label outcome=ill,well --column age=0:120 --column sex=F,M --epsilon 3 --out run"
LINES = {
    # no such thing
    "trian --data digits": "No such command",
    "train": "Missing option",
    "train --out run": "how private?",
    "train --data digits --epsilon 3": "Missing option '--out'",
    "train --data digits --epsilon three --out run": "--epsilon",
    "train --data digits --epsilon 3 --out run --frobnicate": "No such option",
    "train --data nowhere.csv --epsilon 3 --out run": "neither a file nor a folder",
    "train --data digits --epsilon 3 --out clinic.csv": "is a file",
    "train --data digits --epsilon 3 --out run --model resnet": "Known models",
    "train --data digits --epsilon 3 --out run --model nowhere.py:net": "no file 'nowhere.py'",
    "train --data digits --epsilon 3 --out run --model mine.py:net": "has no 'net'",
    "train --data digits --epsilon 3 --out run --model broken.py:net": "could not be run",
    "train --data digits --epsilon 3 --out run --model mine.py:number": "must be a function",
    "train --data digits --epsilon 3 --out run --model mine.py:three": "needs 3 arguments",
    "train --data digits --epsilon 3 --out run --model mine.py:nothing": "must be a torch.nn.Module",
    "train --data digits --epsilon 3 --out run --device tpu9": "tpu9",
    "train --data digits --epsilon 3 --out run --clip round": "round",
    "train --data digits --epsilon 3 --out run --optimizer lbfgs": "lbfgs",
    "train --data digits --epsilon 3 --out run --sampler dice": "dice",
    "train --data digits --epsilon 3 --out run --repair magic": "Known repairs",
    "train --data digits --epsilon 3 --out run --repair lora:rank=x": "rank=x",
    "train --data digits --epsilon 3 --out run --repair moving-average --repair moving-average": "cannot be combined",
    "train --data digits --epsilon 3 --out run --repair first-phase:epochs=1,ablation=plain": "no noise can meet it",
    "train --data digits --epsilon 3 --out run --repair group-bounds:group=sex": "sex",
    "train --data digits --epsilon 3 --out run --repair lora:colour=1": "there is no 'colour'",
    "train --data digits --epsilon 3 --out run --repair lora:rank": "no key=value",
    "train --data digits --epsilon 3 --out run --repair ranked-sparsification:unnoised=yes": "no noise can meet it",
    # numbers
    "train --data digits --epsilon 0 --out run": "epsilon=0.0",
    "train --data digits --epsilon -3 --out run": "epsilon=-3.0",
    "train --data digits --epsilon nan --out run": "epsilon=nan",
    "train --data digits --epsilon 3 --delta 0 --out run": "delta=0.0",
    "train --data digits --epsilon 3 --batch-size 0 --out run": "batch_size=0",
    "train --data digits --epsilon 3 --batch-size 5000 --out run": "outside (0, 1]",
    "train --data digits --epsilon 3 --epochs 0 --out run": "epochs=0.0",
    "train --data digits --epsilon 3 --lr 0 --out run": "lr=0.0",
    "train --data digits --epsilon 3 --valid 5000 --out run": "hold out fewer",
    "train --data digits --epsilon 3 --seed -1 --out run": "seed=-1",
    "train --data digits --epsilon 3 --epochs 2 --steps 5 --out run": "give one of them",
    "train --data digits --epsilon 3 --noise-multiplier 1 --out run": "one follows from the other",
    "train --data digits --epsilon 3 --ema 2 --out run": "ema=2.0",
    "train --data digits --epsilon 3 --screen 5 --clip flat --out run": "only global clipping",
    # tables
    "train --data clinic.csv --epsilon 3 --out run": "which column shall be predicted?",
    "train --data clinic.csv --label fate --epsilon 3 --out run": "no such column",
    "train --data clinic.csv --label outcome --epsilon 3 --out run": "Nobody is here to confirm",
    "train --data empty.csv --label outcome --epsilon 3 --out run": "empty",
    "train --data header.csv --label outcome --epsilon 3 --out run": "no rows",
    "train --data ragged.csv --label outcome --epsilon 3 --out run": "fields",
    "train --data quotes.csv --label outcome --epsilon 3 --out run": "quotes.csv",
    "train --data one.csv --label outcome --epsilon 3 --out run": "nothing to learn",
    "train --data binary.csv --label outcome --epsilon 3 --out run": "outcome",
    "train --data clinic.csv --schema bad.toml --epsilon 3 --out run": "not valid TOML",
    "train --data clinic.csv --schema other.toml --epsilon 3 --out run": "lacks",
    f"{TRAIN} --group outcome=ill,well": "outcome",
    f"{TRAIN} --column age=0:9": "named twice",
    f"{TRAIN} --unit age": "age",
    f"{TRAIN} --test 2": "--test 2",
    f"{TRAIN} --batch-size 50": "outside (0, 1]",
    f"{TRAIN} --valid 50": "hold out fewer",
    f"{TRAIN} --repair group-bounds:group=sex": "Say so: --group sex",
    # going on, opening, predicting
    "train --resume --out run": "no run to go on with",
    "train --config bad.toml --out run": "not valid TOML",
    "train --config other.toml --out run": "other.toml",
    "audit run": "is no run folder",
    "audit": "which run?",
    "report run": "no finished run",
    "predict run clinic.csv --out scores.csv": "no finished run",
    "predict run nowhere.csv --out scores.csv": "does not exist",
    "predict run clinic.csv --out nowhere/scores.csv": "no folder",
    "predict run clinic.csv --out clinic.csv": "exists",
    "schema clinic.csv": "Missing option",
    "schema nowhere.csv --label outcome": "does not exist",
    "schema clinic.csv --label outcome --column age": "say what it is",
    "schema clinic.csv --label outcome --epsilon 1 --header-only": "Choose one",
    "check mine.py:number": "mine.py:number",
    "check nowhere.py:model": "no file",
}


@pytest.mark.parametrize("line", LINES)
def test_wrong_lines_are_answered(noisewise, tmp_path, line):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    found = noisewise(*line.split())
    assert found.code in (2, 3), found.words
    assert LINES[line] in found.words
    assert "Traceback" not in found.words
    assert "bug in noisewise" not in found.words
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == set(
        FILES
    )  # Python's own, of the user's file


def test_there_are_enough_of_them():
    assert len(LINES) >= 60


PROGRAM = """
import sys
from typer.testing import CliRunner
from noisewise.cli.app import app
for line in sys.stdin.read().splitlines():
    CliRunner().invoke(app, line.split())
    if "torch" in sys.modules:
        sys.exit(f"torch was imported for: {line}")
"""


def test_all_mistakes_are_said_before_torch_is_imported(tmp_path):
    for name, content in FILES.items():
        (tmp_path / name).write_text(content)
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input="\n".join(LINES),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
