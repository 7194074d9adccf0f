"""Program that starts Node.js in a sandbox (``run_contained``): SCRIPT ARGUMENT…"""

import os
import sys

options = ["--expose-internals", "--max-old-space-size=1024"]
os.execvp("node", ["node", *options, *sys.argv[1:]])  # noqa: S606
