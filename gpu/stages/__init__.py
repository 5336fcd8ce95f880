"""The stages of gpu/check: each a module with `run(check)`, in a process of its own."""
