"""What each command takes, with its help: one frozen class per command. Nothing here loads torch."""
