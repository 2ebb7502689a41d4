"""`python -m gradwire` is the `gradwire` command."""

import sys

from gradwire.cli import main

sys.exit(main())
