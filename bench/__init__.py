"""Benchmarks: one script per published claim.

Run them from the root of the checkout, for example ``python -m bench.thousand --help``. Each
writes JSON below ``bench/results/``; figures are drawn from that by ``python -m bench.figures``.
"""
