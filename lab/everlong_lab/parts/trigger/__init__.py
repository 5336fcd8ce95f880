"""Training and measuring of the trigger."""
