"""Searching settings: groups of ranks train trials, and Optuna proposes the next ones."""
