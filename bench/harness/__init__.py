"""What all benchmarks share: isolated and interleaved runs, JSON, tables, figures, processes."""
