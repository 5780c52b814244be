"""LeNet on MNIST at epsilon 3, delta 1e-5, from all 60,000 training images: test accuracy and time.

    NOISEWISE_DATA=FOLDER python benchmarks/mnist.py [--seeds 1]

The settings are the data set's defaults, chosen on a held-out part of the training images (see `config.DEFAULTS`); the
test images are read here, once per seed. Noise is fresh each time: accuracies vary by about 0.2 points.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from noisewise.estimates.intervals import share
from noisewise.runs.files import read_json
from noisewise.runs.folder import hardware, versions
from noisewise.workflow.config import configure
from noisewise.workflow.execution import execute
from noisewise.workflow.opened import open_run

RESULT = Path(__file__).parent / "results" / "mnist_lenet.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1)
    seeds = range(parser.parse_args().seeds)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    runs = []
    for seed in seeds:
        config = configure(data="mnist", model="lenet", valid=0, epsilon=3.0, delta=1e-5, twin=False, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            execute(config, Path(folder) / "run")
            seconds = time.perf_counter() - start
            run = open_run(Path(folder) / "run")
            privacy = read_json(run.folder.summary)["privacy"]
        with torch.no_grad():
            estimate = share((run.model(run.data.test.x).argmax(1) == run.data.test.y).numpy())
        runs.append(
            {
                "seed": seed,
                "test_accuracy": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
                "n": estimate.n,
                "seconds": round(seconds, 1),
                "privacy": privacy,
            }
        )
        spent = privacy["epsilon"]
        print(f"seed {seed}: test accuracy {estimate.value:.4f} at epsilon {spent:.3f} in {seconds:.0f} s", flush=True)
        content = {
            "command": f"python benchmarks/mnist.py --seeds {len(seeds)}",
            "commit": commit,
            "hardware": hardware(),
            "versions": versions(),
            "config": config.to_toml(),
            "runs": runs,
        }
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
