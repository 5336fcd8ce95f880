"""A soak of the service: many callers over HTTP, kill -9 between their requests, and an oracle that knows what must be.

`python -m support.soak --minutes 30 --seed 1`, run in `tests`. Loopback only; all that it writes is in one folder.
"""
