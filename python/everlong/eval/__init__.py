"""Measuring a memory: needle in a haystack, suites of tasks, perplexity. Seeded, offline."""
