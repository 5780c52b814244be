"""Run folders: what is written where, safely, and read back."""
