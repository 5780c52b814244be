"""Callbacks are told released values only; stopping early costs the whole plan; loggers log what may leave."""

import json
import math
import signal
from types import SimpleNamespace

import pytest
import torch

from helpers import tiny
from noisewise.accounting import Ledger
from noisewise.data import Data
from noisewise.errors import ConfigError, Interrupted, PrivacyError
from noisewise.training.callbacks import Released, StopEarly, mlflow, tensorboard
from noisewise.training.paid import PaidAccuracy

PUBLIC = Data(*tiny.data(30), public=True)
EPOCHS = [5, 10, 12]


def told(step, **values):
    return Released(step, 100, None, values, {})


def test_a_callback_is_told_where_the_run_stands_and_no_more():
    seen = []
    run = tiny.run(callbacks=[seen.append])
    assert [(line.step, line.steps) for line in seen] == [(step, tiny.STEPS) for step in EPOCHS]
    assert all(line.values == {} and line.plan == tiny.mechanism().to_dict() for line in seen)
    assert seen[-1].epsilon == run.history[-1]["epsilon"] == run.ledger.epsilon(1e-3)
    assert run.stopped is None


@pytest.mark.parametrize("valid", [Data(*tiny.data(30)), tiny.data(30), None])
def test_losses_of_private_rows_are_not_told(valid):
    seen = []
    run = tiny.run(callbacks=[seen.append], valid=valid)
    assert [line.values for line in seen] == [{}] * 3
    assert ("valid_loss" in run.history[0]) == (valid is not None)


def test_losses_of_public_rows_are_told():
    seen = []
    run = tiny.run(callbacks=[seen.append], valid=PUBLIC)
    assert [line.values["valid_loss"] for line in seen] == [line["valid_loss"] for line in run.history]


def test_a_run_that_is_stopped_counts_its_whole_plan(tmp_path):
    """When it stops may follow from the noise: the epsilon of fewer steps is no guarantee (Rogers et al. 2016)."""
    steps = []
    run = tiny.run(
        callbacks=[lambda told: told.step == 5], recorders=[lambda seen: steps.append(seen.step)], out=tmp_path
    )
    assert steps == [*range(5)]
    assert run.stopped == 5
    assert run.ledger.lines == tiny.mechanism().lines()
    assert json.loads((tmp_path / "summary.json").read_text())["privacy"]["epsilon"] == tiny.mechanism().epsilon(1e-3)
    assert json.loads((tmp_path / "run.json").read_text())["state"] == "complete"


def test_only_true_stops():
    assert tiny.run(callbacks=[lambda told: 1, lambda told: "stop"]).stopped is None


def test_stopping_waits_for_its_patience():
    stop = StopEarly(patience=2, least=0.1)
    losses = [1.0, 0.8, 0.75, 0.9, 0.1]
    assert [stop(told(step, valid_loss=loss)) for step, loss in enumerate(losses, 1)] == [
        False,
        False,
        False,
        True,
        False,
    ]
    assert [stop(told(step, valid_loss=2.0)) for step in (1, 2, 3)] == [False, False, True]  # a new run


def test_more_accuracy_is_better():
    stop = StopEarly("paid_accuracy", patience=1)
    assert [stop(told(step, paid_accuracy=value)) for step, value in enumerate([0.5, 0.6, 0.6], 1)] == [
        False,
        False,
        True,
    ]


def test_the_end_of_a_plan_is_no_early_stop():
    stop = StopEarly(patience=1)
    stop(Released(50, 100, None, {"valid_loss": 1.0}, {}))
    assert not stop(Released(100, 100, None, {"valid_loss": 2.0}, {}))


def test_early_stopping_on_public_rows():
    worse = iter([1.0, 2.0, 3.0])
    model = tiny.model()

    class Worse(StopEarly):
        def __call__(self, line):
            return super().__call__(line._replace(values={"valid_loss": next(worse)}))

    assert tiny.run(model, callbacks=[Worse(patience=1)], valid=PUBLIC).stopped == 10


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"callbacks": [StopEarly()]}, PrivacyError, "there is none"),
        (
            {"callbacks": [StopEarly()], "valid": tiny.data(30)},
            PrivacyError,
            "it is private.*public=True.*PaidAccuracy",
        ),
        ({"callbacks": [StopEarly("paid_accuracy")], "valid": PUBLIC}, ConfigError, "without paid="),
        ({"paid": 3}, ConfigError, "paid=3"),
        ({"paid": PaidAccuracy(PUBLIC, epsilon=1, readings=2)}, ConfigError, "2 readings left, this run takes 3"),
    ],
)
def test_what_may_not_decide_is_refused_before_training(settings, error, words):
    with pytest.raises(error, match=words):
        tiny.run(**settings)


def test_a_resumed_run_tells_the_past_again(tmp_path):
    def stop(observation):
        if observation.step == 6:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted):
        tiny.run(out=tmp_path, recorders=[stop])
    seen = []
    tiny.run(out=tmp_path, resume=True, callbacks=[seen.append])
    assert [line.step for line in seen] == EPOCHS


def test_paid_readings_cannot_be_resumed(tmp_path):
    with pytest.raises(ConfigError, match="resume=True with paid="):
        tiny.run(out=tmp_path, resume=True, paid=PaidAccuracy(PUBLIC, epsilon=1, readings=3))


def test_a_folder_keeps_what_held_out_people_paid(tmp_path):
    paid = PaidAccuracy(Data(*tiny.data(30)), epsilon=1, readings=3)
    seen = []
    run = tiny.run(out=tmp_path, paid=paid, callbacks=[seen.append])
    assert json.loads((tmp_path / "valid_ledger.json").read_text()) == paid.ledger.to_dict()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["paid_accuracy"] for line in lines] == [line.values["paid_accuracy"] for line in seen]
    assert run.ledger.lines == tiny.mechanism().lines()  # the training part pays nothing for it


def test_no_reading_is_in_a_folder_without_what_was_paid_for_it(tmp_path):
    """The program ends after the first reading, before anything else is written; and at any later one."""
    paid = PaidAccuracy(Data(*tiny.data(30)), epsilon=1, readings=3)

    def end(told):
        readings = [line for line in (tmp_path / "metrics.jsonl").read_text().splitlines() if "paid_accuracy" in line]
        assert Ledger.from_dict(json.loads((tmp_path / "valid_ledger.json").read_text())).releases == len(readings)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.run(out=tmp_path, paid=paid, callbacks=[end])
    assert json.loads((tmp_path / "valid_ledger.json").read_text()) == paid.ledger.to_dict()


def test_what_was_paid_is_written_before_the_reading(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr("noisewise.training.run.write_json", full)
    with pytest.raises(OSError, match="no space"):
        tiny.run(out=tmp_path, paid=PaidAccuracy(Data(*tiny.data(30)), epsilon=1, readings=3))
    assert not (tmp_path / "metrics.jsonl").exists()


class Writer:
    """Takes what TensorBoard's and MLflow's writers take."""

    def __init__(self):
        self.scalars, self.params = [], {}

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def log_metric(self, name, value, step):
        self.scalars.append((name, value, step))

    def log_params(self, params):
        assert not self.params
        self.params = params


@pytest.mark.parametrize(("make", "sign"), [(tensorboard, "/"), (mlflow, ".")])
def test_loggers_log_what_may_leave(make, sign):
    writer = Writer()
    run = tiny.run(callbacks=[make(writer)], valid=PUBLIC)
    expected = [
        (f"noisewise{sign}{name}", line[name], line["step"])
        for line in run.history
        for name in ("epsilon", "valid_loss")
        if line[name] is not None
    ]
    assert writer.scalars == expected
    private = Writer()
    tiny.run(callbacks=[make(private)], valid=tiny.data(30))
    assert {name for name, _, _ in private.scalars} == {f"noisewise{sign}epsilon"}
    if make is mlflow:
        assert writer.params["noisewise.sampler.batch_size"] == tiny.BATCH
        assert writer.params["noisewise.noise_multiplier"] == 20.0


def test_tensorboard_itself_reads_what_was_logged(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = tiny.run(callbacks=[tensorboard(tmp_path)], valid=PUBLIC)
    log = events.EventAccumulator(str(tmp_path))
    log.Reload()
    assert [event.step for event in log.Scalars("noisewise/valid_loss")] == EPOCHS
    assert log.Scalars("noisewise/epsilon")[-1].value == pytest.approx(run.history[-1]["epsilon"])


@pytest.mark.parametrize(
    "settings", [{"metric": "loss"}, {"patience": 0}, {"patience": 1.5}, {"least": -1}, {"least": math.nan}]
)
def test_settings_that_mean_nothing_are_refused(settings):
    with pytest.raises(ConfigError, match="StopEarly"):
        StopEarly(**settings)


def test_a_writer_must_be_one():
    with pytest.raises(ConfigError, match="SummaryWriter"):
        tensorboard(SimpleNamespace())


def test_an_averaged_model_is_known_after_an_early_stop():
    run = tiny.run(ema=0.9, callbacks=[lambda told: True])
    assert run.averaged is not None
    assert all(torch.isfinite(value).all() for value in run.averaged.values())


def test_a_callback_that_looks_in_evaluation_mode_does_not_end_dropout():
    network, seen = tiny.model(dropout=0.5), []

    def look(line):
        seen.append(network.training)
        network.eval()

    tiny.run(network, callbacks=[look])
    assert len(seen) > 2
    assert all(seen)


def test_a_callback_may_not_replace_parameters():
    network = tiny.model()

    def replace(line):
        network[0] = torch.nn.Linear(5, 6)

    with pytest.raises(ConfigError, match="replaced parameters of the model"):
        tiny.run(network, callbacks=[replace])
