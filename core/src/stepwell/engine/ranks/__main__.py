"""`python -m stepwell.engine.ranks` is one rank of a runner on this machine; only an engine starts it."""

import sys

from stepwell.engine.ranks.worker import main

if __name__ == "__main__":
    sys.exit(main())
