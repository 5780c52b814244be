"""Processes side by side of which one way works at a time: blocks of steps that take turns, for `distributed.py`."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


def problem(kind: str, n: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "wide":  # 4.2 million coordinates, little to compute: what travels decides
        model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 1792), nn.ReLU(), nn.Linear(1792, 10))
        x = torch.randn(n, 256)
    elif kind == "encoder":  # 0.7 million coordinates in 70 tensors: how often something travels decides
        return encoder(), (torch.randint(0, 1000, (n, 32)), torch.randint(0, 10, (n,)))
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


def encoder() -> Any:
    """A small encoder of linear, embedding and norm layers."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width: int, heads: int):
            super().__init__()
            self.heads = heads
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
            self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x: Any) -> Any:
            given = self.before(x)
            parts = (
                layer(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                for layer in (self.query, self.key, self.value)
            )
            x = x + self.out(F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
            return x + self.narrow(F.gelu(self.wide(self.between(x))))

    class Encoder(nn.Module):
        def __init__(self, width: int = 128, blocks: int = 4):
            super().__init__()
            self.tokens, self.places = nn.Embedding(1000, width), nn.Embedding(32, width)
            self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(blocks)])
            self.last, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, tokens: Any) -> Any:
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
            return self.head(self.last(self.blocks(x)).mean(1))

    return Encoder()


def loss_fn(model: Any, batch: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(model(batch[0]), batch[1], reduction="none")


class Way(NamedTuple):
    """How steps are made: by `size` ranks with so many threads each, in a process group or without one.

    joins: one rank does all that one of several does.
    """

    name: str
    size: int = 1
    threads: int = 1
    group: bool = False
    joins: bool = False


class Work(NamedTuple):
    """What steps are made of, and how many of them are a block."""

    model: str
    batch: int
    steps: int
    device: str = "cpu"


def on_loopback() -> int:
    """Bytes that this machine has sent to itself."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith("lo:"))


def worker(way: Way, number: int, device: str, meeting: str, most: int, orders: Any) -> None:
    """A rank of a way: begins a work when it is given one, and times a block of its steps whenever it is asked to."""
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    try:
        import torch
        import torch.distributed as dist

        from noisewise.distributed import ALONE, Team, end, team_of

        class Talkative(Team):
            several = True

        torch.set_num_threads(way.threads)
        team, backend = ALONE, ""
        if device == "cuda":
            torch.cuda.set_device(0)
        if way.group:
            backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
            dist.init_process_group(backend, f"file://{meeting}", rank=number, world_size=way.size)
            team = Talkative() if way.joins else team_of()
            team.add(torch.ones(1, device=device))  # makes the communicator
        orders.send({"backend": backend})
        while (work := orders.recv()) is not None:
            if work != "again":  # a block to warm up, in which the model is examined and its graph captured
                block = block_of_steps(work, most, team)
            orders.send(block())
        del block
        end()
    except (EOFError, BrokenPipeError, KeyboardInterrupt):
        return  # the benchmark was stopped
    except BaseException as error:
        orders.send({"error": f"{type(error).__name__}: {error}"})
        raise


def block_of_steps(work: Work, most: int, team: Any) -> Callable[[], dict[str, Any]]:
    """A function that makes a block of steps, `most` times at most, and says how long one of them took."""
    import torch

    from noisewise.mechanism import Mechanism
    from noisewise.sampling import Shuffle
    from noisewise.training import State, private_step

    model, data = problem(work.model, 8 * work.batch)
    model, data = model.to(work.device), tuple(tensor.to(work.device) for tensor in data)
    plan = Mechanism(
        sampler=Shuffle(8 * work.batch, work.batch), noise_multiplier=1.0, steps=most * work.steps, adjacency="zero-out"
    )
    state = State.start(plan, insecure_seed=0, team=team)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def settle() -> None:
        if work.device == "cuda":
            torch.cuda.synchronize()
        team.any(False)  # all ranks are here

    def block() -> dict[str, Any]:
        settle()
        began, worked, sent, wire = time.perf_counter(), time.process_time(), team.sent, on_loopback()
        for _ in range(work.steps):
            private_step(model, data, loss_fn, optimizer, state)
        settle()
        return {
            "step_seconds": (time.perf_counter() - began) / work.steps,
            "cpu_seconds": (time.process_time() - worked) / work.steps,
            "payload": (team.sent - sent) / work.steps,
            "loopback": (on_loopback() - wire) / work.steps,
            "captured": state.captured.captures,
            "weights": float(sum(p.detach().double().abs().sum() for p in model.parameters())),
        }

    return block


class Stopped(Exception):
    """The time is over."""


@contextmanager
def side_by_side(
    ways: Sequence[Way], device: str, most: int, until: float, say: Callable[[str], None]
) -> Iterator[Callable[..., Any]]:
    """Processes for each way, started together.

    Gives a function of ways and a work that makes their processes begin it, all at once; of ways alone it makes each time a
    block of steps, one way after the other. It answers with what they say: the time of the slowest rank, the processor time of
    all of them, and the rest of the first.
    """
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_WAIT_POLICY"] = "passive"
    with tempfile.TemporaryDirectory() as folder:
        ends: dict[Way, list[Any]] = {way: [] for way in ways}
        processes = []
        for way in ways:
            for number in range(way.size):
                here, there = context.Pipe()
                arguments = (way, number, device, f"{folder}/{way.name}", most, there)
                process = context.Process(target=worker, args=arguments, daemon=True)
                process.start()
                there.close()
                ends[way].append(here)
                processes.append(process)

        def heard(way: Way) -> list[dict[str, Any]]:
            answers = []
            for one in ends[way]:
                if not one.poll(max(0.0, until - time.monotonic())):
                    raise Stopped
                try:
                    answers.append(one.recv())
                except EOFError:
                    raise SystemExit(f"{way.name} on {device}: a process is gone.") from None
                if "error" in answers[-1]:
                    raise SystemExit(f"{way.name} on {device}: {answers[-1]['error']}")
            return answers

        def tell(way: Way, word: Any) -> None:
            for one in ends[way]:
                one.send(word)

        def together(answers: list[dict[str, Any]]) -> dict[str, Any]:
            slowest, all_work = (
                how(each[name] for each in answers) for how, name in ((max, "step_seconds"), (sum, "cpu_seconds"))
            )
            return {**answers[0], "step_seconds": slowest, "cpu_seconds": all_work}

        def ask(asked: Sequence[Way], work: Work | None = None) -> dict[str, dict[str, Any]]:
            if work is not None:
                for way in asked:
                    tell(way, work)
                return {way.name: together(heard(way)) for way in asked}
            answers = {}
            for way in asked:
                tell(way, "again")
                answers[way.name] = together(heard(way))
            return answers

        began = time.monotonic()
        try:
            for way in ways:
                backend = heard(way)[0]["backend"]
                say(f"{way.name}: ready after {time.monotonic() - began:.0f} s, {backend or 'no process group'}")
            yield ask
            for way in ways:
                tell(way, None)
            for process in processes:
                process.join(5)
        finally:
            for process in processes:
                process.kill()
                process.join()
