"""Training and measuring of the encoder's maps."""
