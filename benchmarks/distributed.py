"""Training on several processes of this machine: bytes and seconds per step, dense and sparse, and what a second process buys.

python benchmarks/distributed.py  ->  benchmarks/results/distributed.json
python benchmarks/distributed.py --only nccl --device cuda  ->  the same file, and the figures as JSON on the standard output

Bytes are counted twice: what a rank hands to torch.distributed, and what crosses the loopback (the kernel's counter, all
ranks together, protocol included). Times are those of the fastest of many steps, in rounds that take turns: other work on the
machine only ever adds to them. Efficiency is by processor time, of one process with two threads against two ranks with one
each: on a machine with other work, wall time says how much of it there was.

`nccl` asks what a process group costs a process that needs none: steps of one rank in a group (nccl on a GPU, gloo on a CPU)
against steps without a group, each in processes of their own that take turns. A rank by itself sends nothing, so a third way
makes it join as if there were others: all questions and sums of a step go through torch.distributed.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "distributed.json"
STEPS, WARM = 8, 2


def problem(kind: str, n: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "wide":  # 4.2 million coordinates, little to compute: what travels decides
        model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1792), nn.ReLU(), nn.Linear(1792, 10))
        x = torch.randn(n, 256)
    elif kind == "deep":  # 8.5 million coordinates in layers of a million: what is held decides
        layers = [layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.LayerNorm(1024), nn.ReLU())]
        model = nn.Sequential(nn.Linear(64, 1024), *layers, nn.Linear(1024, 10))
        x = torch.randn(n, 64)
    else:  # a small convolutional network: what is computed decides
        model = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(64 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
        )  # fmt: skip
        x = torch.randn(n, 1, 28, 28)
    return model, (x, torch.randint(0, 10, (n,)))


def loss_fn(model: Any, batch: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


def on_loopback() -> int:
    """Bytes that this machine has sent to itself."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("lo:"))


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


WAYS = ("no group", "one rank", "one rank that joins")
WORKLOADS = {"wide": 512, "cnn": 1024}  # batch sizes


def one_rank(way: str, device: str, meeting: str, workload: str, blocks: int, answers: Any) -> None:
    """Seconds of a step by one of the `WAYS`: the fastest of a few blocks of steps, and all of them."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    try:
        import torch
        import torch.distributed as dist

        from noisewise.distributed import ALONE, Team, end, team_of
        from noisewise.mechanism import Mechanism
        from noisewise.sampling import Shuffle
        from noisewise.training import State, private_step

        class Talkative(Team):
            """One rank that does all that one of several does."""

            several = True

        team, backend = ALONE, ""
        if device == "cuda":
            torch.cuda.set_device(0)
        if way != WAYS[0]:
            kinds = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            dist.init_process_group(kinds, f"file://{meeting}", rank=0, world_size=1)
            team, backend = team_of(), kinds
            if way == WAYS[2]:
                team = Talkative()
                team.add(torch.ones(1, device=device))  # makes the communicator
        steps = 20 if device == "cuda" else 2
        batch = WORKLOADS[workload] if device == "cuda" else 32
        model, data = problem(workload, 8 * batch)
        model, data = model.to(device), tuple(tensor.to(device) for tensor in data)
        plan = Mechanism(
            sampler=Shuffle(8 * batch, batch), noise_multiplier=1.0, steps=(blocks + 2) * steps, adjacency="zero-out"
        )
        state = State.start(plan, insecure_seed=0, team=team)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        seconds = []
        for _ in range(blocks + 2):
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(steps):
                private_step(model, data, loss_fn, optimizer, state)
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append((time.perf_counter() - began) / steps)
        weights = float(sum(p.detach().double().abs().sum() for p in model.parameters()))
        answer = {
            "step_seconds": min(seconds[2:]), "every": seconds[2:], "payload": team.sent / plan.steps, "backend": backend,
            "captured": state.captured.captures, "weights": weights,
        }  # fmt: skip
        end()
        answers.put(answer)
    except BaseException as error:
        answers.put({"error": f"{type(error).__name__}: {error}"})
        raise


def apart(way: str, device: str, workload: str, blocks: int) -> dict[str, Any]:
    """`one_rank` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as work:
        process = context.Process(target=one_rank, args=(way, device, f"{work}/meeting", workload, blocks, answers))
        process.start()
        answer: dict[str, Any] = answers.get(timeout=300)
        process.join(60)
        if process.is_alive():
            process.kill()
    if "error" in answer:
        raise SystemExit(f"{way} on {device}: {answer['error']}")
    return answer


def spread(numbers: list[float]) -> float:
    """Largest relative difference."""
    return (max(numbers) - min(numbers)) / max(map(abs, numbers))


def one_rank_cost(device: str, rounds: int, blocks: int) -> dict[str, Any]:
    """What a group costs one rank: the fastest steps against the fastest without a group, and the worst of all workloads."""
    import torch

    shown: dict[str, Any] = {
        "device": torch.cuda.get_device_name(0) if device == "cuda" else platform.machine(), "torch": torch.__version__,
        "goal": 1.03, "workloads": {},
    }  # fmt: skip
    for workload in WORKLOADS:
        seen: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for turn in range(rounds):
            for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
                seen[way].append(apart(way, device, workload, blocks))
        seconds = {way: min(one["step_seconds"] for one in each) for way, each in seen.items()}
        last = {way: each[-1] for way, each in seen.items()}
        shown["workloads"][workload] = {
            "batch": WORKLOADS[workload] if device == "cuda" else 32,
            "step_seconds": seconds,
            "cost": {way: seconds[way] / seconds[WAYS[0]] for way in WAYS[1:]},
            "rounds": {way: [one["step_seconds"] for one in each] for way, each in seen.items()},
            "payload": {way: last[way]["payload"] for way in WAYS},
            "backend": {way: last[way]["backend"] for way in WAYS},
            "captured": {way: last[way]["captured"] for way in WAYS},
            "weights differ by": spread([one["weights"] for each in seen.values() for one in each]),
        }
    worst = max(row["cost"][WAYS[1]] for row in shown["workloads"].values())
    return {**shown, "cost": worst, "met": worst <= shown["goal"]}


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
        cpu = f"{1e3 * row['cpu_seconds']:.0f} ms of a processor"
        lines.append(f"| {name} | 0% | {row['payload'] / 1e6:.2f} MB | {row['loopback'] / 1e6:.1f} MB | | {cpu} |")
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


def scaling(rounds: int) -> dict[str, dict[str, Any]]:
    seen: dict[str, list[dict[str, Any]]] = {"one process, two cores": [], "two processes, one core each": []}
    for _ in range(rounds):
        for name, (size, threads) in zip(seen, ((1, 2), (2, 1)), strict=True):
            seen[name].append(measure(size, threads, model="cnn", batch=128, sparsity=0.0))
    return {name: least(each) for name, each in seen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--only", choices=["traffic", "scaling", "spread", "nccl"], help="measure this part anew, keep the others"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="of --only nccl")
    parser.add_argument("--blocks", type=int, default=10, help="of steps, timed in each process of --only nccl")
    parser.add_argument("--out", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    import torch

    content = json.loads(chosen.out.read_text()) if chosen.only and chosen.out.exists() else {}
    if chosen.only == "nccl":
        if chosen.device == "cuda" and not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
            raise SystemExit("--device cuda: this torch sees no GPU, or has no nccl.")
        measured = one_rank_cost(chosen.device, chosen.rounds, chosen.blocks)
        content.setdefault("one rank", {})[chosen.device] = measured
        chosen.out.write_text(json.dumps(content, indent=2) + "\n")
        print(json.dumps(measured, indent=2))
        return
    content["machine"] = {"cores": os.cpu_count(), "architecture": platform.machine(), "torch": torch.__version__}
    if chosen.only in (None, "spread"):
        content["spread"] = spread_over(chosen.rounds)
    if chosen.only in (None, "traffic"):
        content["traffic"] = traffic(chosen.rounds)
    if chosen.only in (None, "scaling"):
        content["scaling"] = scaling(chosen.rounds)
        one, two = (row["cpu_seconds"] for row in content["scaling"].values())
        content["efficiency"] = one / (2 * two)  # work of one process against that of both ranks
    chosen.out.write_text(json.dumps(content, indent=2) + "\n")
    if {"traffic", "scaling"} <= set(content):
        print(table(content), f"efficiency {content['efficiency']:.2f}", sep="\n")
    if "spread" in content:
        print(memory_table(content))


if __name__ == "__main__":
    main()
