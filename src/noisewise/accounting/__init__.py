"""What was spent, and what a budget buys: dp-accounting's events and accountants, a ledger and calibration."""

from noisewise.accounting.accountants import ADJACENCIES, Spent, gdp_epsilon, pld_epsilon, rdp_epsilon, spent
from noisewise.accounting.calibrate import smallest_noise
from noisewise.accounting.ledger import Identity, Ledger, Line

__all__ = [
    "ADJACENCIES",
    "Identity",
    "Ledger",
    "Line",
    "Spent",
    "gdp_epsilon",
    "pld_epsilon",
    "rdp_epsilon",
    "smallest_noise",
    "spent",
]
