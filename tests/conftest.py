"""Set-up shared by all tests: one torch thread per xdist worker; NOISEWISE_REQUIRE_ALL=1 turns skips into failures.

Cases made up by hypothesis are the same in every run; NOISEWISE_FUZZ=1 draws new ones.
"""

import gc
import os
import shutil

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("helpers")
if shutil.which("nvidia-smi") is None:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run without a GPU; asked for when Triton is imported
settings.register_profile("steady", derandomize=True)
if os.environ.get("NOISEWISE_FUZZ") != "1":
    settings.load_profile("steady")


def pytest_configure(config):
    if "PYTEST_XDIST_WORKER" in os.environ:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the commands that tests run
        import torch

        torch.set_num_threads(1)


def pytest_collection_finish():
    gc.collect()
    gc.freeze()  # what is imported and collected stays; looking for garbage in it takes 3 % of the time


def _fail_if_skipped(report):
    required = os.environ.get("NOISEWISE_REQUIRE_ALL") == "1"
    if required and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"skipped, but NOISEWISE_REQUIRE_ALL=1 requires every test: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _fail_if_skipped((yield))
