"""Training and measuring of the Walker."""
