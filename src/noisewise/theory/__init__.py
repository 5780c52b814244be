"""The papers' formulas, one file per paper: pure functions of numbers that know no model, no result and no report."""
