"""The peer cache: files that another node of the job has staged come from there."""
