"""The router of an index of lists."""
