"""Papers on the side effects of DP-SGD, checked: each claim beside our number, its interval and a verdict.

One room per paper, on the library's public names; `noisewise reproduce` is the command. An experiment says what it trains
in three tiers, what the paper claims, and how numbers decide it; `running.reproduce` does the rest.
"""
