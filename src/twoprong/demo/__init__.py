"""The demo: the whole method in a minute or two, without a download."""
