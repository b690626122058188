"""One run of one loader over files of a slow store: what is asked, what is measured."""
