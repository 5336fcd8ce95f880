"""The kv_writer."""
