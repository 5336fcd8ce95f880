"""The stages of gpu/check: each is a module with `run(check)`, in a process of its own."""
