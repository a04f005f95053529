"""The client. The package _sync is generated from this one: scripts/unasync.py."""
