"""The frame, which is all that a model attends to: its kinds, its cache, and what moves into it and out of it."""
