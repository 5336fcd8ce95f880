"""Training and measuring of tombstones."""
