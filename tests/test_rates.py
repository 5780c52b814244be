"""The learning rate over a run: torch's own schedules, shares in range, texts of a config."""

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR, SequentialLR

from noisewise import LearningRate
from noisewise.errors import ConfigError

STEPS = 37


def rates(make):
    """What an optimizer of learning rate 0.3 is told at each step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.3)
    scheduler, seen = make(optimizer), []
    for _ in range(STEPS):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return seen


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LearningRate("cosine"), lambda o: CosineAnnealingLR(o, STEPS)),
        (LearningRate("cosine", last=0.1), lambda o: CosineAnnealingLR(o, STEPS, eta_min=0.03)),
        (LearningRate("linear", last=0.2), lambda o: LinearLR(o, 1.0, 0.2, STEPS)),
        (LearningRate(), lambda o: LambdaLR(o, lambda _: 1.0)),
        (
            LearningRate("cosine", warmup=0.2),  # 8 of 37 steps
            lambda o: SequentialLR(o, [LinearLR(o, 1 / 8, 1.0, 7), CosineAnnealingLR(o, STEPS - 8)], [8]),
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter")
def test_rates_are_those_of_torch(ours, theirs):
    assert rates(lambda optimizer: ours.on(optimizer, STEPS)) == pytest.approx(rates(theirs), rel=1e-9)


def test_a_part_of_a_run_goes_on_where_the_one_before_ended():
    whole = LearningRate("cosine", warmup=0.1)
    seen = rates(lambda optimizer: whole.on(optimizer, 2 * STEPS))
    seen += rates(lambda optimizer: whole.on(optimizer, 2 * STEPS, first=STEPS))
    assert seen == pytest.approx([0.3 * whole.factor(step, 2 * STEPS) for step in range(2 * STEPS)])
    assert all(rate > 0 for rate in seen)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cosin", "one of constant, linear, cosine"),
        ("cosine:last=2", r"last=2.0 must be a share in \[0, 1\)"),
        ("cosine:last=nan", "must be a share"),
        ("linear:warmup=-0.1", "must be a share"),
        ("cosine:first=0.1", "with last or warmup"),
        ("cosine:last", "must be KEY=VALUE"),
        ("cosine:last=0.1,last=0.2", "each once"),
        ("cosine:last=low", "not a number"),
        ("constant:last=0.1", "has no meaning"),
    ],
)
def test_what_can_mean_nothing_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        LearningRate.parse(text)
