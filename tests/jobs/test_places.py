"""Where jobs run: what the options say, how cores and GPUs are shared, and mistakes before anything heavy is imported."""

import os
import subprocess
import sys

import pytest

from noisewise.errors import ConfigError
from noisewise.jobs import Local, Ray, chosen
from noisewise.jobs import places as module


def test_options_say_where():
    assert chosen() == Local(1)
    assert chosen(3) == Local(3)
    assert chosen(None, "auto") == Ray("auto", None, None)
    assert chosen(3, "local", 4) == Ray("local", 3, 4)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Local(0), "processes=0"),
        (lambda: Local(True), "processes=True"),
        (lambda: Ray("auto", 0), "processes=0"),
        (lambda: Ray("auto", None, 0), "per_gpu=0"),
        (lambda: Ray(""), "an address is"),
        (lambda: Ray("ray://head:10001"), "does not have its files"),
        (lambda: Ray("head"), "ray head: an address is auto, local or HOST:PORT, e.g. head:6379"),
        (lambda: chosen(0), "jobs=0"),
        (lambda: chosen(0, "auto"), "jobs=0"),
        (lambda: chosen(2, None, 2), "--per-gpu 2 without --ray"),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_without_ray_the_way_to_it_is_said(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'noisewise\[ray\]'"):
        chosen(None, "auto")


def test_cores_are_shared_unless_the_user_has_chosen(monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert [Local(n).threads for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
    assert Ray("local").threads == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert [Local(2).threads, Ray("local").threads] == [3, 3]
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(ConfigError, match="OMP_NUM_THREADS=many"):
        _ = Local(2).threads


def test_shares_of_a_gpu():
    assert [Ray("local").share(gpu) for gpu in (True, False)] == [1.0, 0.0]
    assert [Ray("local", per_gpu=4).share(gpu) for gpu in (True, False)] == [0.25, 0.25]


def test_a_wrong_address_is_said_before_torch_and_ray_are_imported():
    script = (
        "import sys\nfrom noisewise.cli import app\nfrom noisewise.errors import ConfigError\n"
        "try:\n    app(['sweep', '--config', 'none.toml', '--out', 'out', '--ray', 'ray://x'], standalone_mode=False)\n"
        "except ConfigError as error:\n    print(error)\nprint({'torch', 'ray'} & set(sys.modules))"
    )
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "does not have its files" in printed
    assert printed.strip().endswith("set()")
