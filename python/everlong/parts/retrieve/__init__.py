"""The retrieve."""
