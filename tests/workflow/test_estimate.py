"""How long a run will take, before it starts."""

from dataclasses import replace

from noisewise.runtime import Runtime
from noisewise.workflow import estimate
from noisewise.workflow.config import plan


def test_time_grows_with_steps_batch_and_twin(monkeypatch):
    ticks = iter(range(10_000))
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: float(next(ticks)))  # each timed step takes a second
    planned = plan(data="digits", noise_multiplier=1.0, steps=10, batch_size=64, model="logistic")
    recipe, runtime = planned.recipe, Runtime()
    assert estimate.seconds(recipe, runtime, twin=False) == 10
    assert estimate.seconds(recipe, runtime, twin=True) == 10 * (1 + estimate.TWIN)
    longer = replace(recipe, mechanism=replace(recipe.mechanism, steps=30))
    assert estimate.seconds(longer, runtime, twin=False) == 30
    large = replace(recipe.mechanism.sampler, batch_size=2 * estimate.MOST)
    assert (
        estimate.seconds(replace(recipe, mechanism=replace(recipe.mechanism, sampler=large)), runtime, twin=False) == 20
    )


def test_the_model_is_left_as_it_was():
    planned = plan(data="digits", noise_multiplier=1.0, steps=2, batch_size=64, model="cnn")
    before = {name: value.clone() for name, value in planned.recipe.model.state_dict().items()}
    assert estimate.seconds(planned.recipe, Runtime(), twin=False) > 0
    assert all(value.equal(before[name]) for name, value in planned.recipe.model.state_dict().items())
    assert all(parameter.grad is None for parameter in planned.recipe.model.parameters())
