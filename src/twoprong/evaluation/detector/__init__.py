"""The detector by itself: false alarms, power, and clean batches that are not quite as usual."""
