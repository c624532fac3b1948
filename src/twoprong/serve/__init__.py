"""The service: single images are queued until they make a batch that can be tested. Read `batcher.py` first."""
