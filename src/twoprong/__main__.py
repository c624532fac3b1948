"""The entry point of the command, and of `python -m twoprong`."""

from twoprong.interrupts import loading


def main() -> None:
    with loading():
        from twoprong.cli import main as run

        run()  # which begins when the command's own modules are loaded, too


if __name__ == "__main__":
    main()
