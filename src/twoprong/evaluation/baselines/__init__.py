"""What the defence is compared with: its own parts, and other defences."""
