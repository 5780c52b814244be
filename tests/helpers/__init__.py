"""What several test files share: oracles, small problems, models that lie, damage to files."""
