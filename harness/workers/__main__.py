"""The worker's `__main__`: upstream spawns managers that import it again, so it does nothing but start the server."""

import sys

if __name__ == "__main__":
    from harness.workers.server import main

    sys.exit(main(sys.argv[1]))
