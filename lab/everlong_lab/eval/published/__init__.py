"""Published benchmarks, from the files that their authors give out, where a user has them."""
