"""`python -m stepwell` is the command `stepwell`."""

from stepwell.cli import main

if __name__ == "__main__":
    main()
