"""The file reader, stage 3 of the pipeline: reads examples and writes them into slots."""
