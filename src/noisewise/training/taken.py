"""What the loss was seen to take, in the steps so far."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Taken:
    """Values that the loss was seen to take, by tensor: the smallest and largest numbers, and what is no number."""

    values: dict[str, set[str | float]] = field(default_factory=dict)

    def covers(self, name: str, value: float) -> bool:
        """Is a value no news?"""
        known = self.values.get(name, set())
        numbers = [seen for seen in known if not isinstance(seen, str)]
        return str(value) in known if value - value != 0 else bool(numbers) and min(numbers) <= value <= max(numbers)

    def add(self, name: str, value: float) -> None:
        """The loss takes it."""
        self.values.setdefault(name, set()).add(str(value) if value - value != 0 else value)
