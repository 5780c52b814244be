"""How long it takes to mark data and weights, once for each run: `python benchmarks/identity.py [--megabytes 1000]`."""

import argparse
import time

import torch

from noisewise.data.marks import digest

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the tensor that is marked")
    parser.add_argument("--device", default="cpu", help="where it lies")
    chosen = parser.parse_args()
    tensor = torch.rand(chosen.megabytes, 250_000, device=chosen.device)
    start = time.perf_counter()
    digest(tensor)
    seconds = time.perf_counter() - start
    print(
        f"{chosen.megabytes} MB on {chosen.device}: {seconds:.2f} s, {1000 * seconds / chosen.megabytes:.2f} s a gigabyte"
    )
