"""Numbers with intervals."""
