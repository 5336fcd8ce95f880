"""Learned parts with drawn weights, for tests that need a part at work and no training."""
