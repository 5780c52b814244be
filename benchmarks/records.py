"""Records: the best accuracy that a privacy budget buys, searched on held-out images, run with real noise, written as a page.

    python benchmarks/records.py search cifar10 --epsilon 1 --epsilon 3 --seconds 240 --out cifar10.jsonl --device cuda
    python benchmarks/records.py search cifar10 ... --recipe patches-linear | --weights encoder.safetensors     # other features
    python benchmarks/records.py choose cifar10 --epsilon 1 --from cifar10.jsonl --device cuda                  # a minute
    python benchmarks/records.py final cifar10 --epsilon 1 --device cuda       # five seeds, the test part read once by each
    python benchmarks/records.py limits cifar10 --epsilon 1 --device cuda      # features, clipping or noise; held-out images
    python benchmarks/records.py repaired cifar10 --epsilon 1 --device cuda    # with random sparsification; held-out images
    python benchmarks/records.py frontier cifar10 --device cuda                # epsilon 0.25 to 8
    python benchmarks/records.py seconds cifar10 --epsilon 1                   # how long it takes where nothing else runs
    python benchmarks/records.py page                                          # docs/records.md from the files

In order of value on a GPU: encoders (`noisewise pretrain --kind patchwork/woven --seconds 240`, needs no data), then search,
choose and final of CIFAR-10 by each recipe side by side, of Fashion-MNIST and MNIST, then limits, then frontiers. On a CPU a
search takes `--models 8 --plans 1 --epochs 40`. Each line, seed and run is kept as it is made, so that a time limit loses none.
Searches read held-out training images only. Results lie in benchmarks/results/records; a run that is there is not run again.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import records_choose
import records_final
import records_limits
import records_page
import records_repaired
import records_search
import records_seconds


def parser() -> argparse.ArgumentParser:
    """What can be asked."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = made.add_subparsers(dest="command", required=True)

    def command(name: str, help: str, *, data: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=help)
        if data:
            one.add_argument("name", help="mnist, fashion_mnist, cifar10, digits; final and frontier: adult too")
            one.add_argument("--device", default="cpu")
        return one

    one = command("search", "random search on held-out training images")
    one.add_argument("--epsilon", type=float, action="append", required=True, help="may be repeated")
    one.add_argument("--seconds", type=float, required=True)
    one.add_argument("--out", type=Path, required=True, help="file of JSON lines; goes on where it ends")
    one.add_argument("--seed", type=int, default=0, help="of what is held out and what is tried")
    one.add_argument("--models", type=int, default=records_search.SIDE_BY_SIDE, help="side by side; fewer on a CPU")
    one.add_argument(
        "--plans", type=int, default=records_search.PLANS, help="for each set of features and each epsilon"
    )
    one.add_argument("--epochs", type=int, default=records_search.EPOCHS[-1], help="at most")
    one.add_argument("--recipe", default="scattering-linear", choices=("scattering-linear", "patches-linear"))
    one.add_argument("--weights", help="of an encoder (noisewise pretrain): search made-up-linear")
    one.add_argument(
        "--first", action="append", default=[], help="features to begin with: stages=3,patches=1; repeatable"
    )
    one = command("choose", "train the best again on other held-out images, and take the best mean")
    one.add_argument("--epsilon", type=float, action="append", required=True, help="may be repeated")
    one.add_argument("--from", type=Path, action="append", required=True, dest="sources", help="files of search")
    one.add_argument("--out", type=Path, default=records_search.FOLDER, help="folder of results")
    one.add_argument("--recipe", default="scattering-linear")
    one.add_argument("--top", type=int, default=records_choose.TOP, help="so many candidates")
    one.add_argument("--sets", type=int, default=records_choose.SETS, help="so many sets of features among them")
    one.add_argument("--epochs", type=float, default=math.inf, help="of a candidate at most")
    one.add_argument("--after", type=Path, help="an earlier .search.json of the same images, whose price is added")
    one.add_argument("--chosen", type=Path, default=records_choose.CHOSEN, help="the recipe's file")
    one = command("final", "five seeds on all training images; reads the test part once for each")
    one.add_argument("--epsilon", type=float, action="append", required=True, help="may be repeated")
    _runs(one)
    one = command("frontier", "final runs at epsilon 0.25 to 8")
    _runs(one)
    one = command("limits", "features, clipping or noise: what limits a record, on held-out training images")
    one.add_argument("--epsilon", type=float, action="append", required=True, help="may be repeated")
    _runs(one)
    one = command("repaired", "the chosen settings with random sparsification, on held-out training images")
    one.add_argument("--epsilon", type=float, action="append", required=True, help="may be repeated")
    _runs(one)
    one = command("seconds", "one run without its test part, on a processor that does nothing else", data=False)
    one.add_argument("name", help="mnist, fashion_mnist, cifar10, digits")
    one.add_argument("--epsilon", type=float, action="append", required=True, help="may be repeated")
    one.add_argument("--recipe", default="scattering-linear")
    one.add_argument("--out", type=Path, default=records_search.FOLDER, help="folder of results")
    one = command("page", "write docs/records.md and its plot from the files", data=False)
    one.add_argument("--from", type=Path, dest="folder", default=records_search.FOLDER, help="folder of results")
    one.add_argument("--out", type=Path, default=records_page.PAGE)
    one = command("noise", "calibrate the plans of the search once, into a file", data=False)
    one.add_argument("--n", type=int, action="append", required=True)
    one.add_argument("--epsilon", type=float, action="append", required=True)
    return made


def _runs(one: argparse.ArgumentParser) -> None:
    one.add_argument("--recipe", default="scattering-linear")
    one.add_argument("--seeds", type=int, default=len(records_final.SEEDS))
    one.add_argument("--out", type=Path, default=records_search.FOLDER, help="folder of results")


def main(arguments: list[str] | None = None) -> None:
    """One command."""
    given = parser().parse_args(arguments)
    match given.command:
        case "search":
            effort = records_search.Effort(
                seconds=given.seconds, models=given.models, plans=given.plans, epochs=given.epochs
            )
            records_search.search(
                given.name, given.epsilon, effort,
                out=given.out, device=given.device, seed=given.seed, recipe=given.recipe, weights=given.weights,
                first=given.first,
            )  # fmt: skip
        case "choose":
            for epsilon in given.epsilon:
                records_choose.choose(
                    given.name,
                    epsilon,
                    given.sources,
                    device=given.device,
                    folder=given.out,
                    chosen=given.chosen,
                    recipe=given.recipe,
                    top=given.top,
                    sets=given.sets,
                    epochs=given.epochs,
                    after=given.after,
                )
        case "final" | "frontier":
            for epsilon in records_final.FRONTIER if given.command == "frontier" else given.epsilon:
                records_final.final(
                    given.name, epsilon,
                    recipe=given.recipe, seeds=range(given.seeds), device=given.device, folder=given.out,
                )  # fmt: skip
        case "limits":
            for epsilon in given.epsilon:
                records_limits.measure(given.name, epsilon, recipe=given.recipe, device=given.device, folder=given.out)
        case "repaired":
            for epsilon in given.epsilon:
                records_repaired.measure(
                    given.name, epsilon, recipe=given.recipe, device=given.device, folder=given.out
                )
        case "seconds":
            for epsilon in given.epsilon:
                records_seconds.measure(given.name, epsilon, recipe=given.recipe, folder=given.out)
        case "page":
            records_page.write(given.folder, given.out)
        case "noise":
            records_search.write_noise(given.n, given.epsilon)


if __name__ == "__main__":
    main()
