"""`python -m twoprong` is the command."""

from twoprong.cli import main

if __name__ == "__main__":
    main()
