"""Every error and warning noisewise raises on purpose; each message names the value, the reason and the remedy."""

from __future__ import annotations

import traceback


class NoisewiseError(Exception):
    """Base of all errors a user can cause or must know about."""

    exit_code = 2


class ConfigError(NoisewiseError, ValueError):
    """A setting is impossible or contradicts another one."""


class OwnCode(ConfigError):
    """A rule or plan of somebody's own: its name is written down, and only its code can make it again."""


class DataError(NoisewiseError, ValueError):
    """The data, or what the loss returned for it, has the wrong form."""


class RunError(NoisewiseError):
    """A run folder, checkpoint or ledger cannot be used."""


class RankLost(RunError):
    """Another process of the same run has stopped, or does not answer."""


class PrivacyError(NoisewiseError):
    """Going on would break the guarantee."""

    exit_code = 3


class UnsupportedLayer(PrivacyError):
    """No exact per-sample gradient is known for a parameter."""


class CoupledSamples(PrivacyError):
    """The loss of one unit depends on another unit of the batch."""


class BudgetSpent(PrivacyError):
    """The plan's releases are used up; another one would exceed the stated epsilon."""


class Interrupted(NoisewiseError):
    """The user stopped a run; it can be resumed."""

    exit_code = 130


class NoisewiseWarning(UserWarning):
    """Base of all warnings: the run goes on, but its user should know."""


class PrivacyWarning(NoisewiseWarning):
    """The guarantee holds, but promises less than it seems to."""


class OddRows(NoisewiseWarning):
    """Values of a table that are missing, unreadable or outside of what its schema declares: counted, and read as it says."""


class MemoryWarning(NoisewiseWarning):
    """A batch did not fit in memory and is computed in smaller parts."""


ALLOCATORS = ("allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")  # in what PyTorch says for them


def memory_ran_out(error: BaseException | None) -> bool:
    """Did an allocator fail, here or in what caused this error? PyTorch's own kind is known by its name: nothing imports it."""
    if error is None:
        return False
    allocator = isinstance(error, RuntimeError) and any(words in str(error) for words in ALLOCATORS)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return allocator or not kinds.isdisjoint({"MemoryError", "OutOfMemoryError"}) or memory_ran_out(error.__cause__)


def full_memory(error: BaseException) -> str:
    """What to say of it: where it ran out, not what the allocator said, and what can be done."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return (
        f"memory is full ({type(error).__name__}{place}): what was written so far stays. Do fewer runs at a time (--jobs), "
        "take smaller parts of a batch (--microbatch; --batch of pretrain), end what else fills the memory, or use a device "
        "with more of it."
    )
