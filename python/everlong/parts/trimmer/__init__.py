"""The trimmer."""
