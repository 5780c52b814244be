"""Write docs/operations.md from the table of operations that act row by row.

python benchmarks/operations.py [--out docs/operations.md]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from noisewise.persample.operations import TABLE

HEAD = """# Operations that act row by row

The fast engine takes a whole batch at once. It is used only where it is proven that the loss of unit i depends on unit i alone.
The proof follows the units through every operation of PyTorch's dispatcher between batch and losses, on every batch anew:

- An operation on units must be in this table, and its condition must hold. What is not here is unknown, never assumed.
- Views are decided by memory alone: each byte belongs to a unit. Writes into a unit's own rows are followed, others refused.
- Two made-up batches of prime sizes must take the same steps: the same operations on the same views with the same numbers, and
  no value that follows the number of units. Every later batch must take these steps too.
- What is laid over the units without being theirs must be the same for each: a weight, a constant, a draw of chance by entry.
- A value of the batch that is read into Python, hooks, custom autograd functions and operators, tensor subclasses, memory that
  nobody wrote or that was exchanged: not proven. Compiled and scripted parts are proven as far as the dispatcher sees them.

What is not proven is evaluated unit by unit, slower and just as private. That one unit alone has the loss that it has in a
batch is compared at the examination, by behaviour. Out of scope: code that means to deceive, such as other threads that write
into a tensor, memory changed through NumPy or an address behind PyTorch's back, or a checkpoint that computes something else
the second time.

| operations (`aten::`) | condition |
|---|---|
"""


def page() -> str:
    """The page, one line for each row of the table."""
    lines = [f"| {', '.join(f'`{name}`' for name in sorted(row.names))} | {row.condition} |" for row in TABLE]
    return HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "docs" / "operations.md")
    parser.parse_args().out.write_text(page())


if __name__ == "__main__":
    main()
