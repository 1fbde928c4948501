"""`python -m harness` is the `parity` command, where the project is not installed."""

from harness.cli import main

if __name__ == "__main__":
    main()
