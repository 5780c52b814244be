"""Run folders: what is written where, safely, and read back."""

from noisewise.runs.files import read_json, write_atomically, write_json
from noisewise.runs.folder import FORMAT, RunFolder, Status, hardware, versions
from noisewise.runs.summary import READINGS, SHARED, STATUSES, read_ledger, read_status, read_summary
from noisewise.runs.tensors import load_tensors, read_weights, save_tensors, save_weights

__all__ = [
    "FORMAT", "READINGS", "RunFolder", "SHARED", "STATUSES", "Status", "hardware", "load_tensors", "read_json", "read_ledger",
    "read_status", "read_summary", "read_weights", "save_tensors", "save_weights", "versions", "write_atomically",
    "write_json",
]  # fmt: skip
