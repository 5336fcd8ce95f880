"""The writer."""
