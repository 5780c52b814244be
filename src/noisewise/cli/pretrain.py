"""`noisewise pretrain`: features learned on made-up images, for recipes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from noisewise.cli.shared import example, plain, terminal
from noisewise.errors import ConfigError
from noisewise.workflow.checks import check_device


@example("noisewise pretrain --shape 3x32x32 --seconds 300 --device cuda --out encoder.safetensors")
def pretrain(
    out: Annotated[Path, typer.Option(help="File to write, NAME.safetensors.")],
    kind: Annotated[
        str,
        typer.Option(
            help="Made-up images: spectrum, leaves, textured, woven, patchwork, or several, e.g. woven/patchwork.",
            metavar="KIND",
        ),
    ] = "textured",
    shape: Annotated[str, typer.Option(help="Channels, height and width of an image.", metavar="CxHxW")] = "3x32x32",
    images: Annotated[int, typer.Option(help="So many images.")] = 50_000,
    steps: Annotated[int, typer.Option(help="Steps at most.")] = 5_000,
    seconds: Annotated[float | None, typer.Option(help="Stop after so long; the learning rate ends there.")] = None,
    batch: Annotated[int, typer.Option(help="Images in a step, each in two versions.")] = 512,
    width: Annotated[int, typer.Option(help="Channels of the first stage; each further one has twice as many.")] = 64,
    stages: Annotated[int, typer.Option(help="Stages that learn, 1 to 4.")] = 4,
    kept: Annotated[
        int | None,
        typer.Option(help="Stages in the file, the first ones. Default: all; recipes use the second and third."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of images, versions and initial weights.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ... Default: a GPU where there is one.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar, no summary.")] = False,
) -> None:
    """Learn features on made-up images, without any record, for `train --recipe made-up-linear:weights=FILE`.

    Images of nothing (dead leaves, textures, noise like photographs) are drawn from the seed; an encoder learns to tell them
    apart whatever piece and colours of them it sees. No private data is touched, so the file costs no privacy.
    """
    sizes = re.fullmatch(r"(\d+)x(\d+)x(\d+)", shape)
    if sizes is None:
        raise ConfigError(f"--shape {shape}: must be channels, height and width, e.g. 3x32x32.")
    if out.suffix != ".safetensors" or not out.parent.is_dir():
        raise ConfigError(f"--out {out}: must end in .safetensors and lie in a folder that exists.")
    if out.exists():
        raise ConfigError(f"{out} exists: choose another --out, so that nothing is overwritten.")
    if seconds is not None and not seconds > 0:
        raise ConfigError(f"--seconds {seconds}: must be a number above 0, e.g. 300.")
    if device is not None:
        check_device(device)
    import torch

    from noisewise.recipes.pretraining import Pretraining, save_encoder
    from noisewise.recipes.pretraining import pretrain as learn
    from noisewise.workflow.plan import device_named

    channels, height, wide = map(int, sizes.groups())
    how = Pretraining(
        kind=kind, shape=(channels, height, wide), images=images, steps=steps, batch=batch, width=width,
        stages=stages, kept=kept, seed=seed,
    )  # fmt: skip
    where = device_named(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    encoder, made = learn(how, device=where, progress=not quiet, seconds=seconds)
    save_encoder(encoder, how, made, out, seconds)
    if not quiet:
        console, like = terminal(), "cifar10" if (height, wide) == (32, 32) and channels == 3 else "NAME"
        console.print(f"[bold]{out}[/]  {made:,} steps on {images:,} made-up images ({plain(kind)})", soft_wrap=True)
        console.print(
            f"[dim]Next:[/] noisewise train --data {like} --recipe made-up-linear:weights={out} --epsilon 1 --out runs/first",
            soft_wrap=True,
        )
