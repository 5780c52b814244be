"""Kernels compiled for a GPU that is not there: to be run in a process where Triton's interpreter is off."""

import contextlib
import json
import sys
import time
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from noisewise.persample import triton_clipping, triton_few, triton_masks, triton_outer, triton_single
from noisewise.persample import triton_kernels as tk
from noisewise.repairs import triton_subset

made = []


def pretend():
    """A Hopper GPU, on which nothing can be run; launchers are counted."""
    absent = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        launcher_cls=lambda source, metadata: made.append(source.fn.__name__),
    )
    driver.set_active(absent)
    torch.cuda.device = lambda device: contextlib.nullcontext()


def kernels():
    """All of them, by name."""
    rooms = (tk, triton_clipping, triton_few, triton_masks, triton_outer, triton_single, triton_subset)
    return {
        name: value for room in rooms for name, value in vars(room).items() if isinstance(value, tk.triton.JITFunction)
    }


def compiled():
    """How many versions of each kernel are ready."""
    return {name: len(kernel.device_caches[0][0]) for name, kernel in kernels().items() if kernel.device_caches}


def step(units):
    """Every kernel of a step with so many units, some with masks."""
    factors, rows = torch.empty(units, dtype=torch.float64), torch.empty(units, 64)
    settings = {"stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "precision": "tf32", "small": False}
    words, images, grad = (
        torch.empty(1, dtype=torch.int32),
        torch.empty(units, 16, 12, 12),
        torch.empty(units, 32, 12, 12),
    )
    tk.squares(rows, 1.0, None)
    for width in (64, tk.MANY):
        tk.weighted_sum(torch.empty(1, units, width), factors)
        tk.weighted_sum(torch.empty(1, units, width, dtype=torch.float16), factors)
    tk.scaled(rows, factors, factors, light=True)
    tk.form_taps(grad, images, (3, 3), mask=None, stored=True, **settings)
    tk.form_taps(grad, images, (3, 3), mask=words, stored=False, **settings)
    tk.group_norm(torch.empty(units, 32, 16), torch.empty(units, 32, 16), 2, 1e-5)
    tk.layer_norm(torch.empty(units, 16, 32), torch.empty(units, 16, 32), 1e-5)
    for mask in (None, torch.zeros(64, dtype=torch.uint8)):
        halves = triton_single.halved(rows, 1.0, mask)[2]
    triton_single.masked_squares(halves, rows, torch.zeros(64, 64, dtype=torch.float16), factors, 1.0, 1.0, 0.0)
    together, mask = torch.empty(4 * units), torch.zeros(4 * units, dtype=torch.uint8)
    triton_masks.cleared(together, mask)
    triton_masks.noised(together, together, 0.5, mask)
    among, low = torch.ones(3 * units, dtype=torch.bool), torch.zeros(1, dtype=torch.int64)
    for start, shift in ((0, 48), (1, 0), (16 * units, 16), (-(2**63), 32)):
        triton_subset.counts(among, start, shift, low)
        triton_subset.up_to(among, start, low)
    present = torch.zeros(units, dtype=torch.uint8)
    _, counted, keep = triton_clipping.totals(torch.empty(3, units, dtype=torch.float64), present)
    triton_clipping.held(counted, counted, keep, 1.0, torch.zeros((), dtype=torch.int32))
    for turned in (False, True):
        triton_clipping.weighted_pair(rows, rows, factors, factors, squared=True, turned=turned)
    few = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), "dilation": (1, 1), "precision": "tf32"}
    for mask in (None, words):
        triton_few.gather_taps(grad, images[:, :3].contiguous(), mask=mask, **few)
    sentences = triton_outer.narrowed(torch.empty(units, 32, 64), 4)
    for mask in (None, words):
        triton_outer.outers(sentences, sentences, mask)


def look(units):
    """Kernels by which a model is looked at."""
    factors, images = torch.empty(units, dtype=torch.float64), torch.empty(units, 64, 16, 16)
    grad = torch.empty(units, 48, 8, 8)
    full = {"padding": (1, 1), "dilation": (1, 1), "mask": None, "precision": "ieee", "stored": True, "small": True}
    tk.form_taps(grad, images, (3, 3), (2, 2), **full)
    for width in (64, 1600):
        tk.weighted_sum(torch.empty(9, units, width), factors)
        tk.squares(torch.empty(units, width), 1.0, None)
        for sizes in (factors, factors.float()):
            tk.scaled(torch.empty(units, width), sizes, factors, light=True)
            tk.scaled(torch.empty(units, width), sizes, factors, light=False)


def wait_until(true, limit=120.0):
    """Wait for it."""
    start = time.monotonic()
    while not true():
        assert time.monotonic() - start < limit
        time.sleep(0.02)


if __name__ == "__main__":
    pretend()
    tk.get_ready(torch.device("cuda", 0))
    wait_until(lambda: len(made) == len(tk._first_calls()))
    ready = compiled()
    with tk.rehearsal():
        look(5)
    examined = compiled()
    for kernel in kernels().values():
        kernel.device_caches.clear()
    made.clear()
    steps = []
    for units in map(int, sys.argv[1:]):
        with tk.rehearsal():
            step(units)
        steps.append(compiled())
    print(json.dumps({"ready": ready, "examined": examined, "steps": steps, "launchers": made}))
