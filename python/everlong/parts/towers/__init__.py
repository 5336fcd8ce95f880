"""The towers."""
