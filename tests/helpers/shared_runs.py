"""Runs of milliseconds that any number of processes can share, in double precision: what they end with, to be compared."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from noisewise import support
from noisewise.adaptive import GlobalAdapt, GroupBounds, Quantile
from noisewise.clipping import Automatic, Flat, Global, Normalized, PerSampleAdaptive, per_layer
from noisewise.data import Data
from noisewise.data.indexed import Indexed
from noisewise.distributed import shard
from noisewise.distributed.sharding import whole_of
from noisewise.mechanism import Mechanism
from noisewise.repairs.random_sparsification import RandomMasks
from noisewise.runtime import Runtime
from noisewise.sampling import FullBatch, Poisson, Shuffle
from noisewise.training.augmentation import Augment
from noisewise.training.callbacks import StopEarly
from noisewise.training.loop import train

N, STEPS, SEED = 30, 6, 5


class Blocks(nn.Module):
    """An encoder of linear, embedding and norm layers only; its head is tied to its tokens."""

    def __init__(self, checkpointed=False):
        super().__init__()
        self.tokens, self.places = nn.Embedding(7, 8), nn.Embedding(4, 8)
        self.first, self.second = nn.LayerNorm(8), nn.RMSNorm(8)
        self.heads, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.inner = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.head = nn.Linear(8, 7)
        self.head.weight = self.tokens.weight
        self.checkpointed = checkpointed

    def block(self, x):
        query, key, value = self.heads(self.first(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.inner(self.second(x))

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        x = checkpoint(self.block, x, use_reentrant=False) if self.checkpointed else self.block(x)
        return self.head(x.mean(1))


class Encoder(nn.Module):
    """Tokens, one layer of attention, the mean over positions."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        return self.head(self.layer(self.embedding(tokens)).mean(1))


def network(kind):
    with torch.random.fork_rng([]):
        torch.manual_seed(2)
        made = {
            "mlp": lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)),
            "cnn": lambda: nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ReLU(), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 16, 3)
            ),
            "encoder": Encoder,
            "blocks": Blocks,
            "checkpointed": lambda: Blocks(checkpointed=True),
            "dropout": lambda: nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 3)),
        }[kind]()
    return made.double()


def inputs(kind, n=N):
    generator = torch.Generator().manual_seed(1)
    if kind in ("encoder", "blocks", "checkpointed"):
        return torch.randint(0, 7, (n, 4), generator=generator)
    shape = (1, 6, 6) if kind == "cnn" else (5,)
    return 3 * torch.randn(n, *shape, generator=generator, dtype=torch.float64)


def labels(n=N):
    return torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(3))


def loss_fn(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y, reduction="none")


def mask_of(kind):
    return support.Fixed(
        {
            name: torch.rand(p.shape, generator=torch.Generator().manual_seed(4)) < 0.4
            for name, p in network(kind).named_parameters()
        }
    )


def flipped(rows, generator):
    x, y = rows
    return x.flip(-1), y


def case(kind="mlp", sampler=None, clip=None, noise=1.0, unit="row", data=None, plan=None, sigma=None, **settings):
    """A run: `plan` for the mechanism, `settings` for `train`."""

    def run(team, sharded=False, **more):
        model, rows = network(kind), (inputs(kind), labels()) if data is None else data()
        if sharded and team.several:
            shard(model, team)
        drawn = sampler or Poisson(rows.units if isinstance(rows, Data) else N, 8)
        chosen = {"clip": clip or Flat(1.0), "adjacency": drawn.adjacencies[0], "unit": unit, **(plan or {})}
        mechanism = Mechanism(sampler=drawn, steps=STEPS, noise_multiplier=noise, **chosen)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
        seen = []
        recorders = [lambda told: seen.append((told.step, told.units.tolist(), told.norms.tolist()))]
        given = {"insecure_seed": SEED, "progress": False, "recorders": recorders, **settings, **more}
        trained = train(model, rows, loss_fn, mechanism, optimizer, team=team, **given)
        return {
            "weights": torch.cat([whole_of(parameter, team).flatten() for parameter in model.parameters()]),
            "averaged": None if trained.averaged is None else [whole_of(a, team) for a in trained.averaged.values()],
            "ledger": trained.ledger.to_dict(),
            "history": trained.history,
            "norms": [(step, units, torch.tensor(norms)) for step, units, norms in seen],
            "stopped": trained.stopped,
        }

    run.uses = {type(sampler or Poisson(N, 8)), type(clip or Flat(1.0))}
    return run


def people():
    owner = torch.tensor([i % 13 for i in range(N)])
    return Data(inputs("mlp"), labels(), unit=owner)


def by_index():
    return Indexed(TensorDataset(inputs("mlp"), labels()))


def grouped():
    return Data(inputs("mlp"), labels(), groups={"side": torch.arange(N) % 2})


CASES = {
    "mlp": case(),
    "cnn": case("cnn"),
    "encoder": case("encoder"),
    "blocks": case("blocks"),
    "checkpointed": case("checkpointed"),
    "poisson, cut and padded": case(sampler=Poisson(N, 8, max_batch=9), runtime=Runtime(padded=True)),
    "full batch": case(sampler=FullBatch(N)),
    "shuffle": case(sampler=Shuffle(N, 8)),
    "fewer units than ranks": case(sampler=Poisson(N, 1)),
    "micro-batches": case(runtime=Runtime(microbatch=1)),
    "dense engine": case(runtime=Runtime(engine="dense")),
    "a fixed mask": case(plan={"support": mask_of("mlp")}),
    "random masks": case("cnn", plan={"support": RandomMasks(0.8, STEPS, 3)}),
    "a frozen layer": case(plan={"support": support.Fixed({"0.weight": False, "0.bias": False})}),
    "automatic clipping": case(clip=Automatic(1.0)),
    "global clipping": case(clip=Global(1.0, 10.0)),
    "normalized": case(clip=Normalized(1.0)),
    "adaptive for each unit": case(clip=PerSampleAdaptive(1.0)),
    "per layer": case(clip=per_layer(dict(network("mlp").named_parameters()), Flat(1.0))),
    "quantile": case(clip=Quantile(1.0)),
    "global adapt": case(clip=GlobalAdapt(1.0, 10.0)),
    "bounds of groups": case(clip=GroupBounds("side", 2), data=grouped),
    "people": case(unit="person", data=people),
    "read by index": case(data=by_index),
    "captured": case(runtime=Runtime(capture=True)),
    "augmented": case(augment=Augment(flipped, 2)),
    "secure": case(secure=True),
    "averages and valid loss": case(ema=0.9, valid=Data(inputs("mlp"), labels(), public=True)),
    "stopped early": case(
        valid=Data(inputs("mlp"), labels(), public=True), callbacks=(StopEarly(patience=1, least=10.0),)
    ),
    "plain": case(ablation="plain"),
    "clip-only": case(ablation="clip-only"),
    "noise-only": case(ablation="noise-only", plan={"support": mask_of("mlp")}),
}


SHARDED = (
    "mlp", "blocks", "checkpointed", "poisson, cut and padded", "full batch", "shuffle", "fewer units than ranks",
    "micro-batches", "a frozen layer", "automatic clipping", "global clipping", "normalized", "adaptive for each unit",
    "per layer", "quantile", "global adapt", "bounds of groups",
    "people", "read by index", "augmented", "secure", "averages and valid loss", "stopped early",
)  # fmt: skip
"""Cases that can be trained with parameters that are spread over ranks."""


def all_cases(team, names=tuple(CASES), sharded=False):
    """What each case ends with; `sharded`: with parameters that are spread over the ranks."""
    return {name: CASES[name](team, sharded) for name in names}


def difference(one, other):
    """The largest difference between two ends that is no more than rounding; a name where they differ otherwise."""
    for part in ("ledger", "stopped"):
        if one[part] != other[part]:
            return part
    if [step for step, *_ in one["norms"]] != [step for step, *_ in other["norms"]]:
        return "steps"
    if [units for _, units, _ in one["norms"]] != [units for _, units, _ in other["norms"]]:
        return "batches"
    pairs = [(one["weights"], other["weights"])]
    pairs += [
        (a[:, : len(u)], b[:, : len(u)]) for (_, u, a), (_, _, b) in zip(one["norms"], other["norms"], strict=True)
    ]
    pairs += zip(one["averaged"] or [], other["averaged"] or [], strict=True)
    if [{**line, "valid_loss": 0} for line in one["history"]] != [
        {**line, "valid_loss": 0} for line in other["history"]
    ]:
        return "history"
    values = [[line.get("valid_loss", 0.0) for line in end["history"]] for end in (one, other)]
    pairs.append(tuple(torch.tensor(value) for value in values))
    return max((float((a - b).abs().max()) for a, b in pairs if a.numel()), default=0.0)
