"""The tombstones."""
