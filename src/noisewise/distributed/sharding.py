"""Parameters spread over the ranks of a team by torch's `fully_shard` (FSDP2): each holds some rows of every parameter.

`fully_shard` makes DTensors of parameters, and hooks that gather them for a pass and add up gradients after it. Those
gradients are sums over units that nobody has clipped, so noisewise does not run the hooks: while it computes, the model is
what it was before `fully_shard`, with stand-ins for its parameters, and whole weights are lent to each layer's call
(`persample.lent`). Every rank computes with its own units, so norms are those of whole gradients; the clipped sum of a
parameter is added over all ranks and divided among them as soon as it is there. Optimizer, its state and the noise are of a
rank's own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from noisewise.distributed.fetching import Dividing, Fetching, Rows, gathered
from noisewise.distributed.team import Team
from noisewise.errors import ConfigError, UnsupportedLayer
from noisewise.noise import Piece
from noisewise.persample.lent import Lending, stand_in_for

LAYERS = (nn.Linear, nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)  # whose parameters may be spread
STATE = "__composable_api_state_key"  # how names of what `fully_shard` leaves on a module begin
LOADING = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")
MARKS = ("_is_fsdp_managed_module", "_fsdp_use_orig_params")


def shard(model: nn.Module, team: Team) -> nn.Module:
    """Spread the parameters of a model over the ranks of a team, in place, layer by layer; give back the model.

    As `torch.distributed.fsdp.fully_shard` on every layer and on the whole, which a program may call itself instead. Build
    the optimizer afterwards. Models made of linear, embedding and norm layers only; others are refused.
    """
    if not team.several:
        raise ConfigError(
            "one process has nobody to share parameters with: start several, with torchrun or with noisewise train "
            "--processes 2 --sharded."
        )
    check_layers(model)
    fully_shard, mesh = _fully_shard(), _mesh(team, next(model.parameters()).device.type)
    shared = {id(p) for p in _shared(model)}
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if own and not any(id(parameter) in shared for parameter in own) and module is not model:
            fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)  # whatever is left: the root, and weights that several layers share
    return model


def _fully_shard() -> Any:
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        raise ConfigError(
            f"torch {torch.__version__} has no torch.distributed.fsdp.fully_shard: parameters cannot be spread over "
            "processes. Install torch 2.6 or later, built with distributed, or train with whole parameters on each."
        ) from None
    return fully_shard


def _mesh(team: Team, kind: str) -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    group: Any = dist.group.WORLD if team.group is None else team.group
    if kind == "meta":  # where it will be
        kind = "cuda" if "nccl" in str(dist.get_backend_config(group)) else "cpu"
    return DeviceMesh.from_group(group, kind)


def _shared(model: nn.Module) -> list[nn.Parameter]:
    """Parameters that stand in several places."""
    places: dict[int, list[nn.Parameter]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                places.setdefault(id(parameter), []).append(parameter)
    return [several[0] for several in places.values() if len(several) > 1]


def is_sharded(parameter: Any) -> bool:
    """Is a tensor spread over processes?"""
    return hasattr(parameter, "device_mesh") and hasattr(parameter, "_local_tensor")


def check_layers(model: nn.Module) -> None:
    """Refuse layers whose weights cannot be lent call by call."""
    for name, module in model.named_modules():
        if any(True for _ in module.parameters(recurse=False)) and not isinstance(module, LAYERS):
            what = f"layer {name!r}" if name else "the model itself"
            kinds = ", ".join(f"nn.{kind.__name__}" for kind in LAYERS)
            raise UnsupportedLayer(
                f"{what} is a {_kind(module)} with parameters of its own, which cannot be spread over processes: {kinds} can "
                "(positions: nn.Embedding; attention: of nn.Linear and "
                "F.scaled_dot_product_attention). Or train with whole parameters on every process: without fully_shard, "
                "without --sharded."
            )


def _kind(module: nn.Module) -> str:
    return _plain_class(module).__name__


def _plain_class(module: nn.Module) -> type:
    """The class that a module had before `fully_shard`."""
    kind = type(module)
    bases = [base for base in kind.__bases__ if base.__name__ != "FSDPModule"]
    return bases[0] if len(bases) < len(kind.__bases__) else kind


class Sharded:
    """The parameters of a model that are spread over the ranks of a team, and how to compute with them."""

    def __init__(self, model: nn.Module, team: Team):
        self.model, self.team = model, team
        self.parameters = {name: p for name, p in model.named_parameters() if is_sharded(p)}
        self._check()
        self._stand_ins = {name: stand_in_for(p, p.device) for name, p in self.parameters.items()}
        self._fetching = Fetching(lambda name: _rows_of(self.parameters[name]), team)

    @classmethod
    def of(cls, model: nn.Module, team: Team) -> Sharded | None:
        """None for a model that every process holds as a whole."""
        settle(model)
        return cls(model, team) if any(map(is_sharded, model.parameters())) else None

    def _check(self) -> None:
        from torch.distributed.tensor import Shard

        check_layers(self.model)
        ranks = [self.team._global(rank) for rank in range(self.team.size)]
        for name, parameter in self.parameters.items():
            mesh: Any = parameter.device_mesh  # type: ignore[attr-defined]
            placements = tuple(parameter.placements)  # type: ignore[attr-defined]
            if mesh.mesh.flatten().tolist() != ranks or placements != (Shard(0),):
                raise UnsupportedLayer(
                    f"the model's {name!r} is spread over processes as {placements} on {mesh}, and the team is of "
                    f"{self.team.size} ranks: parameters must be divided by rows among exactly these, as fully_shard(model) "
                    "does with one mesh of all of them. Use noisewise.distributed.shard(model, team), and train with that team."
                )
            if not parameter.is_floating_point():
                raise UnsupportedLayer(
                    f"the model's {name!r} is of {parameter.dtype}: only real numbers can be spread."
                )
        for name, module in self.model.named_modules():
            state = _state_of(module)
            for policy, remedy in (("_mp_policy", "torch.autocast in the loss"), ("offload_policy", "more processes")):
                if _is_in_force(state, policy):
                    raise ConfigError(
                        f"fully_shard of {name or 'the model'} has a {policy.lstrip('_')}, which private steps would not "
                        f"follow: leave it out, and use {remedy} instead."
                    )

    # ------------------------------------------------------------------------------------------------- computing

    @contextmanager
    def lent(self) -> Iterator[None]:
        """The model as it was before `fully_shard`, with stand-ins, to which whole weights are lent; then as it is now."""
        names = {id(parameter): name for name, parameter in self.parameters.items()}
        with ExitStack() as back:
            for module in self.model.modules():
                back.enter_context(_as_before(module, names, self._stand_ins))
            with Lending(self._stand_ins, self):
                whole = False
                try:
                    yield
                    whole = True
                finally:
                    self._fetching.end(whole=whole)

    def whole(self, name: str) -> Tensor:
        """A parameter as one tensor, from all ranks."""
        return self._fetching.whole(name)

    def dividing(self) -> Dividing:
        """Takes sums over this rank's units, adds those of all others, and gives the rows that are here."""
        return Dividing(self.team)

    def nothing(self, name: str, dtype: torch.dtype) -> Tensor:
        """Zeros in the shape of the rows that are here."""
        return torch.zeros_like(self._local(name), dtype=dtype)

    def piece(self, name: str) -> Piece:
        """Where these rows begin in the whole, in numbers."""
        parameter = self.parameters[name]
        first = min(self.team.rank * -(-len(parameter) // self.team.size), len(parameter))
        return Piece(first * (parameter.numel() // len(parameter)), parameter.numel())

    def _local(self, name: str) -> Tensor:
        return _rows_of(self.parameters[name]).here


def settle(model: nn.Module) -> None:
    """Give whole parameters back that `fully_shard` keeps after a pass that somebody else made."""
    for module in model.modules():
        if _state_of(module) is not None:
            module.reshard()  # type: ignore[operator]


def _state_of(module: nn.Module) -> Any:
    """What `fully_shard` keeps for a module; None for one that it was not called on."""
    get = getattr(module, "_get_fsdp_state", None)
    return None if get is None else get()


def _is_in_force(state: Any, name: str) -> bool:
    """Does a policy of `fully_shard` ask for anything? It is found on the state or on its group of parameters."""
    several = getattr(state, "_fsdp_param_groups", None)  # later versions of torch
    groups = [getattr(state, "_fsdp_param_group", None)] if several is None else several
    policies = [getattr(owner, key, None) for owner in (state, *groups) for key in {name, name.lstrip("_")}]
    asked = [policy for policy in policies if policy is not None]
    casts = [getattr(policy, "param_dtype", None) or getattr(policy, "output_dtype", None) for policy in asked]
    return any(cast is not None for cast in casts) or any(type(p).__name__ == "CPUOffloadPolicy" for p in asked)


@contextmanager
def _as_before(module: nn.Module, names: Mapping[int, str], stand_ins: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """A module without what `fully_shard` has put on it, and with stand-ins for its parameters; put back afterwards."""
    state, kind, parameters = _state_of(module), type(module), dict(module._parameters)
    hidden = {key: vars(module)[key] for key in list(vars(module)) if key.startswith(STATE) or key in MARKS}
    hooks = {key: dict(held) for key, held in vars(module).items() if "_hooks" in key and isinstance(held, dict)}
    try:
        for key, parameter in parameters.items():
            if id(parameter) in names:
                module._parameters[key] = stand_ins[names[id(parameter)]]
        for key in hidden:
            del vars(module)[key]
        for key in LOADING:  # for other times than a pass, and they hold what lies elsewhere
            vars(module)[key].clear()
        if state is not None:
            module.__class__ = _plain_class(module)
            _drop_hooks(module, state)
        yield
    finally:
        module.__class__ = kind
        vars(module).update(hidden)
        for key, before in hooks.items():
            vars(module)[key].clear()
            vars(module)[key].update(before)
        module._parameters.update(parameters)


def _drop_hooks(module: nn.Module, state: Any) -> None:
    """Take away the hooks by which `fully_shard` gathers and adds up."""
    for key in ("_forward_pre_hooks", "_forward_hooks"):
        for number, hook in list(vars(module)[key].items()):
            owners = [getattr(one, "__self__", None) for one in (hook, getattr(hook, "__wrapped__", None))]
            if any(owner is state for owner in owners):
                for other in (key, f"{key}_with_kwargs", f"{key}_always_called"):
                    vars(module).get(other, {}).pop(number, None)


def lent(sharded: Sharded | None) -> AbstractContextManager[None]:
    """The model of a run as something to compute with: as it is, or with whole weights lent to it."""
    return nullcontext() if sharded is None else sharded.lent()


def whole_of(tensor: Tensor, team: Team) -> Tensor:
    """A tensor as a whole, on every rank; one that is not spread, as it is."""
    if not is_sharded(tensor):
        return tensor.detach()
    return gathered(_rows_of(tensor), team)


def _rows_of(tensor: Tensor) -> Rows:
    """The rows of a spread tensor that are here."""
    return Rows(tensor.detach()._local_tensor, tensor.shape)  # type: ignore[attr-defined]


def like(parameter: Any, tensor: Tensor) -> Any:
    """A rank's rows, spread as a parameter is; for a parameter that is not, the tensor itself."""
    if not is_sharded(parameter):
        return tensor
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        tensor, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip


def divided(parameter: Any, whole: Tensor, team: Team) -> Any:
    """A whole tensor, spread as a parameter is: a rank keeps a copy of its rows; for one that is not, the tensor itself."""
    if not is_sharded(parameter):
        return whole
    rows = -(-len(whole) // team.size)
    part = whole[team.rank * rows : (team.rank + 1) * rows]
    return like(parameter, part.to(parameter.device, copy=True))
