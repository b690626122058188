"""The prefetcher, stage 2 of the pipeline: has the files of an index list staged."""
