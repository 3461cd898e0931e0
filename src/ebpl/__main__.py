"""`python -m ebpl` is the command `ebpl`."""

import sys

from ebpl.cli import main

sys.exit(main())
