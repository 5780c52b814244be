"""One small Ray for all tests of a process; it starts in a few seconds."""

import os

import pytest


@pytest.fixture(scope="session")
def cluster():
    """The address of a Ray with two CPUs, and one GPU that is only said to be there."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    context = ray.init(
        address="local",
        object_store_memory=10**8,
        num_cpus=2,
        num_gpus=1,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield context.address_info["address"]
    ray.shutdown()
