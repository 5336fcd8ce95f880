"""Measuring a memory: needle in a haystack, perplexity, and pictures of both. Seeded, offline."""
