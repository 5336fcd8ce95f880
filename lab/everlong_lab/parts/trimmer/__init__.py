"""Training and measuring of the Trimmer."""
