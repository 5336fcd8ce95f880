"""What was trained for models with `everlong train`: a folder each. The README of the package says from which texts."""
