"""Jobs on a real Ray of one machine with two workers: the same results; killed or stopped, nothing is lost."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers import toy_paper, working
from helpers.membership import people
from noisewise import Mechanism, Poisson
from noisewise.attacks.shadows import train_shadows
from noisewise.audits import attribution
from noisewise.clipping import Flat
from noisewise.data import Data
from noisewise.errors import ConfigError, PrivacyWarning, RunError
from noisewise.jobs import Job, Local, Ray, carry_out
from noisewise.jobs import cluster as module
from noisewise.jobs.cluster import _wait_for_marks
from noisewise.jobs.worker import MARK, Scene, do_far, mark_of
from noisewise.reproduce.papers import PAPERS
from noisewise.reproduce.running import reproduce
from noisewise.runs.tensors import load_tensors
from noisewise.workflow.config import configure
from noisewise.workflow.seeds import train_seeds
from noisewise.workflow.sweep import carry_out_sweep, plan_sweep
from noisewise.workflow.sweep_file import Sweep

ray = pytest.importorskip("ray")
SETTINGS = {"progress": False}


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    """As many here as there."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def doubles(count):
    return [Job(f"job-{n}", working.double, {"number": n}) for n in range(count)]


def test_ray_does_what_this_process_does(cluster, tmp_path):
    jobs = [Job(f"seed-{seed}", working.trained, {"seed": seed}) for seed in range(3)]
    here = carry_out(jobs, tmp_path / "here", **SETTINGS)
    there = carry_out(jobs, tmp_path / "there", Ray(cluster), **SETTINGS)
    assert there == here
    assert carry_out(jobs, tmp_path / "there", Local(2), **SETTINGS) == here  # what Ray did is not done again
    stored = [json.loads((tmp_path / where / "seed-1.json").read_text()) for where in ("here", "there")]
    assert stored[0] == stored[1]


def test_rays_messages_hold_no_value_of_a_row(cluster, tmp_path, monkeypatch):
    heard, real = [], module.outcome_of
    monkeypatch.setattr(module, "outcome_of", lambda text: heard.append(text) or real(text))
    jobs = [Job("bad", working.quote, {"row": "12,5 weeks"})]
    with pytest.raises(RuntimeError, match=r"ValueError at .*working\.py:\d+\. .*bad\.error\.txt") as caught:
        carry_out(jobs, tmp_path, Ray(cluster), **SETTINGS)
    assert "12,5" not in "".join([*heard, str(caught.value)])
    assert "12,5 weeks" in (tmp_path / "bad.error.txt").read_text()


def test_two_jobs_share_a_gpu_and_one_at_a_time_is_one(cluster, tmp_path):
    trace = {"trace": str(tmp_path)}
    jobs = [Job(f"job-{n}", working.together, {"number": n, "others": 2, **trace}, gpu=True) for n in range(2)]
    met = carry_out(jobs, None, Ray(cluster, per_gpu=2), **SETTINGS)
    assert met == {f"job-{n}": {"met": 2, "gpu": "0"} for n in range(2)}
    alone = [Job(f"job-{n}", working.together, {"number": 2 + n, "others": 0, **trace}) for n in range(2)]
    assert [job["met"] for job in carry_out(alone, None, Ray(cluster, 1), **SETTINGS).values()] == [3, 4]


@pytest.mark.parametrize(
    ("where", "threads", "words"),
    [
        (partial(Ray, per_gpu=1), "3", "each job has 3 threads, and the Ray cluster 2 CPUs"),
        (partial(Ray, per_gpu=1), "1", "has none"),
    ],
)
def test_jobs_that_would_wait_for_ever_are_refused(cluster, tmp_path, monkeypatch, where, threads, words):
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    with pytest.raises(ConfigError, match=words):
        carry_out(doubles(1), tmp_path, where(cluster), **SETTINGS)


def test_a_cluster_that_is_not_there_is_said(monkeypatch, tmp_path):
    def nobody(**how):
        raise ConnectionError("nobody answers")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", nobody)
    with pytest.raises(RunError, match=r"ray auto: no cluster could be reached \(nobody answers\).*ray start --head"):
        carry_out(doubles(1), tmp_path, Ray("auto"), **SETTINGS)


def test_an_address_where_nobody_listens_is_said_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **how: pytest.fail("Ray was asked"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        port = closed.getsockname()[1]
        with pytest.raises(RunError, match=f"ray 127.0.0.1:{port}: no cluster could be reached .*local needs none"):
            carry_out(doubles(1), tmp_path, Ray(f"127.0.0.1:{port}"), **SETTINGS)


def test_a_ray_of_ones_own_is_closed_to_others_and_an_open_one_is_warned_of(monkeypatch, tmp_path):
    asked = []

    def start(**how):
        asked.append((how["_temp_dir"], stat.S_IMODE(Path(how["_temp_dir"]).parent.stat().st_mode)))

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "cluster_resources", dict)  # no CPU: nothing is begun
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(ConfigError, match="0 CPUs"):
        carry_out(doubles(1), tmp_path, Ray("local"), **SETTINGS)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with pytest.warns(PrivacyWarning, match="asks for no token"), pytest.raises(ConfigError, match="0 CPUs"):
        carry_out(doubles(1), tmp_path, Ray("local"), **SETTINGS)
    assert [mode for _, mode in asked] == [0o700, 0o700]
    assert not any(Path(folder).parent.exists() for folder, _ in asked)


def test_what_ray_is_sent_holds_no_row(cluster, tmp_path, monkeypatch):
    """Shadow models on Ray: those of this process, bit for bit; messages are settings, and the rows are gone afterwards."""
    sent, real = [], module.Scene.message
    monkeypatch.setattr(module.Scene, "message", lambda self, job: sent.append(real(self, job)) or sent[-1])
    data = people(40, 1)
    here = train_shadows(working.fitted, data, tmp_path / "here", recipe={"a": 1}, count=4)
    there = train_shadows(working.fitted, data, tmp_path / "there", recipe={"a": 1}, count=4, where=Ray(cluster))
    for number in range(4):
        one, other = (load_tensors(shadows.file(number)) for shadows in (here, there))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert len(sent) == 4
    assert max(map(len, sent)) < 4000
    assert not any(f"{float(value):.4f}"[:6] in text for text in sent for value in data.x[0])
    assert not (tmp_path / "there" / "rows").exists()


@pytest.mark.slow
def test_a_reproduction_and_seeds_are_the_same_on_ray(cluster, tmp_path, monkeypatch):
    monkeypatch.setitem(PAPERS, "toy", toy_paper.PAPER)
    (here,), (there,) = (
        reproduce(["toy.coin"], tmp_path / name, tier="quick", where=where, progress=False)
        for name, where in (("here", None), ("there", Ray(cluster)))
    )
    assert there.measured.to_dict() == here.measured.to_dict()
    plan = {
        "data": "digits",
        "model": "logistic",
        "noise_multiplier": 4.0,
        "steps": 2,
        "twin": False,
        "insecure_seed": 1,
    }
    configs = {f"seed-{seed}": configure(**plan, seed=seed) for seed in range(2)}
    for name, where in (("one", None), ("two", Ray(cluster))):
        train_seeds(configs, tmp_path / name, where, progress=False)
    for seed in configs:
        one, two = ((tmp_path / name / seed / "model.safetensors").read_bytes() for name in ("one", "two"))
        assert one == two


@pytest.mark.slow
def test_an_attribution_and_a_sweep_are_the_same_on_ray(cluster, tmp_path):
    x = torch.randn(120, 4, generator=torch.Generator().manual_seed(0))
    data = Data(x, (x.sum(1) > 0).long(), classes=("no", "yes"))
    mechanism = Mechanism(sampler=Poisson(120, 30), clip=Flat(1.0), noise_multiplier=1.0, steps=2)
    settings = {"loss_fn": working.row_loss, "mechanism": mechanism, "optimizer": partial(torch.optim.SGD, lr=0.5)}
    here, there = (
        attribution(working.linear, (data, data), seeds=(0, 1), measure="loss", **settings, **how)
        for how in ({}, {"where": Ray(cluster), "folder": tmp_path / "there"})
    )
    assert there.to_dict() == here.to_dict()
    text = (
        '[train]\ndata = "digits"\nmodel = "logistic"\nnoise_multiplier = 4.0\nsteps = 2\ninsecure_seed = 1\n'
        "[sweep]\nlr = [0.5, 1.0]\n"
    )
    whole = plan_sweep(Sweep.from_toml(text), progress=False)
    contents = [
        carry_out_sweep(whole, tmp_path / name, where, progress=False)
        for name, where in (("local", Local()), ("ray", Ray(cluster)))
    ]
    assert contents[0] == contents[1]
    for run in ("run-01", "run-02"):
        weights = [(tmp_path / name / run / "model.safetensors").read_bytes() for name in ("local", "ray")]
        assert weights[0] == weights[1]


def test_a_worker_that_is_killed_is_replaced_and_its_job_done(cluster, tmp_path):
    jobs = [*doubles(2), Job("killed", working.killed_once, {"trace": str(tmp_path), "number": 5})]
    results = carry_out(jobs, tmp_path / "out", Ray(cluster), **SETTINGS)
    assert results["killed"] == 5
    assert len(list(tmp_path.glob("killed-*"))) == 1
    assert os.getpid() not in {results[f"job-{n}"]["process"] for n in range(2)}


def test_a_job_that_kills_every_worker_is_named_and_the_others_kept(cluster, tmp_path):
    with pytest.raises(RunError, match=r"1 of 3 jobs failed.*dies: its worker was ended from outside twice"):
        carry_out([Job("dies", working.die, {}), *doubles(2)], tmp_path, Ray(cluster), **SETTINGS)
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["job-0.json", "job-1.json"]


SCRIPT = """
import sys
from helpers import working
from noisewise.errors import Interrupted
from noisewise.jobs import Job, Ray, carry_out
if __name__ == "__main__":
    trace, out, address = sys.argv[1:]
    jobs = [Job(f"job-{n}", working.nap, {"trace": trace, "number": n}) for n in range(3)]
    try:
        print(carry_out(jobs, out, Ray(address), progress=False))
    except Interrupted as error:
        print(error)
        sys.exit(130)
"""


def test_ctrl_c_stops_the_workers_and_the_same_call_goes_on(cluster, tmp_path):
    trace, script = tmp_path / "trace", tmp_path / "many.py"
    trace.mkdir()
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    command = [sys.executable, str(script), str(trace), str(tmp_path / "out"), cluster]
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731 - a shell's background jobs ignore it
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=heard)
    end = time.monotonic() + 300
    while len(list(trace.glob("begun-*"))) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=300)
    assert driver.returncode == 130
    assert "0 of 3 done; nothing is lost" in out
    assert len(list(trace.glob("saved-*"))) == 2
    assert len(list(trace.glob("begun-*"))) == 2  # the third never began
    (trace / "quick").touch()
    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert again.stdout.strip() == "{'job-0': 0, 'job-1': 1, 'job-2': 2}"


@pytest.mark.slow
def test_a_sweep_whose_workers_and_driver_are_killed_is_the_sweep_that_was_not(cluster, tmp_path):
    """Real trainings, with noise that repeats: workers are killed in the middle of steps, then the command itself."""
    text = (
        '[train]\ndata = "digits"\nmodel = "logistic"\nnoise_multiplier = 4.0\nsteps = 1500\ninsecure_seed = 1\n'
        "[sweep]\nlr = [0.25, 0.5, 1.0]\n"
    )
    (tmp_path / "s.toml").write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def command(out, *where):
        line = ["sweep", "--config", str(tmp_path / "s.toml"), "--out", str(tmp_path / out), "--quiet", *where]
        return subprocess.Popen([sys.executable, "-m", "noisewise", *line], env=environment, stderr=subprocess.DEVNULL)

    def at_work(out):
        """Processes of Ray that hold a run folder of the sweep open."""
        held = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                files = [os.readlink(file) for file in (process / "fd").iterdir()]
                is_worker = b"ray::" in (process / "cmdline").read_bytes()
            except OSError:
                continue
            if is_worker and any(str(tmp_path / out / "run-") in file for file in files):
                held.append(int(process.name))
        return held

    def waited(condition):
        end = time.monotonic() + 120
        while not (seen := condition()) and time.monotonic() < end:
            time.sleep(0.1)
        return seen

    whole = command("whole", "--jobs", "1")
    assert whole.wait(300) == 0
    driver = command("killed", "--ray", cluster)
    assert waited(lambda: list((tmp_path / "killed").glob("run-*/sensitive/checkpoint*")))
    (victim, *_) = waited(lambda: at_work("killed"))
    os.kill(victim, signal.SIGKILL)
    assert waited(lambda: [pid for pid in at_work("killed") if pid != victim])
    driver.kill()
    driver.wait()
    assert waited(lambda: not at_work("killed"))
    assert command("killed", "--ray", cluster).wait(300) == 0
    contents = [json.loads((tmp_path / name / "sweep.json").read_text()) for name in ("whole", "killed")]
    assert contents[0] == contents[1]
    for run in ("run-01", "run-02", "run-03"):
        one, other = ((tmp_path / name / run / "model.safetensors").read_bytes() for name in ("whole", "killed"))
        assert one == other


def test_marks_of_workers_that_still_save_are_waited_for_and_those_of_killed_ones_not_for_ever(tmp_path, monkeypatch):
    saving = mark_of(str(tmp_path), "saving")
    saving.touch()
    saved = threading.Event()
    threading.Timer(0.3, lambda: (saved.set(), saving.unlink())).start()
    _wait_for_marks(str(tmp_path), ["saving", "done"])
    assert saved.is_set()
    monkeypatch.setattr("noisewise.jobs.cluster.SAVING", 0.2)
    mark_of(str(tmp_path), "killed").touch()
    _wait_for_marks(str(tmp_path), ["killed"])
    assert not list(tmp_path.iterdir())
    _wait_for_marks(None, ["killed"])


def test_a_worker_elsewhere_leaves_a_mark_while_it_works(tmp_path):
    seen = do_far(Scene.here(tmp_path, "", 1).message(Job("job", working.look_into, {"folder": str(tmp_path)})))
    assert json.loads(seen)["kind"] == "RunError"  # no mark of the folder: it is refused
    (tmp_path / MARK).write_text("m")
    seen = do_far(Scene.here(tmp_path, "m", 1).message(Job("job", working.look_into, {"folder": str(tmp_path)})))
    assert mark_of(str(tmp_path), "job").name in json.loads(seen)["result"]
    assert [path.name for path in tmp_path.iterdir()] == [MARK]
