"""A file, or a folder, for each published claim; ``bench.plan`` lists them."""
