"""Training on several processes of this machine: bytes and seconds per step, dense and sparse, and what a second process buys.

python benchmarks/distributed.py  ->  benchmarks/results/distributed.json, and the tables of docs/several_processes.md
python benchmarks/distributed.py --only scaling --rounds 3 --blocks 15        the same two, this part anew
python benchmarks/distributed.py --only nccl --device cuda  ->  the same file, and the figures as JSON on the standard output
python benchmarks/distributed.py --merge FILE                  takes these over from the --out of another machine, with the page

Bytes are counted twice: what a rank hands to torch.distributed, and what crosses the loopback (the kernel's counter, all
ranks together, protocol included). Times of `traffic` and `spread` are those of the fastest of many steps: other work on the
machine only ever adds to them.

`scaling` and `nccl` compare ways to make the same steps, in processes side by side of which one way works at a time: blocks of
steps take turns, and medians count. What is known is written after each turn, and shown however the benchmark ends.
`scaling`: one process with two threads against two ranks with one each, by wall time (alone on a machine with two cores) and
by processor time. `nccl` asks what a process group costs a process that needs none: steps of one rank in a group (nccl on
a GPU, gloo on a CPU) against steps without one. A rank by itself sends nothing, so a third way makes it join as if there were
others: all questions and sums of a step go through torch.distributed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed_turns import Stopped, Way, Work, loss_fn, on_loopback, problem, side_by_side

RESULTS = Path(__file__).parent / "results" / "distributed.json"
PAGE = Path(__file__).parents[1] / "docs" / "several_processes.md"
STEPS, WARM = 8, 2


def resident(name: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or the most since it was asked to forget (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def rank(number: int, size: int, threads: int, meeting: str, setting: dict[str, Any], answers: Any) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    import noisewise.training.step as step_module
    from noisewise.distributed import ALONE, end, shard, team_of
    from noisewise.mechanism import Mechanism
    from noisewise.repairs.random_sparsification import RandomMasks
    from noisewise.sampling import Shuffle
    from noisewise.support import EVERYTHING
    from noisewise.training import State, private_step

    torch.set_num_threads(threads)
    if size > 1:
        dist.init_process_group("gloo", f"file://{meeting}", rank=number, world_size=size)
    team = team_of() if size > 1 else ALONE
    n = 8 * setting["batch"]
    model, data = problem(setting["model"], n)
    if setting.get("sharded"):
        shard(model, team)
    sparse = setting["sparsity"]
    plan = Mechanism(
        sampler=Shuffle(n, setting["batch"]), noise_multiplier=1.0, steps=STEPS, adjacency="zero-out",
        support=RandomMasks(sparse, STEPS, 1, cooling=False) if sparse else EVERYTHING,
    )  # fmt: skip
    state = State.start(plan, insecure_seed=0, team=team)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=setting.get("momentum", 0.0))
    joins, steps, worked, wire = [], [], [], []
    real = step_module.join

    def timed(*arguments: Any, **more: Any) -> Any:
        began = time.perf_counter()
        joined = real(*arguments, **more)
        joins.append(time.perf_counter() - began)
        return joined

    step_module.join = timed
    for step in range(STEPS):
        if step == WARM:
            Path("/proc/self/clear_refs").write_text("5")  # what the examination needed does not count
        if size > 1:
            dist.barrier()
        before, bytes_before, began, work = team.sent, on_loopback(), time.perf_counter(), time.process_time()
        private_step(model, data, loss_fn, optimizer, state)
        steps.append(time.perf_counter() - began)
        worked.append(time.process_time() - work)
        if size > 1:
            dist.barrier()
        wire.append((team.sent - before, on_loopback() - bytes_before))
    most, coordinates = resident("VmHWM"), sum(p.numel() for p in model.parameters())
    del model, optimizer, state, data
    gc.collect()
    if number == 0:
        answers.put(
            {
                "payload": statistics.median(sent for sent, _ in wire[WARM:]),
                "loopback": statistics.median(sent for _, sent in wire[WARM:]),
                "join_seconds": min(joins[WARM:]),
                "step_seconds": min(steps[WARM:]),
                "cpu_seconds": min(worked[WARM:]),  # of rank 0, all its threads
                "coordinates": coordinates,
                "memory": most - resident("VmRSS"),  # of the model, its optimizer and a step
            }
        )
    end()


def measure(size: int, threads: int, **setting: Any) -> dict[str, Any]:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    os.environ |= {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "262144"  # memory that is given back is given back at once
    with tempfile.TemporaryDirectory() as work:
        arguments = (size, threads, f"{work}/meeting", setting, answers)
        ranks = [context.Process(target=rank, args=(number, *arguments)) for number in range(size)]
        for process in ranks:
            process.start()
        answer = answers.get(timeout=600)
        for process in ranks:
            process.join()
    return answer


def least(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: min(one[name] for one in rounds) for name in rounds[0]}


GROUPS = (Way("no group"), Way("one rank", group=True), Way("one rank that joins", group=True, joins=True))
WORKLOADS = {"wide": 512, "cnn": 1024}  # batch sizes
HALVES = (Way("one process, two cores", threads=2), Way("two processes, one core each", size=2, group=True))


Turn = dict[str, dict[str, Any]]  # by way
Seen = dict[str, list[list[Turn]]]  # by work, round and turn


def take_turns(
    ways: Sequence[Way], works: Mapping[str, Work], device: str, rounds: int, blocks: int, seconds: float,
    keep: Callable[[Seen, bool], None],
) -> None:  # fmt: skip
    """Blocks of steps in processes side by side, which each round starts anew; progress on the error stream.

    `keep` is given what is known after each turn, and whether that is all. No block is waited for longer than `seconds`
    from now.
    """
    began = time.monotonic()
    until, seen = began + seconds, Seen({name: [] for name in works})

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {text}", file=sys.stderr, flush=True)

    try:
        for number in range(rounds):
            with side_by_side(ways, device, blocks + 1, until, say) as ask:
                for name, work in works.items():
                    turns: list[Turn] = []
                    seen[name].append(turns)
                    ask(ways, work)
                    say(f"{name}: ready to be timed")
                    for turn in range(blocks):
                        first = (number + turn) % len(ways)
                        turns.append(ask([*ways[first:], *ways[:first]]))
                        keep(seen, False)
                    shown = middle([{way.name: turn[way.name]["step_seconds"] for way in ways} for turn in turns])
                    text = ", ".join(f"{way} {1e3 * one:.2f} ms" for way, one in shown.items())
                    say(f"round {number + 1} of {rounds}, {name}: {text}")
        keep(seen, True)
    except Stopped:
        say(f"stopped after {seconds:g} s (--seconds): what there is counts.")


def middle(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each column."""
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}


def differ_by(numbers: Sequence[float]) -> float:
    """Largest relative difference."""
    return (max(numbers) - min(numbers)) / max(map(abs, numbers))


def group_works(device: str) -> dict[str, Work]:
    if device == "cuda":
        return {name: Work(name, batch, 20, device) for name, batch in WORKLOADS.items()}
    return {name: Work(name, 32, 2, device) for name in WORKLOADS}


def group_cost(device: str, seen: Seen, finished: bool) -> dict[str, Any]:
    """What a group costs one rank.

    The cost is the middle one of the turns' ratios: the steps of a turn were made one way right after the other. Beside it,
    the ratio of the fastest blocks.
    """
    import torch

    shown: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0) if device == "cuda" else platform.machine(), "torch": torch.__version__,
        "finished": finished, "goal": 1.03, "workloads": {},
    }  # fmt: skip
    none, *others = (way.name for way in GROUPS)
    for name, rounds in seen.items():
        turns = [turn for each in rounds for turn in each]
        if not turns:
            continue
        blocks = {way: [turn[way]["step_seconds"] for turn in turns] for way in (none, *others)}
        ratios = [{way: turn[way]["step_seconds"] / turn[none]["step_seconds"] for way in others} for turn in turns]
        shown["workloads"][name] = {
            "batch": group_works(device)[name].batch,
            "turns by round": [len(each) for each in rounds],
            "step_seconds": {way: statistics.median(each) for way, each in blocks.items()},
            "cost": middle(ratios),
            "cost of the fastest": {way: min(blocks[way]) / min(blocks[none]) for way in others},
            "blocks": blocks,
            "payload": {way: turns[-1][way]["payload"] for way in blocks},
            "captured": {way: turns[-1][way]["captured"] for way in blocks},
            "weights differ by": max(differ_by([turn[way]["weights"] for way in blocks]) for turn in turns),
        }
    worst = max((row["cost"][others[0]] for row in shown["workloads"].values()), default=None)
    return {**shown, "cost": worst, "met": worst is not None and worst <= shown["goal"]}


def halves(seen: Seen, finished: bool) -> dict[str, Any]:
    """What a second process buys: medians over turns, of wall time and of the processor time of all ranks.

    Efficiency is the middle one of the turns' ratios: by wall time, and by processor time, which other work on the machine
    disturbs less.
    """
    turns = [turn for each in seen["cnn"] for turn in each]
    if not turns:
        return {}
    names = ("step_seconds", "cpu_seconds", "payload", "loopback")
    rows = {way.name: middle([{name: turn[way.name][name] for name in names} for turn in turns]) for way in HALVES}
    one, two = rows
    ratios = [{name: turn[one][name] / turn[two][name] for name in names[:2]} for turn in turns]
    by = middle(ratios)
    return {
        "scaling": rows,
        "efficiency": {"wall": by["step_seconds"], "processor": by["cpu_seconds"], "goal": 0.8, "turns": len(turns),
                       "finished": finished, "load": os.getloadavg()[0]},
    }  # fmt: skip


def table(content: dict[str, Any]) -> str:
    """What docs/several_processes.md shows."""
    lines = [
        "| processes | masked | a rank sends | all ranks, on the loopback | joining | step |",
        "|---|---|---|---|---|---|",
    ]
    for row in content["traffic"]:
        lines.append(
            f"| {row['processes']} | {row['sparsity']:.0%} | {row['payload'] / 1e6:.2f} MB | {row['loopback'] / 1e6:.1f} MB | "
            f"{1e3 * row['join_seconds']:.1f} ms | {1e3 * row['step_seconds']:.0f} ms |"
        )
    for name, row in content["scaling"].items():
        time_taken = f"{1e3 * row['step_seconds']:.0f} ms, {1e3 * row['cpu_seconds']:.0f} ms of processors"
        lines.append(
            f"| {name} | 0% | {row['payload'] / 1e6:.2f} MB | {row['loopback'] / 1e6:.1f} MB | | {time_taken} |"
        )
    return "\n".join(lines)


def spread_over(rounds: int) -> list[dict[str, Any]]:
    """The same steps with whole parameters on every rank, and with parameters spread over them."""
    ways = [(1, False), (2, False), (2, True), (4, False), (4, True)]
    seen: dict[tuple[int, bool], list[dict[str, Any]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for size, sharded in ways:
            how = {"model": "deep", "batch": 32, "sparsity": 0.0, "sharded": sharded, "momentum": 0.9}
            seen[size, sharded].append(measure(size, 1, **how))
    return [{"processes": size, "sharded": sharded, **least(seen[size, sharded])} for size, sharded in ways]


def memory_table(content: dict[str, Any]) -> str:
    """What docs/several_processes.md shows of spread parameters."""
    lines = [
        "| processes | parameters | a rank needs | a rank sends | on the loopback | step |",
        "|---|---|---|---|---|---|",
    ]
    for row in content["spread"]:
        lines.append(
            f"| {row['processes']} | {'spread' if row['sharded'] else 'whole'} | {row['memory'] / 1e6:.0f} MB | "
            f"{row['payload'] / 1e6:.0f} MB | {row['loopback'] / 1e6:.0f} MB | {1e3 * row['step_seconds']:.0f} ms |"
        )
    return "\n".join(lines)


def traffic(rounds: int) -> list[dict[str, Any]]:
    rows, shares = [], [0.0, 0.5, 0.9]
    for size in (2, 4):
        seen: dict[float, list[dict[str, Any]]] = {share: [] for share in shares}
        for _ in range(rounds):
            for share in shares:
                seen[share].append(measure(size, 1, model="wide", batch=32, sparsity=share))
        rows += [{"processes": size, "sparsity": share, **least(seen[share])} for share in shares]
    return rows


def write(path: Path, content: dict[str, Any]) -> None:
    """All of a file or nothing of it."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(content, indent=2) + "\n")
    beside.replace(path)


def efficiency(content: dict[str, Any]) -> str:
    """What docs/several_processes.md says of a second process."""
    shown = content["efficiency"]
    return (
        f"Two ranks with a core each are {shown['wall']:.2f} times as fast as one process with two threads on two cores, and "
        f"{shown['processor']:.2f} times as efficient by processor time."
    )


def group_of_one(content: dict[str, Any]) -> str:
    """What docs/several_processes.md says of one rank in a group."""
    measured = content.get("one rank", {}).get("cuda")
    if measured is None or measured["cost"] is None:
        return "One rank in a group of nccl against no group: not run."
    rows = ", ".join(
        f"{name} {1e3 * row['step_seconds']['no group']:.2f} ms without, x {row['cost']['one rank']:.3f} with a group, "
        f"x {row['cost']['one rank that joins']:.3f} if it joins as one of several would"
        for name, row in measured["workloads"].items()
    )
    return f"One rank in a group of nccl against no group, on an {measured['device']}: {rows}."


def parts_of_page(content: dict[str, Any]) -> list[str]:
    return [table(content), memory_table(content), efficiency(content), group_of_one(content)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", choices=["traffic", "scaling", "spread", "nccl"], help="measure this part anew, keep the others"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of --only nccl")
    parser.add_argument("--blocks", type=int, default=10, help="of steps, in each round of scaling and nccl")
    parser.add_argument("--seconds", type=float, default=100.0, help="after which these two stop with what they have")
    parser.add_argument(
        "--merge", type=Path, help="take over what --only nccl has written on another machine", metavar="FILE"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    import torch

    before = json.loads(chosen.out.read_text()) if chosen.out.exists() else {}
    content = dict(before) if chosen.only or chosen.merge else {}
    shown: dict[str, Any] = {}
    turns = (chosen.rounds, chosen.blocks, chosen.seconds)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `timeout` stops it as Ctrl-C does: figures are shown

    def keep(figures: dict[str, Any]) -> None:
        shown.update(figures)
        content.update(figures)
        write(chosen.out, content)

    try:
        if chosen.merge is not None:
            there = json.loads(chosen.merge.read_text())["one rank"]
            keep({"one rank": {**content.get("one rank", {}), **there}})
            return
        if chosen.only == "nccl":
            device = chosen.device
            if device == "cuda" and not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
                raise SystemExit("--device cuda: this torch sees no GPU, or has no nccl.")
            others = content.get("one rank", {})
            take_turns(
                GROUPS, group_works(device), device, *turns,
                lambda seen, finished: keep({"one rank": {**others, device: group_cost(device, seen, finished)}}),
            )  # fmt: skip
            return
        keep({"machine": {"cores": os.cpu_count(), "architecture": platform.machine(), "torch": torch.__version__}})
        if chosen.only in (None, "spread"):
            keep({"spread": spread_over(chosen.rounds)})
        if chosen.only in (None, "traffic"):
            keep({"traffic": traffic(chosen.rounds)})
        if chosen.only in (None, "scaling"):
            works = {"cnn": Work("cnn", 128, 2)}
            take_turns(HALVES, works, "cpu", *turns, lambda seen, finished: keep(halves(seen, finished)))
    finally:
        print(json.dumps(shown, indent=2), flush=True)
        if chosen.out == RESULTS and {"traffic", "scaling", "spread"} <= before.keys() & content.keys():
            page = PAGE.read_text()
            for old, new in zip(parts_of_page(before), parts_of_page(content), strict=True):
                page = page.replace(old, new)
            PAGE.write_text(page)


if __name__ == "__main__":
    main()
