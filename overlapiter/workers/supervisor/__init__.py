"""The supervisor: hands out work to prefetchers and file readers, and replaces those that die."""
