"""The staging directory: what lies in it, how a file gets there, and how much may."""
