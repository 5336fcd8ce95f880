"""The walker."""
