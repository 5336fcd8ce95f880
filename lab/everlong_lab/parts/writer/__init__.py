"""Training and measuring of the writer."""
