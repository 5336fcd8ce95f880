"""Training and measuring of the adapter."""
