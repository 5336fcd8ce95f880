"""A model with a memory: reading, answering, generating, and how well it predicts."""
