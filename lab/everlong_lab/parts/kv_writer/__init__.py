"""Training and measuring of the KV writer."""
