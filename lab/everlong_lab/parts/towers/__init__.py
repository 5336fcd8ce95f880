"""Training and measuring of the towers."""
