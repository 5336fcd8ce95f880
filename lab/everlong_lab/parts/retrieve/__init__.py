"""Training and measuring of the retrieve gate."""
