"""`python -m stepwell.engine.apart` is the process that a storage has to itself; only an engine starts it."""

import sys

from stepwell.engine.apart.child import main

if __name__ == "__main__":
    sys.exit(main())
