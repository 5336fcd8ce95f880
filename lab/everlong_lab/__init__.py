"""The laboratory of everlong: what trains its learned parts, and what measures a memory.

It imports everlong, and everlong never imports it. Installed, it adds `everlong train`, `everlong eval` and `everlong
demo` to the command line, pictures of its reports to `everlong plot`, and its packs to those that memories look in.
"""

from everlong import _native

__version__ = _native.VERSION
