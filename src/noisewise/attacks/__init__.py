"""What an attacker can do with a model."""
